//! A simulation of NVIDIA's driver, `libcuda.so.1`, for the tests of libbfc: no device, no code of a kernel, no
//! speed, but the driver's rules about memory, streams, events, capture, contexts and virtual memory, in such a way
//! that a test decides when device work happens. README.md beside this crate says what is simulated and what each rule
//! is taken from; `simcuda.h` is how a test steers it.
//!
//! ```text
//! exports    the driver's symbols, made of cuda-sys's list      control   the symbols of simcuda.h
//! gate       what every call passes: log, faults, versions      lookup    cuGetProcAddress
//! api/       the functions, one file a subject
//! sim        the whole state, behind one lock                   options   what a test can set
//! contexts, memory, arena, physical, pools, streams, blocking, work, capture, graph_memory, modules
//!            parts of the state and their rules
//! access     whose work may touch which memory
//! ```
#![allow(non_snake_case)] // The driver's names.

mod abi;
mod access;
mod api;
mod arena;
mod blocking;
mod capture;
mod contexts;
mod control;
mod ending;
mod exports;
mod faults;
mod gate;
mod graph_memory;
mod handles;
mod lookup;
mod memory;
mod modules;
mod options;
mod physical;
mod pools;
mod record;
mod sim;
mod streams;
mod system;
mod work;
