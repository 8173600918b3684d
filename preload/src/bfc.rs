//! libbfc's C ABI, as far as this client uses it. Written by hand from the contract, as any client does it.

use std::ffi::{c_char, c_void};

pub(crate) type Status = i32;

pub(crate) const OK: Status = 0;
pub(crate) const NO_ALLOCATOR: Status = 2;
pub(crate) const ALREADY_EXISTS: Status = 3;
pub(crate) const OUT_OF_MEMORY: Status = 4;
pub(crate) const INVALID_POINTER: Status = 5;
pub(crate) const DOUBLE_FREE: Status = 6;
pub(crate) const UNSUPPORTED: Status = 10;
pub(crate) const BACKEND_CUSTOM: u32 = 2;
pub(crate) const BACKEND_CUDA: u32 = 3;
pub(crate) const BACKEND_CUDA_VMM: u32 = 4;

pub(crate) const ALLOW_GROWTH: u32 = 1 << 0;
pub(crate) const GARBAGE_COLLECTION: u32 = 1 << 1;
pub(crate) const TIMESTAMPS: u32 = 1 << 2;
pub(crate) const SPLIT_ALWAYS: u32 = 1 << 3;
pub(crate) const QUARANTINE: u32 = 1 << 4;

pub(crate) const ON_STREAM: u32 = 1 << 0;
pub(crate) const NO_GROWTH: u32 = 1 << 1;
pub(crate) const SIZE_512: u32 = 1 << 3;

/// The ordinal of pinned host memory.
pub(crate) const PINNED: i32 = 257;

/// `bfc_suballocator_t`.
#[repr(C)]
pub(crate) struct Suballocator {
    pub(crate) struct_size: usize,
    pub(crate) user_data: *mut c_void,
    pub(crate) alloc: unsafe extern "C" fn(*mut c_void, usize, usize, *mut usize) -> *mut c_void,
    pub(crate) free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
    pub(crate) supports_coalescing: u32,
    pub(crate) reserved: u32,
}

/// `bfc_options_t`.
#[repr(C)]
pub(crate) struct Options {
    pub(crate) struct_size: usize,
    pub(crate) backend: u32,
    pub(crate) flags: u32,
    pub(crate) memory_limit: u64,
    pub(crate) memory_fraction: f64,
    pub(crate) fragmentation_fraction: f64,
    pub(crate) initial_region_bytes: u64,
    pub(crate) retry_timeout_ms: u32,
    pub(crate) reserved: u32,
    pub(crate) name: *const c_char,
    pub(crate) suballocator: *const Suballocator,
}

impl Options {
    pub(crate) fn new(backend: u32, flags: u32, name: &'static std::ffi::CStr) -> Self {
        Options {
            struct_size: size_of::<Options>(),
            backend,
            flags,
            memory_limit: 0,
            memory_fraction: 0.0,
            fragmentation_fraction: 0.0,
            initial_region_bytes: 0,
            retry_timeout_ms: 0,
            reserved: 0,
            name: name.as_ptr(),
            suballocator: std::ptr::null(),
        }
    }
}

/// `bfc_request_t`.
#[repr(C)]
pub(crate) struct Request {
    pub(crate) struct_size: usize,
    pub(crate) bytes: usize,
    pub(crate) alignment: usize,
    pub(crate) stream: *mut c_void,
    pub(crate) freed_before: u64,
    pub(crate) flags: u32,
    pub(crate) reserved: u32,
}

/// `bfc_stats_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Stats {
    pub(crate) struct_size: usize,
    pub(crate) num_allocs: u64,
    pub(crate) num_frees: u64,
    pub(crate) num_failures: u64,
    pub(crate) bytes_in_use: u64,
    pub(crate) peak_bytes_in_use: u64,
    pub(crate) bytes_requested: u64,
    pub(crate) peak_bytes_requested: u64,
    pub(crate) largest_alloc_size: u64,
    pub(crate) bytes_limit: u64,
    pub(crate) pool_bytes: u64,
    pub(crate) peak_pool_bytes: u64,
    pub(crate) largest_free_block_bytes: u64,
    pub(crate) num_regions: u64,
    pub(crate) num_chunks: u64,
    pub(crate) num_free_chunks: u64,
    pub(crate) metadata_bytes: u64,
}

impl Stats {
    /// Held from the driver, and used by nobody.
    pub(crate) fn idle_bytes(&self) -> u64 {
        self.pool_bytes.saturating_sub(self.bytes_in_use)
    }
}

pub(crate) type RegionCallback =
    unsafe extern "C" fn(user_data: *mut c_void, device: i32, base: *mut c_void, bytes: usize, event: i32);

/// `BFC_REGION_OBTAINED`: else it goes back.
pub(crate) const REGION_OBTAINED: i32 = 1;

unsafe extern "C" {
    pub(crate) fn bfc_create(device: i32, options: *const Options) -> Status;
    pub(crate) fn bfc_set_region_callback(
        device: i32,
        callback: Option<RegionCallback>,
        user_data: *mut c_void,
    ) -> Status;
    pub(crate) fn bfc_alloc_ex(device: i32, request: *const Request, out: *mut *mut c_void) -> Status;
    pub(crate) fn bfc_requested_size(device: i32, ptr: *const c_void, out: *mut usize) -> Status;
    pub(crate) fn bfc_allocation_id(device: i32, ptr: *const c_void, out: *mut i64) -> Status;
    pub(crate) fn bfc_address_range(
        device: i32,
        ptr: *const c_void,
        chunk: *mut *mut c_void,
        chunk_bytes: *mut usize,
        region: *mut *mut c_void,
        region_bytes: *mut usize,
    ) -> Status;
    pub(crate) fn bfc_owner(ptr: *const c_void, device: *mut i32) -> Status;
    pub(crate) fn bfc_stats(device: i32, stats: *mut Stats) -> Status;
    pub(crate) fn bfc_last_error(buf: *mut c_char, capacity: usize) -> usize;
    pub(crate) safe fn bfc_capture_begin() -> Status;
    pub(crate) safe fn bfc_capture_end() -> Status;
    pub(crate) safe fn bfc_destroy_forced(device: i32) -> Status;
    pub(crate) safe fn bfc_device_lost(device: i32) -> Status;
    pub(crate) safe fn bfc_free(device: i32, ptr: *mut c_void) -> Status;
    pub(crate) safe fn bfc_free_async(device: i32, ptr: *mut c_void, stream: *mut c_void) -> Status;
    pub(crate) safe fn bfc_forget_stream(device: i32, stream: *mut c_void) -> Status;
    pub(crate) fn bfc_timestamp(device: i32, count: *mut u64) -> Status;
    pub(crate) safe fn bfc_set_safe_frontier(device: i32, count: u64) -> Status;
    pub(crate) fn bfc_trim(device: i32, keep: u64, released: *mut u64) -> Status;
}

/// The statistics of a device's pool, if there is one.
pub(crate) fn stats(device: i32) -> Option<Stats> {
    let mut stats = Stats { struct_size: size_of::<Stats>(), ..Stats::default() };
    // SAFETY: the struct is as large as it says.
    let status = unsafe { bfc_stats(device, &mut stats) };
    (status == OK).then_some(stats)
}

/// The last stamp that a free was given.
pub(crate) fn timestamp(device: i32) -> Option<u64> {
    let mut count = 0;
    // SAFETY: the pointer is valid for writing.
    let status = unsafe { bfc_timestamp(device, &mut count) };
    (status == OK).then_some(count)
}

/// Which pool holds the region around an address.
pub(crate) fn owner(address: u64) -> Option<i32> {
    let mut device = 0;
    // SAFETY: any address may be asked for, and the pointer is valid for writing.
    let status = unsafe { bfc_owner(address as *const c_void, &mut device) };
    (status == OK).then_some(device)
}

/// The longest message that is taken over.
pub(crate) const MESSAGE: usize = 512;

/// This thread's last failure, as libbfc has it.
pub(crate) struct LastError;

impl std::fmt::Display for LastError {
    #[inline(never)]
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut message = [0_u8; MESSAGE];
        // SAFETY: the buffer is as long as it says.
        unsafe { bfc_last_error(message.as_mut_ptr().cast(), message.len()) };
        let text = std::ffi::CStr::from_bytes_until_nul(&message).ok().and_then(|text| text.to_str().ok());
        f.write_str(text.unwrap_or_default())
    }
}
