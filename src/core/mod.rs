//! The allocation algorithm: best fit with coalescing, on plain numbers.
//!
//! Addresses are numbers that are never dereferenced. They also break ties. There is no clock, environment, log,
//! callback or unsafe code here: [`arena::Arena`] decides, and the pool above it calls the backend. The algorithm is
//! `tsl::BFCAllocator` of TensorFlow (xla/tsl/framework/bfc_allocator.cc). docs/algorithm.md lists the
//! intended deviations.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)
)]

pub(crate) mod arena;
pub(crate) mod heap;
pub(crate) mod ids;
pub(crate) mod invariants;
pub(crate) mod lifetimes;
mod list;
pub(crate) mod op_names;
mod ordered;
pub(crate) mod plan;
pub(crate) mod request;
pub(crate) mod seed;
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
