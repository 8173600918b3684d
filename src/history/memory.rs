//! The memory of a history: a new file, mapped, or anonymous memory.

use crate::sys::file_mapping::FileMapping;
use crate::sys::mapping::{Mapping, PAGE};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(super) enum Memory {
    File(FileMapping),
    Anonymous(Mapping),
}

/// Why there is no memory. The number is an errno.
pub(super) type Errno = i32;

impl Memory {
    /// Creates the memory, zeroed. A file must not exist yet. All of its disk space is allocated now, so that a full
    /// disk is an error here and no signal later.
    pub(super) fn new(path: Option<&CStr>, bytes: usize) -> Result<Self, Errno> {
        let Some(path) = path else {
            return Mapping::new(bytes, PAGE).map(Memory::Anonymous).map_err(|_| libc::ENOMEM);
        };
        FileMapping::create(path, bytes).map(Memory::File)
    }

    pub(super) fn base(&self) -> *mut u8 {
        match self {
            Memory::File(file) => file.base(),
            Memory::Anonymous(mapping) => mapping.base(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Memory::File(file) => file.bytes(),
            Memory::Anonymous(mapping) => mapping.bytes(),
        }
    }

    /// Copies the memory to a new file. Events that are written meanwhile may be incomplete there, which their stamps
    /// show.
    pub(super) fn copy_to(&self, path: &CStr) -> Result<(), Errno> {
        let file = FileMapping::create(path, self.bytes())?;
        let words = self.bytes() / size_of::<u64>();
        // SAFETY: the mapping has that many bytes. Another thread may write there meanwhile, so the words are atomic.
        let from = unsafe { std::slice::from_raw_parts(self.base().cast::<AtomicU64>(), words) };
        // SAFETY: the new mapping has as many bytes, and nothing else uses it.
        let to = unsafe { std::slice::from_raw_parts_mut(file.base().cast::<u64>(), words) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.load(Relaxed);
        }
        Ok(())
    }

    /// Gives the memory up without unmapping it, because a call under way may still write there.
    pub(super) fn leak(self) {
        std::mem::forget(self);
    }

    /// Gives the memory up in a forked child. What is still written there does not reach the parent's file.
    pub(super) fn leave_in_child(self) {
        match self {
            Memory::File(file) => file.leave_in_child(),
            // The child has a copy of its own.
            Memory::Anonymous(mapping) => std::mem::forget(mapping),
        }
    }
}
