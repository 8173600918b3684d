#![doc = include_str!("../README.md")]
//!
//! # The modules
//!
//! [`arena::Arena`] decides where each request is placed; the other modules are its parts, in this order:
//! [`heap`] (chunks, bins, regions), [`vmm`] (granules), [`streams`] (order), [`stamps`] (ages), [`plan`] and
//! [`lifetimes`] (placements other than best fit). The algorithm is that of `tsl::BFCAllocator` of TensorFlow
//! (xla/tsl/framework/bfc_allocator.cc).

#![forbid(unsafe_code)]
// No clock, environment, files or threads: the compiler sees to it.
#![cfg_attr(not(any(test, feature = "testing")), no_std)]
#![cfg_attr(
    not(any(test, feature = "testing")),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)
)]

extern crate alloc;

pub use bfc_hostmem::HostMemoryExhausted;

pub mod arena;
pub mod heap;
pub mod ids;
mod invariants;
pub mod lifetimes;
mod list;
pub mod op_names;
mod ordered;
pub mod plan;
pub mod request;
pub mod seed;
pub mod sort;
pub mod stamps;
pub mod stats;
mod steps;
pub mod stream_id;
pub mod streams;
pub mod tables;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod tree;
pub mod units;
pub mod vmm;
