//! The conformance suite through the interface for Rust: the same tests with the same fixtures, but the methods of [`Pool`]
//! call `bfc::Pool`, `bfc::Block` and `bfc::Stream` instead of the C ABI.
//!
//! Where a test calls a C function itself, it still does.
//!
//! [`Pool`]: pool::Pool

#[path = "../common/mod.rs"]
mod c_abi;
mod common;
#[macro_use]
#[path = "../conformance/mod.rs"]
mod conformance;

mod cuda;
mod cuda_vmm;
#[path = "../conformance_host/custom.rs"]
mod custom;
#[path = "../conformance_host/host.rs"]
mod host;
#[path = "../conformance_host/host_vmm.rs"]
mod host_vmm;
mod pool;
mod private;
