//! Calls of the backend and of its driver with the lock open. After each call the slot checks whether the device's
//! context has ended, and all memory with it.

use super::call::CallKind;
use super::context_end::forget_if_over;
use super::guard::Guard;
use crate::backend::life::Life;
use crate::backend::order::Order;
use crate::backend::{AnyBackend, Backend};
use crate::core::stream_id::Stream;
use crate::error::{DeferredError, Error, unsaid};
use crate::pool::captures::{Permission, refuse_for_a_capture};

impl Guard<'_> {
    /// Obtains a region from the backend with the lock open. `reserved` bytes are set aside for it. The pool cannot be
    /// destroyed meanwhile, because destruction waits for such calls. Callbacks in this call cannot enter the
    /// allocator.
    pub(in crate::pool) fn obtaining<T>(
        self,
        reserved: u64,
        work: impl FnOnce(&dyn Backend) -> T,
    ) -> (Self, T) {
        self.on_backend(CallKind::Obtains(reserved), work)
    }

    /// Gives memory back to the backend, in the same way as [`Self::obtaining`].
    pub(in crate::pool) fn giving_back<T>(self, work: impl FnOnce(&dyn Backend) -> T) -> (Self, T) {
        let number = self.next_call();
        self.giving_back_as(number, work)
    }

    /// The same, as a call of that number ([`CallKind::GivesBack`]).
    pub(in crate::pool) fn giving_back_as<T>(
        self,
        number: u64,
        work: impl FnOnce(&dyn Backend) -> T,
    ) -> (Self, T) {
        self.on_backend(CallKind::GivesBack(number), work)
    }

    /// Makes a call of the backend that neither obtains nor gives back memory, in the same way.
    pub(in crate::pool) fn asking<T>(self, work: impl FnOnce(&dyn Backend) -> T) -> (Self, T) {
        self.on_backend(CallKind::Orders, work)
    }

    /// Checks in the same way whether the backend's memory is lost. Returns false if the backend's memory cannot be
    /// lost.
    pub(in crate::pool) fn looking(self, work: impl FnOnce(&dyn Life) -> bool) -> (Self, bool) {
        self.on_backend(CallKind::Orders, |backend| backend.life().is_some_and(work))
    }

    /// Renews a backend whose memory is lost, in the same way. A backend whose memory cannot be lost stays as it is.
    pub(in crate::pool) fn renewing(self) -> (Self, Result<AnyBackend, Error>) {
        let backend: AnyBackend = *self.backend;
        let renew = || backend.get().life().map_or(Ok(backend), |life| life.renew());
        self.step_out(CallKind::Obtains(0), renew)
    }

    /// Calls the driver about the order of work, in the same way. No request waits for such a call, because each can
    /// make its own. Does nothing and succeeds if the backend has no stream-ordered driver.
    pub(in crate::pool) fn ordering<T: Default>(
        self,
        work: impl FnOnce(&dyn Order) -> Result<T, Error>,
    ) -> (Self, Result<T, DeferredError>) {
        self.with_order(CallKind::Orders, false, work)
    }

    /// The same, where the device's context may be known to be current.
    pub(in crate::pool) fn ordering_in<T: Default>(
        self,
        is_current: bool,
        work: impl FnOnce(&dyn Order) -> Result<T, Error>,
    ) -> (Self, Result<T, DeferredError>) {
        self.with_order(CallKind::Orders, is_current, work)
    }

    /// Waits for events, in the same way.
    pub(in crate::pool) fn waiting<T: Default>(
        self,
        work: impl FnOnce(&dyn Order) -> Result<T, Error>,
    ) -> (Self, Result<T, DeferredError>) {
        self.with_order(CallKind::Waits, false, work)
    }

    /// Waits for the whole context, in the same way. Fails if a capture forbids it.
    pub(in crate::pool) fn synchronizing(self) -> (Self, Result<(), DeferredError>) {
        let backend: AnyBackend = *self.backend;
        self.with_order(CallKind::Synchronizes, false, |order| match Permission::of(backend.get()) {
            Some(_permission) => order.synchronize(),
            None => Err(refuse_for_a_capture()),
        })
    }

    /// Waits until no work queued so far can use memory that was free before, because it is to go back. No request waits
    /// for this call, unless it has the number of one that gives the memory back. Fails if a capture forbids it, except for a
    /// caller that holds a permission. A capture that is announced on `stream` only does not.
    pub(in crate::pool) fn letting_work_end(
        self,
        stream: Stream,
        number: Option<u64>,
        held: Option<&Permission>,
    ) -> (Self, Result<(), DeferredError>) {
        let backend = self.backend.get();
        if backend.order().is_none() && backend.granules().is_none() {
            return (self, Ok(()));
        }
        // An announcement waits for this call only if it comes later: it would find the call under way.
        if held.is_none() && backend.order().is_some() && self.is_capture_announced(stream) {
            return (self, unsaid(|| Err(refuse_for_a_capture())));
        }
        let what = number.map_or(CallKind::Synchronizes, CallKind::GivesBack);
        self.on_backend(what, |backend| {
            unsaid(|| {
                let own = if held.is_none() { Permission::of(backend) } else { None };
                let Some(permission) = held.or(own.as_ref()) else { return Err(refuse_for_a_capture()) };
                permission.enter();
                match (backend.granules(), backend.order()) {
                    (Some(granules), _) => granules.wait_until_idle(),
                    // There is no work after the driver's end.
                    (None, Some(streams)) => match streams.run(|order| order.synchronize()) {
                        Err(Error::ShuttingDown) => Ok(()),
                        synchronized => synchronized,
                    },
                    (None, None) => Ok(()),
                }
            })
        })
    }

    fn with_order<T: Default>(
        self,
        what: CallKind,
        is_current: bool,
        work: impl FnOnce(&dyn Order) -> Result<T, Error>,
    ) -> (Self, Result<T, DeferredError>) {
        if self.backend.get().order().is_none() {
            return (self, Ok(T::default()));
        }
        self.on_backend(what, |backend| match backend.order() {
            Some(streams) => unsaid(|| streams.run_in(is_current, work)),
            None => Ok(T::default()),
        })
    }

    /// Reads and writes the pool's memory with the lock open, in the same way. The caller has checked that no other
    /// thread does so.
    pub(in crate::pool) fn guarding<T>(self, work: impl FnOnce(&dyn Backend) -> T) -> (Self, T) {
        self.on_backend(CallKind::Guards, work)
    }

    /// Calls the backend with the lock open. Forgets all memory afterwards if the context has ended.
    fn on_backend<T>(self, what: CallKind, work: impl FnOnce(&dyn Backend) -> T) -> (Self, T) {
        let backend: AnyBackend = *self.backend;
        let (guard, result) = self.step_out(what, || work(backend.get()));
        (forget_if_over(guard), result)
    }
}
