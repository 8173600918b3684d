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

mod apart;
pub(crate) mod arena;
pub(crate) mod check;
mod check_lanes;
mod choosy;
pub(crate) mod chunks;
pub(crate) mod classes;
pub(crate) mod dependencies;
mod donors;
pub(crate) mod gone;
pub(crate) mod grow;
pub(crate) mod holes;
pub(crate) mod index;
mod lane_list;
pub(crate) mod lanes;
pub(crate) mod merge;
pub(crate) mod obtain;
mod oldest;
pub(crate) mod private;
mod probing;
pub(crate) mod regions;
pub(crate) mod release;
pub(crate) mod remap;
mod rows;
mod run_index;
mod runs;
pub(crate) mod scopes;
mod seed;
mod sharing;
pub(crate) mod snapshot;
pub(crate) mod sort;
mod stamped_index;
pub(crate) mod stamps;
mod starts;
pub(crate) mod stats;
mod steps;
mod stream_id;
mod streams;
mod take;
mod touch;
mod tree;
pub(crate) mod units;
mod uses;
pub(crate) mod waits;

#[cfg(test)]
mod bound_tests;
#[cfg(test)]
mod broken_tests;
#[cfg(test)]
mod cliff_tests;
#[cfg(test)]
mod lane_tests;
#[cfg(test)]
pub(crate) mod model_tests;
#[cfg(test)]
mod remap_tests;
#[cfg(test)]
mod stamp_bound_tests;
