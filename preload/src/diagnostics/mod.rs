//! Diagnostics for the user: the check log of `bfc run --check`, the trace, and the report with its counters.

pub(crate) mod check_log;
mod counters;
mod record;
pub(crate) mod report;
pub(crate) mod trace;
