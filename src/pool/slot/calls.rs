//! Calls under way with the lock open: of the backend, and of listeners. The slot knows them, so that a callback
//! cannot enter its own allocator, destruction can wait for them, and requests for what they bring.

use super::call::{Call, CallKind};
use super::guard::Guard;
use super::slot::Slot;
use super::waiting;
use crate::sys::thread;
use std::cell::Cell;
use std::ptr;

impl Guard<'_> {
    /// Tells listeners of memory that is gone, in the same way.
    pub(in crate::pool) fn notifying(self, work: impl FnOnce()) -> Self {
        self.step_out(CallKind::GivesBack, work).0
    }

    /// Writes messages with the lock open, in the same way; but no request waits for it: the log's callback may
    /// itself be waiting for another allocator's memory.
    pub(in crate::pool) fn talking(self, work: impl FnOnce()) -> Self {
        self.step_out(CallKind::Talks, work).0
    }

    /// Returns whether a thread is writing or checking guards. As it is known by the calls under way, it ends with them, in
    /// a forked child too.
    pub(in crate::pool) fn is_guarding(&self) -> bool {
        self.inner().calls.iter().any(|call| call.what == CallKind::Guards)
    }

    /// Does something with the lock open; the slot knows of the call until it ends.
    pub(super) fn step_out<T>(mut self, what: CallKind, work: impl FnOnce() -> T) -> (Self, T) {
        let slot = self.slot;
        self.inner_mut().last_call += 1;
        let number = self.inner().last_call;
        let (next, outer) = (Cell::new(ptr::null()), Cell::new(ptr::null()));
        let (thread, is_in_circle) = (thread::current(), Cell::new(false));
        let call = Call { thread, number, what, next, slot: slot.id(), outer, is_in_circle };
        self.inner_mut().calls.push(&call);
        drop(self);
        call.outer.set(waiting::replace_innermost(&call));
        let under_way = UnderWay { slot, call: &call };
        let result = work();
        waiting::replace_innermost(call.outer.get());
        let mut guard = slot.lock();
        std::mem::forget(under_way);
        guard.inner_mut().calls.remove(&call);
        guard.notify();
        (guard, result)
    }

    /// The number of the last call of the backend or of a listener, of whichever thread.
    pub(in crate::pool) fn last_call(&self) -> u64 {
        self.inner().last_call
    }

    /// Whether a call up to that number is under way that brings a region, or room for one.
    pub(in crate::pool) fn is_bringing(&self, up_to: u64) -> bool {
        let brings = |call: &Call| matches!(call.what, CallKind::Obtains(_) | CallKind::GivesBack);
        self.inner().calls.iter().any(|call| call.number <= up_to && brings(call))
    }

    /// Whether a call of the backend is under way.
    pub(in crate::pool) fn is_calling(&self) -> bool {
        self.inner().calls.iter().any(|call| call.what != CallKind::Talks)
    }

    /// Whether the driver is asked about streams, or something is queued on them, by a call up to that number. Writing
    /// guards includes such questions.
    pub(in crate::pool) fn is_ordering(&self, up_to: u64) -> bool {
        self.inner()
            .calls
            .iter()
            .any(|call| call.number <= up_to && matches!(call.what, CallKind::Orders | CallKind::Guards))
    }

    /// Whether a call up to that number is under way that a capture might not survive which begins meanwhile: one that
    /// queues something, or waits for the device, as giving back does. An event stands for work of before.
    pub(in crate::pool) fn is_disturbing(&self, up_to: u64) -> bool {
        self.inner()
            .calls
            .iter()
            .any(|call| call.number <= up_to && !matches!(call.what, CallKind::Talks | CallKind::Waits))
    }
}

/// Ends a call that a panic leaves: nothing is known then of what the backend did.
struct UnderWay<'a> {
    slot: &'a Slot,
    call: &'a Call,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        waiting::replace_innermost(self.call.outer.get());
        let mut guard = self.slot.lock();
        guard.inner_mut().calls.remove(self.call);
        guard.poison();
    }
}
