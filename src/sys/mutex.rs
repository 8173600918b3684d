//! A value protected by a [`Lock`]. A signal handler that interrupted the holder gets an error, where the mutex of
//! `std` or a spin lock would deadlock.

use super::lock::{HeldByThisThread, Lock};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

pub(crate) struct Mutex<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only through a guard, and there is one guard at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Mutex { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Locks the value. Waits for other threads.
    pub(crate) fn lock(&self) -> Result<Guard<'_, T>, HeldByThisThread> {
        self.lock.acquire()?;
        Ok(Guard(self))
    }

    /// Replaces the value in a forked child and opens the lock. Returns the old value, in the middle of whose change
    /// another thread of the parent may have been.
    ///
    /// # Safety
    /// This is the only thread, and it is in no access to the value.
    pub(crate) unsafe fn replace_in_child(&self, value: T) -> T {
        // SAFETY: by this function's contract.
        let old = std::mem::replace(unsafe { &mut *self.value.get() }, value);
        self.lock.reset_after_fork();
        old
    }
}

pub(crate) struct Guard<'a, T>(&'a Mutex<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and there is one guard.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.lock.release();
    }
}
