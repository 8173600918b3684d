//! Calls of the backend and of its driver with the lock open. After each the slot looks whether the device's context, and
//! with it all memory, is gone.

use super::call::CallKind;
use super::context_end::forget_if_over;
use super::guard::Guard;
use crate::backend::life::Life;
use crate::backend::order::Order;
use crate::backend::{AnyBackend, Backend};
use crate::error::{DeferredError, Error, unsaid};
use crate::pool::captures::{Permission, refuse_for_a_capture};

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

    /// Reads and writes the memory itself with the lock open, in the same way. The caller has checked that no other
    /// thread does so.
    pub(in crate::pool) fn guarding<T>(self, work: impl FnOnce(&dyn Backend) -> T) -> (Self, T) {
        self.on_backend(CallKind::Guards, work)
    }

    /// Calls the backend with the lock open, and forgets everything afterwards if its memory is gone.
    fn on_backend<T>(self, what: CallKind, work: impl FnOnce(&dyn Backend) -> T) -> (Self, T) {
        let backend: AnyBackend = *self.backend;
        let (guard, result) = self.step_out(what, || work(backend.get()));
        (forget_if_over(guard), result)
    }
}
