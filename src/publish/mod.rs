//! The statistics of this process in a file that `bfc top` reads (`BFC_PUBLISH`).
//!
//! ```text
//!   layout     the file: header, a record for each pool      location   the folder
//!   publication   the one file of this process
//! ```
//!
//! Nothing here knows a pool: `device` copies the statistics from time to time, in a thread of its own, and hands them
//! over.

#[allow(dead_code)] // The reader's part of it: the command bfc has the same file.
pub(crate) mod layout;
mod location;
mod publication;

pub(crate) use self::publication::{Round, after_fork_in_child, begin, remove_stale_files};
