//! What the order of device work needs of a driver: streams and events.

use crate::error::{Error, fail};

/// A stream as the driver knows it: `CUstream`, where 1 is the legacy default stream and 2 the default stream of
/// the calling thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stream(pub(crate) u64);

/// A context that streams and events belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Context {
    /// The driver's name of it; 0 is the device's own.
    pub(crate) handle: u64,
    /// What tells its lives apart: a primary context that was reset comes back by the same name.
    pub(crate) number: u64,
}

impl Context {
    /// That of the device's pool.
    pub(crate) const OWN: Context = Context { handle: 0, number: 0 };
}

/// Whether a stream is captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Capture {
    None,
    /// It is, or another that it waits for.
    Active,
    /// The driver knows no such stream: the program destroyed it.
    NoStream,
}

/// An event of the driver, owned by the pool that had it created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    pub(crate) handle: u64,
    /// It can be recorded on streams of this context only, and ends with it.
    pub(crate) context: Context,
}

/// What is known of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The work that it stands for is done, or it stands for none.
    Done,
    Pending,
    /// It was recorded in a capture, and says nothing of any work.
    Captured,
    /// It is none any more: its context, which is another than the device's own, has ended.
    Lost,
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
/// - `record`, `record_across`, `state` and `make_wait` are legal while other streams are captured. None is called for a
///   stream whose capture is announced, or that `capture_of` shows to be captured. Where the program begins a capture
///   that it did not announce in the midst of these calls, `record` may be: `state` tells.
pub(crate) trait Order {
    /// The context that a stream belongs to. Default streams are those of the device's own context.
    fn context_of(&self, stream: Stream) -> Result<Context, Error>;

    /// An event without timing, not yet recorded.
    fn create_event(&self, context: Context) -> Result<Event, Error>;

    /// Ends an event. It cannot fail: what the driver says of it is of no use any more.
    fn destroy_event(&self, event: Event);

    /// The event is done when all work queued on the stream so far is. Both are of the same context.
    fn record(&self, event: Event, on: Stream) -> Result<(), Error>;

    /// The same with an event of the device's own context, for a stream of another one that may be about to end. Until
    /// the event is done a synchronization of the device's own context waits for that stream too.
    fn record_across(&self, event: Event, on: Stream) -> Result<(), Error>;

    fn state(&self, event: Event) -> Result<State, Error>;

    /// Blocks the calling thread until the event is done.
    fn wait_for(&self, event: Event) -> Result<(), Error>;

    /// Work that is queued on the stream from now on begins when the event is done.
    fn make_wait(&self, stream: Stream, event: Event) -> Result<(), Error>;

    /// Blocks the calling thread until all work of the device's own context is done. It says nothing of streams of
    /// other contexts.
    fn synchronize(&self) -> Result<(), Error>;

    fn capture_of(&self, stream: Stream) -> Result<Capture, Error>;
}
