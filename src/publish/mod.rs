//! The statistics of this process in a file that `bfc top` reads (`BFC_PUBLISH`).
//!
//! ```text
//!   location   the folder      publication   the one file of this process
//! ```
//!
//! `bfc_formats::published` has the layout of the file. Nothing here knows a pool: `device` copies the statistics from
//! time to time, in a thread of its own, and hands them over.

mod location;
mod publication;

pub(crate) use self::publication::{Round, after_fork_in_child, begin, remove_stale_files};
