//! A call under way with the lock open, and the slot that it belongs to.

use super::stack_list::Linked;
use crate::sys::thread::ThreadId;
use std::cell::Cell;

/// Identifies a slot. A call refers to its slot only by this, so that `slot` can depend on this file and not the
/// reverse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) struct SlotId(usize);

impl SlotId {
    /// Returns the id of the slot at this address.
    pub(super) fn at<T>(slot: *const T) -> Self {
        SlotId(slot.addr())
    }
}

/// A call of the backend or of a listener that is under way with the lock open. It is on the stack of the thread that
/// makes the call. It is read and changed only with the slot's lock held.
pub(super) struct Call {
    pub(super) thread: ThreadId,
    pub(super) number: u64,
    pub(super) what: CallKind,
    /// When it began, in milliseconds of the monotonic clock. Only of calls that may synchronize the device.
    pub(super) begun: u64,
    pub(super) next: Cell<*const Call>,
    pub(super) slot: SlotId,
    /// The call that this thread was in already, of this or another slot. NULL if there is none.
    pub(super) outer: Cell<*const Call>,
    /// Set if something that this thread asked of an allocator within this call would have waited for this thread.
    pub(super) is_in_circle: Cell<bool>,
}

/// What a call under way does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) enum CallKind {
    /// Obtains a region, for which this number of bytes is reserved.
    Obtains(u64),
    /// Gives memory back that the pool does not hold any more, also the callbacks and the wait for the device before that.
    /// Calls for the same memory follow each other without a pause, and have the number of the first, which is this, so that
    /// to wait for one is to wait for all.
    GivesBack(u64),
    /// Queries streams, or queues something on them. It does not wait for device work.
    Orders,
    /// Waits for events. That takes as long as some device work, which may depend on a thread that waits for this one.
    Waits,
    /// Waits for the whole context.
    Synchronizes,
    /// Writes messages. No request waits for this, because the log's callback may itself be waiting for another allocator's
    /// memory.
    Talks,
    /// Lets the client say which work is done. The client may call the allocator meanwhile.
    Settles,
    /// Writes or checks guards. Only one such call runs at a time, and no chunk is allocated or freed meanwhile.
    Guards,
}

impl Linked for Call {
    fn next(&self) -> &Cell<*const Self> {
        &self.next
    }
}

impl CallKind {
    pub(super) fn may_synchronize(self) -> bool {
        matches!(self, CallKind::GivesBack(_) | CallKind::Synchronizes)
    }

    pub(super) fn reserved(self) -> u64 {
        match self {
            CallKind::Obtains(bytes) => bytes,
            _ => 0,
        }
    }
}
