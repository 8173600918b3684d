//! The order of device work: streams and events.

use super::Cuda;
use super::calls::{self, Failure};
use super::context::{self, inside};
use crate::backend::life::Life;
use crate::backend::order::{Event, Order, State, Stream, Streams};
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

/// The streams are those of the device's primary context; 1 and 2, its default streams, are so in that context.
impl Streams for Cuda {
    fn enter(&self, work: &mut dyn FnMut(&dyn Order) -> Result<(), Error>) -> Result<(), Error> {
        let mut result = Ok(());
        let entered = inside(self, |driver| {
            result = work(&Inside { cuda: self, driver });
            Ok(())
        });
        entered.map_err(|failure| failure.explain(self.driver)).and(result)
    }
}

/// A device whose context is current.
struct Inside<'a> {
    cuda: &'a Cuda,
    driver: Driver,
}

impl Inside<'_> {
    fn ordering<T>(&self, work: impl FnOnce(Driver) -> Result<T, Failure>) -> Result<T, Error> {
        let done = if self.cuda.is_over() { Err(Failure::Gone) } else { work(self.driver) };
        done.map_err(|failure| self.cuda.look_after(failure).explain(self.driver))
    }
}

impl Order for Inside<'_> {
    fn create_event(&self) -> Result<Event, Error> {
        let event = self.ordering(|driver| calls::create_event(driver, CU_EVENT_DISABLE_TIMING))?;
        Ok(Event(event as u64))
    }

    fn destroy_event(&self, event: Event) {
        // SAFETY: the pool destroys what it had created, once.
        let _ = unsafe { calls::destroy_event(self.driver, event.handle()) };
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
