//! Blocking signals in the calling thread.

use std::marker::PhantomData;
use std::os::raw::c_int;
use std::ptr;

/// The kernel's set of signals: bit N - 1 is signal N. The C library's has 128 bytes, a large part of a small stack.
type Set = u64;

/// The blocked signals: all except those that the thread's own instructions raise, for which the kernel would end the
/// process instead of calling a handler, and two that the C library uses (for cancellation, and for changes of the
/// user).
const ASYNCHRONOUS: Set = {
    let left_out = [
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
        libc::SIGABRT,
        32,
        33,
    ];
    let (mut set, mut at) = (Set::MAX, 0);
    while at < left_out.len() {
        set &= !(1 << (left_out[at] - 1));
        at += 1;
    }
    set
};

/// Keeps signal handlers from interrupting the calling thread until this is dropped. The locks that several allocators
/// share, and that of the interposer's trace, are held only with signals blocked. Otherwise a handler that interrupted
/// the holder could wait for an allocator whose thread waits for such a lock. Guards are dropped in the reverse order
/// of their creation.
pub struct Blocked {
    before: Set,
    /// The mask is the thread's own.
    not_send: PhantomData<*const ()>,
}

impl Blocked {
    /// Blocks all signals except those that the thread's own instructions raise.
    #[allow(clippy::new_without_default)] // a guard, never made by default
    pub fn new() -> Self {
        Blocked { before: change(libc::SIG_BLOCK, ASYNCHRONOUS), not_send: PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        change(libc::SIG_SETMASK, self.before);
    }
}

/// Changes the thread's mask. Returns the previous mask.
fn change(how: c_int, set: Set) -> Set {
    let mut before = 0;
    // SAFETY: both sets are valid, and have the stated size.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            ptr::from_ref(&set),
            ptr::from_mut(&mut before),
            size_of::<Set>(),
        )
    };
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_comes_back() {
        let mask = || change(libc::SIG_BLOCK, 0);
        let before = mask();
        {
            let _outer = Blocked::new();
            assert_eq!(
                mask(),
                before | ASYNCHRONOUS & !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1))
            );
            drop(Blocked::new());
            assert_ne!(mask(), before);
        }
        assert_eq!(mask(), before);
    }
}
