//! The backends of devices, on the simulated driver: a simulation, and no device. Each test runs in a process of its own.

#[path = "../common/mod.rs"]
mod common;

mod capture;
mod capture_announced;
mod capture_known;
mod device;
mod exit;
mod failures;
mod graph_branches;
mod host_functions;
mod in_capture;
mod order;
mod threads;
mod vmm;
mod vmm_failures;
mod vmm_peers;
