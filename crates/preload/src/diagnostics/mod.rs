//! Diagnostics for the user: the check log of `bfc run --check`, the trace, and the report with its counters. They do
//! not depend on pools or contexts. Callers pass in what is needed.

pub(crate) mod check_log;
mod record;
pub(crate) mod report;
pub(crate) mod trace;
