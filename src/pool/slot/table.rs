//! All slots of the process, and whether this thread holds one of them.

use super::slot::Slot;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};

pub(crate) const COUNT: usize = 1024;

static SLOTS: [Slot; COUNT] = [const { Slot::new() }; COUNT];

/// The slots that ever held an allocator, so that a fork and a search for a pointer's owner visit only these.
pub(crate) static USED: [AtomicU64; COUNT / 64] = [const { AtomicU64::new(0) }; COUNT / 64];

#[inline]
pub(crate) fn slot(index: usize) -> &'static Slot {
    &SLOTS[index]
}

/// Returns the indices of the slots whose bit is set.
pub(crate) fn indices_in(set: &'static [AtomicU64]) -> impl Iterator<Item = usize> {
    set.iter().enumerate().flat_map(|(word, bits)| {
        let bits = bits.load(Acquire);
        (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word * 64 + bit)
    })
}

/// Returns whether this thread holds another slot than this one. That is so only in a signal handler, which must not
/// wait: the thread that it would wait for may be in a handler too, and wait for the other slot. No call of the library
/// needs two slots.
#[cold]
pub(super) fn is_another_held(than: &Slot) -> bool {
    let is_held = |slot: &Slot| !ptr::eq(slot, than) && slot.is_locked_here();
    let used = || indices_in(&USED).map(slot);
    // A handler may also have interrupted a call that found no allocator. Of threads that wait for each other because of
    // that, one waits for such a slot.
    if used().any(|slot| ptr::eq(slot, than)) { used().any(is_held) } else { SLOTS.iter().any(is_held) }
}
