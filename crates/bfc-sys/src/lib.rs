//! libbfc's C ABI for Rust clients: the types, constants and functions of bfc.h and bfc_adapters.h.
//!
//! `cargo xtask header` generates it from the headers by bindgen, and a test compares the two, so a client cannot declare
//! something else than the library does. The names are the header's, which documents them.
//!
//! The functions are declared, and nothing is linked: a client that calls them links libbfc itself (crates/preload/build.rs), or
//! looks them up at run time with the types in [`pointers`] (crates/cli/src/ffi.rs).

#![no_std]

#[allow(missing_docs, non_camel_case_types)]
#[allow(clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block)]
#[rustfmt::skip]
mod bindings;
pub mod interposer;
#[allow(missing_docs, non_camel_case_types)]
#[rustfmt::skip]
pub mod pointers;

pub use bindings::*;
