//! The identity of streams.

/// A stream's identity in numbers. Streams that exist at the same time differ in it.
///
/// The order is that of (handle, thread, pool). Two numbers instead of three, so that a stream is passed in registers and
/// compared by two instructions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Stream {
    /// 0 is no stream, 1 the default stream, 2 the default stream of a thread. With [`ELSEWHERE`] it is one of the latter
    /// two, of another context than the device's own, with the number of that context.
    handle: u64,
    /// In the upper half the number of the thread whose default stream this is, otherwise 0. In the lower half the
    /// private pool that requests are routed to, otherwise 0.
    thread_and_pool: u64,
}

impl Stream {
    const fn new(handle: u64, thread: u32) -> Self {
        Stream { handle, thread_and_pool: (thread as u64) << 32 }
    }

    /// Requests and frees that name no stream. The caller orders them.
    pub const NONE: Stream = Stream::new(0, 0);
    /// The legacy default stream.
    pub const DEFAULT: Stream = Stream::new(1, 0);
    /// The order of memory left by a private pool, where the stream of the work on it is not known. There are no
    /// requests in this order.
    pub const UNKNOWN: Stream = Stream::new(0, 1);
    /// Requests that name no stream and may use any. They get memory that no work uses any more. A chunk allocated this
    /// way belongs to [`Self::UNKNOWN`] from the start, so nothing is ever free in this order.
    pub const ANY: Stream = Stream::new(0, 2);
    /// An announced capture whose stream is not known yet. Nothing is free or requested in this order.
    pub const ANNOUNCED: Stream = Stream::new(0, 3);
    /// CUDA's handle for the default stream of the calling thread.
    pub const OF_THIS_THREAD: u64 = 2;

    /// Creates the identity of a stream from its handle, which is 0 or 1 for the default stream, and never
    /// [`Self::OF_THIS_THREAD`].
    #[inline]
    pub fn of_handle(handle: u64) -> Self {
        Stream::new(handle.max(1), 0)
    }

    /// Creates the identity of a thread's default stream. `thread` is a number from 1 that no other thread of the
    /// process ever has.
    pub fn of_thread(thread: u32) -> Self {
        Stream::new(Self::OF_THIS_THREAD, thread)
    }

    /// Returns the default stream of the same kind of another context than the device's own. `context` is a number from
    /// 1 that no other context of the process ever has.
    pub fn in_context(self, context: u32) -> Self {
        Stream { handle: ELSEWHERE | u64::from(context) << KIND_BITS | self.handle, ..self }
    }

    /// Returns the number of the other context whose default stream this is, or 0 for any other stream. On backends
    /// without a device, where any number is a stream, it says nothing.
    #[allow(clippy::cast_possible_truncation)] // as it was stored
    pub fn context(self) -> u32 {
        if self.handle & ELSEWHERE == 0 { 0 } else { (self.handle >> KIND_BITS) as u32 }
    }

    /// Returns the handle by which the driver knows the stream, in the stream's own context if [`Self::context`] is not
    /// 0.
    pub fn driver_handle(self) -> u64 {
        if self.context() == 0 { self.handle } else { self.handle & KIND }
    }

    /// Returns the number of a thread, or that of an order without a stream.
    #[allow(clippy::cast_possible_truncation)] // the upper half
    fn number(self) -> u32 {
        (self.thread_and_pool >> 32) as u32
    }

    /// Returns the number of the thread whose default stream this is, or 0 for any other stream.
    pub fn thread(self) -> u32 {
        if self.handle == 0 { 0 } else { self.number() }
    }

    /// Returns whether this is [`Self::ANY`], for a private pool or not.
    pub(crate) fn is_any(self) -> bool {
        self.in_pool(0) == Self::ANY
    }

    /// Returns whether the identity stands for an actual stream that events can be recorded on.
    pub fn exists(self) -> bool {
        self.handle != 0
    }

    /// Returns whether this is the default stream of the device's own context, or of a thread in it. Such a stream exists
    /// as long as the context does.
    pub fn is_default(self) -> bool {
        matches!(self.handle, 1 | Self::OF_THIS_THREAD)
    }

    /// Returns whether this is the legacy default stream of any context.
    pub fn is_legacy(self) -> bool {
        self.driver_handle() == Self::DEFAULT.handle
    }

    /// Returns whether the stream ends without notice: with its thread, or with a context that the program has created.
    pub(crate) fn ends_unnoticed(self) -> bool {
        self.thread() != 0 || self.context() != 0
    }

    /// Returns whether work in this order runs one piece after the other. Only then can a pool belong to this order
    /// alone.
    pub(crate) fn is_an_order(self) -> bool {
        self.handle != 0 || self.number() == 0
    }

    /// Returns the private pool that requests are routed to, or 0.
    #[allow(clippy::cast_possible_truncation)] // the lower half
    pub(crate) fn pool(self) -> u32 {
        self.thread_and_pool as u32
    }

    /// Returns whether requests with this identity go to a private pool individually.
    pub fn is_private(self) -> bool {
        self.pool() != 0
    }

    /// Returns the identity in a private pool. 0 stands for none, which is the stream itself.
    pub fn in_pool(self, pool: u32) -> Self {
        Stream { thread_and_pool: u64::from(self.number()) << 32 | u64::from(pool), ..self }
    }

    /// Returns the sort key of the stream. Private pools on a stream sort right after it.
    pub(crate) fn key(self) -> (u64, u64) {
        (self.handle, self.thread_and_pool)
    }

    /// Returns the sort key of a forgotten stream with this identity, by the number of its queue.
    pub(crate) fn key_of_forgotten(self, number: u32) -> (u64, u64) {
        self.in_pool(number).key()
    }

    /// Returns the stream's handle.
    pub fn handle(self) -> u64 {
        self.handle
    }

    /// Returns whether this is the single stream with the fast path, given that stream's handle.
    #[inline(always)]
    pub(crate) fn has_fast_handle(self, fast_handle: u64) -> bool {
        fast_handle == self.handle && self.number() == 0
    }

    /// Returns the handle to compare with if this stream gets the fast path.
    pub(crate) fn fast_handle(self) -> u64 {
        if self.number() == 0 { self.handle } else { NO_FAST_STREAM }
    }
}

/// Marks default streams of other contexts. No address of a process has this bit.
const ELSEWHERE: u64 = 1 << 63;
/// The bits of the handle of a default stream.
const KIND_BITS: u32 = 2;
const KIND: u64 = (1 << KIND_BITS) - 1;

/// Used instead of a handle while no stream has the fast path. Default streams of threads never have it.
pub(crate) const NO_FAST_STREAM: u64 = Stream::OF_THIS_THREAD;

#[cfg(test)]
mod tests {
    use super::Stream;

    /// The driver's handles are the same in each context, and the streams are not.
    #[test]
    fn default_streams_of_contexts_differ() {
        let own = [Stream::DEFAULT, Stream::of_thread(7), Stream::of_thread(8)];
        let there = [1, 2, u32::MAX].map(|context| own.map(|stream| stream.in_context(context)));
        let all: Vec<Stream> = own.into_iter().chain(there.into_iter().flatten()).collect();
        for (place, stream) in all.iter().enumerate() {
            let as_own = own[place % 3];
            assert!(!all[..place].contains(stream));
            assert_eq!(stream.driver_handle(), as_own.handle());
            assert_eq!((stream.thread(), stream.is_legacy()), (as_own.thread(), as_own.is_legacy()));
            assert_eq!((stream.is_default(), stream.context() == 0), (place < 3, place < 3));
            assert_eq!(stream.in_pool(5).context(), stream.context());
        }
        assert_eq!(all[5].in_pool(5).pool(), 5);
        assert_eq!([all[3].context(), all[6].context(), all[9].context()], [1, 2, u32::MAX]);
    }
}
