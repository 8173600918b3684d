//! The types and constants of the ABI. Fields and values may be added at the end, nothing else may change.

use super::versioned::{Versioned, boundaries};
use std::ffi::{c_char, c_void};

/// What a function returns: `BFC_OK` or one of `BFC_ERROR_...`.
pub type bfc_status_t = i32;

/// Success.
pub const BFC_OK: bfc_status_t = 0;
/// NULL out-pointer, bad alignment, unknown flag or backend, bad ordinal, bad struct_size.
pub const BFC_ERROR_INVALID_ARGUMENT: bfc_status_t = 1;
/// Nothing was created for that device.
pub const BFC_ERROR_NO_ALLOCATOR: bfc_status_t = 2;
/// There is an allocator for that device already: share it.
pub const BFC_ERROR_ALREADY_EXISTS: bfc_status_t = 3;
/// Device or host memory ran out; also a size that overflows when rounded.
pub const BFC_ERROR_OUT_OF_MEMORY: bfc_status_t = 4;
/// Not the start of a chunk of this device: foreign, interior or stale; for the queries also a chunk that
/// is free.
pub const BFC_ERROR_INVALID_POINTER: bfc_status_t = 5;
/// The start of a chunk that is free already.
pub const BFC_ERROR_DOUBLE_FREE: bfc_status_t = 6;
/// bfc_destroy while allocations live, or re-entry from a callback.
pub const BFC_ERROR_BUSY: bfc_status_t = 7;
/// No driver, no such device, or a driver too old for that backend.
pub const BFC_ERROR_BACKEND_UNAVAILABLE: bfc_status_t = 8;
/// The driver or a callback failed with something other than out of memory.
pub const BFC_ERROR_BACKEND_FAILED: bfc_status_t = 9;
/// Not by this backend, or not without the flag it needs.
pub const BFC_ERROR_UNSUPPORTED: bfc_status_t = 10;
/// The allocator is being destroyed, or its memory is not in this forked process.
pub const BFC_ERROR_SHUTTING_DOWN: bfc_status_t = 11;
/// A broken invariant: the allocator is poisoned, and every later call says so.
pub const BFC_ERROR_INTERNAL: bfc_status_t = 12;

/// A stream: CUstream or cudaStream_t; any token on other backends. NULL is the default stream: the legacy one
/// (BFC_STREAM_LEGACY), or that of the calling thread (BFC_STREAM_PER_THREAD) where the caller is compiled with
/// CUDA_API_PER_THREAD_DEFAULT_STREAM.
pub type bfc_stream_t = *mut c_void;

/// CUDA on ordinals 0 to 255, host memory on 256; never silently host memory for a device.
pub const BFC_BACKEND_AUTO: u32 = 0;
/// Host memory by mmap, committed when touched.
pub const BFC_BACKEND_HOST: u32 = 1;
/// The caller's functions, see bfc_suballocator_t.
pub const BFC_BACKEND_CUSTOM: u32 = 2;
/// Device memory by cuMemAlloc, in the primary context of the CUDA device with that ordinal, 0 to 255.
pub const BFC_BACKEND_CUDA: u32 = 3;
/// Device memory in one growing virtual range, as BFC_BACKEND_HOST_VMM, by the device's granules (cuMemMap; 2 MiB on
/// all devices of today). Before granules move, and before bfc_trim unmaps some, the device is synchronised.
///
/// Every device that can access this one (cuDeviceCanAccessPeer) has read and write access; cuCtxEnablePeerAccess has no
/// effect on such memory. A peer that the driver refuses is left out, with a warning in the log. Memory has the flag
/// gpuDirectRDMACapable where the device supports it (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED).
///
/// Limitations: cuIpcGetMemHandle and cuMemExportToShareableHandle return CUDA_ERROR_INVALID_VALUE. Between devices that
/// cannot access each other copies require cuMemcpyPeer or cuMemcpyPeerAsync, which name both contexts.
pub const BFC_BACKEND_CUDA_VMM: u32 = 4;
/// Host memory in one growing virtual range, by granules of 2 MiB of a file in memory: the pool is one region, and
/// whole free granules move to where a larger piece is wanted, so that free memory does not stay in pieces.
/// Allocations never move. The limit is rounded down to granules. Not in a forked child: BFC_ERROR_SHUTTING_DOWN.
/// Any remainder is split off, as with BFC_SPLIT_ALWAYS, unless fragmentation_fraction is given.
pub const BFC_BACKEND_HOST_VMM: u32 = 5;

/// Regions (in a virtual range: granules) on demand; without it one region of memory_limit at the first allocation.
pub const BFC_ALLOW_GROWTH: u32 = 1u32 << 0;
/// Give wholly free regions back before failing. Of no effect in a virtual range, where granules are moved anyway.
pub const BFC_GARBAGE_COLLECTION: u32 = 1u32 << 1;
/// Stamp frees, see bfc_set_safe_frontier; excludes the _async functions.
pub const BFC_TIMESTAMPS: u32 = 1u32 << 2;
/// Split off any remainder of 256 bytes or more, instead of the 2x / 128 MiB rule.
pub const BFC_SPLIT_ALWAYS: u32 = 1u32 << 3;
/// With BFC_TIMESTAMPS: no call hands out a chunk whose stamp is not safe.
pub const BFC_QUARANTINE: u32 = 1u32 << 4;

/// For bfc_request_t: the request is for its stream.
pub const BFC_REQUEST_ON_STREAM: u32 = 1u32 << 0;
/// For bfc_request_t: only from memory that the allocator holds already. No memory is asked of the backend or given back,
/// and no work is waited for (whether other streams' work is done is looked at). BFC_ERROR_OUT_OF_MEMORY then does not
/// count as a failure, and no report is written.
pub const BFC_REQUEST_NO_GROWTH: u32 = 1u32 << 1;
/// For bfc_request_t: rounds the size up to a multiple of 512 instead of 256. For clients that allocate everything at an
/// alignment of 512: no 256 bytes remain between their chunks, which they could not use. bfc_requested_size still returns
/// the size that was asked for.
pub const BFC_REQUEST_SIZE_512: u32 = 1u32 << 3;

/// Levels of messages, for BFC_LOG and bfc_log_callback_t.
pub const BFC_LOG_ERROR: i32 = 1;
/// Something was ignored or went wrong and was survived.
pub const BFC_LOG_WARN: i32 = 2;
/// Creation, destruction, regions.
pub const BFC_LOG_INFO: i32 = 3;
/// Extensions for which the backend gave nothing.
pub const BFC_LOG_DEBUG: i32 = 4;

/// For bfc_region_callback_t: memory was obtained, and nothing of it is handed out yet.
pub const BFC_REGION_OBTAINED: i32 = 1;
/// Memory is about to go back, and nothing of it is in use. Should the backend not take it, BFC_REGION_OBTAINED
/// comes again.
pub const BFC_REGION_RETURNING: i32 = 2;

/// Is told of memory that comes from the backend and goes back: the pointer given to bfc_set_region_callback, the
/// device, the memory's start and bytes, and BFC_REGION_.... Called from any thread that allocates, frees, trims or
/// destroys, with nothing locked; a call on the same device is BFC_ERROR_BUSY. It must not throw, and must not wait
/// for another thread that uses the same allocator. What is obtained at once may go back in parts, and the other
/// way round, with the backends that map granules; with BFC_BACKEND_CUSTOM and supports_coalescing too.
pub type bfc_region_callback_t = Option<
    unsafe extern "C" fn(user_data: *mut c_void, device: i32, base: *mut c_void, bytes: usize, event: i32),
>;

/// Receives a message of the library: the pointer given to bfc_set_log_callback, a level, and a
/// NUL-terminated text that is valid during the call. Called from any thread, never with an allocator
/// locked; it may call any function of this library, but where the message is about a region of some
/// device a call on that device is BFC_ERROR_BUSY, and another thread's bfc_destroy of it waits for the
/// callback: two callbacks must not destroy each other's devices.
pub type bfc_log_callback_t =
    Option<extern "C" fn(user_data: *mut c_void, level: i32, message: *const c_char)>;

/// Gives a region of at least `bytes` bytes at a multiple of `alignment` (a power of two of at least 256)
/// and stores in `*bytes_received` how many there are; it begins as `bytes`, so leaving it is fine. NULL
/// means that there is no memory: the library then asks for less, or fails with BFC_ERROR_OUT_OF_MEMORY.
/// Less than asked is taken if it is enough for the request. Less than that, an address that is no multiple
/// of 256 and memory that overlaps another region are BFC_ERROR_BACKEND_FAILED.
pub type bfc_region_alloc_t = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        alignment: usize,
        bytes: usize,
        bytes_received: *mut usize,
    ) -> *mut c_void,
>;

/// Takes a region back, with the bytes that were received for it; with supports_coalescing possibly
/// several regions merged into one.
pub type bfc_region_free_t =
    Option<unsafe extern "C" fn(user_data: *mut c_void, ptr: *mut c_void, bytes: usize)>;

/// Where regions come from, for BFC_BACKEND_CUSTOM. Both functions are called without a lock, from any
/// thread that allocates, frees, trims or destroys. They must not throw, and must not wait for another
/// thread that uses the same allocator. A call back into the same device is BFC_ERROR_BUSY. The memory is
/// never read or written by the library.
///
/// They may take regions from an allocator on another device, but allocators must not take regions from each other in a
/// circle: a call that would wait for a thread which waits for it returns BFC_ERROR_BUSY. A size that alloc refused is
/// not asked for again by the same request before the allocator has called free.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bfc_suballocator_t {
    /// sizeof(bfc_suballocator_t); BFC_SUBALLOCATOR_INIT sets it.
    pub struct_size: usize,
    /// Passed to both functions.
    pub user_data: *mut c_void,
    /// Gives a region. Not NULL.
    pub alloc: bfc_region_alloc_t,
    /// Takes a region back. Not NULL.
    pub free: bfc_region_free_t,
    /// Not 0: a region that begins where another ends may be merged with it.
    pub supports_coalescing: u32,
    /// 0.
    pub reserved: u32,
}

/// How bfc_create makes an allocator. For every field that is left 0 the environment counts (BFC_...,
/// see docs/environment.md), and after that the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bfc_options_t {
    /// sizeof(bfc_options_t); BFC_OPTIONS_INIT sets it.
    pub struct_size: usize,
    /// BFC_BACKEND_...
    pub backend: u32,
    /// BFC_ALLOW_GROWTH and the others, combined by |.
    pub flags: u32,
    /// Bytes held from the backend at most. 0: what there is; on the host the smaller of physical memory
    /// and the control group's limit; with callbacks and growth no limit.
    pub memory_limit: u64,
    /// Of the device's total, from 0 to 1, if memory_limit is 0; 0: not given.
    pub memory_fraction: f64,
    /// Split off a remainder of this share of the limit, from 0 to 1; 0: the 128 MiB rule.
    pub fragmentation_fraction: f64,
    /// Bytes of the first region with growth; 0: 2 MiB.
    pub initial_region_bytes: u64,
    /// Milliseconds to wait for another thread's free, or a higher limit, before failing; 0: fail at once. When the
    /// time is up a backend that refused is not asked again.
    pub retry_timeout_ms: u32,
    /// 0.
    pub reserved: u32,
    /// UTF-8, copied; for reports; NULL: "bfc".
    pub name: *const c_char,
    /// Copied; only for BFC_BACKEND_CUSTOM, NULL otherwise.
    pub suballocator: *const bfc_suballocator_t,
}

/// A request with everything that can be said about it, for bfc_alloc_ex.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bfc_request_t {
    /// sizeof(bfc_request_t); BFC_REQUEST_INIT sets it.
    pub struct_size: usize,
    /// Bytes; 0 gives NULL.
    pub bytes: usize,
    /// 0: 256; else a power of two.
    pub alignment: usize,
    /// Read only with BFC_REQUEST_ON_STREAM.
    pub stream: bfc_stream_t,
    /// Accept chunks stamped at most this; 0: any. Needs BFC_TIMESTAMPS.
    pub freed_before: u64,
    /// BFC_REQUEST_ON_STREAM, BFC_REQUEST_NO_GROWTH and BFC_REQUEST_SIZE_512, combined by |.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// The statistics of an allocator at one moment: bytes and counts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bfc_stats_t {
    /// sizeof(bfc_stats_t); BFC_STATS_INIT sets it. What the library knows is filled, the rest zeroed.
    pub struct_size: usize,
    /// Successful allocations since creation or bfc_reset_stats; 0 bytes do not count.
    pub num_allocs: u64,
    /// Successful frees; NULL does not count.
    pub num_frees: u64,
    /// Requests that could not be served.
    pub num_failures: u64,
    /// Sizes of the chunks in use, slack included, as TensorFlow counts.
    pub bytes_in_use: u64,
    /// The highest bytes_in_use.
    pub peak_bytes_in_use: u64,
    /// What callers asked for, of the chunks in use.
    pub bytes_requested: u64,
    /// The highest bytes_requested.
    pub peak_bytes_requested: u64,
    /// The largest chunk handed out.
    pub largest_alloc_size: u64,
    /// The most that may be held from the backend.
    pub bytes_limit: u64,
    /// Held from the backend.
    pub pool_bytes: u64,
    /// The highest pool_bytes.
    pub peak_pool_bytes: u64,
    /// The largest free chunk that a request could get. With timestamps as of the last request or trim: what
    /// has become safe since then merges at the next.
    pub largest_free_block_bytes: u64,
    /// Regions held from the backend.
    pub num_regions: u64,
    /// Chunks, in use and free.
    pub num_chunks: u64,
    /// Free chunks.
    pub num_free_chunks: u64,
    /// Host memory that the allocator itself holds; of the pointer tables what is resident.
    pub metadata_bytes: u64,
}

boundaries!(bfc_suballocator_t: struct_size, user_data, alloc, free, supports_coalescing, reserved);
boundaries!(bfc_options_t: struct_size, backend, flags, memory_limit, memory_fraction, fragmentation_fraction,
    initial_region_bytes, retry_timeout_ms, reserved, name, suballocator);
boundaries!(bfc_request_t: struct_size, bytes, alignment, stream, freed_before, flags, reserved);
boundaries!(bfc_stats_t: struct_size, num_allocs, num_frees, num_failures, bytes_in_use, peak_bytes_in_use,
    bytes_requested, peak_bytes_requested, largest_alloc_size, bytes_limit, pool_bytes, peak_pool_bytes,
    largest_free_block_bytes, num_regions, num_chunks, num_free_chunks, metadata_bytes);
