//! The history: the last events of all allocators, in a ring that survives the process.
//!
//! ```text
//!   memory     where it is: a mapped file, or memory  earlier     what of an earlier process is in the way
//!   entry      what an event says                     recorder    what a pool writes events with
//!   ring       where events are written               recording   the one recording of the process
//!   stacks     capturing a backtrace                  interner    the backtraces that the file has
//!   unwind     the native frames                      python      the frames of Python
//!   modules    the files that addresses are in
//! ```
//!
//! `bfc_formats::history` has the layout of the file. A pool writes an event with its lock held, so the events of a pool
//! are in order. Nothing here depends on pools: `device` notifies all of them when a recording starts and stops.

mod earlier;
mod entry;
mod interner;
mod memory;
mod modules;
mod python;
mod recorder;
mod recording;
mod ring;
mod stacks;
mod unwind;

pub(crate) use bfc_formats::history::layout::{Kind, options};

pub(crate) use self::earlier::{SUFFIX as EARLIER_SUFFIX, rename_earlier};
pub(crate) use self::entry::Entry;
pub(crate) use self::recorder::Recorder;
pub(crate) use self::recording::{
    Captured, NATIVE, PYTHON, after_fork_in_child, begin, close, end, mark, name_operation, note_options,
    recorder_for, save,
};
pub(crate) use self::stacks::capture;
