//! What the order of device work needs of a driver: streams and events.

use crate::error::{Error, fail};

/// A stream as the driver knows it: `CUstream`, where 1 is the legacy default stream and 2 the default stream of
/// the calling thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stream(pub(crate) u64);

/// An event of the driver, owned by the pool that had it created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event(pub(crate) u64);

/// What is known of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The work that it stands for is done, or it stands for none.
    Done,
    Pending,
    /// It was recorded in a capture, and says nothing of any work.
    Captured,
}

/// A device's streams and events, by way of what it costs to come there: the context of the device is made current once
/// for all that is done.
pub(crate) trait Streams {
    /// Does some work there, at once; the failure is the work's, or it was not begun.
    fn enter(&self, work: &mut dyn FnMut(&dyn Order) -> Result<(), Error>) -> Result<(), Error>;
}

impl dyn Streams + '_ {
    /// The same with a result.
    pub(crate) fn run<T>(&self, work: impl FnOnce(&dyn Order) -> Result<T, Error>) -> Result<T, Error> {
        let (mut work, mut result) = (Some(work), None);
        self.enter(&mut |order| {
            result = work.take().map(|work| work(order));
            Ok(())
        })?;
        result.unwrap_or_else(|| Err(fail!(Error::Internal, "a device's streams were not entered")))
    }
}

/// The contract, which every backend with streams fulfils and the pool relies on:
/// - Nothing here is called while an allocator is locked; everything from any thread, several at once.
/// - A failure has its words in `fail!` (`Error::BackendFailed`, or `Error::ShuttingDown` for a driver that is
///   already down) and has changed nothing.
/// - `record`, `state` and `make_wait` are legal while other streams are captured. None is called for a stream whose
///   capture is announced, or that `is_capturing`; of one that the program begins to capture without a word, in the
///   midst of these calls, `record` may be: `state` tells.
pub(crate) trait Order {
    /// An event without timing, not yet recorded.
    fn create_event(&self) -> Result<Event, Error>;

    /// Ends an event. It cannot fail: what the driver says of it is nobody's concern any more.
    fn destroy_event(&self, event: Event);

    /// The event is done when all work queued on the stream so far is.
    fn record(&self, event: Event, on: Stream) -> Result<(), Error>;

    fn state(&self, event: Event) -> Result<State, Error>;

    /// Blocks the calling thread until the event is done.
    fn wait_for(&self, event: Event) -> Result<(), Error>;

    /// Work that is queued on the stream from now on begins when the event is done.
    fn make_wait(&self, stream: Stream, event: Event) -> Result<(), Error>;

    /// Blocks the calling thread until all work of the device's context is done.
    fn synchronize(&self) -> Result<(), Error>;

    fn is_capturing(&self, stream: Stream) -> Result<bool, Error>;
}
