//! A pointer that no child of the process inherits, however the child was created.
//!
//! In the child of a raw `clone` system call the C library runs no fork handler. So the pointer is in a page that the kernel
//! clears in every child (`MADV_WIPEONFORK`, since Linux 4.14). Reading it needs no system call.

use bfc_hostmem::{Mapping, PAGE};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering, Ordering::*};

pub(crate) struct OwnPointer<T> {
    /// The place of the pointer. Null before the first one.
    place: AtomicPtr<AtomicPtr<T>>,
    /// The place used if the kernel does not clear pages.
    inherited: AtomicPtr<T>,
}

impl<T> OwnPointer<T> {
    pub(crate) const fn new() -> Self {
        OwnPointer { place: AtomicPtr::new(null_mut()), inherited: AtomicPtr::new(null_mut()) }
    }

    /// Returns the pointer that this process has set, or null.
    #[inline(always)]
    pub(crate) fn load(&self, order: Ordering) -> *mut T {
        // SAFETY: null, or a place that is never freed.
        unsafe { self.place.load(Acquire).as_ref() }.map_or(null_mut(), |place| place.load(order))
    }

    /// Sets the pointer in this process.
    #[cold]
    pub(crate) fn store(&'static self, pointer: *mut T) {
        let mut place = self.place.load(Acquire);
        if place.is_null() {
            let new = cleared_page().unwrap_or((&raw const self.inherited).cast_mut());
            // If another thread was faster, this page stays unused.
            place =
                self.place.compare_exchange(null_mut(), new, AcqRel, Acquire).map_or_else(|it| it, |_| new);
        }
        // SAFETY: a place that is never freed and holds a pointer or zeros.
        unsafe { &*place }.store(pointer, SeqCst);
    }
}

/// Returns the beginning of a zeroed page that the kernel clears in children.
fn cleared_page<T>() -> Option<*mut AtomicPtr<T>> {
    let page = Mapping::new(PAGE, PAGE).ok().filter(|_| !cfg!(miri))?;
    // SAFETY: the mapping is this function's own.
    let refused = unsafe { libc::madvise(page.base().cast(), page.bytes(), libc::MADV_WIPEONFORK) } != 0;
    (!refused).then(|| page.into_raw().cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_does_not_have_the_pointer() {
        static POINTER: OwnPointer<u8> = OwnPointer::new();
        assert!(POINTER.load(Relaxed).is_null());
        POINTER.store(null_mut::<u8>().wrapping_add(5));
        assert_eq!(POINTER.load(Relaxed).addr(), 5);
        // SAFETY: the child only looks, and ends.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
        if child == 0 {
            let before = POINTER.load(Relaxed).addr();
            POINTER.store(null_mut::<u8>().wrapping_add(7));
            let is_own = before == 0 && POINTER.load(Relaxed).addr() == 7;
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_own)) };
        }
        let mut status = -1;
        // SAFETY: the child is this process's own, and `status` is valid for writing.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((status, POINTER.load(Relaxed).addr()), (0, 5));
    }
}
