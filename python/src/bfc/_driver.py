"""Ordering of two streams with CUDA's driver."""

from __future__ import annotations

import ctypes
from ctypes import c_uint, c_void_p

_DISABLE_TIMING = 2


def wait(stream: int, other: int) -> None:
    """Makes later work of a stream wait for the work that is queued on another stream.

    :raises BufferError: the driver's status.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BufferError(f"cannot order streams: {error}") from None
    event = c_void_p()
    _call(driver, "cuEventCreate", ctypes.byref(event), c_uint(_DISABLE_TIMING))
    try:
        _call(driver, "cuEventRecord", event, c_void_p(other))
        _call(driver, "cuStreamWaitEvent", c_void_p(stream), event, c_uint(0))
    finally:
        # The driver frees it when the work has completed.
        _call(driver, "cuEventDestroy_v2", event)


def _call(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    status: int = getattr(driver, name)(*arguments)
    if status:
        raise BufferError(f"cannot order streams: {name} returned {status}")
