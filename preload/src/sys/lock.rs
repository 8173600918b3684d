//! A lock that knows the thread that holds it: a signal handler may have interrupted that thread, and come here again.
//! Waiting for other threads has an end where the caller can do without.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Others hold a lock for less than this, unless they are interrupted, or not there: in the child of a fork.
pub(crate) const SHORT: Duration = Duration::from_millis(200);

/// The calling thread: a number above those of small enumerations. The only thread of a fork's child has that of before.
#[inline]
pub(crate) fn this_thread() -> usize {
    // SAFETY: no preconditions. It is the address of what the thread has for itself.
    unsafe { libc::pthread_self() as usize }
}

/// The monotonic clock.
pub(crate) fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Lets other threads run until they have brought something about, for so long at most. By the clock: on a busy machine a
/// fixed number of tries may take minutes.
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

// SAFETY: only the owner reaches the value.
unsafe impl<T: Send> Sync for OwnerLock<T> {}

impl<T> OwnerLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        OwnerLock { owner: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for other threads; None where this one holds it itself.
    pub(crate) fn lock(&self) -> Option<Guard<'_, T>> {
        self.lock_within(Duration::MAX)
    }

    /// The same, but other threads are not waited for without end.
    pub(crate) fn soon(&self) -> Option<Guard<'_, T>> {
        self.lock_within(SHORT)
    }

    /// None where any thread holds it.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.take().ok()
    }

    /// Or who holds it.
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

/// Lets go of the lock when it is dropped.
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
        // SAFETY: this thread is the owner, and has one guard.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.owner.store(0, Ordering::Release);
    }
}
