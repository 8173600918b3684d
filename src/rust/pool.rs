//! Pools: the allocator of a device, owned or borrowed.

use super::block::{self, Block};
use super::{Builder, Error, PrivatePool, RawStream, Refused, Result, Stream};
use crate::device::{Device, Request};
use crate::error::{ErrorKind, fail};
use crate::report::layout::Region;
use bfc_core::stats::Stats;

/// The allocator of a device: owned, and destroyed with this object, or [borrowed](Pool::borrowed).
///
/// There is one allocator for each ordinal in the process: 0 to 255 are CUDA devices, [`HOST_DEVICE`] is the host, and 258
/// to 1023 are the program's to use with any backend.
///
/// Blocks borrow the pool, so an owned one has no live blocks when it is dropped. If some were forgotten
/// ([`std::mem::forget`], [`Block::into_raw`]), or other code allocated from it by the C ABI, the allocator stays, because
/// the memory may be in use. [`Pool::destroy`] tells.
///
/// To keep blocks in structures without a lifetime, make the pool `'static`: [`Pool::leak`], or a `static` with a
/// [`LazyLock`](std::sync::LazyLock).
///
/// ```
/// use bfc::{HOST_DEVICE, Pool};
///
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = Pool::new(HOST_DEVICE)?; // a GPU is 0, 1, ...
/// let block = pool.alloc(1000)?;
/// assert_eq!((block.len(), pool.stats()?.bytes_in_use), (1000, 1024));
/// drop(block);
/// pool.destroy()?;
/// # Ok(())
/// # }
/// ```
///
/// [`HOST_DEVICE`]: crate::HOST_DEVICE
#[derive(Debug)]
#[must_use = "dropping a pool destroys the allocator"]
pub struct Pool {
    pub(super) device: Device,
    is_owned: bool,
}

impl Pool {
    /// Creates the allocator of a device with the recommended settings and those of the environment.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(ordinal: i32) -> Result<Self> {
        Self::builder(ordinal).build()
    }

    /// Returns the settings of a new pool.
    pub fn builder<'a>(ordinal: i32) -> Builder<'a> {
        Builder::new(Some(ordinal))
    }

    /// Shares an allocator that exists, which another part of the program owns. Dropping this object leaves it.
    ///
    /// The owner cannot destroy it while blocks are alive. Once it is gone, requests are [`ErrorKind::NoAllocator`].
    ///
    /// # Errors
    /// [`ErrorKind::NoAllocator`] if there is none.
    ///
    /// ```
    /// use bfc::{ErrorKind, HOST_DEVICE, Pool};
    ///
    /// # fn main() -> Result<(), bfc::Error> {
    /// let owner = Pool::new(HOST_DEVICE)?;
    /// let shared = Pool::borrowed(HOST_DEVICE)?;
    /// drop(owner);
    /// assert_eq!(shared.alloc(1).unwrap_err().kind(), ErrorKind::NoAllocator);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`ErrorKind::NoAllocator`]: crate::ErrorKind::NoAllocator
    pub fn borrowed(ordinal: i32) -> Result<Self> {
        let device = Device::new(ordinal).map_err(Error::last)?;
        device.require_allocator().map_err(Error::last)?;
        Ok(Pool { device, is_owned: false })
    }

    /// Takes over an allocator that exists. It is destroyed with the returned object.
    ///
    /// # Safety
    /// Nothing else owns it: no other `Pool`, and no code that would destroy it.
    ///
    /// # Errors
    /// As [`Pool::borrowed`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// use bfc::{HOST_DEVICE, Pool};
    ///
    /// // What C code has created, and will not destroy.
    /// Pool::new(HOST_DEVICE)?.leak();
    /// // SAFETY: nothing else owns it.
    /// let pool = unsafe { Pool::adopt(HOST_DEVICE)? };
    /// pool.destroy()?;
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn adopt(ordinal: i32) -> Result<Self> {
        let mut pool = Self::borrowed(ordinal)?;
        pool.is_owned = true;
        Ok(pool)
    }

    pub(super) fn owning(device: Device) -> Self {
        Pool { device, is_owned: true }
    }

    /// Gives up ownership: the allocator stays until the process ends, or until C code destroys it.
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// struct Tensor {
    ///     memory: bfc::Block<'static>,
    /// }
    ///
    /// let pool: &'static bfc::Pool = bfc::Pool::new(bfc::HOST_DEVICE)?.leak();
    /// let tensor = Tensor { memory: pool.alloc(1000)? };
    /// assert_eq!(tensor.memory.len(), 1000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn leak(self) -> &'static Pool {
        Box::leak(Box::new(self))
    }

    /// Destroys the allocator, and gives all memory back to the backend.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if memory is in use that was forgotten here or allocated elsewhere, and
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a borrowed pool. The pool is in the error.
    pub fn destroy(self) -> Result<(), Refused<Self>> {
        match self.end() {
            Ok(()) => {
                std::mem::forget(self);
                Ok(())
            }
            Err(kind) => Err(Refused::new(Error::last(kind), self)),
        }
    }

    fn end(&self) -> Result<(), ErrorKind> {
        if !self.is_owned {
            let device = self.ordinal();
            return Err(fail!(
                ErrorKind::Unsupported,
                "the allocator of device {device} is borrowed: only its owner destroys it"
            ));
        }
        // SAFETY: this object owns the allocator, and ends here if that succeeds. With memory in use the allocator stays.
        unsafe { self.device.destroy() }
    }

    /// The ordinal of the device.
    pub fn ordinal(&self) -> i32 {
        self.device.ordinal()
    }

    /// Allocates memory, at a multiple of 256. Its contents are undefined. 0 bytes are an empty block.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory), with [numbers](Error::out_of_memory);
    /// [`ErrorKind::BackendFailed`](crate::ErrorKind::BackendFailed) if the driver fails;
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) in a callback of this allocator.
    pub fn alloc(&self, bytes: usize) -> Result<Block<'_>> {
        match self.device.alloc(bytes as u64) {
            Ok(address) => Ok(Block::at(self.device, address, bytes)),
            Err(kind) => Err(Error::last(kind)),
        }
    }

    /// Allocates memory with optional parameters.
    ///
    /// # Errors
    /// As [`Pool::alloc`], and those of the parameters ([`Request`]).
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::Pool::new(bfc::HOST_DEVICE)?;
    /// let page = pool.alloc_with(&bfc::Request::new(1000).alignment(4096))?;
    /// assert_eq!(page.address() % 4096, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn alloc_with(&self, request: &Request) -> Result<Block<'_>> {
        block::alloc(self.device, request, None)
    }

    /// Names a stream of the device, for memory in its order.
    ///
    /// # Safety
    /// The handle is that of a stream which exists until the returned guard is dropped, and no other guard of this ordinal
    /// has it. If this object owns the allocator, and its backend is not CUDA's, any number is right, because no driver is
    /// called.
    ///
    /// ```
    /// use bfc::{BackendKind, Pool, RawStream};
    ///
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = Pool::builder(258).backend(BackendKind::Host).build()?;
    /// // SAFETY: the pool is owned, and is not CUDA's.
    /// let stream = unsafe { pool.stream(RawStream::from(0x1000)) };
    /// let block = stream.alloc(1000)?;
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn stream(&self, handle: RawStream) -> Stream<'_> {
        Stream::new(self, handle.0)
    }

    /// The default stream of the context that is current at each call (CUDA's legacy stream).
    pub fn default_stream(&self) -> Stream<'_> {
        Stream::new(self, 0)
    }

    /// The calling thread's own default stream, as in programs with `--default-stream per-thread`. The returned object
    /// names that of the thread that calls, and not of the thread that made it.
    pub fn per_thread_stream(&self) -> Stream<'_> {
        Stream::new(self, 2)
    }

    /// Creates a pool of memory that keeps its addresses, for captured graphs.
    pub fn private_pool(&self) -> PrivatePool<'_> {
        PrivatePool::new(self)
    }

    /// Returns the current statistics.
    ///
    /// # Errors
    /// Those of every call: [`ErrorKind::NoAllocator`](crate::ErrorKind::NoAllocator),
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) in a callback, and
    /// [`ErrorKind::Internal`](crate::ErrorKind::Internal) after a broken invariant.
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(16 << 20)?;
    /// let block = pool.alloc(1000)?;
    /// let stats = pool.stats()?;
    /// assert_eq!((stats.bytes_requested, stats.bytes_in_use, stats.pool_bytes), (1000, 1024, 2 << 20));
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> Result<Stats> {
        self.device.stats().map_err(Error::last)
    }

    /// Resets counts to 0 and peaks to the current values.
    ///
    /// # Errors
    /// As [`Pool::stats`].
    pub fn reset_stats(&self) -> Result<()> {
        self.device.reset_stats().map_err(Error::last)
    }

    /// Gives free regions back as long as `keep` bytes stay held. Returns the bytes given back.
    ///
    /// # Errors
    /// [`ErrorKind::BackendFailed`](crate::ErrorKind::BackendFailed) if the driver did not take all of them: the rest is free
    /// memory as before. And as [`Pool::stats`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(16 << 20)?;
    /// drop(pool.alloc(1000)?);
    /// assert_eq!(pool.trim(0)?, 2 << 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn trim(&self, keep: u64) -> Result<u64> {
        self.device.trim(keep).map_err(Error::last)
    }

    /// Changes how many bytes may be held from the backend. If more are held, existing memory stays valid, nothing more is
    /// obtained, and free memory is given back.
    ///
    /// # Errors
    /// As [`Pool::trim`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// assert!(pool.alloc(2 << 20).is_err());
    /// pool.set_memory_limit(4 << 20)?;
    /// assert!(pool.alloc(2 << 20).is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_memory_limit(&self, bytes: u64) -> Result<()> {
        self.device.set_memory_limit(bytes).map_err(Error::last)
    }

    /// Returns the last stamp that a free got. Read it, synchronize the device, and pass the stamp plus 1 to
    /// [`Pool::set_safe_frontier`].
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) without
    /// [`Flags::TIMESTAMPS`](crate::Flags::TIMESTAMPS), and as [`Pool::stats`].
    pub fn timestamp(&self) -> Result<u64> {
        self.device.timestamp().map_err(Error::last)
    }

    /// Declares stamps below `frontier` safe: no queued work uses memory that was freed with them.
    ///
    /// # Errors
    /// As [`Pool::timestamp`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// use bfc::{Flags, HostPool};
    ///
    /// let flags = Flags::ALLOW_GROWTH | Flags::TIMESTAMPS;
    /// let pool = HostPool::builder().memory_limit(1 << 20).flags(flags).build_host()?;
    /// drop(pool.alloc(1000)?);
    /// let stamp = pool.timestamp()?;
    /// // Here the device is synchronized.
    /// pool.set_safe_frontier(stamp + 1)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_safe_frontier(&self, frontier: u64) -> Result<()> {
        self.device.set_safe_frontier(frontier).map_err(Error::last)
    }

    /// Checks every invariant of the allocator's metadata, in a time proportional to the number of chunks.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`](crate::ErrorKind::Internal) if one is broken, after which the allocator refuses every call.
    pub fn check(&self) -> Result<()> {
        self.device.check().map_err(Error::last)
    }

    /// Returns the regions in the order of their addresses, each with its chunks, as of one moment.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) for host memory, and as [`Pool::stats`].
    ///
    /// ```
    /// use bfc::ChunkState;
    ///
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// let block = pool.alloc(1000)?;
    /// let regions = pool.regions()?;
    /// let chunks: Vec<_> = regions.iter().flat_map(|region| region.chunks()).collect();
    /// assert_eq!((chunks[0].size, chunks[0].requested, chunks[0].state), (1024, 1000, ChunkState::InUse));
    /// assert_eq!(chunks[1].state, ChunkState::Free);
    /// # Ok(())
    /// # }
    /// ```
    pub fn regions(&self) -> Result<Vec<Region>> {
        self.device.regions().map_err(Error::last)
    }

    /// Returns the report that is written after an out of memory: what is held, used and free, by size and by operation.
    ///
    /// # Errors
    /// As [`Pool::regions`].
    pub fn report(&self) -> Result<String> {
        self.device.report().map_err(Error::last)
    }

    /// Returns regions, chunks, bins and statistics as JSON. The schema is in docs/memory-map.md.
    ///
    /// # Errors
    /// As [`Pool::regions`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// assert!(pool.memory_map()?.starts_with("{\"schema\":1,"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn memory_map(&self) -> Result<String> {
        self.device.memory_map().map_err(Error::last)
    }

    /// Returns the pool as one line of 100 columns: `*` used, `x` slack inside chunks, `_` free.
    ///
    /// # Errors
    /// As [`Pool::regions`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// let block = pool.alloc(512 << 10)?;
    /// assert_eq!(pool.occupancy()?, "*".repeat(50) + &"_".repeat(50));
    /// # Ok(())
    /// # }
    /// ```
    pub fn occupancy(&self) -> Result<String> {
        self.device.occupancy().map_err(Error::last)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.is_owned {
            let _ = self.end();
        }
    }
}

/// Returns the statistics of all allocators of the process as OpenMetrics text, for Prometheus.
///
/// # Errors
/// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) for host memory.
///
/// ```
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = bfc::HostPool::new(1 << 20)?;
/// assert!(bfc::metrics()?.contains("bfc_in_use_bytes"));
/// # Ok(())
/// # }
/// ```
pub fn metrics() -> Result<String> {
    Device::metrics().map_err(Error::last)
}
