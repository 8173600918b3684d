//! The formats of the files that libbfc writes, for those who write them and those who read them: one definition of
//! each.
//!
//! ```
//! use bfc_formats::published::layout::process_of;
//!
//! // The file of a process, by its number and the inode of its namespace.
//! assert_eq!(process_of(b"4711.4026531836"), Some(4711));
//! ```
//!
//! The layouts use `core` only. The format of a plan is in `libbfc-core`, whose algorithm follows it.

#![cfg_attr(not(test), no_std)]

pub mod counters;
pub mod history;
pub mod openmetrics;
pub mod published;
