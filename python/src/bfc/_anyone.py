"""Requests that name no stream: the functions of ``bfc_adapters.h`` that say only that they failed."""

from __future__ import annotations

import ctypes

from . import _library
from ._errors import Error, OutOfMemoryError, Status


def failure(device: int) -> Error:
    """The exception for a request of this thread that has just got NULL."""
    words = _library.last_error()
    found = _library.Statistics(struct_size=ctypes.sizeof(_library.Statistics))
    status: int = _library.lib.bfc_stats(device, ctypes.byref(found))
    if status:
        # There is no allocator, for it could not be created, or it serves nobody any more.
        return Error(words, status)
    if _library.lib.bfc_timestamp(device, ctypes.byref(ctypes.c_uint64())) == Status.OK:
        return Error(words, Status.UNSUPPORTED)
    # So the words begin of a call of the driver's that failed for another reason.
    if " failed with CUDA_ERROR_" in words:
        return Error(words, Status.BACKEND_FAILED)
    return OutOfMemoryError(words, Status.OUT_OF_MEMORY)
