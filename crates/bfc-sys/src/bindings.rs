// Generated from include/ by `cargo xtask header`.

pub const BFC_VERSION_MAJOR: u32 = 0;
pub const BFC_VERSION_MINOR: u32 = 1;
pub const BFC_VERSION_PATCH: u32 = 0;
pub const BFC_SONAME: &::core::ffi::CStr = c"libbfc.so.0";
pub const BFC_HOST_DEVICE: i32 = 256;
pub const BFC_PINNED_DEVICE: i32 = 257;
pub const BFC_BACKEND_AUTO: u32 = 0;
pub const BFC_BACKEND_HOST: u32 = 1;
pub const BFC_BACKEND_CUSTOM: u32 = 2;
pub const BFC_BACKEND_CUDA: u32 = 3;
pub const BFC_BACKEND_CUDA_VMM: u32 = 4;
pub const BFC_BACKEND_HOST_VMM: u32 = 5;
pub const BFC_BACKEND_PREFER_CUDA_VMM: u32 = 6;
pub const BFC_ALLOW_GROWTH: u32 = 1;
pub const BFC_GARBAGE_COLLECTION: u32 = 2;
pub const BFC_TIMESTAMPS: u32 = 4;
pub const BFC_SPLIT_ALWAYS: u32 = 8;
pub const BFC_QUARANTINE: u32 = 16;
pub const BFC_TWO_ENDS: u32 = 32;
pub const BFC_GROWTH_DEFAULT: u32 = 0;
pub const BFC_GROWTH_TENSORFLOW: u32 = 1;
pub const BFC_GROWTH_NEED: u32 = 2;
pub const BFC_GROWTH_PREFER_NEED: u32 = 3;
pub const BFC_REQUEST_ON_STREAM: u32 = 1;
pub const BFC_REQUEST_NO_GROWTH: u32 = 2;
pub const BFC_REQUEST_SIZE_512: u32 = 8;
pub const BFC_REQUEST_SHORT_LIVED: u32 = 16;
pub const BFC_REQUEST_ATTEMPT: u32 = 64;
pub const BFC_LOG_ERROR: i32 = 1;
pub const BFC_LOG_WARN: i32 = 2;
pub const BFC_LOG_INFO: i32 = 3;
pub const BFC_LOG_DEBUG: i32 = 4;
pub const BFC_REGION_OBTAINED: i32 = 1;
pub const BFC_REGION_RETURNING: i32 = 2;
pub const BFC_STACKS_NATIVE: u32 = 1;
pub const BFC_STACKS_PYTHON: u32 = 2;
pub const BFC_OK: i32 = 0;
pub const BFC_ERROR_INVALID_ARGUMENT: i32 = 1;
pub const BFC_ERROR_NO_ALLOCATOR: i32 = 2;
pub const BFC_ERROR_ALREADY_EXISTS: i32 = 3;
pub const BFC_ERROR_OUT_OF_MEMORY: i32 = 4;
pub const BFC_ERROR_INVALID_POINTER: i32 = 5;
pub const BFC_ERROR_DOUBLE_FREE: i32 = 6;
pub const BFC_ERROR_BUSY: i32 = 7;
pub const BFC_ERROR_BACKEND_UNAVAILABLE: i32 = 8;
pub const BFC_ERROR_BACKEND_FAILED: i32 = 9;
pub const BFC_ERROR_UNSUPPORTED: i32 = 10;
pub const BFC_ERROR_SHUTTING_DOWN: i32 = 11;
pub const BFC_ERROR_INTERNAL: i32 = 12;
pub const BFC_POOL_OF_CAPTURES: u64 = 18446744073709551615;
pub type bfc_status_t = i32;
pub type bfc_region_alloc_t = ::core::option::Option<
    unsafe extern "C" fn(
        user_data: *mut ::core::ffi::c_void,
        alignment: usize,
        bytes: usize,
        bytes_received: *mut usize,
    ) -> *mut ::core::ffi::c_void,
>;
pub type bfc_region_free_t = ::core::option::Option<
    unsafe extern "C" fn(
        user_data: *mut ::core::ffi::c_void,
        ptr: *mut ::core::ffi::c_void,
        bytes: usize,
    ),
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct bfc_suballocator_t {
    pub struct_size: usize,
    pub user_data: *mut ::core::ffi::c_void,
    pub alloc: bfc_region_alloc_t,
    pub free: bfc_region_free_t,
    pub supports_coalescing: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of bfc_suballocator_t",
    ][::core::mem::size_of::<bfc_suballocator_t>() - 40usize];
    [
        "Alignment of bfc_suballocator_t",
    ][::core::mem::align_of::<bfc_suballocator_t>() - 8usize];
    [
        "Offset of field: bfc_suballocator_t::struct_size",
    ][::core::mem::offset_of!(bfc_suballocator_t, struct_size) - 0usize];
    [
        "Offset of field: bfc_suballocator_t::user_data",
    ][::core::mem::offset_of!(bfc_suballocator_t, user_data) - 8usize];
    [
        "Offset of field: bfc_suballocator_t::alloc",
    ][::core::mem::offset_of!(bfc_suballocator_t, alloc) - 16usize];
    [
        "Offset of field: bfc_suballocator_t::free",
    ][::core::mem::offset_of!(bfc_suballocator_t, free) - 24usize];
    [
        "Offset of field: bfc_suballocator_t::supports_coalescing",
    ][::core::mem::offset_of!(bfc_suballocator_t, supports_coalescing) - 32usize];
    [
        "Offset of field: bfc_suballocator_t::reserved",
    ][::core::mem::offset_of!(bfc_suballocator_t, reserved) - 36usize];
};
impl Default for bfc_suballocator_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct bfc_options_t {
    pub struct_size: usize,
    pub backend: u32,
    pub flags: u32,
    pub memory_limit: u64,
    pub memory_fraction: f64,
    pub fragmentation_fraction: f64,
    pub initial_region_bytes: u64,
    pub retry_timeout_ms: u32,
    pub reserved: u32,
    pub name: *const ::core::ffi::c_char,
    pub suballocator: *const bfc_suballocator_t,
    pub growth_policy: u32,
    pub reserved2: u32,
    pub plan: *const ::core::ffi::c_char,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of bfc_options_t"][::core::mem::size_of::<bfc_options_t>() - 88usize];
    ["Alignment of bfc_options_t"][::core::mem::align_of::<bfc_options_t>() - 8usize];
    [
        "Offset of field: bfc_options_t::struct_size",
    ][::core::mem::offset_of!(bfc_options_t, struct_size) - 0usize];
    [
        "Offset of field: bfc_options_t::backend",
    ][::core::mem::offset_of!(bfc_options_t, backend) - 8usize];
    [
        "Offset of field: bfc_options_t::flags",
    ][::core::mem::offset_of!(bfc_options_t, flags) - 12usize];
    [
        "Offset of field: bfc_options_t::memory_limit",
    ][::core::mem::offset_of!(bfc_options_t, memory_limit) - 16usize];
    [
        "Offset of field: bfc_options_t::memory_fraction",
    ][::core::mem::offset_of!(bfc_options_t, memory_fraction) - 24usize];
    [
        "Offset of field: bfc_options_t::fragmentation_fraction",
    ][::core::mem::offset_of!(bfc_options_t, fragmentation_fraction) - 32usize];
    [
        "Offset of field: bfc_options_t::initial_region_bytes",
    ][::core::mem::offset_of!(bfc_options_t, initial_region_bytes) - 40usize];
    [
        "Offset of field: bfc_options_t::retry_timeout_ms",
    ][::core::mem::offset_of!(bfc_options_t, retry_timeout_ms) - 48usize];
    [
        "Offset of field: bfc_options_t::reserved",
    ][::core::mem::offset_of!(bfc_options_t, reserved) - 52usize];
    [
        "Offset of field: bfc_options_t::name",
    ][::core::mem::offset_of!(bfc_options_t, name) - 56usize];
    [
        "Offset of field: bfc_options_t::suballocator",
    ][::core::mem::offset_of!(bfc_options_t, suballocator) - 64usize];
    [
        "Offset of field: bfc_options_t::growth_policy",
    ][::core::mem::offset_of!(bfc_options_t, growth_policy) - 72usize];
    [
        "Offset of field: bfc_options_t::reserved2",
    ][::core::mem::offset_of!(bfc_options_t, reserved2) - 76usize];
    [
        "Offset of field: bfc_options_t::plan",
    ][::core::mem::offset_of!(bfc_options_t, plan) - 80usize];
};
impl Default for bfc_options_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type bfc_region_callback_t = ::core::option::Option<
    unsafe extern "C" fn(
        user_data: *mut ::core::ffi::c_void,
        device: i32,
        base: *mut ::core::ffi::c_void,
        bytes: usize,
        event: i32,
    ),
>;
pub type bfc_stream_t = *mut ::core::ffi::c_void;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct bfc_request_t {
    pub struct_size: usize,
    pub bytes: usize,
    pub alignment: usize,
    pub stream: bfc_stream_t,
    pub freed_before: u64,
    pub flags: u32,
    pub reserved: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of bfc_request_t"][::core::mem::size_of::<bfc_request_t>() - 48usize];
    ["Alignment of bfc_request_t"][::core::mem::align_of::<bfc_request_t>() - 8usize];
    [
        "Offset of field: bfc_request_t::struct_size",
    ][::core::mem::offset_of!(bfc_request_t, struct_size) - 0usize];
    [
        "Offset of field: bfc_request_t::bytes",
    ][::core::mem::offset_of!(bfc_request_t, bytes) - 8usize];
    [
        "Offset of field: bfc_request_t::alignment",
    ][::core::mem::offset_of!(bfc_request_t, alignment) - 16usize];
    [
        "Offset of field: bfc_request_t::stream",
    ][::core::mem::offset_of!(bfc_request_t, stream) - 24usize];
    [
        "Offset of field: bfc_request_t::freed_before",
    ][::core::mem::offset_of!(bfc_request_t, freed_before) - 32usize];
    [
        "Offset of field: bfc_request_t::flags",
    ][::core::mem::offset_of!(bfc_request_t, flags) - 40usize];
    [
        "Offset of field: bfc_request_t::reserved",
    ][::core::mem::offset_of!(bfc_request_t, reserved) - 44usize];
};
impl Default for bfc_request_t {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub type bfc_idle_callback_t = ::core::option::Option<
    unsafe extern "C" fn(user_data: *mut ::core::ffi::c_void, device: i32),
>;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
#[derive(PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct bfc_stats_t {
    #[cfg_attr(feature = "serde", serde(skip))]
    pub struct_size: usize,
    pub num_allocs: u64,
    pub num_frees: u64,
    pub num_failures: u64,
    pub bytes_in_use: u64,
    pub peak_bytes_in_use: u64,
    pub bytes_requested: u64,
    pub peak_bytes_requested: u64,
    pub largest_alloc_size: u64,
    pub bytes_limit: u64,
    pub pool_bytes: u64,
    pub peak_pool_bytes: u64,
    pub largest_free_block_bytes: u64,
    pub num_regions: u64,
    pub num_chunks: u64,
    pub num_free_chunks: u64,
    pub metadata_bytes: u64,
    pub num_planned_allocs: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of bfc_stats_t"][::core::mem::size_of::<bfc_stats_t>() - 144usize];
    ["Alignment of bfc_stats_t"][::core::mem::align_of::<bfc_stats_t>() - 8usize];
    [
        "Offset of field: bfc_stats_t::struct_size",
    ][::core::mem::offset_of!(bfc_stats_t, struct_size) - 0usize];
    [
        "Offset of field: bfc_stats_t::num_allocs",
    ][::core::mem::offset_of!(bfc_stats_t, num_allocs) - 8usize];
    [
        "Offset of field: bfc_stats_t::num_frees",
    ][::core::mem::offset_of!(bfc_stats_t, num_frees) - 16usize];
    [
        "Offset of field: bfc_stats_t::num_failures",
    ][::core::mem::offset_of!(bfc_stats_t, num_failures) - 24usize];
    [
        "Offset of field: bfc_stats_t::bytes_in_use",
    ][::core::mem::offset_of!(bfc_stats_t, bytes_in_use) - 32usize];
    [
        "Offset of field: bfc_stats_t::peak_bytes_in_use",
    ][::core::mem::offset_of!(bfc_stats_t, peak_bytes_in_use) - 40usize];
    [
        "Offset of field: bfc_stats_t::bytes_requested",
    ][::core::mem::offset_of!(bfc_stats_t, bytes_requested) - 48usize];
    [
        "Offset of field: bfc_stats_t::peak_bytes_requested",
    ][::core::mem::offset_of!(bfc_stats_t, peak_bytes_requested) - 56usize];
    [
        "Offset of field: bfc_stats_t::largest_alloc_size",
    ][::core::mem::offset_of!(bfc_stats_t, largest_alloc_size) - 64usize];
    [
        "Offset of field: bfc_stats_t::bytes_limit",
    ][::core::mem::offset_of!(bfc_stats_t, bytes_limit) - 72usize];
    [
        "Offset of field: bfc_stats_t::pool_bytes",
    ][::core::mem::offset_of!(bfc_stats_t, pool_bytes) - 80usize];
    [
        "Offset of field: bfc_stats_t::peak_pool_bytes",
    ][::core::mem::offset_of!(bfc_stats_t, peak_pool_bytes) - 88usize];
    [
        "Offset of field: bfc_stats_t::largest_free_block_bytes",
    ][::core::mem::offset_of!(bfc_stats_t, largest_free_block_bytes) - 96usize];
    [
        "Offset of field: bfc_stats_t::num_regions",
    ][::core::mem::offset_of!(bfc_stats_t, num_regions) - 104usize];
    [
        "Offset of field: bfc_stats_t::num_chunks",
    ][::core::mem::offset_of!(bfc_stats_t, num_chunks) - 112usize];
    [
        "Offset of field: bfc_stats_t::num_free_chunks",
    ][::core::mem::offset_of!(bfc_stats_t, num_free_chunks) - 120usize];
    [
        "Offset of field: bfc_stats_t::metadata_bytes",
    ][::core::mem::offset_of!(bfc_stats_t, metadata_bytes) - 128usize];
    [
        "Offset of field: bfc_stats_t::num_planned_allocs",
    ][::core::mem::offset_of!(bfc_stats_t, num_planned_allocs) - 136usize];
};
pub type bfc_log_callback_t = ::core::option::Option<
    unsafe extern "C" fn(
        user_data: *mut ::core::ffi::c_void,
        level: i32,
        message: *const ::core::ffi::c_char,
    ),
>;
unsafe extern "C" {
    pub fn bfc_create(device: i32, options: *const bfc_options_t) -> bfc_status_t;
    pub fn bfc_destroy(device: i32) -> bfc_status_t;
    pub fn bfc_destroy_forced(device: i32) -> bfc_status_t;
    pub fn bfc_set_region_callback(
        device: i32,
        callback: bfc_region_callback_t,
        user_data: *mut ::core::ffi::c_void,
    ) -> bfc_status_t;
    pub fn bfc_device_lost(device: i32) -> bfc_status_t;
    pub fn bfc_alloc(
        device: i32,
        bytes: usize,
        out_ptr: *mut *mut ::core::ffi::c_void,
    ) -> bfc_status_t;
    pub fn bfc_alloc_aligned(
        device: i32,
        bytes: usize,
        alignment: usize,
        out_ptr: *mut *mut ::core::ffi::c_void,
    ) -> bfc_status_t;
    pub fn bfc_alloc_ex(
        device: i32,
        request: *const bfc_request_t,
        out_ptr: *mut *mut ::core::ffi::c_void,
    ) -> bfc_status_t;
    pub fn bfc_alloc_failed(device: i32, request: *const bfc_request_t) -> bfc_status_t;
    pub fn bfc_alloc_freed_before(
        device: i32,
        bytes: usize,
        freed_before: u64,
        out_ptr: *mut *mut ::core::ffi::c_void,
    ) -> bfc_status_t;
    pub fn bfc_free(device: i32, ptr: *mut ::core::ffi::c_void) -> bfc_status_t;
    pub fn bfc_alloc_async(
        device: i32,
        bytes: usize,
        stream: bfc_stream_t,
        out_ptr: *mut *mut ::core::ffi::c_void,
    ) -> bfc_status_t;
    pub fn bfc_free_async(
        device: i32,
        ptr: *mut ::core::ffi::c_void,
        stream: bfc_stream_t,
    ) -> bfc_status_t;
    pub fn bfc_record_stream(
        device: i32,
        ptr: *mut ::core::ffi::c_void,
        stream: bfc_stream_t,
    ) -> bfc_status_t;
    pub fn bfc_forget_stream(device: i32, stream: bfc_stream_t) -> bfc_status_t;
    pub fn bfc_stream_synchronized(device: i32, stream: bfc_stream_t) -> bfc_status_t;
    pub fn bfc_timestamp(device: i32, out_count: *mut u64) -> bfc_status_t;
    pub fn bfc_set_safe_frontier(device: i32, count: u64) -> bfc_status_t;
    pub fn bfc_pool_begin(device: i32, pool: u64, stream: bfc_stream_t) -> bfc_status_t;
    pub fn bfc_pool_end(device: i32, pool: u64, stream: bfc_stream_t) -> bfc_status_t;
    pub fn bfc_pool_release(device: i32, pool: u64) -> bfc_status_t;
    pub fn bfc_capture_begin() -> bfc_status_t;
    pub fn bfc_capture_end() -> bfc_status_t;
    pub fn bfc_requested_size(
        device: i32,
        ptr: *const ::core::ffi::c_void,
        out: *mut usize,
    ) -> bfc_status_t;
    pub fn bfc_allocated_size(
        device: i32,
        ptr: *const ::core::ffi::c_void,
        out: *mut usize,
    ) -> bfc_status_t;
    pub fn bfc_allocation_id(
        device: i32,
        ptr: *const ::core::ffi::c_void,
        out: *mut i64,
    ) -> bfc_status_t;
    pub fn bfc_address_range(
        device: i32,
        ptr: *const ::core::ffi::c_void,
        out_chunk: *mut *mut ::core::ffi::c_void,
        out_chunk_bytes: *mut usize,
        out_region: *mut *mut ::core::ffi::c_void,
        out_region_bytes: *mut usize,
    ) -> bfc_status_t;
    pub fn bfc_owner(
        ptr: *const ::core::ffi::c_void,
        out_device: *mut i32,
    ) -> bfc_status_t;
    pub fn bfc_trim(
        device: i32,
        keep_bytes: u64,
        out_released: *mut u64,
    ) -> bfc_status_t;
    pub fn bfc_set_idle_callback(
        device: i32,
        callback: bfc_idle_callback_t,
        user_data: *mut ::core::ffi::c_void,
    ) -> bfc_status_t;
    pub fn bfc_set_memory_limit(device: i32, bytes: u64) -> bfc_status_t;
    pub fn bfc_stats(device: i32, out_stats: *mut bfc_stats_t) -> bfc_status_t;
    pub fn bfc_reset_stats(device: i32) -> bfc_status_t;
    pub fn bfc_check(device: i32) -> bfc_status_t;
    pub fn bfc_occupancy(
        device: i32,
        buf: *mut ::core::ffi::c_char,
        capacity: usize,
        out_length: *mut usize,
    ) -> bfc_status_t;
    pub fn bfc_memory_map(
        device: i32,
        buf: *mut ::core::ffi::c_char,
        capacity: usize,
        out_length: *mut usize,
    ) -> bfc_status_t;
    pub fn bfc_report(
        device: i32,
        buf: *mut ::core::ffi::c_char,
        capacity: usize,
        out_length: *mut usize,
    ) -> bfc_status_t;
    pub fn bfc_metrics(
        buf: *mut ::core::ffi::c_char,
        capacity: usize,
        out_length: *mut usize,
    ) -> bfc_status_t;
    pub fn bfc_resolve_options(
        device: i32,
        options: *const bfc_options_t,
        buf: *mut ::core::ffi::c_char,
        capacity: usize,
        out_length: *mut usize,
    ) -> bfc_status_t;
    pub fn bfc_scope_begin(
        operation: *const ::core::ffi::c_char,
        step: u64,
    ) -> bfc_status_t;
    pub fn bfc_scope_end() -> bfc_status_t;
    pub fn bfc_set_log_callback(
        callback: bfc_log_callback_t,
        user_data: *mut ::core::ffi::c_void,
    ) -> bfc_status_t;
    pub fn bfc_status_string(status: bfc_status_t) -> *const ::core::ffi::c_char;
    pub fn bfc_last_error(buf: *mut ::core::ffi::c_char, capacity: usize) -> usize;
    pub fn bfc_version() -> *const ::core::ffi::c_char;
    pub fn bfc_history_start(
        path: *const ::core::ffi::c_char,
        events: u64,
    ) -> bfc_status_t;
    pub fn bfc_history_start_with_stacks(
        path: *const ::core::ffi::c_char,
        events: u64,
        stacks: u32,
    ) -> bfc_status_t;
    pub fn bfc_history_stop() -> bfc_status_t;
    pub fn bfc_history_save(path: *const ::core::ffi::c_char) -> bfc_status_t;
    pub fn bfc_history_mark(name: *const ::core::ffi::c_char) -> bfc_status_t;
    pub fn bfc_torch_alloc(
        size: usize,
        device: ::core::ffi::c_int,
        stream: bfc_stream_t,
    ) -> *mut ::core::ffi::c_void;
    pub fn bfc_torch_free(
        ptr: *mut ::core::ffi::c_void,
        size: usize,
        device: ::core::ffi::c_int,
        stream: bfc_stream_t,
    );
    pub fn bfc_torch_init(device_count: ::core::ffi::c_int);
    pub fn bfc_torch_reset();
    pub fn bfc_torch_memory_fraction(fraction: f64, device: ::core::ffi::c_int);
    pub fn bfc_torch_base_alloc(
        ptr: *mut ::core::ffi::c_void,
        size: *mut usize,
    ) -> *mut ::core::ffi::c_void;
    pub fn bfc_torch_record_stream(ptr: *mut ::core::ffi::c_void, stream: bfc_stream_t);
    pub fn bfc_torch_begin_allocate_to_pool(
        device: ::core::ffi::c_int,
        id_first: u64,
        id_second: u64,
        filter: *mut ::core::ffi::c_void,
    );
    pub fn bfc_torch_end_allocate_to_pool(
        device: ::core::ffi::c_int,
        id_first: u64,
        id_second: u64,
    );
    pub fn bfc_torch_release_pool(
        device: ::core::ffi::c_int,
        id_first: u64,
        id_second: u64,
    );
    pub fn bfc_cupy_malloc(
        param: *mut ::core::ffi::c_void,
        size: usize,
        device: ::core::ffi::c_int,
    ) -> *mut ::core::ffi::c_void;
    pub fn bfc_cupy_free(
        param: *mut ::core::ffi::c_void,
        ptr: *mut ::core::ffi::c_void,
        device: ::core::ffi::c_int,
    );
    pub fn bfc_cached_alloc(
        device: i32,
        bytes: usize,
        out_ptr: *mut *mut ::core::ffi::c_void,
    ) -> bfc_status_t;
    pub fn bfc_cached_free(device: i32, ptr: *mut ::core::ffi::c_void) -> bfc_status_t;
    pub fn bfc_numpy_malloc(
        ctx: *mut ::core::ffi::c_void,
        size: usize,
    ) -> *mut ::core::ffi::c_void;
    pub fn bfc_numpy_calloc(
        ctx: *mut ::core::ffi::c_void,
        nelem: usize,
        elsize: usize,
    ) -> *mut ::core::ffi::c_void;
    pub fn bfc_numpy_realloc(
        ctx: *mut ::core::ffi::c_void,
        ptr: *mut ::core::ffi::c_void,
        new_size: usize,
    ) -> *mut ::core::ffi::c_void;
    pub fn bfc_numpy_free(
        ctx: *mut ::core::ffi::c_void,
        ptr: *mut ::core::ffi::c_void,
        size: usize,
    );
    pub fn bfc_ort_alloc(size: usize) -> *mut ::core::ffi::c_void;
    pub fn bfc_ort_alloc_on_stream(
        device: ::core::ffi::c_int,
        size: usize,
        stream: bfc_stream_t,
    ) -> *mut ::core::ffi::c_void;
    pub fn bfc_ort_free(ptr: *mut ::core::ffi::c_void);
    pub fn bfc_ort_empty_cache();
    pub fn bfc_handler_alloc(
        ctx: *mut ::core::ffi::c_void,
        ptr: *mut *mut ::core::ffi::c_void,
        size: usize,
        stream: bfc_stream_t,
    ) -> ::core::ffi::c_int;
    pub fn bfc_handler_free(
        ctx: *mut ::core::ffi::c_void,
        ptr: *mut ::core::ffi::c_void,
        size: usize,
        stream: bfc_stream_t,
    ) -> ::core::ffi::c_int;
    pub fn bfc_adapter_status() -> bfc_status_t;
    pub fn bfc_adapter_options(
        device: i32,
        options: *const bfc_options_t,
    ) -> bfc_status_t;
}
