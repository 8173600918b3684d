//! The lock of one allocator: spin for a moment, then let others run, then sleep.
//!
//! It is held for some tens of nanoseconds, so that taking and leaving it are a good part of an operation:
//! leaving is one plain store. A futex would need an exchange there, to learn of sleepers, and a system
//! call whenever there are any; under contention the calls are what one waits for. The price is that a
//! waiter looks again by itself. `cargo xtask bench --only locks` compares it with `spin`, with `std` and
//! with spin-then-park; ARCHITECTURE.md has the figures.
//!
//! It can also be opened in a forked child, whose parent's threads waited for it, which `std`'s cannot.

use super::futex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::time::Duration;

/// Looks at the lock before a waiter gives its processor away.
const SPINS: u32 = 64;
/// Times that it gives it away before it sleeps: the holder may be a thread of lower priority, which no
/// amount of yielding lets run, or be writing a long report.
const YIELDS: u32 = 64;
const SLEEP: Duration = Duration::from_micros(50);

/// A mutual exclusion lock without data and without poisoning.
pub(crate) struct Lock(AtomicBool);

impl Lock {
    pub(crate) const fn new() -> Self {
        Lock(AtomicBool::new(false))
    }

    #[inline]
    pub(crate) fn acquire(&self) {
        if self.0.swap(true, Acquire) {
            self.acquire_contended();
        }
    }

    #[cold]
    fn acquire_contended(&self) {
        let mut looks = 0u32;
        loop {
            if looks < SPINS {
                std::hint::spin_loop();
            } else if looks < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                // Not `sleep`, at which a thread can be cancelled.
                futex::wait(&AtomicU32::new(0), 0, Some(SLEEP));
            }
            looks = looks.saturating_add(1);
            // Looking before taking keeps the line shared among those who wait.
            if !self.0.load(Relaxed) && !self.0.swap(true, Acquire) {
                return;
            }
        }
    }

    #[inline]
    pub(crate) fn release(&self) {
        self.0.store(false, Release);
    }

    #[cfg(test)]
    pub(crate) fn is_taken(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Opens the lock in a forked child, whose only thread is the one that took it in the parent.
    pub(crate) fn reset_after_fork(&self) {
        // Without a write where nothing is to be done: the page may never have been touched.
        if self.0.load(Relaxed) {
            self.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    struct Counter(Lock, UnsafeCell<u64>);
    // SAFETY: the cell is touched with the lock held only.
    unsafe impl Sync for Counter {}

    #[test]
    fn excludes_and_loses_no_wakeup() {
        let shared = Counter(Lock::new(), UnsafeCell::new(0));
        // The whole struct, which is `Sync`, not its fields.
        let shared_by_all = &shared;
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(move || {
                    let Counter(lock, count) = shared_by_all;
                    for _ in 0..20_000 {
                        lock.acquire();
                        // SAFETY: the lock is held.
                        unsafe { *count.get() += 1 };
                        lock.release();
                    }
                });
            }
        });
        assert_eq!(shared.1.into_inner(), 160_000);
    }
}
