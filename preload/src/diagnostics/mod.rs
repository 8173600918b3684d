pub(crate) mod check_log;
pub(crate) mod counters;
pub(crate) mod report;
pub(crate) mod trace;
