//! Tables of slots that grow and never shrink, so that a slot stays where it is. They are read without a lock.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The slots of a block.
const BLOCK: usize = 64;

/// A type that a slot may have.
///
/// # Safety
/// A value of zero bytes is an empty slot.
pub(crate) unsafe trait Slot: Sync + 'static {
    const EMPTY: Self;

    /// Takes the slot, if it is free.
    fn take(&self) -> bool;
}

/// A table: its first block and further ones.
pub(crate) struct Slots<T: Slot> {
    slots: [T; BLOCK],
    next: AtomicPtr<Slots<T>>,
}

impl<T: Slot> Slots<T> {
    pub(crate) const fn new() -> Self {
        Slots { slots: [const { T::EMPTY }; BLOCK], next: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns all slots, the free ones included.
    pub(crate) fn iter(&'static self) -> impl Iterator<Item = &'static T> {
        std::iter::successors(Some(self), |block| block.next()).flat_map(|block| &block.slots)
    }

    /// Takes a free slot. Returns `None` without memory for another block.
    pub(crate) fn take(&'static self) -> Option<&'static T> {
        let mut block = self;
        loop {
            if let Some(slot) = block.slots.iter().find(|slot| slot.take()) {
                return Some(slot);
            }
            block = block.next().or_else(|| block.grow())?;
        }
    }

    fn next(&self) -> Option<&'static Self> {
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: a block is never freed.
        unsafe { next.as_ref() }
    }

    /// Adds a block, unless another thread does. Uses mmap, because the program's malloc may be the caller.
    fn grow(&self) -> Option<&'static Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let memory = unsafe { libc::mmap(ptr::null_mut(), size_of::<Self>(), protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return None;
        }
        // Its bytes are zero: empty slots, and no next block.
        let block = memory.cast::<Self>();
        let added = self.next.compare_exchange(ptr::null_mut(), block, Ordering::AcqRel, Ordering::Acquire);
        if added.is_err() {
            // SAFETY: mapped above, and not known elsewhere.
            unsafe { libc::munmap(memory, size_of::<Self>()) };
        }
        self.next()
    }
}
