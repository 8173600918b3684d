//! Streams as the driver knows them, and what all modules of this folder do with it.

use crate::backend::order::{self as driver, Capture, Order};
use crate::core::stream_id::Stream;
use crate::error::{DeferredError, Error};
use crate::pool::pool::Pool;
use crate::pool::slot::Guard;
use crate::sys::{HostMemoryExhausted, thread};

/// Does something with each, whatever comes of the others; the last failure, whose message is stored.
pub(super) fn each<T>(tasks: &mut [T], work: impl FnMut(&mut T) -> Result<(), Error>) -> Result<(), Error> {
    tasks.iter_mut().map(work).filter(Result::is_err).last().unwrap_or(Ok(()))
}

/// By the name that the driver has for it.
pub(super) fn handle(stream: Stream) -> driver::Stream {
    driver::Stream(stream.handle())
}

/// Whether this thread may record events on a stream.
pub(super) fn is_reachable(stream: Stream) -> bool {
    stream.thread() == 0 || thread::number() == Some(stream.thread())
}

/// Requests of a stream that is captured leave all others alone.
pub(super) fn is_captured(order: &dyn Order, stream: Stream) -> Result<bool, Error> {
    if !stream.exists() {
        return Ok(false);
    }
    // A handle of no stream is not captured; what is to be done on it fails by itself.
    Ok(order.capture_of(handle(stream))? == Capture::Active)
}

/// Whether one of these streams is captured. One that the program has destroyed is not.
pub(in crate::pool) fn is_one_captured(order: &dyn Order, streams: &[driver::Stream]) -> Result<bool, Error> {
    for &stream in streams {
        if order.capture_of(stream)? == Capture::Active {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Pool {
    /// The streams that may be captured, so far as they surely live; none without a device.
    pub(super) fn live_streams(&self, also: Stream) -> Result<Vec<Stream>, HostMemoryExhausted> {
        if self.backend.get().order().is_none() {
            return Ok(Vec::new());
        }
        let all = || {
            self.arena
                .streams()
                .living_streams()
                .chain(self.events.captured())
                .chain([also])
                .filter(|stream| stream.exists())
        };
        let reachable = || all().filter(|&stream| is_reachable(stream));
        let mut streams = list(reachable().count() + 1)?;
        // The default stream waits for all that block, whether the pool knows them or not.
        streams.push(Stream::DEFAULT);
        streams.extend(reachable());
        Ok(streams)
    }

    /// The streams to ask before the device is waited for: none to be waited beside, where the capture of another stream
    /// is announced, for it may begin at any time.
    pub(in crate::pool) fn streams_to_wait_beside(
        &self,
        also: Stream,
    ) -> Result<Option<Vec<driver::Stream>>, HostMemoryExhausted> {
        if self.backend.get().order().is_some() && self.is_capture_announced(also) {
            return Ok(None);
        }
        let live = self.live_streams(also)?;
        let mut streams = list(live.len())?;
        streams.extend(live.into_iter().map(handle));
        Ok(Some(streams))
    }
}

pub(super) fn list<T>(length: usize) -> Result<Vec<T>, HostMemoryExhausted> {
    let mut list = Vec::new();
    list.try_reserve_exact(length)?;
    Ok(list)
}

/// How a look after the order of work ended: the pool as it is now, and whether the driver did as it should; or
/// why the allocator is of no use any more. What the driver failed to do may not matter in the end.
pub(in crate::pool) type Ordered<'a, T = ()> = Result<(Guard<'a>, Result<T, DeferredError>), Error>;

/// A stream of the caller's, by its handle.
pub(crate) fn stream_of(handle: u64) -> Result<Stream, Error> {
    if handle != Stream::OF_THIS_THREAD {
        return Ok(Stream::of_handle(handle));
    }
    match thread::number() {
        Some(number) => Ok(Stream::of_thread(number)),
        None => Err(HostMemoryExhausted.into()),
    }
}
