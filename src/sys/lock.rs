//! The lock of one allocator: it spins for a moment, then yields, then sleeps.
//!
//! The lock is held for some tens of nanoseconds, so acquiring and releasing it are a considerable part of an
//! operation. Releasing is one plain store. A futex would need an exchange there to learn of sleepers, and a system
//! call whenever there are any. Under contention these calls dominate the waiting time. The price is that waiters have
//! to poll.
//!
//! `cargo xtask bench --only locks` compares it with the crate `spin`, with `std` and with spin-then-park. The table
//! shows nanoseconds per operation over all threads (best of 5 interleaved rounds), and the longest wait of a thread
//! for 16 operations, on a virtual machine with two cores:
//!
//! | threads | ours | `spin` | `std` | `park` | ours | `spin` | `std` | `park` |
//! |---|---|---|---|---|---|---|---|---|
//! | 1 | 22 ns | 21 ns | 23 ns | 22 ns | 0.1 ms | 0.1 ms | 0.1 ms | 0.2 ms |
//! | 2 | 21 ns | 38 ns | 51 ns | 82 ns | 3 ms | 12 ms | 1 ms | 4 ms |
//! | 4 | 22 ns | 124 ns | 54 ns | 108 ns | 8 ms | 178 ms | 8 ms | 12 ms |
//! | 8 | 24 ns | 206 ns | 96 ns | 74 ns | 16 ms | 412 ms | 9 ms | 40 ms |
//!
//! The figures for two and more threads vary by half from run to run. Our lock always comes first. A waiter goes to sleep
//! early: while it polls it takes the cache line from the holder, and while it yields it takes a processor. With 64 polls
//! and 64 yields, instead of 16 and one, an operation took 2 to 3 times as long with two to eight threads, and the longest
//! wait was 4 times as long with four and eight.
//!
//! With fifteen busy processes, 99.9% of the operations of eight threads end as soon as with `std`. Of the others a few
//! take milliseconds, with `std` 50 microseconds: there the waiter is woken. Pauses of growing length, up to 64 times as
//! many polls, no yield, and more polls after each sleep changed nothing that exceeds the noise.
//!
//! The lock stores its holder, so that a signal handler which interrupted the holder gets an error instead of a
//! deadlock. Unlike the lock of `std`, it can also be opened in a forked child while threads of the parent waited for
//! it.

use super::{clock, futex, token};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use std::time::Duration;

/// How often a waiter polls before it yields its processor. That is half a microsecond, several times as long as the
/// lock is usually held.
const SPINS: u32 = 16;
/// How often a waiter yields before it sleeps. Yielding never lets a holder of lower priority run.
const YIELDS: u32 = 1;
const SLEEP: Duration = Duration::from_micros(50);
/// How many sleeps a long holder waits for others to go first: 100 ms.
const PATIENCE: u32 = 2000;

/// A mutual exclusion lock without data and without poisoning.
pub(crate) struct Lock {
    /// The token of the thread that holds the lock, or 0.
    holder: AtomicUsize,
    /// The number of waiters that have begun to sleep, and the number of these that have stopped waiting.
    slept: AtomicU32,
    served: AtomicU32,
}

/// The calling thread already holds the lock, or another lock that forbids it to wait. It was interrupted by a
/// signal, whose handler tries to acquire the lock.
#[derive(Debug)]
pub(crate) struct HeldByThisThread;

/// The reason why a lock was not acquired before a deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotTaken {
    /// See [`HeldByThisThread`].
    HeldByThisThread,
    /// Another thread held the lock until the deadline.
    TimedOut,
}

/// The deadline of waits without a limit.
const NEVER: u64 = u64::MAX;

impl Lock {
    pub(crate) const fn new() -> Self {
        Lock { holder: AtomicUsize::new(0), slept: AtomicU32::new(0), served: AtomicU32::new(0) }
    }

    #[inline]
    pub(crate) fn acquire(&self) -> Result<(), HeldByThisThread> {
        let this = token::current();
        match self.holder.compare_exchange(0, this, Acquire, Relaxed) {
            Ok(_) => Ok(()),
            Err(holder) => self.acquire_contended(this, holder, NEVER, &|| false),
        }
        .map_err(|_| HeldByThisThread)
    }

    /// Acquires the lock, but does not wait if this thread must not. This is checked only before the first sleep.
    #[inline]
    pub(crate) fn acquire_unless(&self, must_not_wait: impl Fn() -> bool) -> Result<(), HeldByThisThread> {
        let this = token::current();
        match self.holder.compare_exchange(0, this, Acquire, Relaxed) {
            Ok(_) => Ok(()),
            Err(holder) => self.acquire_contended(this, holder, NEVER, &must_not_wait),
        }
        .map_err(|_| HeldByThisThread)
    }

    /// Acquires the lock if it is open.
    #[inline(always)]
    pub(crate) fn try_acquire(&self) -> bool {
        self.holder.compare_exchange(0, token::current(), Acquire, Relaxed).is_ok()
    }

    /// Acquires the lock like [`Self::acquire_unless`] after [`Self::try_acquire`] has failed. Another attempt to write
    /// at once would only take the cache line from the holder.
    pub(crate) fn acquire_after_try(&self, must_not_wait: impl Fn() -> bool) -> Result<(), HeldByThisThread> {
        let holder = self.holder.load(Relaxed);
        self.acquire_contended(token::current(), holder, NEVER, &must_not_wait).map_err(|_| HeldByThisThread)
    }

    /// Acquires the lock like [`Self::acquire`], but waits only until a time of [`clock::monotonic_ms`].
    pub(crate) fn acquire_before(&self, deadline: u64) -> Result<(), NotTaken> {
        let this = token::current();
        match self.holder.compare_exchange(0, this, Acquire, Relaxed) {
            Ok(_) => Ok(()),
            Err(holder) => self.acquire_contended(this, holder, deadline, &|| false),
        }
    }

    #[cold]
    fn acquire_contended(
        &self,
        this: usize,
        holder: usize,
        deadline: u64,
        must_not_wait: &dyn Fn() -> bool,
    ) -> Result<(), NotTaken> {
        if holder == this {
            return Err(NotTaken::HeldByThisThread);
        }
        let mut looks = 0u32;
        loop {
            if looks < SPINS {
                std::hint::spin_loop();
            } else if looks < SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                if looks == SPINS + YIELDS {
                    if must_not_wait() {
                        return Err(NotTaken::HeldByThisThread);
                    }
                    self.slept.fetch_add(1, Relaxed);
                } else if deadline != NEVER && clock::monotonic_ms() >= deadline {
                    // The waiter has given up, so long holders need not let it go first.
                    self.served.fetch_add(1, Relaxed);
                    return Err(NotTaken::TimedOut);
                }
                sleep();
            }
            looks = looks.saturating_add(1);
            // Reading before writing keeps the cache line shared among the waiters.
            if self.holder.load(Relaxed) == 0
                && self.holder.compare_exchange(0, this, Acquire, Relaxed).is_ok()
            {
                if looks > SPINS + YIELDS {
                    self.served.fetch_add(1, Relaxed);
                }
                return Ok(());
            }
        }
    }

    /// Waits until all current sleepers have had the lock, at most 100 ms. For threads that are about to hold the lock
    /// for long. A thread that repeatedly does so would otherwise nearly always acquire the lock first.
    pub(crate) fn let_sleepers_in(&self, must_not_wait: impl Fn() -> bool) {
        // The lock is held by the calling thread, which a signal handler has interrupted. No sleeper can get it
        // meanwhile.
        if self.is_held_here() {
            return;
        }
        let due = self.slept.load(Relaxed);
        for round in 0..PATIENCE {
            // Both counters wrap around.
            let is_over = due.wrapping_sub(self.served.load(Relaxed)).cast_signed() <= 0;
            if is_over || round == 0 && must_not_wait() {
                return;
            }
            sleep();
        }
    }

    #[inline]
    pub(crate) fn release(&self) {
        self.holder.store(0, Release);
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.holder.load(Relaxed) != 0
    }

    /// Returns whether the calling thread holds the lock.
    pub(crate) fn is_held_here(&self) -> bool {
        self.holder.load(Relaxed) == token::current()
    }

    #[cfg(test)]
    pub(crate) fn has_sleepers(&self) -> bool {
        self.slept.load(Relaxed) != self.served.load(Relaxed)
    }

    /// Opens the lock in a forked child, whose only thread is the one that acquired it in the parent.
    pub(crate) fn reset_after_fork(&self) {
        // Does not write unless necessary, because the page may never have been touched.
        if self.holder.load(Relaxed) != 0 {
            self.release();
        }
        // The sleepers are threads of the parent.
        let slept = self.slept.load(Relaxed);
        if self.served.load(Relaxed) != slept {
            self.served.store(slept, Relaxed);
        }
    }
}

/// A lock that a forking thread holds, so that no other thread is changing what it guards.
pub(crate) struct ForkLock {
    lock: Lock,
    /// Whether a forking thread has acquired it. False if that thread was interrupted while it held the lock.
    held_for_fork: AtomicBool,
}

/// What a forked child finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InChild {
    /// Nothing was being changed, and the lock is open.
    Whole,
    /// A thread that does not exist in the child was changing it. The lock is open.
    Torn,
    /// This thread was interrupted while it held the lock, and continues later.
    Interrupted,
}

impl ForkLock {
    pub(crate) const fn new() -> Self {
        ForkLock { lock: Lock::new(), held_for_fork: AtomicBool::new(false) }
    }

    /// Acquires the lock before a fork, unless another thread holds it until the deadline.
    pub(crate) fn lock_for_fork(&self, deadline: u64) {
        self.held_for_fork.store(self.lock.acquire_before(deadline).is_ok(), Relaxed);
    }

    /// For a child whose fork was not prepared: records that no fork has acquired the lock.
    pub(crate) fn forget_fork(&self) {
        self.held_for_fork.store(false, Relaxed);
    }

    pub(crate) fn unlock_in_parent(&self) {
        if self.held_for_fork.load(Relaxed) {
            self.lock.release();
        }
    }

    /// Opens the lock in the child, unless this thread holds it in a call that goes on.
    pub(crate) fn recover_in_child(&self) -> InChild {
        let is_prepared = self.held_for_fork.load(Relaxed);
        let found = match is_prepared || !self.lock.is_taken() {
            true => InChild::Whole,
            false if self.lock.is_held_here() => return InChild::Interrupted,
            false => InChild::Torn,
        };
        self.lock.reset_after_fork();
        found
    }
}

impl std::ops::Deref for ForkLock {
    type Target = Lock;

    fn deref(&self) -> &Lock {
        &self.lock
    }
}

/// Sleeps without the standard library's function, which is a thread cancellation point.
fn sleep() {
    futex::wait(&AtomicU32::new(0), 0, Some(SLEEP));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    struct Counter(Lock, UnsafeCell<u64>);
    // SAFETY: the cell is accessed only with the lock held.
    unsafe impl Sync for Counter {}

    #[test]
    fn excludes_and_loses_no_wakeup() {
        let shared = Counter(Lock::new(), UnsafeCell::new(0));
        // The closure must capture the whole struct, which is `Sync`, instead of its fields.
        let shared_by_all = &shared;
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(move || {
                    let Counter(lock, count) = shared_by_all;
                    for _ in 0..20_000 {
                        lock.acquire().unwrap();
                        // SAFETY: the lock is held.
                        unsafe { *count.get() += 1 };
                        lock.release();
                    }
                });
            }
        });
        assert_eq!(shared.1.into_inner(), 160_000);
        assert!(!shared.0.has_sleepers());
    }

    #[test]
    fn the_holder_is_told_that_it_holds_the_lock() {
        let lock = Lock::new();
        lock.acquire().unwrap();
        assert!(lock.acquire().is_err() && lock.acquire().is_err());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                lock.acquire().unwrap();
                assert!(lock.acquire().is_err());
                lock.release();
            });
            while !lock.has_sleepers() {
                std::thread::yield_now();
            }
            assert!(lock.acquire().is_err(), "a waiter leaves the holder what it is");
            // One of several attempts must be quick, because the machine may be busy.
            let is_quick = |_| {
                let begun = clock::monotonic_ms();
                lock.let_sleepers_in(|| false);
                clock::monotonic_ms() - begun < 50
            };
            let was_quick = (0..5).any(is_quick);
            lock.release();
            other.join().unwrap();
            assert!(was_quick, "the holder does not wait for sleepers that cannot get the lock meanwhile");
        });
        lock.acquire().unwrap();
    }

    #[test]
    fn waiting_may_have_an_end() {
        let lock = Lock::new();
        lock.acquire().unwrap();
        let soon = clock::monotonic_ms() + 20;
        assert_eq!(lock.acquire_before(soon), Err(NotTaken::HeldByThisThread));
        std::thread::scope(|scope| {
            let waited = scope.spawn(|| (lock.acquire_before(soon), clock::monotonic_ms()));
            let (result, end) = waited.join().unwrap();
            assert!(result == Err(NotTaken::TimedOut) && end >= soon);
            assert!(!lock.has_sleepers(), "a waiter that gave up is not let in first");
            lock.release();
            assert_eq!(lock.acquire_before(soon), Ok(()), "an open lock is taken, however late it is");
        });
    }

    /// A thread that releases the lock and acquires it again at once lets the sleepers go first.
    #[test]
    fn sleepers_go_first() {
        let lock = Lock::new();
        let done = AtomicU32::new(0);
        lock.acquire().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                lock.acquire().unwrap();
                done.store(1, Relaxed);
                lock.release();
            });
            while !lock.has_sleepers() {
                std::thread::yield_now();
            }
            let went_first = (0..100).any(|_| {
                lock.release();
                lock.let_sleepers_in(|| false);
                lock.acquire().unwrap();
                done.load(Relaxed) == 1
            });
            lock.release();
            assert!(went_first, "the lock was taken a hundred times before a sleeper");
        });
        lock.let_sleepers_in(|| false);
    }
}
