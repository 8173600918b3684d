//! Streams and events of the CUDA driver.

use super::Cuda;
use super::calls::{self, Failure};
use super::context::{self, RelaxedMode, inside_in_any_mode};
use super::other_contexts;
use crate::backend::life::Life;
use crate::backend::order::{Capture, Context, Current, Event, Order, State, Stream, Streams};
use crate::error::{ErrorKind, fail};
use cuda_sys::{
    CU_EVENT_DISABLE_TIMING, CU_STREAM_PER_THREAD, CUDA_ERROR_CAPTURED_EVENT, CUDA_ERROR_INVALID_HANDLE,
    CUDA_ERROR_STREAM_DETACHED, CUcontext, CUevent, CUstream, Driver,
};
use std::cell::OnceCell;

impl Event {
    fn handle(self) -> CUevent {
        self.handle as CUevent
    }
}

impl Stream {
    /// Returns whether this is a default stream, of whichever context.
    fn is_default(self) -> bool {
        self.handle <= CU_STREAM_PER_THREAD as u64
    }

    fn handle(self) -> CUstream {
        self.handle as CUstream
    }
}

/// Calls that may be among the "potentially unsafe" ones which a capture elsewhere prohibits
/// (`cuThreadExchangeStreamCaptureMode`) are made in the relaxed mode. Recording an event, making a stream wait for
/// one, and querying a stream's context or capture are not among them, so a free changes no mode.
impl Streams for Cuda {
    fn enter(
        &self,
        is_current: bool,
        work: &mut dyn FnMut(&dyn Order) -> Result<(), ErrorKind>,
    ) -> Result<(), ErrorKind> {
        let mut result = Ok(());
        let entered = inside_in_any_mode(self, is_current, |driver| {
            result = work(&Inside { cuda: self, driver, relaxed: OnceCell::new() });
            Ok(())
        });
        entered.map_err(|failure| failure.explain(self.driver)).and(result)
    }

    fn own_context(&self) -> u64 {
        self.context as u64
    }

    fn current(&self) -> Result<Current, ErrorKind> {
        let current = calls::current(self.driver).map_err(|failure| failure.explain(self.driver))?;
        if current == self.context {
            return Ok(Current::Own);
        }
        // These functions name no context, so that they fail for one that has ended.
        let known = calls::current_device(self.driver)
            .and_then(|device| calls::current_id(self.driver).map(|id| (device, id.unwrap_or(0))));
        if other_contexts::is_end(&known) {
            other_contexts::note_end(current as u64);
        }
        let Ok((device, id)) = known else { return Ok(Current::Nothing) };
        // A green context has the number of its primary context, and one of its own.
        let number = calls::current_green_id(self.driver).unwrap_or(id);
        let number = other_contexts::number_of(Context { handle: current as u64, number }, id)?;
        Ok(match number {
            Some(number) if device == self.device => Current::Beside(number),
            Some(number) => Current::Elsewhere(number),
            None => Current::Nothing,
        })
    }
}

/// A device whose context is current.
struct Inside<'a> {
    cuda: &'a Cuda,
    driver: Driver,
    /// Set once the thread's capture mode is relaxed, until this is dropped.
    relaxed: OnceCell<RelaxedMode>,
}

impl Inside<'_> {
    fn ordering<T>(&self, work: impl FnOnce(Driver) -> Result<T, Failure>) -> Result<T, ErrorKind> {
        let done = if self.cuda.is_over() { Err(Failure::Gone) } else { work(self.driver) };
        done.map_err(|failure| self.cuda.detect_loss(failure).explain(self.driver))
    }

    /// Like [`Self::ordering`], in the relaxed mode.
    fn relaxed<T>(&self, work: impl FnOnce(Driver) -> Result<T, Failure>) -> Result<T, ErrorKind> {
        self.ordering(|driver| {
            if self.relaxed.get().is_none() {
                let _ = self.relaxed.set(RelaxedMode::begin(driver)?);
            }
            work(driver)
        })
    }

    /// Like [`Self::ordering`], with the context current that the stream belongs to if it is a default stream.
    fn on<T>(&self, stream: Stream, work: impl FnOnce(Driver) -> Result<T, Failure>) -> Result<T, ErrorKind> {
        if stream.context == 0 {
            return self.ordering(work);
        }
        let done = self.ordering(|driver| other_contexts::inside(driver, stream.context, work))?;
        done.ok_or_else(no_context)
    }

    /// Returns whether the context with a number is, or was, a green context of the device's own. A synchronization of the
    /// latter covers it, even after its end ("green contexts that have been created will also be synchronized",
    /// cuCtxSynchronize).
    fn is_green(&self, number: u32) -> bool {
        self.cuda.id.is_some_and(|own| other_contexts::id(number) == Some(own))
    }

    /// Runs `work` with a context current that need not be the device's own.
    fn within<T>(
        &self,
        context: Context,
        work: impl FnOnce(Driver) -> Result<T, Failure>,
    ) -> Result<T, ErrorKind> {
        self.relaxed(|driver| {
            if context == Context::OWN {
                return work(driver);
            }
            // SAFETY: a stream of the context exists, and so does the context.
            unsafe { calls::push_other(driver, context.handle as CUcontext) }?;
            let done = work(driver);
            let popped = calls::pop(driver);
            done.and_then(|done| popped.map(|()| done))
        })
    }
}

#[cold]
fn no_context() -> ErrorKind {
    fail!(ErrorKind::BackendFailed, "a context was destroyed whose default stream the allocator knows")
}

impl Order for Inside<'_> {
    fn context_of(&self, stream: Stream) -> Result<Context, ErrorKind> {
        if stream.is_default() {
            return match stream.context {
                0 => Ok(Context::OWN),
                // Events that are created in a green context are of its primary context, too.
                number if self.is_green(number) => Ok(Context::OWN),
                number => other_contexts::context(number).ok_or_else(no_context),
            };
        }
        // Querying a stream may be prohibited while another is captured.
        self.relaxed(|driver| {
            // SAFETY: the stream exists until the program reports its destruction.
            let context = match unsafe { calls::context_of(driver, stream.handle()) } {
                // Drivers before CUDA 9.2 do not report it. The device's own context is the best guess.
                Err(Failure::Missing(_)) => self.cuda.context,
                // The work of a detached stream continues in the primary context of its device (cuGreenCtxDestroy).
                // With several devices, nothing identifies that one.
                Err(failure)
                    if failure.is(CUDA_ERROR_STREAM_DETACHED) && calls::device_count(driver) == Ok(1) =>
                {
                    self.cuda.context
                }
                context => context?,
            };
            if context == self.cuda.context {
                return Ok(Context::OWN);
            }
            // SAFETY: a stream of the context exists, and so does the context.
            let number = unsafe { calls::id_of(driver, context) }?;
            Ok(Context { handle: context as u64, number: number.unwrap_or(0) })
        })
    }

    fn create_event(&self, context: Context) -> Result<Event, ErrorKind> {
        let event = self.within(context, |driver| calls::create_event(driver, CU_EVENT_DISABLE_TIMING))?;
        Ok(Event { handle: event as u64, context })
    }

    fn destroy_event(&self, event: Event) {
        // SAFETY: the pool destroys each event that it created once.
        let _ = unsafe { calls::destroy_event(self.driver, event.handle()) };
    }

    fn record(&self, event: Event, on: Stream) -> Result<(), ErrorKind> {
        // SAFETY: the event is the pool's; the stream exists until the program reports its destruction.
        self.on(on, |driver| unsafe { calls::record(driver, event.handle(), on.handle()) })
    }

    fn record_across(&self, event: Event, on: Stream) -> Result<(), ErrorKind> {
        let there = self.create_event(self.context_of(on)?)?;
        let recorded = self.record(there, on).and_then(|()| {
            self.relaxed(|driver| {
                let bridge = calls::create_stream(driver)?;
                // SAFETY: the bridge and the events exist. A stream may wait for an event of another context, but an
                // event can be recorded only on a stream of its own context (cuStreamWaitEvent, cuEventRecord).
                let recorded = unsafe { calls::make_wait(driver, bridge, there.handle()) }
                    // SAFETY: as above.
                    .and_then(|()| unsafe { calls::record(driver, event.handle(), bridge) });
                // SAFETY: it was created here. "the resources associated with hStream will be released automatically
                // once the device has completed all work in hStream" (cuStreamDestroy).
                unsafe { calls::destroy_stream(driver, bridge) }.and(recorded)
            })
        });
        // This is legal before the event is complete: waits for it are not affected (cuEventDestroy).
        self.destroy_event(there);
        recorded
    }

    fn state(&self, event: Event) -> Result<State, ErrorKind> {
        // SAFETY: the event is the pool's.
        self.relaxed(|driver| match unsafe { calls::is_done(driver, event.handle()) } {
            Ok(true) => Ok(State::Done),
            Ok(false) => Ok(State::Pending),
            Err(failure) if failure.is(CUDA_ERROR_CAPTURED_EVENT) => Ok(State::Captured),
            // The program has ended the context without reporting its streams before.
            Err(failure) if event.context != Context::OWN && failure.is(CUDA_ERROR_INVALID_HANDLE) => {
                Ok(State::Lost)
            }
            Err(failure) => Err(failure),
        })
    }

    fn wait_for(&self, event: Event) -> Result<(), ErrorKind> {
        // SAFETY: the event is the pool's.
        self.relaxed(|driver| unsafe { calls::wait_for(driver, event.handle()) })
    }

    fn make_wait(&self, stream: Stream, event: Event) -> Result<(), ErrorKind> {
        // SAFETY: the event is the pool's; the stream exists until the program reports its destruction.
        self.on(stream, |driver| unsafe { calls::make_wait(driver, stream.handle(), event.handle()) })
    }

    fn synchronize(&self) -> Result<(), ErrorKind> {
        self.relaxed(context::synchronize)
    }

    fn is_idle(&self, event: Event) -> Result<bool, ErrorKind> {
        // SAFETY: the context exists, and the event is of it.
        let record = |driver| unsafe { calls::record_all(driver, self.cuda.context, event.handle()) };
        let is_recorded = self.relaxed(|driver| match record(driver) {
            Err(Failure::Missing(_)) => Ok(false),
            recorded => recorded.map(|()| true),
        })?;
        Ok(is_recorded && self.state(event)? == State::Done)
    }

    fn capture_of(&self, stream: Stream) -> Result<Capture, ErrorKind> {
        // SAFETY: the stream exists until the program reports its destruction.
        let ask = |driver: Driver| match unsafe { calls::is_capturing(driver, stream.handle()) } {
            Ok(captured) => Ok(if captured { Capture::Active } else { Capture::None }),
            // The program destroyed the stream without reporting it. A default stream exists as long as its context.
            Err(failure) if failure.is(CUDA_ERROR_INVALID_HANDLE) && !stream.is_default() => {
                Ok(Capture::NoStream)
            }
            // The program destroyed the stream's green context, which ended its captures (cuGreenCtxDestroy).
            Err(failure) if failure.is(CUDA_ERROR_STREAM_DETACHED) => Ok(Capture::None),
            Err(failure) => Err(failure),
        };
        if stream.context == 0 {
            return self.ordering(ask);
        }
        let asked = self.ordering(|driver| other_contexts::inside(driver, stream.context, ask));
        // Up to CUDA 12.9 "a green context can be current to only one thread at a time" (cuGreenCtxCreate), which may be
        // another one.
        if asked.is_err() && self.driver.version() < 13000 && self.is_green(stream.context) {
            return Ok(Capture::None);
        }
        Ok(asked?.unwrap_or(Capture::NoStream))
    }
}
