//! A simulation of NVIDIA's driver, `libcuda.so.1`, for the tests of libbfc: no device, no code of a kernel, no
//! speed, but the driver's rules about memory, streams, events, capture, contexts and virtual memory, in such a way
//! that a test decides when device work happens. README.md beside this crate says what is simulated and what each rule
//! is taken from; `simcuda.h` is how a test steers it.
//!
//! ```text
//! exports    the driver's symbols, made of cuda-sys's list      control   the symbols of simcuda.h
//! gate       what every call passes: log, faults, versions      lookup    cuGetProcAddress
//! api/       the functions, one file a subject
//! rules/     what it does with its state, one file a subject
//! sim        the whole state, behind one lock                   options   what a test can set
//! state/     the parts of the state
//! ```
#![allow(non_snake_case)] // The driver's names.

mod abi;
mod api;
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
