//! A program that ends the context of its device memory, on the simulated driver. Each test runs in a process of its own.

#[path = "../common/mod.rs"]
mod common;

mod context;
mod kinds;
mod meanwhile;
mod streams;
