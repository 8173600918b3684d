//! Forked children, signal handlers and raw system calls, mostly in processes of their own.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/history.rs"]
#[allow(dead_code)] // each test binary uses a part
mod history;

mod fork;
mod fork_in_handler;
mod host_only;
mod raw_clone;
mod signals;
