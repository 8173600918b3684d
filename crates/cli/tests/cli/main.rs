//! The command, run as a user runs it, against a real libbfc.so.

mod advice;
mod common;
mod environment;
mod golden;
mod help;
mod history;
mod info;
mod plan;
mod plot;
mod progress;
mod replay;
mod report;
mod run;
mod usage;
