//! A value protected by a [`Lock`], which is held with signals [`Blocked`].

use super::lock::{HeldByThisThread, Lock};
use os::signals::Blocked;
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

    /// Locks the value. Waits for other threads. Fails in the handler of a fault in the thread that holds it.
    pub(crate) fn lock(&self) -> Result<Guard<'_, T>, HeldByThisThread> {
        let blocked = Blocked::new();
        self.lock.acquire()?;
        Ok(Guard { mutex: self, _blocked: Some(blocked) })
    }

    /// Locks the value like [`Self::lock`] if signals are already blocked, for callers that lock several times.
    pub(crate) fn lock_while(&self, _: &Blocked) -> Result<Guard<'_, T>, HeldByThisThread> {
        self.lock.acquire()?;
        Ok(Guard { mutex: self, _blocked: None })
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Replaces the value in a forked child and opens the lock. Returns the old value, which another thread of the parent
    /// may have been changing.
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

/// Unlocks the value when dropped, and then unblocks signals.
pub(crate) struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
    _blocked: Option<Blocked>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and there is one guard.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.mutex.lock.release();
    }
}

#[cfg(test)]
mod tests {
    use super::Mutex;
    use os::signals::Blocked;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    static RUNS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn on_signal(_: i32) {
        RUNS.fetch_add(1, Relaxed);
    }

    fn raise() -> u32 {
        // SAFETY: the handler is installed.
        unsafe { libc::raise(libc::SIGURG) };
        RUNS.load(Relaxed)
    }

    #[test]
    fn no_handler_runs_while_a_value_is_locked() {
        // SAFETY: the handler only counts.
        unsafe { libc::signal(libc::SIGURG, on_signal as *const () as usize) };
        let mutex = Mutex::new(());
        let (first, second) = (mutex.lock().unwrap(), Blocked::new());
        assert_eq!(raise(), 0);
        drop(second);
        assert_eq!(raise(), 0, "signals are still blocked by the first");
        assert!(mutex.lock().is_err());
        assert_eq!(raise(), 0);
        drop(first);
        assert_eq!(RUNS.load(Relaxed), 1, "what came meanwhile is one signal");
        assert_eq!(raise(), 2);
    }
}
