//! What a pool's limit follows.

use crate::sys::clock::monotonic_ms;

/// How long the total memory is taken to be what it was, in milliseconds.
const FRESH: u64 = 1000;

/// The share of the backend's total memory that a pool's limit is.
pub(super) struct LimitShare {
    /// `None` is a limit that does not change by itself.
    share: Option<f64>,
    /// When the limit was last compared with the total memory, in milliseconds of the monotonic clock.
    compared: u64,
}

impl LimitShare {
    /// Creates the state of a limit that was determined now.
    pub(super) fn new(share: Option<f64>) -> Self {
        LimitShare { share, compared: monotonic_ms() }
    }

    pub(super) fn get(&self) -> Option<f64> {
        self.share
    }

    /// Returns whether the limit is to be compared with the total memory again.
    pub(super) fn is_due(&self) -> bool {
        monotonic_ms().saturating_sub(self.compared) >= FRESH
    }

    pub(super) fn note_compared(&mut self) {
        self.compared = monotonic_ms();
    }
}
