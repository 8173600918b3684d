//! `libbfc_preload.so`: by LD_PRELOAD, cudaMalloc of a program that nobody touched comes from libbfc's pool.
//!
//! It stands between the program (its CUDA runtime, mostly) and the driver: it exports the names in [`hook_list`], and gives
//! them to whoever looks the driver's functions up, by `dlsym` or by `cuGetProcAddress`. Each hook asks libbfc, by its C
//! ABI, or passes the call on to the driver, or both. What a program can see is to stay true; docs/interposition.md says
//! what is different.
//!
//! ```text
//! settings  libbfc's C ABI (bfc)          the environment; the functions that it links
//! text      lock  file_name  mapped       messages; files that are whole whatever ends the process
//! process   counters                      what is in them
//! list      hooks                         what is hooked; the table, and the driver's own functions
//! resolve                                 dlsym and cuGetProcAddress
//! watch     trace  report  refused        what a person can see of it all
//! contexts  created  captures             whose memory it is, whose work; when nothing may be synchronised
//! relations conservative  unanalyzed      whose work may touch which device's memory
//! pool                                    a device's pool: serve, wait, synchronise, give up
//! streams                                 the streams that pools know, with their contexts
//! device    pinned  ordered  pointers     the hooks
//! life                                    beginning and end of the process and of contexts
//! ```
//!
//! Rules: a hook never panics, holds no lock while it calls the driver or libbfc, and changes nothing of the caller's on
//! failure. Nothing of CUDA is called before the program does.

#![allow(non_snake_case, non_camel_case_types)] // the driver's names
// A panic in somebody else's cudaMalloc would end the program.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod bfc;
mod diagnostics;
mod driver;
mod hook_list;
mod hooks;
mod lifecycle;
mod pool;
mod resolve;
mod settings;
mod state;
mod sys;
mod unanalyzed_list;
