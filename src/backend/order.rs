//! What the order of device work needs of a driver: streams and events.

use crate::error::Error;

/// A stream as the driver knows it: `CUstream`, where 1 is the legacy default stream and 2 the default stream of
/// the calling thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stream(pub(crate) u64);

/// An event of the driver, owned by the pool that had it created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event(pub(crate) u64);

/// The contract, which every backend with streams fulfils and the pool relies on:
/// - Nothing here is called while an allocator is locked; everything from any thread, several at once.
/// - A failure has its words in `fail!` (`Error::BackendFailed`, or `Error::ShuttingDown` for a driver that is
///   already down) and has changed nothing.
/// - `record`, `is_done` and `make_wait` are legal while other streams are captured; none is called for a stream
///   that `is_capturing`.
pub(crate) trait Order {
    /// An event without timing, not yet recorded.
    fn create_event(&self) -> Result<Event, Error>;

    /// Ends an event. It cannot fail: what the driver says of it is nobody's concern any more.
    fn destroy_event(&self, event: Event);

    /// The event is done when all work queued on the stream so far is.
    fn record(&self, event: Event, on: Stream) -> Result<(), Error>;

    fn is_done(&self, event: Event) -> Result<bool, Error>;

    /// Blocks the calling thread until the event is done.
    fn wait_for(&self, event: Event) -> Result<(), Error>;

    /// Work that is queued on the stream from now on begins when the event is done.
    fn make_wait(&self, stream: Stream, event: Event) -> Result<(), Error>;

    /// Blocks the calling thread until all work of the device's context is done.
    fn synchronize(&self) -> Result<(), Error>;

    fn is_capturing(&self, stream: Stream) -> Result<bool, Error>;
}
