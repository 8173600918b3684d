//! Allocation and free in the order of streams, and private pools for captured graphs.

use super::table::Device;
use crate::error::ErrorKind;
use crate::pool::{alloc, free, graph_pools, order};
use crate::scope;
use bfc_core::request::Request as ArenaRequest;
use bfc_core::stream_id::Stream;

impl Device {
    /// Returns the stream that a caller's handle stands for: 0 and 1 are the default stream, 2 is the calling thread's own
    /// default stream.
    pub(crate) fn stream_of(self, handle: u64) -> Result<Stream, ErrorKind> {
        order::stream_of(self.slot(), handle)
    }

    /// Allocates memory in the order of a stream. Memory freed on the stream is reusable at once, memory freed on
    /// others once its work has completed. 0 and 1 are the default stream, 2 is the calling thread's own default
    /// stream.
    ///
    /// # Safety
    /// With a CUDA backend, `stream` is the handle of a stream that exists. The driver is called with it.
    #[inline]
    pub unsafe fn alloc_on(self, bytes: u64, stream: u64) -> Result<u64, ErrorKind> {
        let stream = order::stream_of(self.slot(), stream)?;
        if scope::is_open() {
            return self.serve(&ArenaRequest::new(bytes, stream));
        }
        alloc::alloc(self.slot(), bytes, stream).map_err(|error| self.explain(error))
    }

    /// Frees memory in the order of a stream. Work queued on the stream so far may still use the memory.
    ///
    /// # Safety
    /// As [`Self::free`], for work that is queued on the stream, and as [`Self::alloc_on`].
    #[inline]
    pub unsafe fn free_on(self, addr: u64, stream: u64) -> Result<(), ErrorKind> {
        if addr == 0 {
            return self.slot().accepts_null();
        }
        let (stream, is_current) = order::stream_of_use(self.slot(), addr, stream)?;
        free::free_on(self.slot(), addr, stream, is_current)
            .map_err(|error| self.explain_pointer(error, addr))
    }

    /// Records that a live allocation is also used on a stream. Once freed, the memory waits for the work queued there.
    ///
    /// # Safety
    /// With a CUDA backend, `stream` is the handle of a stream that exists. The driver is called with it.
    pub unsafe fn record_stream(self, addr: u64, stream: u64) -> Result<(), ErrorKind> {
        let (stream, _) = order::stream_of_use(self.slot(), addr, stream)?;
        order::record_use(self.slot(), addr, stream).map_err(|error| self.explain_pointer(error, addr))
    }

    /// Declares that a stream is about to be destroyed and gets no more work. Another stream may have its handle
    /// afterwards.
    ///
    /// # Safety
    /// With a CUDA backend, `stream` is the handle of a stream that exists. The driver is called with it.
    pub unsafe fn forget_stream(self, stream: u64) -> Result<(), ErrorKind> {
        let stream = order::stream_in_current_context(self.slot(), stream)?;
        let mut guard = self.enter()?;
        guard.require_no_timestamps()?;
        order::forget(&mut guard, stream)
    }

    /// Declares that all work queued on a stream so far has completed.
    ///
    /// # Safety
    /// With a CUDA backend, `stream` is the handle of a stream that exists. The driver is called with it.
    pub unsafe fn stream_synchronized(self, stream: u64) -> Result<(), ErrorKind> {
        let stream = order::stream_in_current_context(self.slot(), stream)?;
        let mut guard = self.enter_for_long()?;
        guard.require_no_timestamps()?;
        order::declare_done(&mut guard, stream);
        Ok(())
    }

    /// Routes the stream's subsequent requests to a private pool. A captured graph uses this memory, and it stays at
    /// the same addresses until the pool is released.
    ///
    /// # Safety
    /// With a CUDA backend, `stream` is the handle of a stream that exists. The driver is called with it.
    pub unsafe fn pool_begin(self, pool: u64, stream: u64) -> Result<(), ErrorKind> {
        self.route(pool, stream).map(drop)
    }

    /// Routes the stream's requests to common memory again.
    ///
    /// # Safety
    /// With a CUDA backend, `stream` is the handle of a stream that exists. The driver is called with it.
    pub unsafe fn pool_end(self, pool: u64, stream: u64) -> Result<(), ErrorKind> {
        self.end_route(pool, order::stream_of(self.slot(), stream)?)
    }

    /// Does what [`Self::pool_begin`] does. Returns the stream: the handle of a default stream may mean another one in
    /// another thread.
    pub(crate) fn route(self, pool: u64, stream: u64) -> Result<Stream, ErrorKind> {
        let stream = order::stream_of(self.slot(), stream)?;
        graph_pools::begin(self.slot(), stream, pool).map_err(|error| self.explain(error))?;
        Ok(stream)
    }

    /// Ends a route.
    pub(crate) fn end_route(self, pool: u64, stream: Stream) -> Result<(), ErrorKind> {
        graph_pools::end(self.slot(), stream, pool).map_err(|error| self.explain(error))
    }

    /// Declares that the addresses of a private pool are no longer used, except for live allocations.
    ///
    /// # Safety
    /// No graph that uses the pool is launched again.
    pub unsafe fn pool_release(self, pool: u64) -> Result<(), ErrorKind> {
        graph_pools::release(self.slot(), pool).map_err(|error| self.explain(error))
    }
}
