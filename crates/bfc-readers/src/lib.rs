//! Readers of the files whose layouts are in `bfc-formats`. Files are not trusted: they may be written at the same time,
//! truncated, damaged, or something else.

pub mod counters;
pub mod history;
pub mod process;
pub mod published;
pub mod trace;
