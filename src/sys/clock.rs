//! Monotonic time, for waiting and for rate limits.

use std::time::{Duration, Instant};

/// A moment after which waiting is pointless.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// `timeout` from now; a timeout too long for the clock means 'never'.
    pub(crate) fn after(timeout: Duration) -> Self {
        Deadline(Instant::now().checked_add(timeout))
    }

    /// What is left, or `None` once it has passed.
    pub(crate) fn remaining(self) -> Option<Duration> {
        match self.0 {
            None => Some(Duration::MAX),
            Some(end) => end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()),
        }
    }
}

/// Milliseconds of the monotonic clock, for rate limits that live in an atomic.
pub(crate) fn monotonic_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to; the monotonic clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64) * 1000 + (now.tv_nsec as u64) / 1_000_000
}
