//! The C functions for frameworks.

#[path = "../common/mod.rs"]
mod common;

mod backend;
mod functions;
mod in_capture;
mod pools;
