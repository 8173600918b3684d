"""The simulated driver, by the symbols of simcuda.h."""

import ctypes
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p

# Options, kinds and results, as simcuda.h and cuda.h number them.
RECYCLE_HANDLES, EVENTS_LIE = 6, 12
STREAMS, ALLOCATIONS, PHYSICAL = 1, 3, 4
OUT_OF_MEMORY, UNKNOWN = 2, 999

_library = ctypes.CDLL("libcuda.so.1")

# The driver's own.
reset_context = _library.cuDevicePrimaryCtxReset_v2


def _function(name, result, *arguments):
    found = getattr(_library, f"simcuda_{name}")
    found.restype, found.argtypes = result, arguments
    return found


set_option = _function("set", c_int, c_int, c_int64)
hold = _function("hold", c_int, c_void_p)
step = _function("step", c_uint64, c_void_p, c_uint64)
pending = _function("pending", c_uint64, c_void_p)
release_all = _function("release_all", None)
fill = _function("fill", c_int, c_void_p, c_uint64, c_uint64, c_uint64)
expect = _function("expect", c_int, c_void_p, c_uint64, c_uint64, c_uint64)
fail = _function("fail", c_int, c_char_p, c_uint64, c_int)
struck = _function("struck", c_uint64)
clear_faults = _function("clear_faults", None)
live = _function("live", c_uint64, c_int)
used = _function("used", c_uint64, c_int)
mismatches = _function("mismatches", c_uint64)
_calls = _function("calls", c_uint64, c_char_p)
_misuses = _function("misuses", c_uint64)
_misuse = _function("misuse", c_size_t, c_uint64, c_char_p, c_size_t)


def calls(name):
    """How often a function of the driver was called."""
    return _calls(name.encode())


def faults():
    """What was wrong, in words: misuses of the driver, and memory that did not hold what it had to."""
    buffer = ctypes.create_string_buffer(1000)
    words = []
    for index in range(_misuses() + mismatches()):
        _misuse(index, buffer, len(buffer))
        words.append(buffer.value.decode())
    return words
