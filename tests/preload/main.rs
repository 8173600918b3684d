//! The interposer's answers, captures and contexts, in processes with it.

#[path = "../common/mod.rs"]
mod common;
#[path = "../preload_races/hooked.rs"]
#[allow(dead_code)] // each test binary uses a part
mod hooked;

mod answers;
mod captures;
mod contexts;
