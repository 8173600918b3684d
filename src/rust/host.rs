//! Pools of host memory, which safe code may access.

use super::block::Block;
use super::{Builder, Error, Pool, PrivatePool, Refused, Result, Stream};
use crate::device::Request;
use crate::error::{ErrorKind, fail};
use crate::options::BackendKind;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A pool of host memory: its blocks are slices. Those of its streams are not, because queued work may use them: they are
/// read through [`Block::as_ptr`], in the work of the stream.
///
/// It is a [`Pool`], whose operations it has too. It is always owned, so no safe code can end it while blocks are alive:
/// what could (`destroy_forced`, for example) is `unsafe` in [`raw`](crate::raw), and in C. After `fork`, which is `unsafe`
/// as well, the child has the memory of [`BackendKind::Host`] but not that of [`BackendKind::HostVmm`]: a program that
/// becomes a daemon creates such a pool afterwards.
///
/// ```
/// use bfc::HostPool;
///
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = HostPool::new(64 << 20)?;
/// let mut bytes = pool.alloc_zeroed(1000)?;
/// bytes[..5].copy_from_slice(b"hello");
/// assert_eq!(&bytes[..6], b"hello\0");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping a pool destroys the allocator"]
pub struct HostPool(Pool);

impl HostPool {
    /// Creates a pool with the recommended settings and a limit in bytes. 0 stands for the available memory.
    ///
    /// # Errors
    /// As [`Builder::build_host`]. [`ErrorKind::AlreadyExists`] if all 766 ordinals without a meaning have a pool.
    pub fn new(memory_limit: u64) -> Result<Self> {
        Self::builder().memory_limit(memory_limit).build_host()
    }

    /// Returns the settings of a new pool of [`BackendKind::Host`], on an ordinal that nothing else has: the last free one.
    /// For the ordinal of the host, which Python and C++ share, begin with `Pool::builder(HOST_DEVICE)`.
    pub fn builder<'a>() -> Builder<'a> {
        Builder::new(None).backend(BackendKind::Host)
    }

    /// Takes a pool that was just created, if its memory is the host's.
    pub(super) fn new_of(pool: Pool) -> Result<Self> {
        if pool.device.is_of_host().map_err(Error::last)? {
            return Ok(HostPool(pool));
        }
        Err(Error::last(fail!(
            ErrorKind::InvalidArgument,
            "the memory of device {} is not the host's: name BackendKind::Host or BackendKind::HostVmm",
            pool.ordinal()
        )))
    }

    /// Allocates memory, at a multiple of 256. Its contents are undefined.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// let mut block = pool.alloc(4)?;
    /// block[0].write(7);
    /// let block = block.filled(9);
    /// assert_eq!(*block, [9, 9, 9, 9]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn alloc(&self, bytes: usize) -> Result<HostBlock<'_>> {
        self.0.alloc(bytes).map(HostBlock::of)
    }

    /// Allocates memory with optional parameters.
    ///
    /// # Errors
    /// As [`Pool::alloc_with`].
    pub fn alloc_with(&self, request: &Request) -> Result<HostBlock<'_>> {
        self.0.alloc_with(request).map(HostBlock::of)
    }

    /// Allocates zeroed memory. Large memory is not written: its pages are given back, and the next touch of each brings in
    /// a zeroed one.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    ///
    /// ```
    /// # fn main() -> Result<(), bfc::Error> {
    /// let pool = bfc::HostPool::new(1 << 20)?;
    /// assert!(pool.alloc_zeroed(1000)?.iter().all(|&byte| byte == 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn alloc_zeroed(&self, bytes: usize) -> Result<HostBlock<'_, u8>> {
        let block = self.0.alloc(bytes)?;
        if !block.is_empty() {
            // SAFETY: the memory is the host's, and nothing else has it.
            unsafe { self.0.device.zero(block.address(), bytes as u64) }.map_err(Error::last)?;
        }
        // SAFETY: all bytes are zero.
        Ok(unsafe { HostBlock::of(block).assume_init() })
    }

    /// For collections, which need no text of a failure.
    #[cfg(feature = "allocator-api2")]
    pub(super) fn device(&self) -> crate::device::Device {
        self.0.device
    }

    /// Names a queue of work that may use the memory: a worker thread, or a queue of a runtime. Its blocks are freed in its
    /// order, and their memory goes to other queues when [`Stream::synchronized`] was called.
    ///
    /// Dropping the stream declares that all of its work has completed, because nothing else tells.
    pub fn stream(&self) -> Stream<'_> {
        // Any number, for nothing calls a driver with it. Handles that the program makes up are smaller.
        static NEXT: AtomicU64 = AtomicU64::new(1 << 62);
        Stream::of_host(&self.0, NEXT.fetch_add(1, Relaxed))
    }

    /// Creates a pool of memory that keeps its addresses. As [`Pool::private_pool`]; dropping it declares that no work uses
    /// it, nor is there any on the default stream, because nothing else tells.
    pub fn private_pool(&self) -> PrivatePool<'_> {
        PrivatePool::of_host(&self.0)
    }

    /// The pool without the knowledge that its memory is the host's.
    pub fn as_pool(&self) -> &Pool {
        &self.0
    }

    /// Gives up the knowledge that the memory is the host's.
    pub fn into_pool(self) -> Pool {
        self.0
    }

    /// Gives up ownership: the allocator stays until the process ends.
    pub fn leak(self) -> &'static HostPool {
        Box::leak(Box::new(self))
    }

    /// Destroys the allocator. As [`Pool::destroy`].
    ///
    /// # Errors
    /// As [`Pool::destroy`].
    pub fn destroy(self) -> Result<(), Refused<Self>> {
        self.0.destroy().map_err(|refused| refused.map(HostPool))
    }
}

impl Deref for HostPool {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.0
    }
}

/// Host memory, owned: a slice of bytes that are initialized (`u8`) or may not be ([`MaybeUninit<u8>`]).
///
/// ```
/// use bfc::HostPool;
///
/// # fn main() -> Result<(), bfc::Error> {
/// let pool = HostPool::new(1 << 20)?;
/// let block = pool.alloc(3)?.filled(b'x');
/// let text = std::str::from_utf8(&block).unwrap();
/// assert_eq!(text, "xxx");
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a block frees its memory"]
pub struct HostBlock<'a, T = MaybeUninit<u8>> {
    block: Block<'a>,
    bytes: PhantomData<T>,
}

impl<'a> HostBlock<'a> {
    fn of(block: Block<'a>) -> Self {
        HostBlock { block, bytes: PhantomData }
    }

    /// Writes a value to every byte.
    pub fn filled(self, value: u8) -> HostBlock<'a, u8> {
        // SAFETY: the block owns these bytes.
        unsafe { self.as_ptr().as_ptr().write_bytes(value, self.len()) };
        // SAFETY: every byte was written.
        unsafe { self.assume_init() }
    }

    /// Declares that the bytes are initialized.
    ///
    /// # Safety
    /// They are.
    pub unsafe fn assume_init(self) -> HostBlock<'a, u8> {
        HostBlock { block: self.block, bytes: PhantomData }
    }
}

impl<'a, T> HostBlock<'a, T> {
    /// The address.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.block.as_ptr()
    }

    /// Frees the memory now, and reports.
    ///
    /// # Errors
    /// As [`Block::free`].
    pub fn free(self) -> Result<(), Refused<Self>> {
        self.block.free().map_err(|refused| refused.map(|block| HostBlock { block, bytes: PhantomData }))
    }

    /// The block, for its other operations.
    pub fn as_block(&self) -> &Block<'a> {
        &self.block
    }

    /// Gives up the knowledge that the memory is the host's.
    pub fn into_block(self) -> Block<'a> {
        self.block
    }
}

impl Deref for HostBlock<'_, u8> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block owns these bytes of host memory, which are initialized.
        unsafe { std::slice::from_raw_parts(self.as_ptr().as_ptr(), self.block.len()) }
    }
}

impl DerefMut for HostBlock<'_, u8> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the block is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr(), self.block.len()) }
    }
}

impl Deref for HostBlock<'_> {
    type Target = [MaybeUninit<u8>];

    fn deref(&self) -> &[MaybeUninit<u8>] {
        // SAFETY: the block owns these bytes of host memory.
        unsafe { std::slice::from_raw_parts(self.as_ptr().as_ptr().cast(), self.block.len()) }
    }
}

impl DerefMut for HostBlock<'_> {
    fn deref_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: as above, and the block is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().as_ptr().cast(), self.block.len()) }
    }
}

impl<T> fmt::Debug for HostBlock<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.block.fmt(f)
    }
}
