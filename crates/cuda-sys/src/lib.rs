//! The C interface of NVIDIA's driver, `libcuda.so.1`: its types and constants, one list of its functions, and
//! a loader that finds them at run time. Nothing is linked: a program that holds this crate starts without a
//! driver.
//!
//! - [`driver_functions!`] passes every function of the list to your macro.
//! - [`Driver::load`] opens the driver; call a function with
//!   `unsafe { (driver.cuMemAlloc_v2()?)(&mut address, bytes) }`.
//! - [`FUNCTIONS`], [`TYPES`], [`STRUCTS`] and [`CONSTANTS`] are the same as data. `cargo xtask test --suite
//!   cuda-headers` compares all of it with NVIDIA's own headers.
//!
//! Names are NVIDIA's, and so is their documentation: the CUDA Driver API manual. An enumeration of the headers is an
//! integer here, so that a value added by a newer driver is not undefined behaviour.

#![allow(non_camel_case_types, non_snake_case)]

mod constants;
mod driver;
mod error;
mod functions;
mod linker;
mod types;

pub use constants::*;
pub use driver::{Driver, FUNCTIONS, Function, fns};
pub use error::{Error, Missing};
pub use functions::NEWEST_HEADERS;
pub use linker::DLSYM_VERSIONS;
pub use types::*;

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
