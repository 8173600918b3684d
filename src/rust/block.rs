//! Memory, owned.

use super::{Error, Pool, Refused, Result, Stream};
use crate::device::{Device, Request};
use crate::error::ErrorKind;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Memory of a pool, owned: freed when it is dropped, in the order of the stream that it was allocated on.
///
/// A block borrows its pool, and one that was allocated on a [`Stream`] borrows that too. So it costs no more than an
/// address: no reference count, which frameworks have already around their tensors. To keep blocks without a lifetime, make
/// the pool `'static` ([`Pool::leak`]), and for blocks of a stream the stream too (`Box::leak(Box::new(stream))`).
///
/// The address is that of the backend's memory: the CPU must not access memory of a CUDA device. Memory that it may access
/// is in a [`HostBlock`](crate::HostBlock).
///
/// Dropping frees without reporting. A free can fail in a callback of the allocator, in a signal handler, in a forked child,
/// or if another free took the address. It then changes nothing, so the memory stays allocated. [`Block::free`] tells.
///
/// When a device's context is reset or destroyed, its memory is gone, and so are its blocks: give them up with
/// [`std::mem::forget`] before anything is allocated again, because a new block may have the address of an old one.
///
/// Blocks may be sent to other threads and dropped there. Memory that was allocated on a default stream is freed on that
/// stream, in whichever thread.
///
/// ```
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = bfc::Pool::new(bfc::HOST_DEVICE)?;
/// let weights = pool.alloc(4096)?;
/// std::thread::scope(|scope| scope.spawn(move || drop(weights)).join()).unwrap();
/// assert_eq!(pool.stats()?.bytes_in_use, 0);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a block frees its memory"]
pub struct Block<'a> {
    pointer: NonNull<u8>,
    bytes: usize,
    device: Device,
    lifetime: PhantomData<&'a Pool>,
}

// SAFETY: a block is an address that this object alone frees, and every call may come from any thread.
unsafe impl Send for Block<'_> {}
// SAFETY: a shared block gives out the address and makes calls that may come from any thread.
unsafe impl Sync for Block<'_> {}

/// The address of an empty block, which is never accessed: a multiple of 256, as all are.
const EMPTY: NonNull<u8> = NonNull::new(std::ptr::without_provenance_mut(256)).unwrap();

/// Allocates in the order of a stream's handle, or of none.
pub(super) fn alloc<'a>(device: Device, request: &Request, stream: Option<u64>) -> Result<Block<'a>> {
    // SAFETY: by the contract of `Pool::stream`.
    match unsafe { device.alloc_request(request, stream) } {
        Ok(address) => Ok(Block::at(device, address, request.bytes())),
        Err(kind) => Err(Error::last(kind)),
    }
}

impl<'a> Block<'a> {
    /// The block of an allocation, or for the address 0 an empty one.
    #[inline]
    pub(super) fn at(device: Device, address: u64, bytes: usize) -> Self {
        Block {
            pointer: NonNull::new(address as *mut u8).unwrap_or(EMPTY),
            bytes,
            device,
            lifetime: PhantomData,
        }
    }

    /// Takes ownership of memory that [`Block::into_raw`] gave up, or that other code allocated.
    ///
    /// # Safety
    /// `pointer` is a live allocation of that pool which nothing else frees, of at least `bytes` bytes. With 0 bytes it is
    /// ignored: empty blocks have no memory.
    #[inline]
    pub unsafe fn from_raw(pool: &'a Pool, pointer: NonNull<u8>, bytes: usize) -> Self {
        Block { pointer, bytes, device: pool.device, lifetime: PhantomData }
    }

    /// Gives up ownership. The memory stays allocated until [`Block::from_raw`] takes it back, or C code frees it.
    ///
    /// ```
    /// use bfc::Block;
    ///
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::Pool::new(bfc::HOST_DEVICE)?;
    /// let pointer = pool.alloc(100)?.into_raw();
    /// assert_eq!(pool.stats()?.bytes_requested, 100);
    /// // SAFETY: the pointer is from `into_raw`, and is not used again.
    /// drop(unsafe { Block::from_raw(&pool, pointer, 100) });
    /// assert_eq!(pool.stats()?.bytes_requested, 0);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    #[must_use = "the memory is lost without its address"]
    pub fn into_raw(self) -> NonNull<u8> {
        ManuallyDrop::new(self).pointer
    }

    /// The address. It is a multiple of 256, and not null even for an empty block.
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.pointer
    }

    /// The address as a number, as `CUdeviceptr` is. 0 for an empty block.
    #[inline]
    pub fn address(&self) -> u64 {
        if self.is_empty() { 0 } else { self.pointer.as_ptr() as u64 }
    }

    /// The requested bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes, and so no memory.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The number of the allocation, which rises from 1, as reports and histories show it. 0 for an empty block.
    ///
    /// # Errors
    /// As [`Pool::stats`].
    pub fn id(&self) -> Result<u64> {
        match self.address() {
            0 => Ok(0),
            address => self.device.allocation_id(address).map_err(Error::last),
        }
    }

    /// The usable bytes: the size of the chunk. 0 for an empty block.
    ///
    /// # Errors
    /// As [`Pool::stats`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// let block = pool.as_pool().alloc(1000)?;
    /// assert_eq!((block.len(), block.capacity()?, block.id()?), (1000, 1024, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn capacity(&self) -> Result<usize> {
        match self.address() {
            0 => Ok(0),
            address => self.device.allocated_size(address).map(|bytes| bytes as usize).map_err(Error::last),
        }
    }

    /// Declares that work on another stream uses the memory too. Once freed, it is not reused before the work that is
    /// queued there by then has completed. Nothing happens to an empty block.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with [`Flags::TIMESTAMPS`](crate::Flags::TIMESTAMPS); [`ErrorKind::OutOfMemory`] for host
    /// memory; [`ErrorKind::InvalidArgument`] if the stream is one of another device.
    pub fn record_use(&self, stream: &Stream<'_>) -> Result<()> {
        stream.require(self.device)?;
        match self.address() {
            0 => Ok(()),
            // SAFETY: by the contract of `Pool::stream`.
            address => unsafe { self.device.record_stream(address, stream.handle()) }.map_err(Error::last),
        }
    }

    /// Frees the memory now, and reports.
    ///
    /// # Errors
    /// Those of every call. The block is in the error, and still owns the memory.
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// pool.as_pool().alloc(1000)?.free()?;
    /// assert_eq!(pool.stats()?.num_frees, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn free(self) -> Result<(), Refused<Self>> {
        // SAFETY: the memory is this object's, which ends here if that succeeds.
        self.ended(|device, address| unsafe { device.free(address) })
    }

    /// Frees the memory in the order of another stream, which must be ordered after all work that uses it elsewhere, unless
    /// [`Block::record_use`] has declared it.
    ///
    /// # Errors
    /// As [`Block::free`] and [`Block::record_use`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// let (compute, copy) = (pool.stream(), pool.stream());
    /// let block = compute.alloc(1000)?;
    /// // `copy` waits for `compute` here, and uses the memory last.
    /// block.free_on(&copy)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn free_on(self, stream: &Stream<'_>) -> Result<(), Refused<Self>> {
        if let Err(error) = stream.require(self.device) {
            return Err(Refused::new(error, self));
        }
        // SAFETY: the memory is this object's, which ends here if that succeeds.
        self.ended(|device, address| unsafe { device.free_on(address, stream.handle()) })
    }

    fn ended(self, free: impl FnOnce(Device, u64) -> Result<(), ErrorKind>) -> Result<(), Refused<Self>> {
        match free(self.device, self.address()) {
            Ok(()) => {
                std::mem::forget(self);
                Ok(())
            }
            Err(kind) => Err(Refused::new(Error::last(kind), self)),
        }
    }
}

impl Drop for Block<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_empty() {
            // SAFETY: the memory is this object's, which ends here.
            let _ = unsafe { self.device.free(self.pointer.as_ptr() as u64) };
        }
    }
}

impl fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes at {:#x} of device {})", self.bytes, self.address(), self.device.ordinal())
    }
}
