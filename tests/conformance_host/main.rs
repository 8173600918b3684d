//! The conformance suite over the backends of host memory, and over a sub-allocator.

#[path = "../common/mod.rs"]
mod common;
#[macro_use]
#[path = "../conformance/mod.rs"]
mod conformance;

mod custom;
mod host;
mod host_vmm;
