// Generated from include/ by `cargo xtask header`.

//! The names of the functions, and by them the types of pointers to them.
use super::bindings::*;
/// All that the library exports.
pub const NAMES: &[&str] = &[
    "bfc_create",
    "bfc_destroy",
    "bfc_destroy_forced",
    "bfc_set_region_callback",
    "bfc_device_lost",
    "bfc_alloc",
    "bfc_alloc_aligned",
    "bfc_alloc_ex",
    "bfc_alloc_failed",
    "bfc_alloc_freed_before",
    "bfc_free",
    "bfc_alloc_async",
    "bfc_free_async",
    "bfc_record_stream",
    "bfc_forget_stream",
    "bfc_stream_synchronized",
    "bfc_timestamp",
    "bfc_set_safe_frontier",
    "bfc_pool_begin",
    "bfc_pool_end",
    "bfc_pool_release",
    "bfc_capture_begin",
    "bfc_capture_end",
    "bfc_requested_size",
    "bfc_allocated_size",
    "bfc_allocation_id",
    "bfc_address_range",
    "bfc_owner",
    "bfc_trim",
    "bfc_set_idle_callback",
    "bfc_set_memory_limit",
    "bfc_stats",
    "bfc_reset_stats",
    "bfc_check",
    "bfc_occupancy",
    "bfc_memory_map",
    "bfc_report",
    "bfc_metrics",
    "bfc_resolve_options",
    "bfc_scope_begin",
    "bfc_scope_end",
    "bfc_set_log_callback",
    "bfc_status_string",
    "bfc_last_error",
    "bfc_version",
    "bfc_history_start",
    "bfc_history_start_with_stacks",
    "bfc_history_stop",
    "bfc_history_save",
    "bfc_history_mark",
    "bfc_torch_alloc",
    "bfc_torch_free",
    "bfc_torch_init",
    "bfc_torch_reset",
    "bfc_torch_memory_fraction",
    "bfc_torch_base_alloc",
    "bfc_torch_record_stream",
    "bfc_torch_begin_allocate_to_pool",
    "bfc_torch_end_allocate_to_pool",
    "bfc_torch_release_pool",
    "bfc_cupy_malloc",
    "bfc_cupy_free",
    "bfc_cached_alloc",
    "bfc_cached_free",
    "bfc_numpy_malloc",
    "bfc_numpy_calloc",
    "bfc_numpy_realloc",
    "bfc_numpy_free",
    "bfc_ort_alloc",
    "bfc_ort_alloc_on_stream",
    "bfc_ort_free",
    "bfc_ort_empty_cache",
    "bfc_handler_alloc",
    "bfc_handler_free",
    "bfc_adapter_status",
    "bfc_adapter_options",
];
pub type bfc_create = unsafe extern "C" fn(
    device: i32,
    options: *const bfc_options_t,
) -> bfc_status_t;
pub type bfc_destroy = unsafe extern "C" fn(device: i32) -> bfc_status_t;
pub type bfc_destroy_forced = unsafe extern "C" fn(device: i32) -> bfc_status_t;
pub type bfc_set_region_callback = unsafe extern "C" fn(
    device: i32,
    callback: bfc_region_callback_t,
    user_data: *mut ::core::ffi::c_void,
) -> bfc_status_t;
pub type bfc_device_lost = unsafe extern "C" fn(device: i32) -> bfc_status_t;
pub type bfc_alloc = unsafe extern "C" fn(
    device: i32,
    bytes: usize,
    out_ptr: *mut *mut ::core::ffi::c_void,
) -> bfc_status_t;
pub type bfc_alloc_aligned = unsafe extern "C" fn(
    device: i32,
    bytes: usize,
    alignment: usize,
    out_ptr: *mut *mut ::core::ffi::c_void,
) -> bfc_status_t;
pub type bfc_alloc_ex = unsafe extern "C" fn(
    device: i32,
    request: *const bfc_request_t,
    out_ptr: *mut *mut ::core::ffi::c_void,
) -> bfc_status_t;
pub type bfc_alloc_failed = unsafe extern "C" fn(
    device: i32,
    request: *const bfc_request_t,
) -> bfc_status_t;
pub type bfc_alloc_freed_before = unsafe extern "C" fn(
    device: i32,
    bytes: usize,
    freed_before: u64,
    out_ptr: *mut *mut ::core::ffi::c_void,
) -> bfc_status_t;
pub type bfc_free = unsafe extern "C" fn(
    device: i32,
    ptr: *mut ::core::ffi::c_void,
) -> bfc_status_t;
pub type bfc_alloc_async = unsafe extern "C" fn(
    device: i32,
    bytes: usize,
    stream: bfc_stream_t,
    out_ptr: *mut *mut ::core::ffi::c_void,
) -> bfc_status_t;
pub type bfc_free_async = unsafe extern "C" fn(
    device: i32,
    ptr: *mut ::core::ffi::c_void,
    stream: bfc_stream_t,
) -> bfc_status_t;
pub type bfc_record_stream = unsafe extern "C" fn(
    device: i32,
    ptr: *mut ::core::ffi::c_void,
    stream: bfc_stream_t,
) -> bfc_status_t;
pub type bfc_forget_stream = unsafe extern "C" fn(
    device: i32,
    stream: bfc_stream_t,
) -> bfc_status_t;
pub type bfc_stream_synchronized = unsafe extern "C" fn(
    device: i32,
    stream: bfc_stream_t,
) -> bfc_status_t;
pub type bfc_timestamp = unsafe extern "C" fn(
    device: i32,
    out_count: *mut u64,
) -> bfc_status_t;
pub type bfc_set_safe_frontier = unsafe extern "C" fn(
    device: i32,
    count: u64,
) -> bfc_status_t;
pub type bfc_pool_begin = unsafe extern "C" fn(
    device: i32,
    pool: u64,
    stream: bfc_stream_t,
) -> bfc_status_t;
pub type bfc_pool_end = unsafe extern "C" fn(
    device: i32,
    pool: u64,
    stream: bfc_stream_t,
) -> bfc_status_t;
pub type bfc_pool_release = unsafe extern "C" fn(device: i32, pool: u64) -> bfc_status_t;
pub type bfc_capture_begin = unsafe extern "C" fn() -> bfc_status_t;
pub type bfc_capture_end = unsafe extern "C" fn() -> bfc_status_t;
pub type bfc_requested_size = unsafe extern "C" fn(
    device: i32,
    ptr: *const ::core::ffi::c_void,
    out: *mut usize,
) -> bfc_status_t;
pub type bfc_allocated_size = unsafe extern "C" fn(
    device: i32,
    ptr: *const ::core::ffi::c_void,
    out: *mut usize,
) -> bfc_status_t;
pub type bfc_allocation_id = unsafe extern "C" fn(
    device: i32,
    ptr: *const ::core::ffi::c_void,
    out: *mut i64,
) -> bfc_status_t;
pub type bfc_address_range = unsafe extern "C" fn(
    device: i32,
    ptr: *const ::core::ffi::c_void,
    out_chunk: *mut *mut ::core::ffi::c_void,
    out_chunk_bytes: *mut usize,
    out_region: *mut *mut ::core::ffi::c_void,
    out_region_bytes: *mut usize,
) -> bfc_status_t;
pub type bfc_owner = unsafe extern "C" fn(
    ptr: *const ::core::ffi::c_void,
    out_device: *mut i32,
) -> bfc_status_t;
pub type bfc_trim = unsafe extern "C" fn(
    device: i32,
    keep_bytes: u64,
    out_released: *mut u64,
) -> bfc_status_t;
pub type bfc_set_idle_callback = unsafe extern "C" fn(
    device: i32,
    callback: bfc_idle_callback_t,
    user_data: *mut ::core::ffi::c_void,
) -> bfc_status_t;
pub type bfc_set_memory_limit = unsafe extern "C" fn(
    device: i32,
    bytes: u64,
) -> bfc_status_t;
pub type bfc_stats = unsafe extern "C" fn(
    device: i32,
    out_stats: *mut bfc_stats_t,
) -> bfc_status_t;
pub type bfc_reset_stats = unsafe extern "C" fn(device: i32) -> bfc_status_t;
pub type bfc_check = unsafe extern "C" fn(device: i32) -> bfc_status_t;
pub type bfc_occupancy = unsafe extern "C" fn(
    device: i32,
    buf: *mut ::core::ffi::c_char,
    capacity: usize,
    out_length: *mut usize,
) -> bfc_status_t;
pub type bfc_memory_map = unsafe extern "C" fn(
    device: i32,
    buf: *mut ::core::ffi::c_char,
    capacity: usize,
    out_length: *mut usize,
) -> bfc_status_t;
pub type bfc_report = unsafe extern "C" fn(
    device: i32,
    buf: *mut ::core::ffi::c_char,
    capacity: usize,
    out_length: *mut usize,
) -> bfc_status_t;
pub type bfc_metrics = unsafe extern "C" fn(
    buf: *mut ::core::ffi::c_char,
    capacity: usize,
    out_length: *mut usize,
) -> bfc_status_t;
pub type bfc_resolve_options = unsafe extern "C" fn(
    device: i32,
    options: *const bfc_options_t,
    buf: *mut ::core::ffi::c_char,
    capacity: usize,
    out_length: *mut usize,
) -> bfc_status_t;
pub type bfc_scope_begin = unsafe extern "C" fn(
    operation: *const ::core::ffi::c_char,
    step: u64,
) -> bfc_status_t;
pub type bfc_scope_end = unsafe extern "C" fn() -> bfc_status_t;
pub type bfc_set_log_callback = unsafe extern "C" fn(
    callback: bfc_log_callback_t,
    user_data: *mut ::core::ffi::c_void,
) -> bfc_status_t;
pub type bfc_status_string = unsafe extern "C" fn(
    status: bfc_status_t,
) -> *const ::core::ffi::c_char;
pub type bfc_last_error = unsafe extern "C" fn(
    buf: *mut ::core::ffi::c_char,
    capacity: usize,
) -> usize;
pub type bfc_version = unsafe extern "C" fn() -> *const ::core::ffi::c_char;
pub type bfc_history_start = unsafe extern "C" fn(
    path: *const ::core::ffi::c_char,
    events: u64,
) -> bfc_status_t;
pub type bfc_history_start_with_stacks = unsafe extern "C" fn(
    path: *const ::core::ffi::c_char,
    events: u64,
    stacks: u32,
) -> bfc_status_t;
pub type bfc_history_stop = unsafe extern "C" fn() -> bfc_status_t;
pub type bfc_history_save = unsafe extern "C" fn(
    path: *const ::core::ffi::c_char,
) -> bfc_status_t;
pub type bfc_history_mark = unsafe extern "C" fn(
    name: *const ::core::ffi::c_char,
) -> bfc_status_t;
pub type bfc_torch_alloc = unsafe extern "C" fn(
    size: usize,
    device: ::core::ffi::c_int,
    stream: bfc_stream_t,
) -> *mut ::core::ffi::c_void;
pub type bfc_torch_free = unsafe extern "C" fn(
    ptr: *mut ::core::ffi::c_void,
    size: usize,
    device: ::core::ffi::c_int,
    stream: bfc_stream_t,
);
pub type bfc_torch_init = unsafe extern "C" fn(device_count: ::core::ffi::c_int);
pub type bfc_torch_reset = unsafe extern "C" fn();
pub type bfc_torch_memory_fraction = unsafe extern "C" fn(
    fraction: f64,
    device: ::core::ffi::c_int,
);
pub type bfc_torch_base_alloc = unsafe extern "C" fn(
    ptr: *mut ::core::ffi::c_void,
    size: *mut usize,
) -> *mut ::core::ffi::c_void;
pub type bfc_torch_record_stream = unsafe extern "C" fn(
    ptr: *mut ::core::ffi::c_void,
    stream: bfc_stream_t,
);
pub type bfc_torch_begin_allocate_to_pool = unsafe extern "C" fn(
    device: ::core::ffi::c_int,
    id_first: u64,
    id_second: u64,
    filter: *mut ::core::ffi::c_void,
);
pub type bfc_torch_end_allocate_to_pool = unsafe extern "C" fn(
    device: ::core::ffi::c_int,
    id_first: u64,
    id_second: u64,
);
pub type bfc_torch_release_pool = unsafe extern "C" fn(
    device: ::core::ffi::c_int,
    id_first: u64,
    id_second: u64,
);
pub type bfc_cupy_malloc = unsafe extern "C" fn(
    param: *mut ::core::ffi::c_void,
    size: usize,
    device: ::core::ffi::c_int,
) -> *mut ::core::ffi::c_void;
pub type bfc_cupy_free = unsafe extern "C" fn(
    param: *mut ::core::ffi::c_void,
    ptr: *mut ::core::ffi::c_void,
    device: ::core::ffi::c_int,
);
pub type bfc_cached_alloc = unsafe extern "C" fn(
    device: i32,
    bytes: usize,
    out_ptr: *mut *mut ::core::ffi::c_void,
) -> bfc_status_t;
pub type bfc_cached_free = unsafe extern "C" fn(
    device: i32,
    ptr: *mut ::core::ffi::c_void,
) -> bfc_status_t;
pub type bfc_numpy_malloc = unsafe extern "C" fn(
    ctx: *mut ::core::ffi::c_void,
    size: usize,
) -> *mut ::core::ffi::c_void;
pub type bfc_numpy_calloc = unsafe extern "C" fn(
    ctx: *mut ::core::ffi::c_void,
    nelem: usize,
    elsize: usize,
) -> *mut ::core::ffi::c_void;
pub type bfc_numpy_realloc = unsafe extern "C" fn(
    ctx: *mut ::core::ffi::c_void,
    ptr: *mut ::core::ffi::c_void,
    new_size: usize,
) -> *mut ::core::ffi::c_void;
pub type bfc_numpy_free = unsafe extern "C" fn(
    ctx: *mut ::core::ffi::c_void,
    ptr: *mut ::core::ffi::c_void,
    size: usize,
);
pub type bfc_ort_alloc = unsafe extern "C" fn(size: usize) -> *mut ::core::ffi::c_void;
pub type bfc_ort_alloc_on_stream = unsafe extern "C" fn(
    device: ::core::ffi::c_int,
    size: usize,
    stream: bfc_stream_t,
) -> *mut ::core::ffi::c_void;
pub type bfc_ort_free = unsafe extern "C" fn(ptr: *mut ::core::ffi::c_void);
pub type bfc_ort_empty_cache = unsafe extern "C" fn();
pub type bfc_handler_alloc = unsafe extern "C" fn(
    ctx: *mut ::core::ffi::c_void,
    ptr: *mut *mut ::core::ffi::c_void,
    size: usize,
    stream: bfc_stream_t,
) -> ::core::ffi::c_int;
pub type bfc_handler_free = unsafe extern "C" fn(
    ctx: *mut ::core::ffi::c_void,
    ptr: *mut ::core::ffi::c_void,
    size: usize,
    stream: bfc_stream_t,
) -> ::core::ffi::c_int;
pub type bfc_adapter_status = unsafe extern "C" fn() -> bfc_status_t;
pub type bfc_adapter_options = unsafe extern "C" fn(
    device: i32,
    options: *const bfc_options_t,
) -> bfc_status_t;
