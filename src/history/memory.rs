//! The memory of a history: a new file, mapped, or anonymous memory.

use crate::sys::file_mapping::FileMapping;
use bfc_formats::history::layout::{Event, WRITING};
use bfc_hostmem::{Mapping, PAGE};
use std::ffi::CStr;
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, fence};

pub(super) enum Memory {
    File(FileMapping),
    Anonymous(Mapping),
}

/// The reason why there is no memory. The number is an errno.
pub(super) type Errno = i32;

impl Memory {
    /// Creates the memory, zeroed. A file must not exist yet. All of its disk space is allocated now, so that a full
    /// disk is an error here instead of a signal later.
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

    /// Copies the memory, which has `before` bytes before the events, to a new file. Recording continues meanwhile: the
    /// part before the events grows, and events are overwritten.
    pub(super) fn copy_to(&self, path: &CStr, before: usize) -> Result<(), Errno> {
        let file = FileMapping::create(path, self.bytes())?;
        let words = self.bytes() / size_of::<u64>();
        // SAFETY: the mapping has that many bytes. Another thread may write there meanwhile, so the words are atomic.
        let from = unsafe { std::slice::from_raw_parts(self.base().cast::<AtomicU64>(), words) };
        // SAFETY: the new mapping has as many bytes, and nothing else uses it.
        let to = unsafe { std::slice::from_raw_parts_mut(file.base().cast::<u64>(), words) };
        let (from, from_events) = from.split_at(before / size_of::<u64>());
        let (to, to_events) = to.split_at_mut(from.len());
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Relaxed));
        let events = from_events.as_chunks().0;
        to_events.as_chunks_mut().0.iter_mut().zip(events).for_each(|(to, from)| copy_event(to, from));
        Ok(())
    }

    /// Detaches the memory in a forked child. Later writes there do not reach the parent's file.
    pub(super) fn leave_in_child(&self) {
        match self {
            Memory::File(file) => file.leave_in_child(),
            // The child has a copy of its own.
            Memory::Anonymous(_) => {}
        }
    }
}

pub(super) const EVENT_WORDS: usize = size_of::<Event>() / size_of::<u64>();
const _: () = assert!(offset_of!(Event, stamp) == 0);

/// Copies the words of an event that may be written meanwhile. The copy is complete only if the event was the same before
/// and after.
pub(super) fn copy_event(to: &mut [u64; EVENT_WORDS], from: &[AtomicU64; EVENT_WORDS]) {
    let stamp = from[0].load(Acquire);
    to.iter_mut().zip(from).skip(1).for_each(|(to, from)| *to = from.load(Relaxed));
    // A word of a later event was stored after the stamp had become WRITING.
    fence(Acquire);
    to[0] = if from[0].load(Relaxed) == stamp { stamp } else { WRITING };
}
