//! The history of allocations.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/history.rs"]
#[allow(dead_code)] // each test binary uses a part
mod history;

mod events;
mod meanwhile;
mod stacks;
