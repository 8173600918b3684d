//! Streams, in whose order memory is allocated and freed.

use super::block::{self, Block};
use super::{Error, Pool, Result};
use crate::device::{Device, Request};
use crate::error::{ErrorKind, fail};
use std::ffi::c_void;

/// The handle of a stream: a `CUstream` or `cudaStream_t`, as any crate for CUDA has it.
///
/// ```
/// use bfc::RawStream;
///
/// let handle = std::ptr::without_provenance_mut::<u8>(0x1000); // as `stream.cu_stream()` of cudarc
/// assert_eq!(RawStream::from(handle), RawStream::from(0x1000));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RawStream(pub(super) u64);

impl<T> From<*mut T> for RawStream {
    fn from(handle: *mut T) -> Self {
        RawStream(handle as u64)
    }
}

impl From<u64> for RawStream {
    fn from(handle: u64) -> Self {
        RawStream(handle)
    }
}

impl From<RawStream> for *mut c_void {
    fn from(handle: RawStream) -> Self {
        handle.0 as *mut c_void
    }
}

/// A stream of a pool's device.
///
/// Memory that was freed on a stream is reusable there at once, because later work on the stream runs after the work that
/// uses the memory. Other streams get it when that work has completed. On CUDA backends the pool finds that out by events.
/// On the others nothing tells but [`Stream::synchronized`].
///
/// Dropping the guard declares that the stream gets no more work, and may be destroyed or its handle be used again. Blocks
/// borrow the stream that they were allocated on, so they are freed before.
///
/// ```
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let (compute, copy) = (pool.stream(), pool.stream());
///
/// let block = compute.alloc(1000)?;
/// block.record_use(&copy)?;
/// drop(block); // in the order of `compute`, and after what `copy` has queued by now
///
/// compute.synchronized()?;
/// copy.synchronized()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a stream declares that it gets no more work"]
pub struct Stream<'pool> {
    pool: &'pool Pool,
    handle: u64,
    /// Whether the end of this object is the end of its work.
    is_of_host: bool,
}

impl<'pool> Stream<'pool> {
    pub(super) fn new(pool: &'pool Pool, handle: u64) -> Self {
        Stream { pool, handle, is_of_host: false }
    }

    pub(super) fn of_host(pool: &'pool Pool, handle: u64) -> Self {
        Stream { pool, handle, is_of_host: true }
    }

    pub(super) fn handle(&self) -> u64 {
        self.handle
    }

    pub(super) fn device(&self) -> Device {
        self.pool.device
    }

    /// Refuses a stream of another pool, whose handle may mean another stream here.
    pub(super) fn require(&self, device: Device) -> Result<()> {
        if self.device() == device {
            return Ok(());
        }
        Err(Error::last(fail!(
            ErrorKind::InvalidArgument,
            "the stream is one of device {}, and the memory of device {}: name it with the pool of that device",
            self.device().ordinal(),
            device.ordinal()
        )))
    }

    /// The pool that it was made with.
    pub fn pool(&self) -> &'pool Pool {
        self.pool
    }

    /// The handle.
    pub fn raw(&self) -> RawStream {
        RawStream(self.handle)
    }

    /// Allocates memory in the order of the stream.
    ///
    /// # Errors
    /// As [`Pool::alloc`], and [`ErrorKind::Unsupported`] with [`Flags::TIMESTAMPS`](crate::Flags::TIMESTAMPS).
    pub fn alloc(&self, bytes: usize) -> Result<Block<'_>> {
        // SAFETY: by the contract of `Pool::stream`, as below.
        match unsafe { self.device().alloc_on(bytes as u64, self.handle) } {
            Ok(address) => Ok(Block::at(self.device(), address, bytes)),
            Err(kind) => Err(Error::last(kind)),
        }
    }

    /// Allocates memory in the order of the stream, with optional parameters.
    ///
    /// # Errors
    /// As [`Stream::alloc`], and those of the parameters.
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// let stream = pool.stream();
    /// let block = stream.alloc_with(&bfc::Request::new(1000).multiple_of_512())?;
    /// assert_eq!(block.capacity()?, 1024);
    /// # Ok(())
    /// # }
    /// ```
    pub fn alloc_with(&self, request: &Request) -> Result<Block<'_>> {
        block::alloc(self.device(), request, Some(self.handle))
    }

    /// Declares that all work queued on the stream so far has completed: call it after you have synchronized the stream.
    ///
    /// # Errors
    /// As [`Stream::alloc`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// let (compute, copy) = (pool.stream(), pool.stream());
    /// drop(compute.alloc(1 << 20)?);
    /// assert!(copy.alloc(1 << 20).is_err()); // work of `compute` may still use all of the memory
    /// compute.synchronized()?;
    /// assert!(copy.alloc(1 << 20).is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn synchronized(&self) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.device().stream_synchronized(self.handle) }.map_err(Error::last)
    }

    /// Declares that the stream gets no more work, as dropping does, and reports.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] for host memory, or [`ErrorKind::BackendFailed`]: memory that was freed on the stream then
    /// waits for a synchronization of the context.
    pub fn close(self) -> Result<()> {
        std::mem::ManuallyDrop::new(self).end()
    }

    fn end(&self) -> Result<()> {
        // The default streams are never destroyed.
        if self.handle <= 2 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.device().forget_stream(self.handle) }.map_err(Error::last)?;
        // Afterwards, so that it counts for blocks that are used on the stream and freed later.
        if self.is_of_host { self.synchronized() } else { Ok(()) }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
