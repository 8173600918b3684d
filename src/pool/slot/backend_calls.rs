//! Calls of the backend and of its driver with the lock open. After each call the slot checks whether the device's
//! context has ended, and all memory with it.

use super::call::CallKind;
use super::context_end::forget_if_over;
use super::guard::Guard;
use crate::backend::order::Order;
use crate::backend::{AnyBackend, Backend};
use crate::error::{DeferredError, ErrorKind, keeping_last_error, unsaid};
use crate::pool::captures::{Permission, call_with_permission, refuse_for_a_capture};
use bfc_core::stream_id::Stream;
use bfc_hostmem::HostMemoryExhausted;
use std::convert::Infallible;

/// Why a step that opened the lock does not go on.
pub(in crate::pool) enum Interrupted {
    /// The call fails: the allocator is not usable any more, or what failed cannot be done in another way.
    Ended(ErrorKind),
    /// All memory was forgotten meanwhile, so what the step knew is of no use.
    Reborn,
    /// The driver failed, or there is no host memory to ask it. The call may still succeed without it.
    Driver(DeferredError),
}

/// The result of a step that opens the lock.
pub(in crate::pool) type Outside<T = ()> = Result<T, Interrupted>;

impl Interrupted {
    /// Returns a failure without which the call may still succeed.
    pub(in crate::pool) fn failure(fail: impl FnOnce() -> ErrorKind) -> Self {
        match unsaid(|| Err::<Infallible, _>(fail())) {
            Err(failure) => Interrupted::Driver(failure),
        }
    }
}

impl From<ErrorKind> for Interrupted {
    fn from(error: ErrorKind) -> Self {
        Interrupted::Ended(error)
    }
}

impl From<HostMemoryExhausted> for Interrupted {
    fn from(exhausted: HostMemoryExhausted) -> Self {
        Interrupted::Driver(exhausted.into())
    }
}

/// Returns whether all memory was forgotten during a step.
pub(in crate::pool) fn is_reborn<T>(result: &Outside<T>) -> bool {
    matches!(result, Err(Interrupted::Reborn))
}

/// Sets a failure of the driver apart, so that the step can go on.
pub(in crate::pool) fn deferred<T>(result: Outside<T>) -> Outside<Result<T, DeferredError>> {
    match result {
        Ok(result) => Ok(Ok(result)),
        Err(Interrupted::Driver(failure)) => Ok(Err(failure)),
        Err(interrupted) => Err(interrupted),
    }
}

/// Runs a step whose failure is not reported, unless the call ends with it.
pub(in crate::pool) fn unsaid_outside<'a, T>(
    guard: &mut Guard<'a>,
    step: impl FnOnce(&mut Guard<'a>) -> Outside<T>,
) -> Outside<T> {
    let result = keeping_last_error(|| {
        step(guard).map_err(|interrupted| match interrupted {
            Interrupted::Ended(error) => Err(DeferredError::of(error)),
            interrupted => Ok(interrupted),
        })
    });
    result.map_err(|interrupted| interrupted.unwrap_or_else(|ended| Interrupted::Ended(ended.say())))
}

/// Returns the result of a step for a caller that has no other way. `reborn` is the result if all memory was forgotten.
pub(in crate::pool) fn or_reborn<T>(
    result: Outside<T>,
    guard: &Guard<'_>,
    reborn: T,
) -> Result<T, ErrorKind> {
    match result {
        Ok(result) => Ok(result),
        // A new life says nothing of whether the allocator has ended too.
        Err(Interrupted::Reborn) => guard.check_entry().map(|()| reborn),
        Err(Interrupted::Ended(error)) => Err(error),
        Err(Interrupted::Driver(failure)) => Err(failure.say()),
    }
}

impl Guard<'_> {
    /// Returns an error if the call may not go on, or if all memory was forgotten since `life` was the value of
    /// [`Arena::life`](bfc_core::arena::Arena::life).
    pub(in crate::pool) fn check(&self, life: u64) -> Outside {
        if self.arena.life() != life {
            return Err(Interrupted::Reborn);
        }
        Ok(self.check_entry()?)
    }

    /// Calls the backend with the lock open, as [`Self::outside`] does. The pool cannot be destroyed meanwhile, because
    /// destruction waits for such calls. Forgets all memory afterwards if the context has ended.
    pub(in crate::pool) fn ask<T>(&mut self, what: CallKind, work: impl FnOnce(&dyn Backend) -> T) -> T {
        let backend: AnyBackend = *self.backend;
        let result = self.outside(what, || work(backend.get()));
        forget_if_over(self);
        result
    }

    /// Writes messages with the lock open, or only opens it for a moment.
    pub(in crate::pool) fn talk(&mut self, work: impl FnOnce()) -> Outside {
        let life = self.arena.life();
        self.outside(CallKind::Talks, work);
        self.check(life)
    }

    /// Calls the driver about the order of work with the lock open. No request waits for such a call, because each can
    /// make its own. Does nothing and succeeds if the backend has no stream-ordered driver.
    pub(in crate::pool) fn order<T: Default>(
        &mut self,
        work: impl FnOnce(&dyn Order) -> Result<T, ErrorKind>,
    ) -> Outside<T> {
        self.drive(CallKind::Orders, false, work)
    }

    /// Calls the driver as [`Self::order`] does, where the device's context may be known to be current.
    pub(in crate::pool) fn order_in<T: Default>(
        &mut self,
        is_current: bool,
        work: impl FnOnce(&dyn Order) -> Result<T, ErrorKind>,
    ) -> Outside<T> {
        self.drive(CallKind::Orders, is_current, work)
    }

    /// Waits for events with the lock open.
    pub(in crate::pool) fn wait_for_events<T: Default>(
        &mut self,
        work: impl FnOnce(&dyn Order) -> Result<T, ErrorKind>,
    ) -> Outside<T> {
        self.drive(CallKind::Waits, false, work)
    }

    /// Waits for the whole context with the lock open. Fails if a capture forbids it.
    pub(in crate::pool) fn synchronize(&mut self) -> Outside {
        let backend: AnyBackend = *self.backend;
        self.drive(CallKind::Synchronizes, false, |order| {
            call_with_permission(backend.get(), None, || order.synchronize())
        })
    }

    fn drive<T: Default>(
        &mut self,
        what: CallKind,
        is_current: bool,
        work: impl FnOnce(&dyn Order) -> Result<T, ErrorKind>,
    ) -> Outside<T> {
        if self.backend.get().order().is_none() {
            return Ok(T::default());
        }
        let life = self.arena.life();
        let result = self.ask(what, |backend| match backend.order() {
            Some(streams) => unsaid(|| streams.run_in(is_current, work)),
            None => Ok(T::default()),
        });
        self.check(life)?;
        result.map_err(Interrupted::Driver)
    }

    /// Waits until no work queued so far can use memory that was free before, because it is to go back. No request waits
    /// for this call, unless it has the number of one that gives the memory back. Fails if a capture forbids it, except for a
    /// caller that holds a permission. A capture that is announced on `stream` only does not.
    pub(in crate::pool) fn let_work_end(
        &mut self,
        stream: Stream,
        number: Option<u64>,
        held: Option<&Permission>,
    ) -> Result<(), DeferredError> {
        let backend = self.backend.get();
        if backend.order().is_none() && backend.granules().is_none() {
            return Ok(());
        }
        // An announcement waits for this call only if it comes later: it would find the call under way.
        if held.is_none() && backend.order().is_some() && self.is_capture_announced(stream) {
            return unsaid(|| Err(refuse_for_a_capture()));
        }
        let what = number.map_or(CallKind::Synchronizes, CallKind::GivesBack);
        self.ask(what, |backend| {
            let wait = || match (backend.granules(), backend.order()) {
                (Some(granules), _) => granules.wait_until_idle(),
                // There is no work after the driver's end.
                (None, Some(streams)) => match streams.run(|order| order.synchronize()) {
                    Err(ErrorKind::ShuttingDown) => Ok(()),
                    synchronized => synchronized,
                },
                (None, None) => Ok(()),
            };
            unsaid(|| call_with_permission(backend, held, wait))
        })
    }
}
