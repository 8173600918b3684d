//! The order of device work: streams and events.

use super::Cuda;
use super::calls::{self, Failure};
use super::context::{self, inside};
use crate::backend::order::{Event, Order, State, Stream};
use crate::error::Error;
use cuda_sys::{CU_EVENT_DISABLE_TIMING, CUDA_ERROR_CAPTURED_EVENT, CUevent, CUstream, Driver};

impl Event {
    fn handle(self) -> CUevent {
        self.0 as CUevent
    }
}

impl Stream {
    fn handle(self) -> CUstream {
        self.0 as CUstream
    }
}

impl Cuda {
    fn ordering<T>(&self, work: impl FnOnce(Driver) -> Result<T, Failure>) -> Result<T, Error> {
        inside(self, work).map_err(|failure| failure.explain(self.driver))
    }
}

/// The streams are those of the device's primary context; 1 and 2, its default streams, are so in that context.
impl Order for Cuda {
    fn create_event(&self) -> Result<Event, Error> {
        let event = self.ordering(|driver| calls::create_event(driver, CU_EVENT_DISABLE_TIMING))?;
        Ok(Event(event as u64))
    }

    fn destroy_event(&self, event: Event) {
        // SAFETY: the pool destroys what it had created, once.
        let _ = inside(self, |driver| unsafe { calls::destroy_event(driver, event.handle()) });
    }

    fn record(&self, event: Event, on: Stream) -> Result<(), Error> {
        // SAFETY: the event is the pool's; the stream lives until the program says that it does not.
        self.ordering(|driver| unsafe { calls::record(driver, event.handle(), on.handle()) })
    }

    fn state(&self, event: Event) -> Result<State, Error> {
        // SAFETY: the event is the pool's.
        self.ordering(|driver| match unsafe { calls::is_done(driver, event.handle()) } {
            Ok(true) => Ok(State::Done),
            Ok(false) => Ok(State::Pending),
            Err(failure) if failure.is(CUDA_ERROR_CAPTURED_EVENT) => Ok(State::Captured),
            Err(failure) => Err(failure),
        })
    }

    fn wait_for(&self, event: Event) -> Result<(), Error> {
        // SAFETY: the event is the pool's.
        self.ordering(|driver| unsafe { calls::wait_for(driver, event.handle()) })
    }

    fn make_wait(&self, stream: Stream, event: Event) -> Result<(), Error> {
        // SAFETY: the event is the pool's; the stream lives until the program says that it does not.
        self.ordering(|driver| unsafe { calls::make_wait(driver, stream.handle(), event.handle()) })
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.ordering(context::synchronize)
    }

    fn is_capturing(&self, stream: Stream) -> Result<bool, Error> {
        // SAFETY: the stream lives until the program says that it does not.
        self.ordering(|driver| unsafe { calls::is_capturing(driver, stream.handle()) })
    }
}
