"""libbfc's C ABI for ctypes: the constants, structs and functions of ``bfc.h`` and ``bfc_adapters.h``, by their names.

Generated from include/ by ``cargo xtask header``.
"""

# ruff: noqa

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

BFC_VERSION_MAJOR = 0
BFC_VERSION_MINOR = 1
BFC_VERSION_PATCH = 0
BFC_SONAME = "libbfc.so.0"
BFC_HOST_DEVICE = 256
BFC_PINNED_DEVICE = 257
BFC_BACKEND_AUTO = 0
BFC_BACKEND_HOST = 1
BFC_BACKEND_CUSTOM = 2
BFC_BACKEND_CUDA = 3
BFC_BACKEND_CUDA_VMM = 4
BFC_BACKEND_HOST_VMM = 5
BFC_BACKEND_PREFER_CUDA_VMM = 6
BFC_ALLOW_GROWTH = 1
BFC_GARBAGE_COLLECTION = 2
BFC_TIMESTAMPS = 4
BFC_SPLIT_ALWAYS = 8
BFC_QUARANTINE = 16
BFC_TWO_ENDS = 32
BFC_GROWTH_DEFAULT = 0
BFC_GROWTH_TENSORFLOW = 1
BFC_GROWTH_NEED = 2
BFC_GROWTH_PREFER_NEED = 3
BFC_REQUEST_ON_STREAM = 1
BFC_REQUEST_NO_GROWTH = 2
BFC_REQUEST_SIZE_512 = 8
BFC_REQUEST_SHORT_LIVED = 16
BFC_REQUEST_ATTEMPT = 64
BFC_LOG_ERROR = 1
BFC_LOG_WARN = 2
BFC_LOG_INFO = 3
BFC_LOG_DEBUG = 4
BFC_REGION_OBTAINED = 1
BFC_REGION_RETURNING = 2
BFC_STACKS_NATIVE = 1
BFC_STACKS_PYTHON = 2
BFC_OK = 0
BFC_ERROR_INVALID_ARGUMENT = 1
BFC_ERROR_NO_ALLOCATOR = 2
BFC_ERROR_ALREADY_EXISTS = 3
BFC_ERROR_OUT_OF_MEMORY = 4
BFC_ERROR_INVALID_POINTER = 5
BFC_ERROR_DOUBLE_FREE = 6
BFC_ERROR_BUSY = 7
BFC_ERROR_BACKEND_UNAVAILABLE = 8
BFC_ERROR_BACKEND_FAILED = 9
BFC_ERROR_UNSUPPORTED = 10
BFC_ERROR_SHUTTING_DOWN = 11
BFC_ERROR_INTERNAL = 12
BFC_POOL_OF_CAPTURES = 18446744073709551615

bfc_region_alloc_t = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t, POINTER(c_size_t))

bfc_region_free_t = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)


class bfc_suballocator_t(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("user_data", c_void_p),
        ("alloc", bfc_region_alloc_t),
        ("free", bfc_region_free_t),
        ("supports_coalescing", c_uint32),
        ("reserved", c_uint32),
    ]


class bfc_options_t(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_uint32),
        ("flags", c_uint32),
        ("memory_limit", c_uint64),
        ("memory_fraction", c_double),
        ("fragmentation_fraction", c_double),
        ("initial_region_bytes", c_uint64),
        ("retry_timeout_ms", c_uint32),
        ("reserved", c_uint32),
        ("name", c_char_p),
        ("suballocator", POINTER(bfc_suballocator_t)),
        ("growth_policy", c_uint32),
        ("reserved2", c_uint32),
        ("plan", c_char_p),
    ]

bfc_region_callback_t = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_void_p, c_size_t, c_int32)


class bfc_request_t(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bytes", c_size_t),
        ("alignment", c_size_t),
        ("stream", c_void_p),
        ("freed_before", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]

bfc_idle_callback_t = ctypes.CFUNCTYPE(None, c_void_p, c_int32)


class bfc_stats_t(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("num_allocs", c_uint64),
        ("num_frees", c_uint64),
        ("num_failures", c_uint64),
        ("bytes_in_use", c_uint64),
        ("peak_bytes_in_use", c_uint64),
        ("bytes_requested", c_uint64),
        ("peak_bytes_requested", c_uint64),
        ("largest_alloc_size", c_uint64),
        ("bytes_limit", c_uint64),
        ("pool_bytes", c_uint64),
        ("peak_pool_bytes", c_uint64),
        ("largest_free_block_bytes", c_uint64),
        ("num_regions", c_uint64),
        ("num_chunks", c_uint64),
        ("num_free_chunks", c_uint64),
        ("metadata_bytes", c_uint64),
        ("num_planned_allocs", c_uint64),
    ]

bfc_log_callback_t = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "bfc_create": (c_int32, (c_int32, POINTER(bfc_options_t))),
    "bfc_destroy": (c_int32, (c_int32,)),
    "bfc_destroy_forced": (c_int32, (c_int32,)),
    "bfc_set_region_callback": (c_int32, (c_int32, bfc_region_callback_t, c_void_p)),
    "bfc_device_lost": (c_int32, (c_int32,)),
    "bfc_alloc": (c_int32, (c_int32, c_size_t, POINTER(c_void_p))),
    "bfc_alloc_aligned": (c_int32, (c_int32, c_size_t, c_size_t, POINTER(c_void_p))),
    "bfc_alloc_ex": (c_int32, (c_int32, POINTER(bfc_request_t), POINTER(c_void_p))),
    "bfc_alloc_failed": (c_int32, (c_int32, POINTER(bfc_request_t))),
    "bfc_alloc_freed_before": (c_int32, (c_int32, c_size_t, c_uint64, POINTER(c_void_p))),
    "bfc_free": (c_int32, (c_int32, c_void_p)),
    "bfc_alloc_async": (c_int32, (c_int32, c_size_t, c_void_p, POINTER(c_void_p))),
    "bfc_free_async": (c_int32, (c_int32, c_void_p, c_void_p)),
    "bfc_record_stream": (c_int32, (c_int32, c_void_p, c_void_p)),
    "bfc_forget_stream": (c_int32, (c_int32, c_void_p)),
    "bfc_stream_synchronized": (c_int32, (c_int32, c_void_p)),
    "bfc_timestamp": (c_int32, (c_int32, POINTER(c_uint64))),
    "bfc_set_safe_frontier": (c_int32, (c_int32, c_uint64)),
    "bfc_pool_begin": (c_int32, (c_int32, c_uint64, c_void_p)),
    "bfc_pool_end": (c_int32, (c_int32, c_uint64, c_void_p)),
    "bfc_pool_release": (c_int32, (c_int32, c_uint64)),
    "bfc_capture_begin": (c_int32, ()),
    "bfc_capture_end": (c_int32, ()),
    "bfc_requested_size": (c_int32, (c_int32, c_void_p, POINTER(c_size_t))),
    "bfc_allocated_size": (c_int32, (c_int32, c_void_p, POINTER(c_size_t))),
    "bfc_allocation_id": (c_int32, (c_int32, c_void_p, POINTER(c_int64))),
    "bfc_address_range": (c_int32, (c_int32, c_void_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_void_p), POINTER(c_size_t))),
    "bfc_owner": (c_int32, (c_void_p, POINTER(c_int32))),
    "bfc_trim": (c_int32, (c_int32, c_uint64, POINTER(c_uint64))),
    "bfc_set_idle_callback": (c_int32, (c_int32, bfc_idle_callback_t, c_void_p)),
    "bfc_set_memory_limit": (c_int32, (c_int32, c_uint64)),
    "bfc_stats": (c_int32, (c_int32, POINTER(bfc_stats_t))),
    "bfc_reset_stats": (c_int32, (c_int32,)),
    "bfc_check": (c_int32, (c_int32,)),
    "bfc_occupancy": (c_int32, (c_int32, c_void_p, c_size_t, POINTER(c_size_t))),
    "bfc_memory_map": (c_int32, (c_int32, c_void_p, c_size_t, POINTER(c_size_t))),
    "bfc_report": (c_int32, (c_int32, c_void_p, c_size_t, POINTER(c_size_t))),
    "bfc_metrics": (c_int32, (c_void_p, c_size_t, POINTER(c_size_t))),
    "bfc_resolve_options": (c_int32, (c_int32, POINTER(bfc_options_t), c_void_p, c_size_t, POINTER(c_size_t))),
    "bfc_scope_begin": (c_int32, (c_char_p, c_uint64)),
    "bfc_scope_end": (c_int32, ()),
    "bfc_set_log_callback": (c_int32, (bfc_log_callback_t, c_void_p)),
    "bfc_status_string": (c_char_p, (c_int32,)),
    "bfc_last_error": (c_size_t, (c_void_p, c_size_t)),
    "bfc_version": (c_char_p, ()),
    "bfc_history_start": (c_int32, (c_char_p, c_uint64)),
    "bfc_history_start_with_stacks": (c_int32, (c_char_p, c_uint64, c_uint32)),
    "bfc_history_stop": (c_int32, ()),
    "bfc_history_save": (c_int32, (c_char_p,)),
    "bfc_history_mark": (c_int32, (c_char_p,)),
    "bfc_torch_alloc": (c_void_p, (c_size_t, c_int, c_void_p)),
    "bfc_torch_free": (None, (c_void_p, c_size_t, c_int, c_void_p)),
    "bfc_torch_init": (None, (c_int,)),
    "bfc_torch_reset": (None, ()),
    "bfc_torch_memory_fraction": (None, (c_double, c_int)),
    "bfc_torch_base_alloc": (c_void_p, (c_void_p, POINTER(c_size_t))),
    "bfc_torch_record_stream": (None, (c_void_p, c_void_p)),
    "bfc_torch_begin_allocate_to_pool": (None, (c_int, c_uint64, c_uint64, c_void_p)),
    "bfc_torch_end_allocate_to_pool": (None, (c_int, c_uint64, c_uint64)),
    "bfc_torch_release_pool": (None, (c_int, c_uint64, c_uint64)),
    "bfc_cupy_malloc": (c_void_p, (c_void_p, c_size_t, c_int)),
    "bfc_cupy_free": (None, (c_void_p, c_void_p, c_int)),
    "bfc_cached_alloc": (c_int32, (c_int32, c_size_t, POINTER(c_void_p))),
    "bfc_cached_free": (c_int32, (c_int32, c_void_p)),
    "bfc_numpy_malloc": (c_void_p, (c_void_p, c_size_t)),
    "bfc_numpy_calloc": (c_void_p, (c_void_p, c_size_t, c_size_t)),
    "bfc_numpy_realloc": (c_void_p, (c_void_p, c_void_p, c_size_t)),
    "bfc_numpy_free": (None, (c_void_p, c_void_p, c_size_t)),
    "bfc_ort_alloc": (c_void_p, (c_size_t,)),
    "bfc_ort_alloc_on_stream": (c_void_p, (c_int, c_size_t, c_void_p)),
    "bfc_ort_free": (None, (c_void_p,)),
    "bfc_ort_empty_cache": (None, ()),
    "bfc_handler_alloc": (c_int, (c_void_p, POINTER(c_void_p), c_size_t, c_void_p)),
    "bfc_handler_free": (c_int, (c_void_p, c_void_p, c_size_t, c_void_p)),
    "bfc_adapter_status": (c_int32, ()),
    "bfc_adapter_options": (c_int32, (c_int32, POINTER(bfc_options_t))),
}
"""The type of each function's result, and of its arguments."""
