//! A token for the calling thread, obtained with one instruction.

/// Returns a token that is not 0 and differs between threads that exist at the same time. A forked child's only thread
/// has the token that it had in the parent.
#[inline(always)]
pub(crate) fn current() -> usize {
    let token: usize;
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: by the ABI, the address of the thread's control block is there.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) token, options(pure, readonly, nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: user space may read this register, which holds the thread's own pointer.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) token, options(pure, nomem, nostack, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    {
        // SAFETY: pthread_self has no preconditions.
        token = unsafe { libc::pthread_self() } as usize;
    }
    token
}
