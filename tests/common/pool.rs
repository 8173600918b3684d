//! A pool on a device of its own, with the C functions as methods.

use super::*;
use std::ffi::CString;

/// The surroundings of an address: start and bytes of its chunk and region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The chunk.
    pub chunk: (u64, u64),
    /// The region.
    pub region: (u64, u64),
}

/// An allocator under test. Dropping it destroys it, and then checks whether the library kept the
/// sub-allocator's contract.
pub struct Pool {
    device: i32,
    backend: Option<Box<Backend>>,
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

    /// Creates a pool over a sub-allocator of the test, after `change` has modified its options.
    pub fn custom(backend: Backend, limit: u64, change: impl FnOnce(&mut bfc_options_t)) -> Pool {
        let backend = Box::new(backend);
        let functions = backend.functions();
        let mut wanted = options();
        (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_CUSTOM, limit);
        wanted.suballocator = &functions;
        change(&mut wanted);
        Pool::create(fresh_device(), &wanted, Some(backend))
            .unwrap_or_else(|status| panic!("status {status}: {}", last_error()))
    }

    /// Creates a pool with exactly these options on this device.
    pub fn create(
        device: i32,
        options: &bfc_options_t,
        backend: Option<Box<Backend>>,
    ) -> Result<Pool, Status> {
        match create(device, Some(options)) {
            BFC_OK => Ok(Pool { device, backend }),
            status => Err(status),
        }
    }

    /// The calls about an ordinal, for tests that did not create its allocator here. Dropping it destroys that one.
    pub fn unowned(device: i32) -> Pool {
        Pool { device, backend: None }
    }

    /// Creates a pool on a device: with `BFC_BACKEND_CUDA`, growth, garbage collection and at most 1 GiB, after
    /// `change`.
    #[track_caller]
    pub fn on_device(device: i32, change: impl FnOnce(&mut bfc_options_t)) -> Pool {
        let mut wanted = options();
        (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_CUDA, GROWING, GIB);
        change(&mut wanted);
        Pool::create(device, &wanted, None)
            .unwrap_or_else(|status| panic!("status {status}: {}", last_error()))
    }

    /// Creates a pool whose regions begin with 64 KiB.
    #[track_caller]
    pub fn in_small_regions(backend: u32, device: i32, limit: u64, flags: u32) -> Pool {
        Pool::on_device(device, |options| {
            (options.backend, options.flags, options.memory_limit) = (backend, flags, limit);
            options.initial_region_bytes = 64 * KIB;
        })
    }

    /// Its ordinal.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// The sub-allocator that it was created over.
    pub fn backend(&self) -> &Backend {
        self.backend.as_deref().expect("a pool over a sub-allocator")
    }

    /// `bfc_alloc`.
    pub fn alloc(&self, bytes: u64) -> Result<u64, Status> {
        alloc(self.device, bytes as usize)
    }

    /// `bfc_alloc` that must succeed.
    #[track_caller]
    pub fn get(&self, bytes: u64) -> u64 {
        match self.alloc(bytes) {
            Ok(address) => address,
            Err(status) => panic!("{bytes} bytes: status {status}, {}", last_error()),
        }
    }

    /// `bfc_alloc_aligned`.
    pub fn alloc_aligned(&self, bytes: u64, alignment: u64) -> Result<u64, Status> {
        alloc_aligned(self.device, bytes as usize, alignment as usize)
    }

    /// `bfc_alloc_freed_before`.
    pub fn alloc_freed_before(&self, bytes: u64, stamp: u64) -> Result<u64, Status> {
        alloc_freed_before(self.device, bytes as usize, stamp)
    }

    /// `bfc_alloc_ex`.
    pub fn alloc_ex(&self, request: &bfc_request_t) -> Result<u64, Status> {
        alloc_ex(self.device, request)
    }

    /// `bfc_free`.
    pub fn free(&self, address: u64) -> Status {
        free(self.device, address)
    }

    /// `bfc_free` that must succeed.
    #[track_caller]
    pub fn put(&self, address: u64) {
        let status = self.free(address);
        assert_eq!(status, BFC_OK, "free of {address:#x}: {}", last_error());
    }

    /// `bfc_alloc_async`.
    pub fn alloc_on(&self, bytes: u64, stream: u64) -> Result<u64, Status> {
        alloc_async(self.device, bytes as usize, stream)
    }

    /// `bfc_alloc_async` that must succeed.
    #[track_caller]
    pub fn get_on(&self, bytes: u64, stream: u64) -> u64 {
        match self.alloc_on(bytes, stream) {
            Ok(address) => address,
            Err(status) => panic!("{bytes} bytes on {stream:#x}: status {status}, {}", last_error()),
        }
    }

    /// `bfc_free_async`.
    pub fn free_on(&self, address: u64, stream: u64) -> Status {
        free_async(self.device, address, stream)
    }

    /// `bfc_free_async` that must succeed.
    #[track_caller]
    pub fn put_on(&self, address: u64, stream: u64) {
        let status = self.free_on(address, stream);
        assert_eq!(status, BFC_OK, "free of {address:#x} on {stream:#x}: {}", last_error());
    }

    /// `bfc_record_stream`.
    pub fn record(&self, address: u64, stream: u64) -> Status {
        bfc_record_stream(self.device, pointer(address), pointer(stream))
    }

    /// `bfc_forget_stream` that must succeed.
    #[track_caller]
    pub fn forget(&self, stream: u64) {
        assert_eq!(bfc_forget_stream(self.device, pointer(stream)), BFC_OK, "{}", last_error());
    }

    /// `bfc_stream_synchronized` that must succeed.
    #[track_caller]
    pub fn synchronized(&self, stream: u64) {
        assert_eq!(bfc_stream_synchronized(self.device, pointer(stream)), BFC_OK, "{}", last_error());
    }

    /// `bfc_stats`.
    pub fn stats(&self) -> bfc_stats_t {
        let mut out = stats();
        // SAFETY: a whole struct, writable.
        let status = unsafe { bfc_stats(self.device, &mut out) };
        assert_eq!(status, BFC_OK, "{}", last_error());
        out
    }

    /// `bfc_check`: every invariant holds.
    #[track_caller]
    pub fn check(&self) {
        assert_eq!(bfc_check(self.device), BFC_OK, "{}", last_error());
    }

    /// `bfc_set_memory_limit`, which must succeed.
    #[track_caller]
    pub fn limit(&self, bytes: u64) {
        assert_eq!(bfc_set_memory_limit(self.device, bytes), BFC_OK, "{}", last_error());
    }

    /// `bfc_trim`. Returns the released bytes.
    pub fn trim(&self, keep: u64) -> u64 {
        let mut released = u64::MAX;
        // SAFETY: the out-pointer is valid for writing.
        let status = unsafe { bfc_trim(self.device, keep, &mut released) };
        assert_eq!(status, BFC_OK, "{}", last_error());
        released
    }

    /// `bfc_timestamp`.
    pub fn timestamp(&self) -> Result<u64, Status> {
        let mut count = u64::MAX;
        // SAFETY: the out-pointer is valid for writing.
        let status = unsafe { bfc_timestamp(self.device, &mut count) };
        if status == BFC_OK { Ok(count) } else { Err(status) }
    }

    /// `bfc_set_safe_frontier`.
    pub fn set_safe_frontier(&self, frontier: u64) {
        assert_eq!(bfc_set_safe_frontier(self.device, frontier), BFC_OK, "{}", last_error());
    }

    /// Declares everything freed so far safe, as the header describes: the last stamp plus 1.
    pub fn synchronize(&self) {
        let last = self.timestamp().expect("a pool with stamps");
        self.set_safe_frontier(last + 1);
    }

    /// `bfc_requested_size`.
    pub fn requested_size(&self, address: u64) -> Result<u64, Status> {
        let mut out = usize::MAX;
        // SAFETY: the out-pointer is valid for writing.
        let status = unsafe { bfc_requested_size(self.device, pointer(address), &mut out) };
        answer(status, out as u64)
    }

    /// `bfc_allocated_size`.
    pub fn allocated_size(&self, address: u64) -> Result<u64, Status> {
        let mut out = usize::MAX;
        // SAFETY: the out-pointer is valid for writing.
        let status = unsafe { bfc_allocated_size(self.device, pointer(address), &mut out) };
        answer(status, out as u64)
    }

    /// `bfc_allocation_id`.
    pub fn allocation_id(&self, address: u64) -> Result<u64, Status> {
        let mut out = i64::MIN;
        // SAFETY: the out-pointer is valid for writing.
        let status = unsafe { bfc_allocation_id(self.device, pointer(address), &mut out) };
        answer(status, u64::try_from(out).expect("ids are positive, and 0 on failure"))
    }

    /// `bfc_address_range`.
    pub fn range(&self, address: u64) -> Result<Range, Status> {
        let (mut chunk, mut region) = (pointer(1), pointer(1));
        let (mut chunk_bytes, mut region_bytes) = (1, 1);
        let at = pointer(address);
        // SAFETY: the four out-pointers are valid for writing.
        let status = unsafe {
            bfc_address_range(self.device, at, &mut chunk, &mut chunk_bytes, &mut region, &mut region_bytes)
        };
        let range =
            Range { chunk: (chunk as u64, chunk_bytes as u64), region: (region as u64, region_bytes as u64) };
        if status == BFC_OK {
            return Ok(range);
        }
        assert_eq!(range, Range { chunk: (0, 0), region: (0, 0) }, "NULL and 0 on failure");
        Err(status)
    }

    /// The memory map, as text.
    pub fn memory_map(&self) -> String {
        // SAFETY: the parameters are passed on as they are, and `text` passes a buffer or none.
        text(|buffer, capacity, length| unsafe { bfc_memory_map(self.device, buffer, capacity, length) })
    }

    /// The occupancy line.
    pub fn occupancy(&self) -> String {
        // SAFETY: as in `memory_map`.
        text(|buffer, capacity, length| unsafe { bfc_occupancy(self.device, buffer, capacity, length) })
    }

    /// The out-of-memory report.
    pub fn report(&self) -> String {
        // SAFETY: as in `memory_map`.
        text(|buffer, capacity, length| unsafe { bfc_report(self.device, buffer, capacity, length) })
    }

    /// `bfc_destroy`. The object remains usable for queries.
    pub fn destroy(&self) -> Status {
        bfc_destroy(self.device)
    }

    /// `bfc_destroy_forced`.
    pub fn destroy_forced(&self) -> Status {
        bfc_destroy_forced(self.device)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The test may have destroyed it. Then there is none, which is accepted.
        let status = bfc_destroy_forced(self.device);
        if !std::thread::panicking() {
            assert!(
                [BFC_OK, BFC_ERROR_NO_ALLOCATOR].contains(&status),
                "destruction: {status}, {}",
                last_error()
            );
            if let Some(backend) = &self.backend {
                backend.assert_all_returned();
            }
        }
    }
}

fn answer(status: Status, out: u64) -> Result<u64, Status> {
    if status == BFC_OK {
        return Ok(out);
    }
    assert_eq!(out, 0, "0 on failure");
    Err(status)
}

/// Gets a text's length and then the text, which must not change in between.
pub fn text(ask: impl Fn(*mut c_char, usize, *mut usize) -> Status) -> String {
    let mut length = usize::MAX;
    assert_eq!(ask(std::ptr::null_mut(), 0, &mut length), BFC_OK, "{}", last_error());
    // One more than needed, to check that nothing is written after the NUL.
    let mut buffer = vec![0x55u8; length + 2];
    let mut again = 0;
    assert_eq!(ask(buffer.as_mut_ptr().cast(), length + 1, &mut again), BFC_OK, "{}", last_error());
    assert_eq!((again, buffer.pop(), buffer.pop()), (length, Some(0x55), Some(0)));
    CString::new(buffer).expect("no NUL inside").into_string().expect("UTF-8")
}
