//! The C ABI: each function is parse, one safe call, and into a C return.
//!
//! What holds for all of them is written at the head of the header (cbindgen.toml); here stands what each
//! does. No panic leaves: it poisons the allocator that it met and is `BFC_ERROR_INTERNAL`.

#![allow(non_camel_case_types)]

mod adapters;
mod create;
mod ffi_result;
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
pub use memory::*;
pub use order::*;
pub use pools::*;
pub use query::*;
pub use reports::*;
pub use types::*;
