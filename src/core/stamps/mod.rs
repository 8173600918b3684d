//! Timestamped frees: TensorFlow's `SharedCounter` and safe frontier.
//!
//! A free gets the next count, its stamp. The chunk may be coalesced and, with quarantine, reused once the frontier has
//! passed its stamp: work that was queued before the free is done then.
//!
//! ```text
//!   queue          chunks that wait, by turn
//!   stamped_index  those of them that requests may find, with the least stamp below each
//!   merge          frees with a stamp; chunks that have become safe; forced merges
//! ```

mod merge;
mod queue;
mod stamped_index;

#[cfg(test)]
mod broken_tests;

pub(crate) use self::merge::{Forced, ForcedPass};
pub(crate) use self::queue::StampQueue;
