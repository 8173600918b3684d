//! The C ABI. Each function parses its arguments, makes one safe call, and converts the result.
//!
//! Rules that hold for all functions are at the head of the header (header/preamble.h). The functions here document only
//! their own behaviour. No panic leaves the library: it poisons the allocator that it occurred in and becomes
//! `BFC_ERROR_INTERNAL`.

#![allow(non_camel_case_types)]
// Only this project's tests name them in Rust.
#![cfg_attr(not(feature = "capi"), allow(dead_code, unused_imports))]

mod adapters;
mod create;
mod ffi_result;
mod history;
mod last_status;
mod memory;
mod order;
mod panic_hook;
mod pools;
mod query;
mod reports;
mod types;
mod versioned;

pub use adapters::*;
pub use create::*;
pub use history::*;
pub use memory::*;
pub use order::*;
pub use pools::*;
pub use query::*;
pub use reports::*;
pub use types::*;
