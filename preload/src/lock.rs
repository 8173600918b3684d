//! A lock that is not waited for without end.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use spin::{Mutex, MutexGuard};

/// Takes a lock that others hold shortly. None where this thread may hold it itself: a signal's handler has interrupted it.
pub(crate) fn soon<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..10_000 {
        if let Some(guard) = mutex.try_lock() {
            return Some(guard);
        }
        // SAFETY: no preconditions.
        unsafe { libc::sched_yield() };
    }
    None
}

/// A lock that knows the thread that holds it: a signal's handler may have interrupted that thread, and come here again.
pub(crate) struct Owned<T> {
    /// 0 while no thread holds it.
    owner: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: only the owner reaches the value.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T> Owned<T> {
    pub(crate) const fn new(value: T) -> Self {
        Owned { owner: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for other threads; None where this one holds it itself.
    pub(crate) fn lock(&self) -> Option<Guard<'_, T>> {
        self.lock_within(usize::MAX)
    }

    /// The same, but other threads are not waited for without end.
    pub(crate) fn soon(&self) -> Option<Guard<'_, T>> {
        self.lock_within(10_000)
    }

    fn lock_within(&self, tries: usize) -> Option<Guard<'_, T>> {
        // SAFETY: no preconditions. It is the address of what the thread has for itself, and so not 0.
        let this = unsafe { libc::pthread_self() } as usize;
        for _ in 0..tries {
            match self.owner.compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Guard(self)),
                Err(owner) if owner == this => return None,
                // SAFETY: no preconditions.
                Err(_) => unsafe { libc::sched_yield() },
            };
        }
        None
    }
}

/// Lets go of the lock when it is dropped.
pub(crate) struct Guard<'a, T>(&'a Owned<T>);

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
