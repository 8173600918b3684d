//! The history: the last events of all allocators, in a ring that survives the process.
//!
//! ```text
//!   layout     the file: header, texts, events        memory      where it is: a mapped file, or memory
//!   recorder   writing an event                       recording   the one recording of the process
//! ```
//!
//! A pool writes an event with its lock held, so the events of a pool are in order. Nothing here knows a pool: `device`
//! tells all of them when a recording starts and stops.

#[allow(dead_code)] // The reader's part of it: the command bfc has the same file.
mod layout;
mod memory;
mod recorder;
mod recording;

pub(crate) use self::layout::Kind;
pub(crate) use self::recorder::{Entry, Recorder};
pub(crate) use self::recording::{
    after_fork_in_child, begin, close, end, mark, name_operation, recorder_for, save,
};
