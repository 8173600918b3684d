//! The lock of one allocator: spin for a moment, then sleep.
//!
//! `cargo xtask bench --only locks` compares it with `spin` and `std`; ARCHITECTURE.md has the figures and
//! why this one was taken. It can also do what neither can: be taken around a `fork` and be opened in
//! the child, where the threads that waited for it no longer exist.

use super::futex;
use std::sync::atomic::{AtomicU32, Ordering::*};

const OPEN: u32 = 0;
const HELD: u32 = 1;
/// Held, and somebody may sleep: the holder must wake one when it leaves.
const CONTENDED: u32 = 2;

/// How often a waiter looks again before it sleeps. The lock is held for some tens of nanoseconds, so a
/// short wait pays; a holder that was preempted is away for milliseconds, so a long one never does.
const SPINS: u32 = 100;

/// A mutual exclusion lock without data and without poisoning.
pub(crate) struct Lock(AtomicU32);

impl Lock {
    pub(crate) const fn new() -> Self {
        Lock(AtomicU32::new(OPEN))
    }

    #[inline]
    pub(crate) fn acquire(&self) {
        if self.0.compare_exchange(OPEN, HELD, Acquire, Relaxed).is_err() {
            self.acquire_contended();
        }
    }

    #[cold]
    fn acquire_contended(&self) {
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if self.0.load(Relaxed) == OPEN
                && self.0.compare_exchange(OPEN, HELD, Acquire, Relaxed).is_ok()
            {
                return;
            }
        }
        // Whoever sleeps leaves the lock marked: with the mark a release always wakes one, so that a
        // second sleeper is not forgotten.
        while self.0.swap(CONTENDED, Acquire) != OPEN {
            futex::wait(&self.0, CONTENDED, None);
        }
    }

    #[inline]
    pub(crate) fn release(&self) {
        if self.0.swap(OPEN, Release) == CONTENDED {
            futex::wake(&self.0, 1);
        }
    }

    /// Opens the lock in a forked child, whose only thread is the one that took it in the parent.
    pub(crate) fn reset_after_fork(&self) {
        self.0.store(OPEN, Release);
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
