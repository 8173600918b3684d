pub(crate) mod check_log;
mod counters;
mod record;
pub(crate) mod report;
pub(crate) mod trace;
