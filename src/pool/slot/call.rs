//! A call that is under way with the lock open, and which slot it belongs to.

use super::stack_list::Linked;
use crate::sys::thread::ThreadId;
use std::cell::Cell;

/// Tells slots apart. A call refers to its slot by this only, so that the slot can be made of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) struct SlotId(usize);

impl SlotId {
    /// Returns the id of the slot at this address.
    pub(super) fn at<T>(slot: *const T) -> Self {
        SlotId(slot.addr())
    }
}

/// A call under way with the lock open, of the backend or of a listener, on the stack of the thread that makes
/// it. Read and changed with the slot's lock held only.
pub(super) struct Call {
    pub(super) thread: ThreadId,
    pub(super) number: u64,
    pub(super) what: CallKind,
    pub(super) next: Cell<*const Call>,
    pub(super) slot: SlotId,
    /// The call that this thread was in already, of this or another slot; NULL if it was in none.
    pub(super) outer: Cell<*const Call>,
    /// What this thread asked of another allocator meanwhile would have waited for this thread.
    pub(super) is_in_circle: Cell<bool>,
}

/// What a call under way does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// Obtains a region, for which so many bytes are reserved.
    Obtains(u64),
    GivesBack,
    /// Asks the driver about streams, or queues something on them. It waits for nothing.
    Orders,
    /// Waits for events: for as long as some work takes, which may be the work of a thread that waits for this one.
    Waits,
    /// Waits for the whole device.
    Synchronizes,
    /// Writes messages.
    Talks,
    /// Writes or checks guards. One at a time: while it does no chunk is handed out or freed.
    Guards,
}

impl Linked for Call {
    fn next(&self) -> &Cell<*const Self> {
        &self.next
    }
}

impl CallKind {
    pub(super) fn reserved(self) -> u64 {
        match self {
            CallKind::Obtains(bytes) => bytes,
            _ => 0,
        }
    }
}
