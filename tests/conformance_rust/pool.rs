//! A pool of the interface for Rust, with the methods of the pool in `tests/common`.
//!
//! The suite frees by address, also wrong ones, and expects the statuses of C. So the blocks are kept by address, an address
//! without a block becomes one for the call, and an error becomes the status of its kind.

use crate::c_abi::*;
use crate::private::Private;
use bfc::raw::{Device, SubAllocator};
use bfc::{
    BackendKind, Block, Builder, ErrorKind, Flags, GrowthPolicy, RawStream, Refused, Request, Stats, Stream,
};
use std::collections::HashMap;
use std::convert::Infallible;
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An allocator under test. Dropping it destroys it.
pub struct Pool {
    /// Leaked, so that blocks have no lifetime, and calls can be made after the end of the allocator.
    pub pool: &'static bfc::Pool,
    /// By address. They end only where a test says so: a pool is also destroyed with live blocks.
    live: Mutex<HashMap<u64, ManuallyDrop<Block<'static>>>>,
    /// By the names of the test.
    pub private: Mutex<HashMap<u64, Private>>,
}

/// Returns the status of an error, which has the message of the C ABI.
pub fn code(error: &bfc::Error) -> Status {
    assert_eq!(error.message(), last_error());
    error.kind().code()
}

/// Returns the status of a result.
fn status(result: bfc::Result<()>) -> Status {
    result.map_or_else(|error| code(&error), |()| BFC_OK)
}

/// Returns the status of a C function that was called with what the interface for Rust cannot express: an error.
#[track_caller]
pub fn refused(status: Status) -> Status {
    assert_ne!(status, BFC_OK, "C accepts what Rust cannot express");
    status
}

/// Returns the builder with these options, or None if it cannot have them.
fn builder(device: i32, wanted: &bfc_options_t) -> Option<Builder<'_>> {
    let (backend, policy) =
        (BackendKind::from_code(wanted.backend)?, GrowthPolicy::from_code(wanted.growth_policy)?);
    if (wanted.struct_size, wanted.reserved, wanted.reserved2) != (size_of::<bfc_options_t>(), 0, 0) {
        return None;
    }
    assert!(wanted.plan.is_null(), "no test of the suite has a plan");
    let mut builder = bfc::Pool::builder(device)
        .backend(backend)
        .growth(policy)
        .flags(Flags::from_bits_retain(wanted.flags))
        .memory_limit(wanted.memory_limit)
        .memory_fraction(wanted.memory_fraction)
        .fragmentation_fraction(wanted.fragmentation_fraction)
        .initial_region(wanted.initial_region_bytes)
        .retry_timeout(Duration::from_millis(wanted.retry_timeout_ms.into()));
    if !wanted.name.is_null() {
        // SAFETY: the test's text, which lives during its call.
        let name = unsafe { CStr::from_ptr(wanted.name) };
        builder = builder.name(name.to_str().expect("UTF-8"));
    }
    // SAFETY: NULL, or the test's struct, which lives during its call.
    if let Some(functions) = unsafe { wanted.suballocator.as_ref() } {
        let (alloc, free) = (functions.alloc.expect("a function"), functions.free.expect("a function"));
        // SAFETY: the test's functions, which remain until the pool has ended.
        let functions = unsafe {
            SubAllocator::new(functions.user_data, alloc, free, functions.supports_coalescing != 0)
        };
        builder = builder.suballocator(functions);
    }
    // The suite gives most pools the default, so it would not see that it is lost.
    assert_eq!(builder.options().initial_region_bytes, wanted.initial_region_bytes);
    Some(builder)
}

impl Pool {
    /// Creates a pool on host memory with a limit, after `change` has modified its options.
    pub fn host(limit: u64, change: impl FnOnce(&mut bfc_options_t)) -> Pool {
        Pool::try_host(limit, change).unwrap_or_else(|status| panic!("status {status}: {}", last_error()))
    }

    /// Like [`Pool::host`], with the status of a failure.
    pub fn try_host(limit: u64, change: impl FnOnce(&mut bfc_options_t)) -> Result<Pool, Status> {
        let mut wanted = options();
        (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, limit);
        change(&mut wanted);
        Pool::create(fresh_device(), &wanted, None)
    }

    /// Creates a pool with exactly these options on this device. The suite has no sub-allocator for the pool to own.
    pub fn create(device: i32, wanted: &bfc_options_t, _: Option<Infallible>) -> Result<Pool, Status> {
        let Some(builder) = builder(device, wanted) else {
            return Err(refused(create(device, Some(wanted))));
        };
        let pool = builder.build().map_err(|error| code(&error))?.leak();
        Ok(Pool { pool, live: Mutex::default(), private: Mutex::default() })
    }

    /// Its ordinal.
    pub fn device(&self) -> i32 {
        self.pool.ordinal()
    }

    fn raw(&self) -> Device {
        Device::new(self.device()).expect("an ordinal")
    }

    fn live(&self) -> MutexGuard<'_, HashMap<u64, ManuallyDrop<Block<'static>>>> {
        // A failed assertion about a block is not to be hidden by another one when the pool is dropped.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream with a handle. It is not to be dropped, which would declare that it gets no more work.
    pub fn stream(&self, handle: u64) -> ManuallyDrop<Stream<'static>> {
        ManuallyDrop::new(match handle {
            0 => self.pool.default_stream(),
            2 => self.pool.per_thread_stream(),
            // SAFETY: a stream of the fixture, which exists. Only `try_forget` ends its guard.
            _ => unsafe { self.pool.stream(RawStream::from(handle)) },
        })
    }

    /// A block at any address. The pool is to refuse those that are wrong.
    fn block_at(&self, address: u64) -> ManuallyDrop<Block<'static>> {
        let pointer = NonNull::new(address as *mut u8).unwrap_or(NonNull::dangling());
        // SAFETY: it is never dropped. Whether the pool refuses to free it is what is tested.
        ManuallyDrop::new(unsafe { Block::from_raw(self.pool, pointer, usize::from(address != 0)) })
    }

    fn with_block<T>(&self, address: u64, call: impl FnOnce(&Block<'static>) -> T) -> T {
        match self.live().get(&address) {
            Some(block) => call(block),
            None => call(&self.block_at(address)),
        }
    }

    fn keep(&self, block: Block<'static>) {
        let other = self.live().insert(block.address(), ManuallyDrop::new(block));
        assert!(other.is_none(), "{other:?} is live");
    }

    /// Keeps a new block, and returns its address.
    fn allocated(&self, got: bfc::Result<Block<'_>>) -> Result<u64, Status> {
        let block = got.map_err(|error| code(&error))?;
        let (address, bytes) = (block.address(), block.len());
        if address != 0 {
            // SAFETY: the pointer is from `into_raw`. The suite forgets streams that have live blocks, which is why the new
            // one must not borrow the stream.
            self.keep(unsafe { Block::from_raw(self.pool, block.into_raw(), bytes) });
        }
        Ok(address)
    }

    /// Ends a block. If that fails, it remains.
    fn freed(
        &self,
        address: u64,
        free: impl FnOnce(Block<'static>) -> Result<(), Refused<Block<'static>>>,
    ) -> Status {
        let kept = self.live().remove(&address);
        let is_kept = kept.is_some();
        let block = kept.unwrap_or_else(|| self.block_at(address));
        let Err(failed) = free(ManuallyDrop::into_inner(block)) else { return BFC_OK };
        let status = code(failed.error());
        let block = ManuallyDrop::new(failed.into_inner());
        assert_eq!(block.address(), address, "the error has the block");
        if is_kept {
            self.keep(ManuallyDrop::into_inner(block));
        }
        status
    }

    /// `Pool::alloc`.
    pub fn alloc(&self, bytes: u64) -> Result<u64, Status> {
        self.allocated(self.pool.alloc(bytes as usize))
    }

    /// `Pool::alloc` that must succeed.
    #[track_caller]
    pub fn get(&self, bytes: u64) -> u64 {
        self.alloc(bytes).unwrap_or_else(|status| panic!("{bytes} bytes: status {status}, {}", last_error()))
    }

    /// `Pool::alloc_with`, aligned.
    pub fn alloc_aligned(&self, bytes: u64, alignment: u64) -> Result<u64, Status> {
        let request = Request::new(bytes as usize).alignment(alignment as usize);
        self.allocated(self.pool.alloc_with(&request))
    }

    /// `Pool::alloc_with`, for a stamp.
    pub fn alloc_freed_before(&self, bytes: u64, stamp: u64) -> Result<u64, Status> {
        self.allocated(self.pool.alloc_with(&Request::new(bytes as usize).freed_before(stamp)))
    }

    /// `Pool::alloc_with` or `Stream::alloc_with`.
    pub fn alloc_ex(&self, request: &bfc_request_t) -> Result<u64, Status> {
        let is_known = request.flags & !BFC_REQUEST_ON_STREAM == 0 && request.reserved == 0;
        if !is_known || request.struct_size != size_of::<bfc_request_t>() {
            return Err(refused(alloc_ex(self.device(), request).err().unwrap_or(BFC_OK)));
        }
        let wanted =
            Request::new(request.bytes).alignment(request.alignment).freed_before(request.freed_before);
        match request.flags {
            0 => self.allocated(self.pool.alloc_with(&wanted)),
            _ => self.allocated(self.stream(request.stream as u64).alloc_with(&wanted)),
        }
    }

    /// `Block::free`.
    pub fn free(&self, address: u64) -> Status {
        self.freed(address, Block::free)
    }

    /// Drops a block, as programs do. One that is not known is freed, which must succeed.
    #[track_caller]
    pub fn put(&self, address: u64) {
        let kept = self.live().remove(&address);
        match kept {
            Some(block) => drop(ManuallyDrop::into_inner(block)),
            None => assert_eq!(self.free(address), BFC_OK, "free of {address:#x}: {}", last_error()),
        }
    }

    /// `Stream::alloc`.
    pub fn alloc_on(&self, bytes: u64, stream: u64) -> Result<u64, Status> {
        self.allocated(self.stream(stream).alloc(bytes as usize))
    }

    /// `Stream::alloc` that must succeed.
    #[track_caller]
    pub fn get_on(&self, bytes: u64, stream: u64) -> u64 {
        self.alloc_on(bytes, stream).unwrap_or_else(|status| {
            panic!("{bytes} bytes on {stream:#x}: status {status}, {}", last_error())
        })
    }

    /// `Block::free_on`.
    pub fn free_on(&self, address: u64, stream: u64) -> Status {
        self.freed(address, |block| block.free_on(&self.stream(stream)))
    }

    /// `Block::free_on` that must succeed.
    #[track_caller]
    pub fn put_on(&self, address: u64, stream: u64) {
        let status = self.free_on(address, stream);
        assert_eq!(status, BFC_OK, "free of {address:#x} on {stream:#x}: {}", last_error());
    }

    /// `Block::record_use`.
    pub fn record(&self, address: u64, stream: u64) -> Status {
        self.with_block(address, |block| status(block.record_use(&self.stream(stream))))
    }

    /// `Stream::forget`.
    pub fn try_forget(&self, stream: u64) -> Status {
        status(ManuallyDrop::into_inner(self.stream(stream)).close())
    }

    /// `Stream::synchronized`.
    pub fn vouch(&self, stream: u64) -> Status {
        status(self.stream(stream).synchronized())
    }

    /// `Pool::stats`.
    pub fn stats(&self) -> Stats {
        self.pool.stats().expect("statistics")
    }

    /// `Pool::check`: every invariant holds.
    #[track_caller]
    pub fn check(&self) {
        self.pool.check().expect("no broken invariant");
    }

    /// `Pool::set_memory_limit`, which must succeed.
    #[track_caller]
    pub fn limit(&self, bytes: u64) {
        self.pool.set_memory_limit(bytes).expect("a limit");
    }

    /// `Pool::trim`. Returns the released bytes.
    #[track_caller]
    pub fn trim(&self, keep: u64) -> u64 {
        self.pool.trim(keep).expect("a trim")
    }

    /// `Pool::trim`, or why not.
    pub fn try_trim(&self, keep: u64) -> Result<u64, Status> {
        self.pool.trim(keep).map_err(|error| code(&error))
    }

    /// `Pool::timestamp`.
    pub fn timestamp(&self) -> Result<u64, Status> {
        self.pool.timestamp().map_err(|error| code(&error))
    }

    /// Declares everything freed so far safe, as `Pool::timestamp` describes: the last stamp plus 1.
    pub fn synchronize(&self) {
        let last = self.pool.timestamp().expect("a pool with stamps");
        self.pool.set_safe_frontier(last + 1).expect("a pool with stamps");
    }

    /// `raw::Device::requested_size`, which is `Block::len`.
    pub fn requested_size(&self, address: u64) -> Result<u64, Status> {
        let bytes = self.raw().requested_size(address).map_err(ErrorKind::code)?;
        assert_eq!(self.live()[&address].len() as u64, bytes);
        Ok(bytes)
    }

    /// `Block::capacity`.
    pub fn allocated_size(&self, address: u64) -> Result<u64, Status> {
        let bytes = self.with_block(address, Block::capacity);
        bytes.map(|bytes| bytes as u64).map_err(|error| code(&error))
    }

    /// `raw::Device::allocation_id`.
    pub fn allocation_id(&self, address: u64) -> Result<u64, Status> {
        self.raw().allocation_id(address).map_err(ErrorKind::code)
    }

    /// `raw::Device::address_range`.
    pub fn range(&self, address: u64) -> Result<Range, Status> {
        let range = self.raw().address_range(address).map_err(ErrorKind::code)?;
        Ok(Range { chunk: range.chunk, region: range.region })
    }

    /// The memory map, as text.
    pub fn memory_map(&self) -> String {
        self.pool.memory_map().expect("a text")
    }

    /// The occupancy line.
    pub fn occupancy(&self) -> String {
        self.pool.occupancy().expect("a text")
    }

    /// The out-of-memory report.
    pub fn report(&self) -> String {
        self.pool.report().expect("a text")
    }

    /// `Pool::destroy`. The object remains usable for queries.
    pub fn destroy(&self) -> Status {
        // SAFETY: `leak` gave up ownership. What is refused stays, and belongs to nothing again.
        let owner = unsafe { bfc::Pool::adopt(self.device()) };
        let ended = status(owner.and_then(|owner| Ok(owner.destroy()?)));
        assert!(ended != BFC_OK || self.live().is_empty(), "destroyed with live blocks");
        ended
    }

    /// `raw::Device::destroy_forced`.
    pub fn destroy_forced(&self) -> Status {
        // SAFETY: the live blocks are never dropped.
        let ended = unsafe { self.raw().destroy_forced() };
        if ended.is_ok() {
            self.live().clear();
        }
        ended.map_or_else(ErrorKind::code, |()| BFC_OK)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The test may have destroyed it. Then there is none, which is accepted.
        let status = self.destroy_forced();
        if !std::thread::panicking() {
            let accepted = [BFC_OK, BFC_ERROR_NO_ALLOCATOR];
            assert!(accepted.contains(&status), "destruction: {status}, {}", last_error());
        }
    }
}
