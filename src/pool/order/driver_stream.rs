//! Stream handles of the driver, and helpers that the other files of this folder share.

use crate::backend::order::{self as driver, Capture, Order};
use crate::error::ErrorKind;
use crate::pool::pool::Pool;
use crate::sys::thread;
use bfc_core::stream_id::Stream;
use bfc_hostmem::HostMemoryExhausted;

/// Runs `work` on each task, even if others fail. Returns the last failure, whose message is the one stored.
pub(super) fn each<T>(
    tasks: &mut [T],
    work: impl FnMut(&mut T) -> Result<(), ErrorKind>,
) -> Result<(), ErrorKind> {
    tasks.iter_mut().map(work).filter(Result::is_err).last().unwrap_or(Ok(()))
}

/// Returns the driver's handle of a stream.
pub(super) fn handle(stream: Stream) -> driver::Stream {
    driver::Stream { handle: stream.driver_handle(), context: stream.context() }
}

/// Returns whether this thread may record events on a stream. Another thread's own default stream has no handle here.
pub(super) fn is_reachable(stream: Stream) -> bool {
    stream.thread() == 0 || thread::number() == Some(stream.thread())
}

/// Returns the stream to ask or to wait for in place of one: another thread's default stream has no handle here. The legacy
/// stream of its context waits for all blocking streams, and "the per-thread default stream is not a non-blocking stream"
/// (API synchronization behavior).
pub(super) fn reachable_for(stream: Stream) -> Stream {
    match (is_reachable(stream), stream.context()) {
        (true, _) => stream,
        (false, 0) => Stream::DEFAULT,
        (false, context) => Stream::DEFAULT.in_context(context),
    }
}

/// Returns whether a stream is being captured. A request on a captured stream must not query or wait for other streams.
pub(super) fn is_captured(order: &dyn Order, stream: Stream) -> Result<bool, ErrorKind> {
    if !stream.exists() {
        return Ok(false);
    }
    // An invalid handle is not captured. A call that uses it fails by itself.
    Ok(order.capture_of(handle(stream))? == Capture::Active)
}

/// Returns whether one of these streams is being captured. A destroyed stream is not.
pub(in crate::pool) fn is_one_captured(
    order: &dyn Order,
    streams: &[driver::Stream],
) -> Result<bool, ErrorKind> {
    for &stream in streams {
        if order.capture_of(stream)? == Capture::Active {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Pool {
    /// Returns the streams that certainly exist and may be captured, `also` first. Returns none without a
    /// stream-ordered driver. A default stream of another context is left out when no memory in use has it, because the
    /// context may have ended. While memory in use has it, it counts: a synchronization of the pool's own context covers
    /// its green contexts.
    pub(super) fn streams_to_query(&self, also: Stream) -> Result<Vec<Stream>, HostMemoryExhausted> {
        if self.backend.get().order().is_none() {
            return Ok(Vec::new());
        }
        // The default stream waits for all blocking streams, including those that the pool does not know.
        let all = || {
            [also, Stream::DEFAULT]
                .into_iter()
                .chain(self.arena.streams().living_streams())
                .chain(self.events.captured().filter(|stream| stream.context() == 0))
                .filter(|stream| stream.exists())
        };
        let mut streams = try_vec(all().count())?;
        for stream in all() {
            let reachable = reachable_for(stream);
            if reachable == stream || !streams.contains(&reachable) {
                streams.push(reachable);
            }
        }
        Ok(streams)
    }

    /// Returns the streams to query for captures before waiting for the device. Returns `None` if the capture of a
    /// stream other than `also` is announced. Then nothing may wait, because that capture may begin at any time.
    pub(in crate::pool) fn streams_to_query_before_wait(
        &self,
        also: Stream,
    ) -> Result<Option<Vec<driver::Stream>>, HostMemoryExhausted> {
        if self.backend.get().order().is_some() && self.is_capture_announced(also) {
            return Ok(None);
        }
        let live = self.streams_to_query(also)?;
        let mut streams = try_vec(live.len())?;
        streams.extend(live.into_iter().map(handle));
        Ok(Some(streams))
    }
}

/// Returns an empty vector with room for `length` elements.
pub(super) fn try_vec<T>(length: usize) -> Result<Vec<T>, HostMemoryExhausted> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(length)?;
    Ok(vec)
}
