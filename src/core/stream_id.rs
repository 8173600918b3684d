//! The names of streams.

/// A stream's name, in numbers: whatever tells streams that exist at the same time apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Stream {
    /// 0 is no stream, 1 the default stream, 2 that of a thread.
    handle: u64,
    /// The number of the thread whose default stream it is, else 0.
    thread: u32,
    /// The private pool that its requests are for, else 0.
    pool: u32,
}

impl Stream {
    /// Requests and frees that name no stream: their order is the caller's.
    pub(crate) const NONE: Stream = Stream { handle: 0, thread: 0, pool: 0 };
    pub(crate) const DEFAULT: Stream = Stream { handle: 1, thread: 0, pool: 0 };
    /// What is left of a private pool: it is not known where work on it was queued. No request is in this order.
    pub(crate) const UNKNOWN: Stream = Stream { handle: 0, thread: 1, pool: 0 };
    /// Requests that name no stream and may use any: they get memory that no work touches any more. What they
    /// get is [`Self::UNKNOWN`]'s from the beginning, so that nothing is ever free in this order.
    pub(crate) const ANY: Stream = Stream { handle: 0, thread: 2, pool: 0 };
    /// An announced capture whose stream is not known yet. Nothing is free or requested in this order.
    pub(crate) const ANNOUNCED: Stream = Stream { handle: 0, thread: 3, pool: 0 };
    /// The handle by which CUDA means the default stream of the thread that says it.
    pub(crate) const OF_THIS_THREAD: u64 = 2;

    /// By its handle, which is 0 or 1 for the default stream, and not [`Self::OF_THIS_THREAD`].
    #[inline]
    pub(crate) fn of_handle(handle: u64) -> Self {
        Stream { handle: handle.max(1), thread: 0, pool: 0 }
    }

    /// The default stream of a thread, by a number from 1 that no other thread of the process ever has.
    pub(crate) fn of_thread(thread: u32) -> Self {
        Stream { handle: Self::OF_THIS_THREAD, thread, pool: 0 }
    }

    /// Whose default stream it is; 0 for any other stream.
    pub(crate) fn thread(self) -> u32 {
        if self.handle == 0 { 0 } else { self.thread }
    }

    /// Whether it is [`Self::ANY`], for a private pool or not.
    pub(in crate::core) fn is_any(self) -> bool {
        self.in_pool(0) == Self::ANY
    }

    /// Whether there is something behind the name that events can be recorded on.
    pub(crate) fn exists(self) -> bool {
        self.handle != 0
    }

    /// Whether it is the default stream of the device's context, or of a thread there: it exists as long as that does.
    pub(crate) fn is_default(self) -> bool {
        matches!(self.handle, 1 | Self::OF_THIS_THREAD)
    }

    /// Whether it is an order at all, in which work comes behind work: then a pool may belong to it alone.
    pub(in crate::core) fn is_an_order(self) -> bool {
        self.handle != 0 || self.thread == 0
    }

    /// The private pool that its requests are for, else 0.
    pub(in crate::core) fn pool(self) -> u32 {
        self.pool
    }

    /// Whether its requests are for a private pool each by itself.
    pub(crate) fn is_private(self) -> bool {
        self.pool != 0
    }

    pub(in crate::core) fn in_pool(self, pool: u32) -> Self {
        Stream { pool, ..self }
    }

    /// Its place among streams: behind a stream come the private pools on it.
    pub(in crate::core) fn key(self) -> (u64, u64) {
        (self.handle, u64::from(self.thread) << 32 | u64::from(self.pool))
    }

    /// The place of a forgotten one of this name among such, by the number of its queue.
    pub(in crate::core) fn key_of_forgotten(self, number: u32) -> (u64, u64) {
        (self.handle, u64::from(self.thread) << 32 | u64::from(number))
    }

    pub(crate) fn handle(self) -> u64 {
        self.handle
    }

    /// Whether it is the one stream whose requests are simple, by its handle.
    #[inline(always)]
    pub(in crate::core) fn has_fast_handle(self, fast_handle: u64) -> bool {
        fast_handle == self.handle && self.thread == 0
    }

    /// What to compare with, if its requests are to be the simple ones.
    pub(in crate::core) fn fast_handle(self) -> u64 {
        if self.thread == 0 { self.handle } else { NO_FAST_STREAM }
    }
}

/// In place of a handle: no stream's requests are simple. Those of threads' default streams never are.
pub(in crate::core) const NO_FAST_STREAM: u64 = Stream::OF_THIS_THREAD;
