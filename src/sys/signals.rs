//! Blocking signals in the calling thread.

use std::marker::PhantomData;
use std::ptr;

/// Signals that the thread's own instructions raise. They are never blocked: the kernel would end the process instead of
/// calling a handler.
const SYNCHRONOUS: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Keeps handlers of signals from interrupting the calling thread until this is dropped. The locks that several allocators
/// share are held only so. Otherwise a handler that interrupted the holder could wait for an allocator whose thread
/// waits for such a lock.
pub(crate) struct Blocked {
    before: libc::sigset_t,
    /// The mask is the thread's own.
    not_send: PhantomData<*const ()>,
}

impl Blocked {
    pub(crate) fn new() -> Self {
        // SAFETY: zeros are a valid set, which the functions below fill in.
        let (mut asynchronous, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is valid for writing.
        unsafe { libc::sigfillset(&mut asynchronous) };
        for signal in SYNCHRONOUS {
            // SAFETY: the set is filled in.
            unsafe { libc::sigdelset(&mut asynchronous, signal) };
        }
        // SAFETY: both pointers are valid.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &asynchronous, &mut before) };
        Blocked { before, not_send: PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the mask is the one that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}
