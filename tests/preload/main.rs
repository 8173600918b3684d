//! The interposer's answers, captures and contexts, in processes with it.

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod captures;
mod contexts;
