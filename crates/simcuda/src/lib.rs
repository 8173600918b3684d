//! A simulation of NVIDIA's driver, `libcuda.so.1`, for the tests of libbfc. There is no device, no kernel code and no
//! speed, only the driver's rules about memory, streams, events, capture, contexts and virtual memory. A test decides
//! when device work happens. README.md beside this crate lists what is simulated and the source of each rule.
//! `simcuda.h` is the interface through which a test controls it.
//!
//! ```text
//! control         the symbols of simcuda.h
//! exports         the driver's symbols, made of cuda-sys's list, and cuGetProcAddress
//! api/            the driver's functions, one file a subject
//! gate            the entry of every call: log, faults, versions
//! rules/          the driver's rules: `impl Sim`, one file a subject
//! sim             the whole state, behind one lock
//! lookup          the search for a function by name and version
//! state/          the parts of the state as plain data
//! calling_thread  the kind of call that a thread is in
//! options         what a test can set
//! abi  handles  system    pointers of the caller; handles as numbers; the operating system
//! ```
//!
//! A file uses only files below it in this list, and no two files use each other (`cargo xtask test --suite layers`).
#![allow(non_snake_case)] // The driver's names.

mod abi;
mod api;
mod calling_thread;
mod control;
mod exports;
mod gate;
mod handles;
mod lookup;
mod options;
mod rules;
mod sim;
mod state;
mod system;
