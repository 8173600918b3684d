//! The engine: best fit with coalescing over numbers.
//!
//! Addresses are numbers that are never dereferenced; ties are broken by them. There is no clock, no
//! environment, no log, no callback and no unsafe code here: [`arena::Arena`] decides, and the pool above
//! it talks to the backend. The algorithm is `tsl::BFCAllocator` of TensorFlow (xla/tsl/framework/
//! bfc_allocator.cc); ARCHITECTURE.md lists where this one deviates, on purpose.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)
)]

pub(crate) mod arena;
pub(crate) mod heap;
pub(crate) mod ids;
pub(crate) mod invariants;
pub(crate) mod op_names;
pub(crate) mod request;
mod seed;
pub(crate) mod sort;
pub(crate) mod stamps;
pub(crate) mod stats;
mod steps;
pub(crate) mod stream_id;
pub(crate) mod streams;
pub(crate) mod tables;
#[cfg(test)]
pub(crate) mod tests;
mod tree;
pub(crate) mod units;
pub(crate) mod vmm;
