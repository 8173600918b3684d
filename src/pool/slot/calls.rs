//! Calls under way with the lock open: of the backend, and of listeners. The slot knows them, so that a callback
//! cannot enter its own allocator, destruction can wait for them, and requests for what they bring.

use super::{Guard, Inner, Slot, waiting};
use crate::backend::life::Life;
use crate::backend::order::Order;
use crate::backend::{AnyBackend, Backend};
use crate::error::{DeferredError, Error, unsaid};
use crate::pool::captures::Permission;
use crate::pool::context_loss::forget_if_over;
use crate::pool::region_io::refuse_for_a_capture;
use crate::sys::thread::{self, ThreadId};
use std::cell::Cell;

/// A call under way with the lock open, of the backend or of a listener, on the stack of the thread that makes
/// it. Read and changed with the slot's lock held only.
pub(super) struct Call {
    pub(super) thread: ThreadId,
    pub(super) number: u64,
    pub(super) what: CallKind,
    pub(super) next: Cell<*const Call>,
    pub(super) slot: *const Slot,
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

impl CallKind {
    pub(super) fn reserved(self) -> u64 {
        match self {
            CallKind::Obtains(bytes) => bytes,
            _ => 0,
        }
    }
}

impl Guard<'_> {
    /// Asks the backend for a region with the lock open; `reserved` bytes are set aside for it. The pool
    /// stays: destruction waits for such calls. This thread cannot enter the allocator meanwhile, from
    /// whatever callback.
    pub(in crate::pool) fn obtaining<T>(
        self,
        reserved: u64,
        work: impl FnOnce(&dyn Backend) -> T,
    ) -> (Self, T) {
        self.on_backend(CallKind::Obtains(reserved), work)
    }

    /// Gives the backend something back with the lock open, in the same way.
    pub(in crate::pool) fn giving_back<T>(self, work: impl FnOnce(&dyn Backend) -> T) -> (Self, T) {
        self.on_backend(CallKind::GivesBack, work)
    }

    /// Asks the backend something that makes no memory come or go, in the same way.
    pub(in crate::pool) fn asking<T>(self, work: impl FnOnce(&dyn Backend) -> T) -> (Self, T) {
        self.on_backend(CallKind::Orders, work)
    }

    /// Looks in the same way whether the backend's memory is gone.
    pub(in crate::pool) fn looking(self, work: impl FnOnce(&dyn Life) -> bool) -> (Self, bool) {
        self.on_backend(CallKind::Orders, |backend| backend.life().is_some_and(work))
    }

    /// Has a backend whose memory is gone begin anew, in the same way; it goes on as before if it cannot end so.
    pub(in crate::pool) fn renewing(self) -> (Self, Result<AnyBackend, Error>) {
        let backend: AnyBackend = *self.backend;
        let renew = || backend.get().life().map_or(Ok(backend), |life| life.renew());
        self.step_out(CallKind::Obtains(0), renew)
    }

    /// Tells listeners of memory that is gone, in the same way.
    pub(in crate::pool) fn notifying(self, work: impl FnOnce()) -> Self {
        self.step_out(CallKind::GivesBack, work).0
    }

    /// Has the driver look after the order of work with the lock open, in the same way; but no request waits for
    /// it: each can do so itself. Without such a driver nothing happens, and that is no failure.
    pub(in crate::pool) fn ordering<T: Default>(
        self,
        work: impl FnOnce(&dyn Order) -> Result<T, Error>,
    ) -> (Self, Result<T, DeferredError>) {
        self.with_order(CallKind::Orders, work)
    }

    /// Waits in the same way for events.
    pub(in crate::pool) fn waiting<T: Default>(
        self,
        work: impl FnOnce(&dyn Order) -> Result<T, Error>,
    ) -> (Self, Result<T, DeferredError>) {
        self.with_order(CallKind::Waits, work)
    }

    /// Waits in the same way for the whole device.
    pub(in crate::pool) fn synchronizing(self) -> (Self, Result<(), DeferredError>) {
        let backend: AnyBackend = *self.backend;
        self.with_order(CallKind::Synchronizes, |order| match Permission::of(backend.get()) {
            Some(_permission) => order.synchronize(),
            None => Err(refuse_for_a_capture()),
        })
    }

    fn with_order<T: Default>(
        self,
        what: CallKind,
        work: impl FnOnce(&dyn Order) -> Result<T, Error>,
    ) -> (Self, Result<T, DeferredError>) {
        if self.backend.get().order().is_none() {
            return (self, Ok(T::default()));
        }
        self.on_backend(what, |backend| match backend.order() {
            Some(streams) => unsaid(|| streams.run(work)),
            None => Ok(T::default()),
        })
    }

    /// Writes messages with the lock open, in the same way; but no request waits for it: the log's callback may
    /// itself be waiting for another allocator's memory.
    pub(in crate::pool) fn talking(self, work: impl FnOnce()) -> Self {
        self.step_out(CallKind::Talks, work).0
    }

    /// Reads and writes the memory itself with the lock open, in the same way. The caller has checked that no other
    /// thread does so.
    pub(in crate::pool) fn guarding<T>(self, work: impl FnOnce(&dyn Backend) -> T) -> (Self, T) {
        self.on_backend(CallKind::Guards, work)
    }

    /// Returns whether a thread is writing or checking guards. As it is known by the calls under way, it ends with them, in
    /// a forked child too.
    pub(in crate::pool) fn is_guarding(&self) -> bool {
        self.calls().any(|call| call.what == CallKind::Guards)
    }

    /// Calls the backend with the lock open, and forgets everything afterwards if its memory is gone.
    fn on_backend<T>(self, what: CallKind, work: impl FnOnce(&dyn Backend) -> T) -> (Self, T) {
        let backend: AnyBackend = *self.backend;
        let (guard, result) = self.step_out(what, || work(backend.get()));
        (forget_if_over(guard), result)
    }

    /// Does something with the lock open; the slot knows of the call until it ends.
    fn step_out<T>(mut self, what: CallKind, work: impl FnOnce() -> T) -> (Self, T) {
        let slot = self.slot;
        self.inner_mut().last_call += 1;
        let Inner { last_call: number, calls, .. } = *self.inner();
        let (thread, next, is_in_circle) = (thread::current(), Cell::new(calls), Cell::new(false));
        let outer = Cell::new(std::ptr::null());
        let call = Call { thread, number, what, next, slot, outer, is_in_circle };
        self.inner_mut().calls = &call;
        drop(self);
        call.outer.set(waiting::replace_innermost(&call));
        let under_way = UnderWay { slot, call: &call };
        let result = work();
        waiting::replace_innermost(call.outer.get());
        let mut guard = slot.lock();
        std::mem::forget(under_way);
        guard.end_call(&call);
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
        self.calls().any(|call| call.number <= up_to && brings(call))
    }

    /// Whether a call of the backend is under way.
    pub(in crate::pool) fn is_calling(&self) -> bool {
        self.calls().any(|call| call.what != CallKind::Talks)
    }

    /// Whether the driver is asked about streams, or something is queued on them, by a call up to that number. Writing
    /// guards includes such questions.
    pub(in crate::pool) fn is_ordering(&self, up_to: u64) -> bool {
        self.calls()
            .any(|call| call.number <= up_to && matches!(call.what, CallKind::Orders | CallKind::Guards))
    }

    /// Whether a call up to that number is under way that a capture might not survive which begins meanwhile: one that
    /// queues something, or waits for the device, as giving back does. An event stands for work of before.
    pub(in crate::pool) fn is_disturbing(&self, up_to: u64) -> bool {
        self.calls()
            .any(|call| call.number <= up_to && !matches!(call.what, CallKind::Talks | CallKind::Waits))
    }

    pub(super) fn end_call(&mut self, ended: &Call) {
        self.keep_calls(|call| !std::ptr::eq(call, ended));
    }

    /// Takes the calls that are not to be kept out of the list.
    pub(super) fn keep_calls(&mut self, keep: impl Fn(&Call) -> bool) {
        let mut kept: Option<&Call> = None;
        let mut at = self.inner().calls;
        loop {
            // SAFETY: a call is in the list only while its frame is alive, as those of a parent's threads
            // are in the memory of a forked child.
            while let Some(call) = unsafe { at.as_ref() }.filter(|call| !keep(call)) {
                at = call.next.get();
            }
            match kept {
                Some(call) => call.next.set(at),
                None => self.inner_mut().calls = at,
            }
            // SAFETY: as above.
            let Some(call) = (unsafe { at.as_ref() }) else { return };
            (kept, at) = (Some(call), call.next.get());
        }
    }

    pub(super) fn is_called_by_this_thread(&self) -> bool {
        self.calls().any(|call| call.thread == thread::current())
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = &Call> {
        let mut at = self.inner().calls;
        std::iter::from_fn(move || {
            // SAFETY: as in `keep_calls`.
            let call = unsafe { at.as_ref() }?;
            at = call.next.get();
            Some(call)
        })
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
        guard.end_call(self.call);
        guard.poison();
    }
}
