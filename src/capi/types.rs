//! The types and constants of the ABI. Fields and values may be added at the end. Nothing else may change.

use super::versioned::{Versioned, boundaries};
use crate::core::stats::{Stats, with_statistics};
use std::ffi::{c_char, c_void};

/// The result of a function: `BFC_OK` or one of `BFC_ERROR_...`.
pub type bfc_status_t = i32;

/// Success.
pub const BFC_OK: bfc_status_t = 0;
/// A NULL out-pointer, or an invalid alignment, flag, backend, ordinal or struct_size.
pub const BFC_ERROR_INVALID_ARGUMENT: bfc_status_t = 1;
/// There is no allocator for that device.
pub const BFC_ERROR_NO_ALLOCATOR: bfc_status_t = 2;
/// There already is an allocator for that device, which can be shared.
pub const BFC_ERROR_ALREADY_EXISTS: bfc_status_t = 3;
/// Device or host memory ran out, or a size overflows when rounded.
pub const BFC_ERROR_OUT_OF_MEMORY: bfc_status_t = 4;
/// The pointer is not the start of a chunk of this device: foreign, interior or stale. For queries this includes free
/// chunks.
pub const BFC_ERROR_INVALID_POINTER: bfc_status_t = 5;
/// The pointer is the start of a chunk that is already free.
pub const BFC_ERROR_DOUBLE_FREE: bfc_status_t = 6;
/// bfc_destroy with live allocations, or a call from a callback of the same device.
pub const BFC_ERROR_BUSY: bfc_status_t = 7;
/// There is no driver or no such device, or the driver is too old for that backend.
pub const BFC_ERROR_BACKEND_UNAVAILABLE: bfc_status_t = 8;
/// The driver or a callback failed with something other than out of memory.
pub const BFC_ERROR_BACKEND_FAILED: bfc_status_t = 9;
/// Unsupported by this backend, or a required flag is missing.
pub const BFC_ERROR_UNSUPPORTED: bfc_status_t = 10;
/// The allocator is being destroyed, or its memory does not exist in this forked process.
pub const BFC_ERROR_SHUTTING_DOWN: bfc_status_t = 11;
/// An invariant is broken. The allocator is poisoned, and every later call returns this error.
pub const BFC_ERROR_INTERNAL: bfc_status_t = 12;

/// A stream: CUstream or cudaStream_t, or any token on other backends. NULL is the default stream. That is the legacy
/// default stream (BFC_STREAM_LEGACY), or the one of the calling thread (BFC_STREAM_PER_THREAD) if the caller is
/// compiled with CUDA_API_PER_THREAD_DEFAULT_STREAM.
pub type bfc_stream_t = *mut c_void;

/// CUDA on ordinals 0 to 255, host memory on 256. A device never silently gets host memory.
pub const BFC_BACKEND_AUTO: u32 = 0;
/// Host memory from mmap, resident only where it is touched.
pub const BFC_BACKEND_HOST: u32 = 1;
/// The caller's functions. See bfc_suballocator_t.
pub const BFC_BACKEND_CUSTOM: u32 = 2;
/// Device memory from cuMemAlloc, in the primary context of the CUDA device with that ordinal, 0 to 255.
pub const BFC_BACKEND_CUDA: u32 = 3;
/// Device memory in one growing virtual range, like BFC_BACKEND_HOST_VMM, in granules of the device (cuMemMap; 2 MiB on
/// all current devices). The device is synchronized before granules move, and before bfc_trim unmaps some.
///
/// Every device that can access this one (cuDeviceCanAccessPeer) has read and write access. cuCtxEnablePeerAccess has
/// no effect on such memory. A peer that the driver refuses is left out, with a warning in the log. Memory has the flag
/// gpuDirectRDMACapable where the device supports it (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED).
///
/// Limitations: cuIpcGetMemHandle and cuMemExportToShareableHandle return CUDA_ERROR_INVALID_VALUE. Copies between
/// devices that cannot access each other require cuMemcpyPeer or cuMemcpyPeerAsync, which name both contexts.
pub const BFC_BACKEND_CUDA_VMM: u32 = 4;
/// Host memory in one growing virtual range, in granules of 2 MiB of a memory file. The pool is one region, and whole
/// free granules are moved to where a larger piece is needed, so that free memory does not stay fragmented. Allocations
/// never move. The limit is rounded down to whole granules. Not available in a forked child (BFC_ERROR_SHUTTING_DOWN).
/// Any remainder is split off, as with BFC_SPLIT_ALWAYS, unless fragmentation_fraction is given.
pub const BFC_BACKEND_HOST_VMM: u32 = 5;
/// What the environment variable BFC_BACKEND says. Without it BFC_BACKEND_CUDA_VMM, or BFC_BACKEND_CUDA if the device has
/// no virtual memory management, or if not all devices of the process can access its memory, because cudaMemcpy would
/// refuse such copies. BFC_LOG=info logs which and why. On ordinal 256 the same as BFC_BACKEND_AUTO. This is the backend of
/// bfc_torch_alloc and bfc_ort_alloc unless options say otherwise.
pub const BFC_BACKEND_PREFER_CUDA_VMM: u32 = 6;

/// Obtain regions (granules in a virtual range) on demand. Without this flag, one region of memory_limit is obtained at
/// the first allocation.
pub const BFC_ALLOW_GROWTH: u32 = 1u32 << 0;
/// Release wholly free regions before a request fails. No effect in a virtual range, where granules are moved anyway.
pub const BFC_GARBAGE_COLLECTION: u32 = 1u32 << 1;
/// Stamp frees. See bfc_set_safe_frontier. Excludes the _async functions.
pub const BFC_TIMESTAMPS: u32 = 1u32 << 2;
/// Split off any remainder of 256 bytes or more, instead of the 2x / 128 MiB rule. On with NULL options, unless the
/// environment has a fragmentation fraction.
pub const BFC_SPLIT_ALWAYS: u32 = 1u32 << 3;
/// With BFC_TIMESTAMPS, no call hands out a chunk whose stamp is not safe.
pub const BFC_QUARANTINE: u32 = 1u32 << 4;
/// Learn which sizes are usually freed soon, and take these from the upper end of a free chunk, so that they do not lie
/// between memory that stays. Any remainder is split off, as with BFC_SPLIT_ALWAYS. For pools with a limit that hardly
/// suffices: recorded programs need up to 4% less, and an allocation with its free takes 1.7 times as long. No effect with
/// BFC_TIMESTAMPS, on a virtual range, with a plan, and from the second stream on.
pub const BFC_TWO_ENDS: u32 = 1u32 << 5;

/// What BFC_GROWTH in the environment says. Without it BFC_GROWTH_TENSORFLOW if the options have BFC_ALLOW_GROWTH, and
/// BFC_GROWTH_NEED if growth comes from NULL options or from the environment.
pub const BFC_GROWTH_DEFAULT: u32 = 0;
/// Each region has twice the size of the one before, as in TensorFlow: few calls of the backend, but the allocator may
/// hold twice the memory in use, or more.
pub const BFC_GROWTH_TENSORFLOW: u32 = 1;
/// A region has what the request needs, in multiples of initial_region_bytes (2 MiB), as often as a sixteenth of the memory
/// held has room for it, and at least once. So it is never larger than initial_region_bytes, or than the request and that
/// sixteenth. A virtual range grows by need with every policy, and by a 64th of the memory held beyond it.
pub const BFC_GROWTH_NEED: u32 = 2;
/// What BFC_GROWTH in the environment says. Without it BFC_GROWTH_NEED. For clients that create allocators for others.
pub const BFC_GROWTH_PREFER_NEED: u32 = 3;

/// For bfc_request_t: allocate in the order of the request's stream.
pub const BFC_REQUEST_ON_STREAM: u32 = 1u32 << 0;
/// For bfc_request_t: use only memory that the allocator already holds. Nothing is obtained from the backend or
/// released to it, and no work is waited for. The call may query whether other streams' work is done.
/// BFC_ERROR_OUT_OF_MEMORY then does not count as a failure, and no report is written.
pub const BFC_REQUEST_NO_GROWTH: u32 = 1u32 << 1;
/// For bfc_request_t: round the size up to a multiple of 512 instead of 256. For clients that allocate everything with
/// an alignment of 512: there are no unusable gaps of 256 bytes between their chunks. bfc_requested_size still returns
/// the requested size.
pub const BFC_REQUEST_SIZE_512: u32 = 1u32 << 3;
/// For bfc_request_t: the memory will be freed soon, for instance a workspace. It is taken from the upper end of a free
/// chunk, as BFC_TWO_ENDS does with sizes that it learnt. A hint, with the same exceptions.
pub const BFC_REQUEST_SHORT_LIVED: u32 = 1u32 << 4;

/// Levels of messages, for BFC_LOG and bfc_log_callback_t. This one: a failure that the caller may not have noticed.
pub const BFC_LOG_ERROR: i32 = 1;
/// Something was ignored, or failed without failing the call.
pub const BFC_LOG_WARN: i32 = 2;
/// Creation, destruction, regions.
pub const BFC_LOG_INFO: i32 = 3;
/// Attempts to grow for which the backend provided no memory.
pub const BFC_LOG_DEBUG: i32 = 4;

/// For bfc_region_callback_t: memory was obtained, and nothing of it is in use yet.
pub const BFC_REGION_OBTAINED: i32 = 1;
/// Memory is about to be released, and nothing of it is in use. If the backend does not accept it, BFC_REGION_OBTAINED
/// follows.
pub const BFC_REGION_RETURNING: i32 = 2;

/// Called for memory that is obtained from the backend or released to it, with the pointer given to
/// bfc_set_region_callback, the device, the memory's start and bytes, and BFC_REGION_.... Called from any thread that
/// allocates, frees, trims or destroys, without a lock held. A call on the same device is BFC_ERROR_BUSY. The function
/// must not throw, and must not wait for another thread that uses the same allocator. With backends that map granules,
/// memory obtained at once may be released in parts, and the reverse. The same holds for BFC_BACKEND_CUSTOM with
/// supports_coalescing.
pub type bfc_region_callback_t = Option<
    unsafe extern "C" fn(user_data: *mut c_void, device: i32, base: *mut c_void, bytes: usize, event: i32),
>;

/// Receives a message of the library: the pointer given to bfc_set_log_callback, a level, and a NUL-terminated text
/// that is valid during the call. Called from any thread, never with an allocator locked. It may call any function of
/// this library. But if the message is about a region of some device, a call on that device is BFC_ERROR_BUSY, and
/// another thread's bfc_destroy of it waits for the callback. So two callbacks must not destroy each other's devices.
pub type bfc_log_callback_t =
    Option<extern "C" fn(user_data: *mut c_void, level: i32, message: *const c_char)>;

/// Allocates a region of at least `bytes` bytes at a multiple of `alignment` (a power of two of at least 256), and
/// stores its size in `*bytes_received`, which is initialized to `bytes`. NULL means that there is no memory. The
/// library then requests less, or fails with BFC_ERROR_OUT_OF_MEMORY. A smaller region is accepted if it is large
/// enough for the request. A region that is too small, an address that is not a multiple of 256, and memory that
/// overlaps another region are BFC_ERROR_BACKEND_FAILED.
pub type bfc_region_alloc_t = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        alignment: usize,
        bytes: usize,
        bytes_received: *mut usize,
    ) -> *mut c_void,
>;

/// Frees a region, with the bytes that were received for it. With supports_coalescing this may be several regions
/// merged into one.
pub type bfc_region_free_t =
    Option<unsafe extern "C" fn(user_data: *mut c_void, ptr: *mut c_void, bytes: usize)>;

/// The source of regions for BFC_BACKEND_CUSTOM. Both functions are called without a lock held, from any thread that
/// allocates, frees, trims or destroys. They must not throw, and must not wait for another thread that uses the same
/// allocator. A call back into the same device is BFC_ERROR_BUSY. The library never reads or writes the memory.
///
/// The functions may take regions from an allocator on another device, but allocators must not take regions from each
/// other in a circle: a call that would wait for a thread which waits for it returns BFC_ERROR_BUSY. A request does not
/// ask again for a size that alloc refused before the allocator has called free.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bfc_suballocator_t {
    /// sizeof(bfc_suballocator_t); BFC_SUBALLOCATOR_INIT sets it.
    pub struct_size: usize,
    /// Passed to both functions.
    pub user_data: *mut c_void,
    /// Allocates a region. Must not be NULL.
    pub alloc: bfc_region_alloc_t,
    /// Frees a region. Must not be NULL.
    pub free: bfc_region_free_t,
    /// If not 0, a region that begins where another ends may be merged with it.
    pub supports_coalescing: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// The options of bfc_create. A field left 0 is taken from the environment (BFC_..., see docs/environment.md), or else
/// from the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bfc_options_t {
    /// sizeof(bfc_options_t); BFC_OPTIONS_INIT sets it.
    pub struct_size: usize,
    /// BFC_BACKEND_...
    pub backend: u32,
    /// BFC_ALLOW_GROWTH and the other flags, combined by |.
    pub flags: u32,
    /// The most bytes held from the backend. 0: the available memory. On the host that is the smaller of physical
    /// memory and the control group's limit. With callbacks and growth it is no limit.
    pub memory_limit: u64,
    /// The limit as a fraction of the device's total memory, from 0 to 1, if memory_limit is 0. 0: not given.
    pub memory_fraction: f64,
    /// Split off a remainder of this fraction of the limit, from 0 to 1. 0: the 128 MiB rule.
    pub fragmentation_fraction: f64,
    /// The size of the first region with growth. 0: 2 MiB. With BFC_GROWTH_NEED every region has at
    /// least that size, if the limit allows it.
    pub initial_region_bytes: u64,
    /// Milliseconds to wait for another thread's free, or for a higher limit, before failing. 0: fail at once. When the
    /// time is up, a backend that refused is not asked again.
    pub retry_timeout_ms: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The name in reports. UTF-8, copied. NULL: "bfc".
    pub name: *const c_char,
    /// Copied. Only for BFC_BACKEND_CUSTOM, otherwise NULL.
    pub suballocator: *const bfc_suballocator_t,
    /// BFC_GROWTH_...: how the sizes of regions are chosen with BFC_ALLOW_GROWTH. Without growth it has no effect.
    pub growth_policy: u32,
    /// Must be 0.
    pub reserved2: u32,
    /// The path of a plan that bfc plan has computed for the program, or NULL. Allocations get the places that it has for
    /// them while the program does what was recorded. All others get free memory that fits, as without a plan. Read and
    /// copied. An empty string: no plan, also if BFC_PLAN names one. Not with BFC_TIMESTAMPS.
    pub plan: *const c_char,
}

/// A request with all optional parameters, for bfc_alloc_ex.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bfc_request_t {
    /// sizeof(bfc_request_t); BFC_REQUEST_INIT sets it.
    pub struct_size: usize,
    /// The number of bytes. A request for 0 bytes returns NULL.
    pub bytes: usize,
    /// 0 stands for 256. Any other value must be a power of two.
    pub alignment: usize,
    /// Used only with BFC_REQUEST_ON_STREAM.
    pub stream: bfc_stream_t,
    /// Accept only chunks stamped at most this. 0: any. Requires BFC_TIMESTAMPS.
    pub freed_before: u64,
    /// BFC_REQUEST_ON_STREAM, BFC_REQUEST_NO_GROWTH, BFC_REQUEST_SIZE_512 and BFC_REQUEST_SHORT_LIVED, combined by |.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// The statistics of an allocator at one moment: bytes and counts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bfc_stats_t {
    /// sizeof(bfc_stats_t); BFC_STATS_INIT sets it. Fields known to the library are filled, all others zeroed.
    pub struct_size: usize,
    /// Successful allocations since creation or bfc_reset_stats. Allocations of 0 bytes do not count.
    pub num_allocs: u64,
    /// Successful frees. NULL does not count.
    pub num_frees: u64,
    /// Requests that could not be served.
    pub num_failures: u64,
    /// The bytes of the chunks in use, slack included, as TensorFlow counts.
    pub bytes_in_use: u64,
    /// The highest bytes_in_use.
    pub peak_bytes_in_use: u64,
    /// The requested bytes of the chunks in use.
    pub bytes_requested: u64,
    /// The highest bytes_requested.
    pub peak_bytes_requested: u64,
    /// The size of the largest chunk handed out.
    pub largest_alloc_size: u64,
    /// The most bytes that may be held from the backend.
    pub bytes_limit: u64,
    /// The bytes held from the backend.
    pub pool_bytes: u64,
    /// The highest pool_bytes.
    pub peak_pool_bytes: u64,
    /// The size of the largest free chunk available to a request. With timestamps this is as of the last request or
    /// trim. Chunks that have become safe since then are merged at the next one.
    pub largest_free_block_bytes: u64,
    /// Regions held from the backend.
    pub num_regions: u64,
    /// Chunks, in use and free.
    pub num_chunks: u64,
    /// Free chunks.
    pub num_free_chunks: u64,
    /// Host memory of the allocator metadata. Of pointer tables only the resident part counts.
    pub metadata_bytes: u64,
    /// Allocations that lie where a plan has them (see bfc_options_t). 0 without a plan.
    pub num_planned_allocs: u64,
}

boundaries!(bfc_suballocator_t: struct_size, user_data, alloc, free, supports_coalescing, reserved);
boundaries!(bfc_options_t: struct_size, backend, flags, memory_limit, memory_fraction, fragmentation_fraction,
    initial_region_bytes, retry_timeout_ms, reserved, name, suballocator, growth_policy,
    reserved2, plan);
boundaries!(bfc_request_t: struct_size, bytes, alignment, stream, freed_before, flags, reserved);

macro_rules! statistics {
    ($($name:ident),*) => {
        boundaries!(bfc_stats_t: struct_size, $($name),*);

        impl bfc_stats_t {
            /// Returns the statistics as the C ABI has them. The caller's struct keeps its struct_size.
            pub(super) fn of(stats: &Stats) -> Self {
                let Stats { $($name),* } = *stats;
                bfc_stats_t { struct_size: 0, $($name),* }
            }
        }
    };
}
with_statistics!(statistics);
