"""libbfc.so and the prototypes of all its functions, as ``bfc.h`` and ``bfc_adapters.h`` have them.

``lib`` is the :class:`ctypes.CDLL`; each call lets other threads of Python run meanwhile.
"""

from __future__ import annotations

import ctypes
import threading
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Callable

from . import _find
from ._errors import Error, OutOfMemoryError, Status

REQUEST_ON_STREAM = 1 << 0
REQUEST_NO_GROWTH = 1 << 1
REQUEST_SIZE_512 = 1 << 3

RegionAlloc = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t, POINTER(c_size_t))
"""``bfc_region_alloc_t``"""
RegionFree = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)
"""``bfc_region_free_t``"""
RegionCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_void_p, c_size_t, c_int32)
"""``bfc_region_callback_t``"""
LogCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
"""``bfc_log_callback_t``"""


class Suballocator(ctypes.Structure):
    """``bfc_suballocator_t``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("user_data", c_void_p),
        ("alloc", RegionAlloc),
        ("free", RegionFree),
        ("supports_coalescing", c_uint32),
        ("reserved", c_uint32),
    ]


class Options(ctypes.Structure):
    """``bfc_options_t``"""

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
        ("suballocator", POINTER(Suballocator)),
    ]


class Request(ctypes.Structure):
    """``bfc_request_t``"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("bytes", c_size_t),
        ("alignment", c_size_t),
        ("stream", c_void_p),
        ("freed_before", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


STATISTICS = (
    "num_allocs",
    "num_frees",
    "num_failures",
    "bytes_in_use",
    "peak_bytes_in_use",
    "bytes_requested",
    "peak_bytes_requested",
    "largest_alloc_size",
    "bytes_limit",
    "pool_bytes",
    "peak_pool_bytes",
    "largest_free_block_bytes",
    "num_regions",
    "num_chunks",
    "num_free_chunks",
    "metadata_bytes",
)


class Statistics(ctypes.Structure):
    """``bfc_stats_t``"""

    _fields_ = [("struct_size", c_size_t)] + [(name, c_uint64) for name in STATISTICS]


_OUT = POINTER(c_void_p)
_SIZE = POINTER(c_size_t)
_TEXT = (c_int32, c_void_p, c_size_t, _SIZE)

# What returns bfc_status_t, with its arguments.
_CALLS: dict[str, tuple[Any, ...]] = {
    "bfc_create": (c_int32, POINTER(Options)),
    "bfc_destroy": (c_int32,),
    "bfc_destroy_forced": (c_int32,),
    "bfc_set_region_callback": (c_int32, RegionCallback, c_void_p),
    "bfc_device_lost": (c_int32,),
    "bfc_alloc": (c_int32, c_size_t, _OUT),
    "bfc_alloc_aligned": (c_int32, c_size_t, c_size_t, _OUT),
    "bfc_alloc_ex": (c_int32, POINTER(Request), _OUT),
    "bfc_alloc_freed_before": (c_int32, c_size_t, c_uint64, _OUT),
    "bfc_free": (c_int32, c_void_p),
    "bfc_alloc_async": (c_int32, c_size_t, c_void_p, _OUT),
    "bfc_free_async": (c_int32, c_void_p, c_void_p),
    "bfc_record_stream": (c_int32, c_void_p, c_void_p),
    "bfc_forget_stream": (c_int32, c_void_p),
    "bfc_stream_synchronized": (c_int32, c_void_p),
    "bfc_timestamp": (c_int32, POINTER(c_uint64)),
    "bfc_set_safe_frontier": (c_int32, c_uint64),
    "bfc_pool_begin": (c_int32, c_uint64, c_void_p),
    "bfc_pool_end": (c_int32, c_uint64, c_void_p),
    "bfc_pool_release": (c_int32, c_uint64),
    "bfc_capture_begin": (),
    "bfc_capture_end": (),
    "bfc_requested_size": (c_int32, c_void_p, _SIZE),
    "bfc_allocated_size": (c_int32, c_void_p, _SIZE),
    "bfc_allocation_id": (c_int32, c_void_p, POINTER(c_int64)),
    "bfc_address_range": (c_int32, c_void_p, _OUT, _SIZE, _OUT, _SIZE),
    "bfc_owner": (c_void_p, POINTER(c_int32)),
    "bfc_trim": (c_int32, c_uint64, POINTER(c_uint64)),
    "bfc_set_memory_limit": (c_int32, c_uint64),
    "bfc_stats": (c_int32, POINTER(Statistics)),
    "bfc_reset_stats": (c_int32,),
    "bfc_check": (c_int32,),
    "bfc_occupancy": _TEXT,
    "bfc_memory_map": _TEXT,
    "bfc_report": _TEXT,
    "bfc_scope_begin": (c_char_p, c_uint64),
    "bfc_scope_end": (),
    "bfc_set_log_callback": (LogCallback, c_void_p),
    "bfc_adapter_options": (c_int32, POINTER(Options)),
}

# The others, with what they return.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "bfc_status_string": (c_char_p, (c_int32,)),
    "bfc_last_error": (c_size_t, (c_void_p, c_size_t)),
    "bfc_version": (c_char_p, ()),
    "bfc_adapter_status": (c_int32, ()),
    "bfc_torch_alloc": (c_void_p, (c_size_t, c_int, c_void_p)),
    "bfc_torch_free": (None, (c_void_p, c_size_t, c_int, c_void_p)),
    "bfc_torch_init": (None, (c_int,)),
    "bfc_torch_reset": (None, ()),
    "bfc_torch_memory_fraction": (None, (c_double, c_int)),
    "bfc_torch_base_alloc": (c_void_p, (c_void_p, _SIZE)),
    "bfc_torch_record_stream": (None, (c_void_p, c_void_p)),
    "bfc_torch_begin_allocate_to_pool": (None, (c_int, c_uint64, c_uint64, c_void_p)),
    "bfc_torch_end_allocate_to_pool": (None, (c_int, c_uint64, c_uint64)),
    "bfc_torch_release_pool": (None, (c_int, c_uint64, c_uint64)),
    "bfc_cupy_malloc": (c_void_p, (c_void_p, c_size_t, c_int)),
    "bfc_cupy_free": (None, (c_void_p, c_void_p, c_int)),
    "bfc_ort_alloc": (c_void_p, (c_size_t,)),
    "bfc_ort_alloc_on_stream": (c_void_p, (c_int, c_size_t, c_void_p)),
    "bfc_ort_free": (None, (c_void_p,)),
    "bfc_ort_empty_cache": (None, ()),
    "bfc_handler_alloc": (c_int, (c_void_p, _OUT, c_size_t, c_void_p)),
    "bfc_handler_free": (c_int, (c_void_p, c_void_p, c_size_t, c_void_p)),
}

NAMES = frozenset(_CALLS) | frozenset(_FUNCTIONS)
"""All functions; a test compares with what the library exports."""


def _prepared(library: ctypes.CDLL) -> ctypes.CDLL:
    prototypes = {name: (c_int32, arguments) for name, arguments in _CALLS.items()} | _FUNCTIONS
    for name, (result, arguments) in prototypes.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{library._name} is not libbfc, or one older than this package: it has no {name}") from None
        function.restype = result
        function.argtypes = arguments
    return library


lib: ctypes.CDLL = _prepared(_find.open_library())
"""The library."""


def address(name: str) -> int:
    """The address of a function, for whoever takes one as a number.

    >>> address("bfc_torch_alloc") != 0
    True
    """
    return ctypes.cast(getattr(lib, name), c_void_p).value or 0


class _Words(threading.local):
    """Room for them, made before anything fails: an object that is made afterwards may have garbage collected, whose
    finalizers call libbfc, and fail with words of their own."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(4096)


_words = _Words()


def last_error() -> str:
    """This thread's last failure in words; empty if nothing failed yet."""
    buffer = _words.buffer
    lib.bfc_last_error(buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def failure(status: int) -> Error:
    """The exception for a call of this thread that has just failed."""
    words = last_error() or lib.bfc_status_string(status).decode()
    return OutOfMemoryError(words, status) if status == Status.OUT_OF_MEMORY else Error(words, status)


def call(name: str, *arguments: object) -> None:
    """Calls a function that returns ``bfc_status_t``; a failure is an exception."""
    function: Callable[..., int] = getattr(lib, name)
    _ = _words.buffer
    status = function(*arguments)
    if status:
        raise failure(status)


def text(name: str, device: int) -> str:
    """The text of ``bfc_report`` and its kin, whose length may change between two calls."""
    length, capacity = c_size_t(), 16 << 10
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        call(name, device, buffer, capacity, ctypes.byref(length))
        if length.value < capacity:
            return buffer.raw[: length.value].decode("utf-8", "replace")
        capacity = length.value + 4096
