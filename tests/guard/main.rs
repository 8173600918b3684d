//! The debug mode `BFC_DEBUG=guard`, where backends differ. Each test runs in a process of its own, because of the
//! variable.

#[path = "../common/mod.rs"]
mod common;

mod cuda;
mod host;
mod vmm;
