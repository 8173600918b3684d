//! `libbfc_preload.so`: serves cudaMalloc of an unmodified program from libbfc's pool, by LD_PRELOAD.
//!
//! The interposer is between the program, usually its CUDA runtime, and the driver. It exports the names in the crate
//! `hook_list`, and lookups of the driver's functions by `dlsym` or `cuGetProcAddress` return its own functions. Each
//! hook calls libbfc through its C ABI, or the driver, or both. docs/interposition.md lists the differences that a
//! program can notice.
//!
//! ```text
//! resolve/                            lookups: dlsym; cuGetProcAddress, with the addresses of the hooks
//! hooks/       lifecycle              the hooks, by kind of function; the beginning and end of the process
//! pool/                               a device's pool: requests, frees, when to wait for the device
//! state/                              contexts, captures, streams, and whose work may touch which memory
//! driver/                             the driver's own functions, as the interposer calls them
//! diagnostics/                        output for the user: check log, trace, report
//! settings                            the environment
//! sys/                                the operating system: locks, files, messages, the process
//! bfc          unanalyzed_list        libbfc's C ABI; functions hooked because they relate all contexts
//! ```
//!
//! Files import only from groups below their own, and no files import each other in a circle. Three choices follow from
//! this:
//! - The addresses of the hooks are in `resolve/` at the top, because the table imports every hook. `driver/` has the
//!   driver's functions for the hooks and is below all its callers.
//! - `diagnostics/` is below the driver, whose functions report their first call. It does not depend on pools or
//!   contexts: callers pass in what it needs (`report::Reported`). Requests that fail are reported by `hooks/refusals`.
//! - `state/relations` records only what the program has done. `pool/sharing` decides which contexts' work may use a
//!   pool's memory, because that depends on the pool too.
//!
//! Rules: a hook never panics, holds no lock while it calls the driver or libbfc, and changes no data of the caller on
//! failure. It does not call CUDA before the program does.

#![allow(non_snake_case, non_camel_case_types)] // the driver's names
// A panic in the program's cudaMalloc would abort the program.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod bfc;
mod diagnostics;
mod driver;
mod hooks;
mod lifecycle;
mod pool;
mod resolve;
mod settings;
mod state;
mod sys;
mod unanalyzed_list;
