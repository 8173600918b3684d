//! Reports, metrics and messages.

#[path = "../common/mod.rs"]
mod common;

mod failures;
mod log_lines;
mod messages;
mod metrics;
mod publish;
mod report;
mod streams;
