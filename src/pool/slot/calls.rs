//! Calls of the backend and of listeners with the lock open. The slot lists those under way. So a callback cannot enter
//! its own allocator, destruction can wait for the calls, and requests can wait for the memory that they bring.

use super::call::{Call, CallKind};
use super::guard::Guard;
use super::slot::Slot;
use super::waiting;
use crate::pool::captures;
use crate::sys::clock::monotonic_ms;
use crate::sys::thread;
use std::cell::Cell;
use std::ptr;

impl Guard<'_> {
    /// Notifies listeners of lost memory with the lock open, as [`Self::step_out`] does.
    pub(in crate::pool) fn notifying(self, work: impl FnOnce()) -> Self {
        let number = self.next_call();
        self.notifying_as(number, work)
    }

    /// Notifies listeners of memory that goes back or stays, as a call of that number ([`CallKind::GivesBack`]).
    pub(in crate::pool) fn notifying_as(self, number: u64, work: impl FnOnce()) -> Self {
        self.step_out(CallKind::GivesBack(number), work).0
    }

    /// Writes messages with the lock open, as [`Self::step_out`] does. No request waits for this, because the log's
    /// callback may itself be waiting for another allocator's memory.
    pub(in crate::pool) fn talking(self, work: impl FnOnce()) -> Self {
        self.step_out(CallKind::Talks, work).0
    }

    /// Calls the client with the lock open, as [`Self::step_out`] does. Unlike other callbacks this one may call the
    /// allocator.
    pub(in crate::pool) fn settling(self, work: impl FnOnce()) -> Self {
        self.step_out(CallKind::Settles, work).0
    }

    /// Returns whether the client is being called so, or only this thread's client with `here`.
    pub(in crate::pool) fn is_settling(&self, here: bool) -> bool {
        let is_one = |call: &Call| call.what == CallKind::Settles;
        self.inner().calls.iter().any(|call| is_one(call) && (!here || call.thread == thread::current()))
    }

    /// Returns whether a thread is writing or checking guards. This is read from the calls under way, so it ends with
    /// them, also in a forked child.
    pub(in crate::pool) fn is_guarding(&self) -> bool {
        self.inner().calls.iter().any(|call| call.what == CallKind::Guards)
    }

    /// Runs `work` with the lock open. The slot lists the call until it ends.
    pub(super) fn step_out<T>(mut self, what: CallKind, work: impl FnOnce() -> T) -> (Self, T) {
        let slot = self.slot;
        self.inner_mut().last_call += 1;
        let number = match what {
            CallKind::GivesBack(first) => first,
            _ => self.inner().last_call,
        };
        let (next, outer) = (Cell::new(ptr::null()), Cell::new(ptr::null()));
        let (thread, is_in_circle) = (thread::current(), Cell::new(false));
        let begun = if what.may_synchronize() { monotonic_ms() } else { 0 };
        let call = Call { thread, number, what, begun, next, slot: slot.id(), outer, is_in_circle };
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

    /// Returns the number of the last call that any thread made with the lock open.
    pub(in crate::pool) fn last_call(&self) -> u64 {
        self.inner().last_call
    }

    /// Returns the number of the next call.
    pub(in crate::pool) fn next_call(&self) -> u64 {
        self.inner().last_call + 1
    }

    /// Returns whether a call up to number `up_to` is under way that obtains a region, or makes room for one by giving
    /// memory back.
    pub(in crate::pool) fn is_bringing(&self, up_to: u64) -> bool {
        self.is_obtaining(up_to) || self.is_giving_back(up_to)
    }

    /// Returns whether a call up to number `up_to` is under way that obtains a region.
    pub(in crate::pool) fn is_obtaining(&self, up_to: u64) -> bool {
        let obtains = |call: &Call| matches!(call.what, CallKind::Obtains(_));
        self.inner().calls.iter().any(|call| call.number <= up_to && obtains(call))
    }

    /// Returns whether a call up to number `up_to` is under way that gives memory back. It may wait for the device, and so
    /// for what this thread does next.
    pub(in crate::pool) fn is_giving_back(&self, up_to: u64) -> bool {
        let gives_back = |call: &Call| matches!(call.what, CallKind::GivesBack(_));
        self.inner().calls.iter().any(|call| call.number <= up_to && gives_back(call))
    }

    /// Returns whether a call is under way that is no mere callback.
    pub(in crate::pool) fn is_calling(&self) -> bool {
        self.inner().calls.iter().any(|call| !matches!(call.what, CallKind::Talks | CallKind::Settles))
    }

    /// Returns whether a call up to number `up_to` is under way that queries streams or queues something on them. Calls
    /// that write or check guards may do so too.
    pub(in crate::pool) fn is_ordering(&self, up_to: u64) -> bool {
        self.inner()
            .calls
            .iter()
            .any(|call| call.number <= up_to && matches!(call.what, CallKind::Orders | CallKind::Guards))
    }

    /// Returns whether a call up to number `up_to` is under way that could break a capture which begins meanwhile. Such
    /// a call queues something or waits for the device, as giving memory back does. Waiting for an event is harmless,
    /// because the event was recorded before. A call that waits for the device does harm only on its way into the driver,
    /// for which [`captures::ENTRY`] is enough. Without `may_enter` it is past that time for all calls.
    pub(in crate::pool) fn is_disturbing(&self, up_to: u64, may_enter: bool) -> bool {
        let disturbs = |call: &Call| match call.what {
            CallKind::Talks | CallKind::Settles | CallKind::Waits => false,
            CallKind::Orders => true,
            CallKind::Obtains(_) | CallKind::Guards => may_enter,
            CallKind::GivesBack(_) | CallKind::Synchronizes => may_enter && captures::is_entering(call.begun),
        };
        self.inner().calls.iter().any(|call| call.number <= up_to && disturbs(call))
    }
}

/// Ends a call that panicked, and poisons the slot: what the backend did is not known then.
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
