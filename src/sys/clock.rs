//! Monotonic time, for waiting and for rate limits.

use std::time::{Duration, Instant};

/// The end of a wait.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// Returns the deadline `timeout` from now. A timeout too long for the clock means never.
    pub(crate) fn after(timeout: Duration) -> Self {
        Deadline(Instant::now().checked_add(timeout))
    }

    /// Returns the remaining time, or `None` once the deadline has passed.
    pub(crate) fn remaining(self) -> Option<Duration> {
        match self.0 {
            None => Some(Duration::MAX),
            Some(end) => end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()),
        }
    }
}

/// Returns the milliseconds of the monotonic clock, for rate limits stored in an atomic.
pub(crate) fn monotonic_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to, and the monotonic clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64) * 1000 + (now.tv_nsec as u64) / 1_000_000
}

/// Returns the nanoseconds since 1970.
pub(crate) fn unix_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns a counter that rises at a constant rate and is cheap to read: the processor's time stamp counter, and
/// elsewhere the nanoseconds of the coarse monotonic clock.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    return coarse_ns();
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
fn coarse_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}
