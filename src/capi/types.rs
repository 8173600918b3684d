//! The types and constants of the ABI. Fields and values may be added at the end. Nothing else may change.

use super::versioned::{Versioned, boundaries};
use bfc_core::stats::Stats;
use bfc_core::with_statistics;
use std::ffi::{c_char, c_void};

/// The result of a function: `BFC_OK` or one of `BFC_ERROR_...`.
pub type bfc_status_t = i32;

/// Success.
pub const BFC_OK: bfc_status_t = 0;
/// A NULL out-pointer, or an invalid alignment, flag, backend, ordinal or struct_size.
pub const BFC_ERROR_INVALID_ARGUMENT: bfc_status_t = 1;
/// There is no allocator for that device.
pub const BFC_ERROR_NO_ALLOCATOR: bfc_status_t = 2;
/// The device already has an allocator, which can be shared.
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

/// The ordinal of host memory.
pub const BFC_HOST_DEVICE: i32 = 256;
/// The ordinal of pinned host memory.
pub const BFC_PINNED_DEVICE: i32 = 257;

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
/// Device memory in one growing virtual range (cuMemMap), in granules of the device: 2 MiB on all current devices.
/// Otherwise like BFC_BACKEND_HOST_VMM. The device is synchronized before granules move and before bfc_trim unmaps
/// some.
///
/// Every device that can access this one (cuDeviceCanAccessPeer) gets read and write access. cuCtxEnablePeerAccess has
/// no effect on such memory. A peer that the driver refuses is left out, with a warning in the log. Memory has the flag
/// gpuDirectRDMACapable where the device supports it (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED).
///
/// Limitations: cuIpcGetMemHandle and cuMemExportToShareableHandle return CUDA_ERROR_INVALID_VALUE. Copies between
/// devices that cannot access each other require cuMemcpyPeer or cuMemcpyPeerAsync, which name both contexts.
pub const BFC_BACKEND_CUDA_VMM: u32 = 4;
/// Host memory in one growing virtual range, in granules of 2 MiB of a memory file. The pool is one region. Whole free
/// granules move to where a larger request needs them, so free memory does not stay fragmented. Allocations never move.
/// The limit is rounded down to whole granules. Any remainder is split off, as with BFC_SPLIT_ALWAYS, unless
/// fragmentation_fraction is given. Not available in a forked child (BFC_ERROR_SHUTTING_DOWN).
pub const BFC_BACKEND_HOST_VMM: u32 = 5;
/// The backend that the environment variable BFC_BACKEND names. Without the variable: BFC_BACKEND_CUDA_VMM, or
/// BFC_BACKEND_CUDA if the device has no virtual memory management or if not all devices of the process can access its
/// memory (cudaMemcpy would refuse copies between them). BFC_LOG=info logs the choice and its reason. On ordinal 256:
/// BFC_BACKEND_AUTO. The default of bfc_torch_alloc and bfc_ort_alloc.
pub const BFC_BACKEND_PREFER_CUDA_VMM: u32 = 6;

/// Obtain regions (in a virtual range: granules) on demand. Without this flag, one region of memory_limit bytes is
/// obtained at the first allocation.
pub const BFC_ALLOW_GROWTH: u32 = 1u32 << 0;
/// Release wholly free regions before a request fails. No effect in a virtual range, where granules move instead.
pub const BFC_GARBAGE_COLLECTION: u32 = 1u32 << 1;
/// Stamp frees. See bfc_set_safe_frontier. Excludes the _async functions.
pub const BFC_TIMESTAMPS: u32 = 1u32 << 2;
/// Split off any remainder of 256 bytes or more, instead of the 2x / 128 MiB rule. On with NULL options, unless the
/// environment has a fragmentation fraction.
pub const BFC_SPLIT_ALWAYS: u32 = 1u32 << 3;
/// With BFC_TIMESTAMPS, no call hands out a chunk whose stamp is not safe.
pub const BFC_QUARANTINE: u32 = 1u32 << 4;
/// Learn which sizes are usually freed soon, and place them at the upper end of a free chunk, apart from memory that
/// stays. Any remainder is split off, as with BFC_SPLIT_ALWAYS. Useful if the limit is barely sufficient: recorded
/// programs need up to 4% less memory, and an allocation with its free takes 1.7 times as long. No effect with
/// BFC_TIMESTAMPS, on a virtual range, with a plan, and once a second stream is used.
pub const BFC_TWO_ENDS: u32 = 1u32 << 5;

/// The policy that the environment variable BFC_GROWTH names. Without the variable: BFC_GROWTH_TENSORFLOW if the
/// options have BFC_ALLOW_GROWTH, and BFC_GROWTH_NEED if growth comes from NULL options or from the environment.
pub const BFC_GROWTH_DEFAULT: u32 = 0;
/// Each region has twice the size of the one before, as in TensorFlow. The backend is called rarely, but the allocator
/// may hold twice the memory in use, or more.
pub const BFC_GROWTH_TENSORFLOW: u32 = 1;
/// A region has room for the request, and for more requests of that size if they fit in a sixteenth of the memory held.
/// It is never larger than initial_region_bytes (2 MiB) or the request plus that sixteenth, whichever is larger. A
/// virtual range grows by need with every policy, and by a 64th of the memory held beyond it. Elsewhere a request of at
/// most 1 MiB gets a small region rather than a part of a free chunk of 16 MiB or more, as long as small regions stay
/// within a sixteenth of the memory held.
pub const BFC_GROWTH_NEED: u32 = 2;
/// The policy that the environment variable BFC_GROWTH names. Without the variable: BFC_GROWTH_NEED. For clients that
/// create allocators on behalf of others.
pub const BFC_GROWTH_PREFER_NEED: u32 = 3;

/// For bfc_request_t: allocate in stream order, on the stream of the request.
pub const BFC_REQUEST_ON_STREAM: u32 = 1u32 << 0;
/// For bfc_request_t: use only memory that the allocator already holds. Nothing is obtained from the backend or
/// released to it, and the call never waits for device work. It may query whether the work of other streams has
/// completed. BFC_ERROR_OUT_OF_MEMORY then does not count as a failure, and no report is written.
pub const BFC_REQUEST_NO_GROWTH: u32 = 1u32 << 1;
/// For bfc_request_t: round the size up to a multiple of 512 instead of 256. For clients that align every allocation to
/// 512: no unusable gaps of 256 bytes remain between chunks. bfc_requested_size still returns the requested size.
pub const BFC_REQUEST_SIZE_512: u32 = 1u32 << 3;
/// For bfc_request_t: a hint that the memory will be freed soon, for example a workspace. It is placed at the upper end
/// of a free chunk, like the sizes that BFC_TWO_ENDS learns, with the same exceptions.
pub const BFC_REQUEST_SHORT_LIVED: u32 = 1u32 << 4;
/// For bfc_request_t: an attempt of a caller that has other ways to serve the request. A failure is not counted, not
/// recorded in the history, and no report is written. Once no attempt is left, bfc_alloc_failed counts the request. With
/// BFC_REQUEST_NO_GROWTH, a small attempt fails where a request that may grow would spare a large free chunk.
pub const BFC_REQUEST_ATTEMPT: u32 = 1u32 << 6;

/// Level of a message, for BFC_LOG and bfc_log_callback_t: a failure that the caller may not have noticed.
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

/// Called after memory was obtained from the backend (BFC_REGION_OBTAINED) and before it is released
/// (BFC_REGION_RETURNING). Arguments: the pointer given to bfc_set_region_callback, the device, the start and size in
/// bytes of the memory, and the event.
///
/// Called from any thread that allocates, frees, trims or destroys, without a lock held. A call on the same device is
/// BFC_ERROR_BUSY. The function must not wait for another thread that uses the same allocator. It must return: no
/// exception, longjmp or pthread_exit may leave it. Cancellation of the thread is disabled during the call. With backends
/// that map granules, and with BFC_BACKEND_CUSTOM and supports_coalescing, memory obtained at once may be released in
/// parts, and the reverse.
pub type bfc_region_callback_t = Option<
    unsafe extern "C" fn(user_data: *mut c_void, device: i32, base: *mut c_void, bytes: usize, event: i32),
>;

/// Called before free memory of an idle allocator is released (BFC_TRIM_AFTER). Arguments: the pointer given to
/// bfc_set_idle_callback, and the device.
///
/// Called from a thread of the library, without a lock held. The function may call any function of this library, even
/// for the same device, except bfc_destroy, bfc_destroy_forced and bfc_set_idle_callback, which are BFC_ERROR_BUSY. It
/// must return: no exception, longjmp or pthread_exit may leave it. While it waits, no allocator is trimmed.
pub type bfc_idle_callback_t = Option<unsafe extern "C" fn(user_data: *mut c_void, device: i32)>;

/// Receives a message of the library. Arguments: the pointer given to bfc_set_log_callback, a level, and a
/// NUL-terminated text that is valid during the call.
///
/// Called from any thread, never with an allocator locked. The function may call any function of this library. If the
/// message is about a region of a device, a call on that device is BFC_ERROR_BUSY, and bfc_destroy of that device in
/// another thread waits for the callback. Two callbacks must therefore not destroy each other's devices. The function
/// must return: no exception, longjmp or pthread_exit may leave it. Cancellation of the thread is disabled during the
/// call. Characters that control a terminal or the direction of text, other than line ends and tabs, are replaced in the
/// text.
pub type bfc_log_callback_t =
    Option<extern "C" fn(user_data: *mut c_void, level: i32, message: *const c_char)>;

/// Allocates a region of at least `bytes` bytes at a multiple of `alignment` (a power of two of at least 256), and
/// stores its size in `*bytes_received`, which is initialized to `bytes`.
///
/// NULL means that no memory is available. The library then requests less, or fails with BFC_ERROR_OUT_OF_MEMORY. A
/// smaller region is accepted if it is large enough for the request. A region that is too small, an address that is not
/// a multiple of 256, and memory that overlaps another region are BFC_ERROR_BACKEND_FAILED.
pub type bfc_region_alloc_t = Option<
    unsafe extern "C" fn(
        user_data: *mut c_void,
        alignment: usize,
        bytes: usize,
        bytes_received: *mut usize,
    ) -> *mut c_void,
>;

/// Frees a region. `bytes` is the size that was received for it. With supports_coalescing this may be several regions
/// merged into one. Work queued on free memory may still use it if the allocator is used without streams or with only
/// one: the function waits for that work, as cuMemFree does, unless the program has.
pub type bfc_region_free_t =
    Option<unsafe extern "C" fn(user_data: *mut c_void, ptr: *mut c_void, bytes: usize)>;

/// The source of regions for BFC_BACKEND_CUSTOM. The library never reads or writes the memory.
///
/// Both functions are called without a lock held, from any thread that allocates, frees, trims or destroys. They must
/// not wait for another thread that uses the same allocator. They must return: no exception, longjmp or pthread_exit may
/// leave them. Cancellation of the thread is disabled during the calls. A call back into the same device is
/// BFC_ERROR_BUSY.
///
/// The functions may take regions from an allocator on another device. Allocators must not take regions from each other
/// in a circle: a call that would wait for a thread which waits for it returns BFC_ERROR_BUSY. After alloc refused a
/// size, a request does not ask for that size again until the allocator has called free.
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

/// The options of bfc_create. A field left 0 is taken from the environment (BFC_..., see docs/environment.md), and
/// without a variable from the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bfc_options_t {
    /// sizeof(bfc_options_t); BFC_OPTIONS_INIT sets it.
    pub struct_size: usize,
    /// BFC_BACKEND_...
    pub backend: u32,
    /// BFC_ALLOW_GROWTH and the other flags, combined by |.
    pub flags: u32,
    /// The maximum number of bytes held from the backend. 0: the available memory. On the host that is the smaller of
    /// physical memory and the control group's limit; with growth it follows changes of the latter. On CUDA it is the
    /// memory free at creation less the larger of 300 MiB and 5%. With BFC_BACKEND_CUSTOM, 0 is no limit with growth,
    /// and BFC_ERROR_INVALID_ARGUMENT without.
    pub memory_limit: u64,
    /// The limit as a fraction of the device's total memory, from 0 to 1. Used if memory_limit is 0. 0: not given.
    pub memory_fraction: f64,
    /// Split off a remainder of at least this fraction of the limit, from 0 to 1. 0: the 128 MiB rule. No effect with
    /// BFC_SPLIT_ALWAYS.
    pub fragmentation_fraction: f64,
    /// The size in bytes of the first region with growth. 0: 2 MiB. With BFC_GROWTH_NEED every region has at least that
    /// size, if the limit allows it.
    pub initial_region_bytes: u64,
    /// Milliseconds that a request waits for another thread's free, or for a higher limit, before it fails. 0: fail at
    /// once. At the end of the wait, a backend that refused is not asked again.
    pub retry_timeout_ms: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The name in reports. UTF-8, copied. NULL: "bfc".
    pub name: *const c_char,
    /// Copied. Only for BFC_BACKEND_CUSTOM, otherwise NULL.
    pub suballocator: *const bfc_suballocator_t,
    /// BFC_GROWTH_...: the sizes of regions with BFC_ALLOW_GROWTH. No effect without growth.
    pub growth_policy: u32,
    /// Must be 0.
    pub reserved2: u32,
    /// The path of a plan computed by `bfc plan`, or NULL. The file is read during bfc_create. Allocations get the
    /// planned places as long as the program does what was recorded. All other requests get free memory that fits, as
    /// without a plan. An empty string: no plan, even if BFC_PLAN names one. Not with BFC_TIMESTAMPS.
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
    /// Use only chunks whose free was stamped at most this. 0: any. Requires BFC_TIMESTAMPS.
    pub freed_before: u64,
    /// BFC_REQUEST_ON_STREAM, BFC_REQUEST_NO_GROWTH, BFC_REQUEST_SIZE_512, BFC_REQUEST_SHORT_LIVED and
    /// BFC_REQUEST_ATTEMPT, combined by |.
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
    /// Bytes of the chunks in use, including slack, as TensorFlow counts.
    pub bytes_in_use: u64,
    /// The highest bytes_in_use.
    pub peak_bytes_in_use: u64,
    /// Requested bytes of the chunks in use.
    pub bytes_requested: u64,
    /// The highest bytes_requested.
    pub peak_bytes_requested: u64,
    /// Size in bytes of the largest chunk handed out.
    pub largest_alloc_size: u64,
    /// The maximum number of bytes that may be held from the backend.
    pub bytes_limit: u64,
    /// The bytes held from the backend.
    pub pool_bytes: u64,
    /// The highest pool_bytes.
    pub peak_pool_bytes: u64,
    /// Size in bytes of the largest free chunk available to a request. With timestamps: as of the last request or trim.
    /// Chunks that have become safe since then are merged at the next one.
    pub largest_free_block_bytes: u64,
    /// Regions held from the backend.
    pub num_regions: u64,
    /// Chunks, in use and free.
    pub num_chunks: u64,
    /// Free chunks.
    pub num_free_chunks: u64,
    /// Bytes of host memory of the allocator metadata. Only the resident part of pointer tables counts.
    pub metadata_bytes: u64,
    /// Allocations that were placed where the plan has them (see bfc_options_t). 0 without a plan.
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
            /// Converts the statistics to the struct of the C ABI. The caller's struct keeps its struct_size.
            pub(super) fn of(stats: &Stats) -> Self {
                let Stats { $($name),* } = *stats;
                bfc_stats_t { struct_size: 0, $($name),* }
            }
        }
    };
}
with_statistics!(statistics);
