//! A mapped part of a file that is written by system calls.
//!
//! A store to a page that the file does not have raises SIGBUS: the file may have been truncated by another process, and a
//! file system that copies on write may find no space. The system's own copy into the mapping returns an error instead, and
//! what it has copied is in the file however the process ends, as with a store.

use std::ffi::c_int;
use std::ptr;

use os::descriptors::Descriptor;
use os::errno;

use crate::sys::process;

/// The meaning of [`libc::EFAULT`] from [`Window::write`].
pub(crate) const CUT_OFF: &str = "it was truncated, or the disk is full";

/// Unmapped on drop.
pub(crate) struct Window {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the value owns the mapping, which is read by no code here.
unsafe impl Send for Window {}

impl Window {
    pub(crate) const NONE: Self = Window { start: ptr::null_mut(), bytes: 0 };

    /// Maps a part of a file. `start` is a multiple of a page.
    pub(crate) fn map(file: &Descriptor, start: u64, bytes: usize) -> Result<Self, c_int> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address chosen by the system.
        let mapping = unsafe {
            libc::mmap(ptr::null_mut(), bytes, protection, flags, file.number(), start as libc::off_t)
        };
        if mapping == libc::MAP_FAILED {
            return Err(errno());
        }
        Ok(Window { start: mapping.cast(), bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes parts, each to its place, in this order. [`libc::EFAULT`] if the file no longer has such a place.
    pub(crate) fn write<const PARTS: usize>(&self, parts: [(usize, &[u8]); PARTS]) -> Result<(), c_int> {
        let is_inside = |&(place, part): &(usize, &[u8])| {
            place.checked_add(part.len()).is_some_and(|end| end <= self.bytes)
        };
        if !parts.iter().all(is_inside) {
            return Err(libc::EFAULT);
        }
        let parts = parts.map(|(place, part)| (self.start.wrapping_add(place), ptr::from_ref(part)));
        // SAFETY: the places are inside the mapping, and the parts are readable.
        unsafe { copy(parts) }
    }

    /// Gives up ownership of the mapping, which stays. Returns its address.
    pub(crate) fn leak(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).start
    }
}

/// Copies parts, each to its place in the mapping of a file, in this order. [`libc::EFAULT`] if the file no longer has
/// such a place.
///
/// # Safety
/// The parts are readable, and the places are mapped. Other threads may use both meanwhile, as atomic numbers.
pub(crate) unsafe fn copy<const PARTS: usize>(parts: [(*mut u8, *const [u8]); PARTS]) -> Result<(), c_int> {
    let vector = |start: *mut u8, bytes| libc::iovec { iov_base: start.cast(), iov_len: bytes };
    let from = parts.map(|(_, part)| vector(part.cast::<u8>().cast_mut(), part.len()));
    let to = parts.map(|(place, part)| vector(place, part.len()));
    // The memory is identified by a thread that exists. The first thread, whose number is that of the process, may have
    // ended.
    let (thread, from, to) = (process::this_thread(), from.as_ptr(), to.as_ptr());
    // As wide as a register, because it is passed on the stack.
    let flags = 0_usize;
    // SAFETY: guaranteed by the caller. It is this process's own memory.
    let written =
        unsafe { libc::syscall(libc::SYS_process_vm_writev, thread, from, PARTS, to, PARTS, flags) };
    match usize::try_from(written) {
        Ok(written) if written == parts.iter().map(|(_, part)| part.len()).sum() => Ok(()),
        // Truncated after the first parts, or before.
        Ok(_) => Err(libc::EFAULT),
        Err(_) if errno() == libc::EFAULT => Err(libc::EFAULT),
        // A sandbox forbids the call, or the system is out of memory.
        Err(_) => {
            for (place, part) in parts {
                // SAFETY: guaranteed by the caller.
                unsafe { ptr::copy(part.cast::<u8>(), place, part.len()) };
            }
            Ok(())
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !self.start.is_null() {
            // SAFETY: mapped by this value, and not used afterwards.
            unsafe { libc::munmap(self.start.cast(), self.bytes) };
        }
    }
}
