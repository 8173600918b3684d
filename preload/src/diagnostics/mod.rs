//! What the user can read about the interposer's work: the check log of `bfc run --check`, the trace, and the report with its
//! counters. It knows neither pools nor contexts: what reports to it passes in what it needs.

pub(crate) mod check_log;
mod counters;
mod record;
pub(crate) mod report;
pub(crate) mod trace;
