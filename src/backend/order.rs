//! The interface to a driver for ordering device work: streams and events.

use crate::error::{ErrorKind, fail};

/// A stream as in the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stream {
    /// A `CUstream`, where 1 is the legacy default stream and 2 the default stream of the calling thread.
    pub(crate) handle: u64,
    /// The number of the context whose default stream this is ([`Current`]). 0 is the device's own, and stands for any
    /// context with the handle of a created stream.
    pub(crate) context: u32,
}

/// The context that is current in the calling thread, to which default streams belong. Contexts other than the device's
/// own have a number each, which no other context ever has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Current {
    /// The device's own.
    Own,
    /// Another context of the device.
    Beside(u32),
    /// A context of another device.
    Elsewhere(u32),
    /// None, or one that has ended.
    Nothing,
}

/// A context that streams and events belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Context {
    /// The driver's handle. 0 stands for the device's own context.
    pub(crate) handle: u64,
    /// Distinguishes the lives of a context. A primary context that was reset comes back with the same handle.
    pub(crate) number: u64,
}

impl Context {
    /// The context of the device's pool.
    pub(crate) const OWN: Context = Context { handle: 0, number: 0 };
}

/// Whether a stream is captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Capture {
    None,
    /// The stream, or a stream that it waits for, is captured.
    Active,
    /// The driver does not know the stream, because the program destroyed it.
    NoStream,
}

/// An event of the driver, owned by the pool that created it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    pub(crate) handle: u64,
    /// The event can be recorded on streams of this context only, and ends with it.
    pub(crate) context: Context,
}

/// The state of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The work that the event represents has completed, or it represents none.
    Done,
    Pending,
    /// The event was recorded in a capture and does not represent any work.
    Captured,
    /// The event no longer exists, because its context, other than the device's own, has ended.
    Lost,
}

/// The streams and events of a device. Entering makes the device's context current once for a series of calls.
pub(crate) trait Streams {
    /// Calls `work` immediately, with the context current. An error is that of `work`, or `work` was not called.
    /// `is_current` means that [`Self::own_context`] was found current in this very call of the library.
    fn enter(
        &self,
        is_current: bool,
        work: &mut dyn FnMut(&dyn Order) -> Result<(), ErrorKind>,
    ) -> Result<(), ErrorKind>;

    /// Returns the driver's handle of the device's own context, or 0 if default streams are those of that context
    /// whichever context is current.
    fn own_context(&self) -> u64 {
        0
    }

    /// Returns which context is current.
    fn current(&self) -> Result<Current, ErrorKind> {
        Ok(Current::Own)
    }
}

impl dyn Streams + '_ {
    /// Calls `work` like [`Streams::enter`], and returns its result.
    pub(crate) fn run<T>(
        &self,
        work: impl FnOnce(&dyn Order) -> Result<T, ErrorKind>,
    ) -> Result<T, ErrorKind> {
        self.run_in(false, work)
    }

    /// Calls `work` like [`Self::run`], where the context may be known to be current.
    pub(crate) fn run_in<T>(
        &self,
        is_current: bool,
        work: impl FnOnce(&dyn Order) -> Result<T, ErrorKind>,
    ) -> Result<T, ErrorKind> {
        let (mut work, mut result) = (Some(work), None);
        self.enter(is_current, &mut |order| {
            result = work.take().map(|work| work(order));
            Ok(())
        })?;
        result.unwrap_or_else(|| {
            Err(fail!(ErrorKind::Internal, "a device's streams were not entered: please report this"))
        })
    }
}

/// The contract between backends with streams and the pool:
/// - Nothing here is called while an allocator is locked. Calls may come from any thread, several at once.
/// - A failure has changed nothing and sets a message with `fail!` (`ErrorKind::BackendFailed`, or `ErrorKind::ShuttingDown`
///   for a driver that is already down).
/// - `record`, `record_across`, `state` and `make_wait` are legal while other streams are captured. They are not called
///   for a stream whose capture is announced or reported by `capture_of`. If the program begins an unannounced capture
///   during these calls, `record` may be called for its stream. `state` then reports [`State::Captured`].
pub(crate) trait Order {
    /// Returns the context of a stream.
    fn context_of(&self, stream: Stream) -> Result<Context, ErrorKind>;

    /// Creates an event without timing. It is not recorded yet.
    fn create_event(&self, context: Context) -> Result<Event, ErrorKind>;

    /// Destroys an event. This cannot fail, because an error of the driver would be of no use at this point.
    fn destroy_event(&self, event: Event);

    /// Records the event: it completes when all work queued on the stream so far has. Both must be of the same context.
    fn record(&self, event: Event, on: Stream) -> Result<(), ErrorKind>;

    /// Records an event of the device's own context on a stream of another context, which may end unnoticed. Until
    /// the event is done, a synchronization of the device's own context also waits for that stream.
    fn record_across(&self, event: Event, on: Stream) -> Result<(), ErrorKind>;

    fn state(&self, event: Event) -> Result<State, ErrorKind>;

    /// Blocks the calling thread until the event has completed.
    fn wait_for(&self, event: Event) -> Result<(), ErrorKind>;

    /// Makes work that is queued on the stream later wait until the event has completed.
    fn make_wait(&self, stream: Stream, event: Event) -> Result<(), ErrorKind>;

    /// Blocks the calling thread until all work of the device's own context has completed. Streams of other contexts
    /// are not covered.
    fn synchronize(&self) -> Result<(), ErrorKind>;

    /// Returns whether all work of the device's own context, which includes the event's, has completed. Returns false
    /// if this cannot be determined.
    fn is_idle(&self, event: Event) -> Result<bool, ErrorKind>;

    fn capture_of(&self, stream: Stream) -> Result<Capture, ErrorKind>;
}
