//! A lock that stores its owner, because a signal handler may interrupt the thread that holds it and try to take it
//! again. Waiting for other threads is limited if the caller can proceed without the lock.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Other threads hold a lock for less than this, unless they are interrupted or, in the child of a fork, do not exist.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

/// The driver creates or ends a context in less than this.
const LONG: Duration = Duration::from_secs(10);

/// Returns an identifier of the calling thread, larger than any small enumeration. The only thread in the child of a
/// fork keeps the identifier that it had before.
#[inline]
pub(crate) fn this_thread() -> usize {
    // SAFETY: no preconditions. It is the address of thread-specific data.
    unsafe { libc::pthread_self() as usize }
}

/// Returns the time of the monotonic clock.
pub(crate) fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Yields to other threads until `look` returns a value, for at most `limit`. Measures time, because on a busy machine
/// a fixed number of attempts may take minutes.
pub(crate) fn wait_for<T>(limit: Duration, look: impl Fn() -> Option<T>) -> Option<T> {
    let begun = now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if now().saturating_sub(begun) > limit {
            return None;
        }
        // SAFETY: no preconditions.
        unsafe { libc::sched_yield() };
    }
}

pub(crate) struct OwnerLock<T> {
    /// 0 while no thread holds it.
    owner: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: only the owner accesses the value.
unsafe impl<T: Send> Sync for OwnerLock<T> {}

impl<T> OwnerLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        OwnerLock { owner: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for other threads. Returns `None` if this thread holds the lock itself.
    pub(crate) fn lock(&self) -> Option<Guard<'_, T>> {
        self.lock_within(Duration::MAX)
    }

    /// Locks like [`Self::lock`], but waits for at most [`SHORT`].
    pub(crate) fn lock_briefly(&self) -> Option<Guard<'_, T>> {
        self.lock_within(SHORT)
    }

    /// Locks like [`Self::lock`], but waits for at most [`LONG`].
    pub(crate) fn lock_patiently(&self) -> Option<Guard<'_, T>> {
        self.lock_within(LONG)
    }

    /// Returns `None` if any thread holds the lock.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.take().ok()
    }

    /// Returns the owner if the lock is held.
    fn take(&self) -> Result<Guard<'_, T>, usize> {
        let taken = self.owner.compare_exchange(0, this_thread(), Ordering::Acquire, Ordering::Relaxed);
        taken.map(|_| Guard(self))
    }

    fn lock_within(&self, limit: Duration) -> Option<Guard<'_, T>> {
        match self.take() {
            Ok(guard) => Some(guard),
            Err(owner) if owner == this_thread() => None,
            Err(_) => wait_for(limit, || self.try_lock()),
        }
    }
}

/// Releases the lock when dropped.
pub(crate) struct Guard<'a, T>(&'a OwnerLock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread is the owner.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread is the owner and has one guard.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.owner.store(0, Ordering::Release);
    }
}
