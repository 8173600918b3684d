//! Placement, growth and reuse on memory of the host and of sub-allocators, and wrong pointers.

#[path = "../common/mod.rs"]
mod common;

mod deviations;
mod golden;
mod growth;
mod host_release;
mod no_growth;
mod originals;
mod pointers;
mod refusals;
mod regions;
mod small_requests;
mod streams;
mod suballocators;
mod two_ends;
