//! Calls of the backend and of listeners with the lock open. The slot lists those under way. So a callback cannot enter
//! its own allocator, destruction can wait for the calls, and requests can wait for the memory that they bring.

use super::call::{Call, CallKind};
use super::guard::Guard;
use super::waiting;
use crate::pool::captures;
use crate::pool::listener::RegionEvent;
use crate::sys::clock::monotonic_ms;
use crate::sys::thread;
use bfc_core::units::Span;
use std::cell::Cell;
use std::{iter, ptr};

impl Guard<'_> {
    /// Reports memory that goes back, is lost or stays, in a call of that number with the lock open. Without a listener the
    /// lock stays held.
    pub(in crate::pool) fn report_regions(
        &mut self,
        number: u64,
        event: RegionEvent,
        regions: impl Iterator<Item = Span>,
    ) {
        let listener = self.listener;
        if listener.is_set() {
            self.outside(CallKind::GivesBack(number), || {
                regions.for_each(|region| listener.notify(event, region));
            });
        }
    }

    /// Reports a region, or a piece of a range, in a call of its own.
    pub(in crate::pool) fn report_region(&mut self, event: RegionEvent, region: Span) {
        self.report_regions(self.next_call(), event, iter::once(region));
    }

    /// Returns whether the callback of an idle pool is under way, with `here` only on this thread.
    pub(in crate::pool) fn is_settling(&self, here: bool) -> bool {
        let is_one = |call: &Call| call.what == CallKind::Settles;
        self.inner().calls.iter().any(|call| is_one(call) && (!here || call.thread == thread::current()))
    }

    /// Returns whether a thread is writing or checking guards. This is read from the calls under way, so it ends with
    /// them, also in a forked child.
    pub(in crate::pool) fn is_guarding(&self) -> bool {
        self.inner().calls.iter().any(|call| call.what == CallKind::Guards)
    }

    /// Runs `work` with the lock open. The slot lists the call until it ends. If `work` panics, the slot is poisoned: what
    /// the backend did is not known then.
    pub(in crate::pool) fn outside<T>(&mut self, what: CallKind, work: impl FnOnce() -> T) -> T {
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
        self.open();
        call.outer.set(waiting::replace_innermost(&call));
        let mut under_way = UnderWay { guard: self, call: &call };
        let result = work();
        under_way.end();
        std::mem::forget(under_way);
        self.notify();
        result
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

/// A call under way. Dropped only by a panic.
struct UnderWay<'a, 'slot> {
    guard: &'a mut Guard<'slot>,
    call: &'a Call,
}

impl UnderWay<'_, '_> {
    /// Takes the lock again after the call.
    fn end(&mut self) {
        waiting::replace_innermost(self.call.outer.get());
        self.guard.close();
        self.guard.inner_mut().calls.remove(self.call);
    }
}

impl Drop for UnderWay<'_, '_> {
    #[cold]
    fn drop(&mut self) {
        self.end();
        self.guard.mark_poisoned();
    }
}
