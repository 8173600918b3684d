//! Memory that is resident, and that is given back. The tests run in processes of their own.

#[path = "../common/mod.rs"]
mod common;

mod pages;
mod populate;
mod resident;
mod trim_after;
