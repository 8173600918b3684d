//! Memory for captured graphs.

use super::{Error, Pool, Result, Stream};
use crate::device::Device;
use crate::pool::captures;
use bfc_core::stream_id::Stream as ArenaStream;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A pool of memory that keeps its addresses: what a captured graph uses must be there at each of its launches, even after
/// the blocks were freed.
///
/// Route streams to it while they are captured. Dropping it, which the graph must not outlive, gives the memory back to the
/// common pool once the work of its last launch has completed; blocks that are alive keep theirs until they are freed.
///
/// ```
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// let stream = pool.stream();
/// let graph_memory = pool.private_pool();
/// let inside = {
///     let _route = graph_memory.route(&stream)?;
///     let scratch = stream.alloc(1000)?; // of the private pool
///     scratch.address()
/// };
/// let outside = stream.alloc(1000)?; // of the common pool, so elsewhere
/// assert_ne!(outside.address(), inside);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a private pool gives its memory back"]
pub struct PrivatePool<'pool> {
    pool: &'pool Pool,
    name: u64,
    is_of_host: bool,
}

impl<'pool> PrivatePool<'pool> {
    pub(super) fn new(pool: &'pool Pool) -> Self {
        // Names of C code are smaller: they count from 1, or are graphs' addresses.
        static NEXT: AtomicU64 = AtomicU64::new(1 << 62);
        PrivatePool { pool, name: NEXT.fetch_add(1, Relaxed), is_of_host: false }
    }

    pub(super) fn of_host(pool: &'pool Pool) -> Self {
        PrivatePool { is_of_host: true, ..*ManuallyDrop::new(Self::new(pool)) }
    }

    /// The number that reports and memory maps show.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Routes the requests of a stream to this pool until the returned guard is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the stream is one of another device, or is routed
    /// already; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) with
    /// [`Flags::TIMESTAMPS`](crate::Flags::TIMESTAMPS); [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) for host
    /// memory.
    pub fn route<'a>(&'a self, stream: &'a Stream<'pool>) -> Result<Route<'a>> {
        stream.require(self.pool.device)?;
        let stream = self.pool.device.route(self.name, stream.handle()).map_err(Error::last)?;
        Ok(Route { device: self.pool.device, name: self.name, stream, borrowed: PhantomData })
    }

    /// Gives the memory back as dropping does, and reports.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if no stream was ever routed to it;
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if a [`Route`] was forgotten;
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) for host memory.
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// let stream = pool.stream();
    /// let graph_memory = pool.private_pool();
    /// let route = graph_memory.route(&stream)?;
    /// drop(stream.alloc(1000)?);
    /// route.end()?;
    /// graph_memory.release()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn release(self) -> Result<()> {
        ManuallyDrop::new(self).end()
    }

    fn end(&self) -> Result<()> {
        // SAFETY: the graph does not outlive this object.
        unsafe { self.pool.device.pool_release(self.name) }.map_err(Error::last)?;
        match self.is_of_host {
            true => self.pool.default_stream().synchronized(),
            false => Ok(()),
        }
    }
}

impl Drop for PrivatePool<'_> {
    fn drop(&mut self) {
        // One that no stream was routed to is unknown, which is no failure here.
        let _ = self.end();
    }
}

/// The time in which requests of a stream go to a [`PrivatePool`].
#[derive(Debug)]
#[must_use = "the route ends when this is dropped"]
pub struct Route<'a> {
    device: Device,
    name: u64,
    /// Not the handle: that of a default stream means another one in another thread.
    stream: ArenaStream,
    borrowed: PhantomData<&'a PrivatePool<'a>>,
}

impl Route<'_> {
    /// Ends the route as dropping does, and reports.
    ///
    /// # Errors
    /// Those of every call.
    pub fn end(self) -> Result<()> {
        ManuallyDrop::new(self).ended()
    }

    fn ended(&self) -> Result<()> {
        self.device.end_route(self.name, self.stream).map_err(Error::last)
    }
}

impl Drop for Route<'_> {
    fn drop(&mut self) {
        let _ = self.ended();
    }
}

/// An announced capture: while it exists, no call of this library synchronizes a device, which would invalidate a capture
/// that it cannot see. Captures of streams that are routed to a [`PrivatePool`] need none.
///
/// ```
/// let capture = bfc::Capture::announce();
/// // cuStreamBeginCapture, work, cuStreamEndCapture
/// drop(capture);
/// ```
#[derive(Debug)]
#[must_use = "the capture is over when this is dropped"]
pub struct Capture(());

impl Capture {
    /// Announces a capture that is about to begin, of any stream of the process. It may wait up to a second for a
    /// synchronization that another thread is about to enter.
    pub fn announce() -> Self {
        captures::begin();
        Capture(())
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        captures::end();
    }
}
