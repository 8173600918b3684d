//! Timestamped frees: TensorFlow's `SharedCounter` and safe frontier.
//!
//! A free is numbered with the next count, its stamp. Once the frontier has passed the stamp, the work queued before
//! the free is done. From then on the chunk may be coalesced and, with quarantine, reused.
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

pub use self::merge::{Forced, ForcedPass};
pub use self::queue::StampQueue;
