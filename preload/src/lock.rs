//! A lock that is not waited for without end.

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
