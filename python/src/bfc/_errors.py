"""Failures of the library as exceptions."""

from __future__ import annotations

import enum

from . import _abi

__all__ = ["Error", "OutOfMemoryError", "Status"]


class Status(enum.IntEnum):
    """The status that a function of ``bfc.h`` returns: ``bfc_status_t``, without the prefix ``BFC_ERROR_``."""

    OK = _abi.BFC_OK
    INVALID_ARGUMENT = _abi.BFC_ERROR_INVALID_ARGUMENT
    NO_ALLOCATOR = _abi.BFC_ERROR_NO_ALLOCATOR
    ALREADY_EXISTS = _abi.BFC_ERROR_ALREADY_EXISTS
    OUT_OF_MEMORY = _abi.BFC_ERROR_OUT_OF_MEMORY
    INVALID_POINTER = _abi.BFC_ERROR_INVALID_POINTER
    DOUBLE_FREE = _abi.BFC_ERROR_DOUBLE_FREE
    BUSY = _abi.BFC_ERROR_BUSY
    BACKEND_UNAVAILABLE = _abi.BFC_ERROR_BACKEND_UNAVAILABLE
    BACKEND_FAILED = _abi.BFC_ERROR_BACKEND_FAILED
    UNSUPPORTED = _abi.BFC_ERROR_UNSUPPORTED
    SHUTTING_DOWN = _abi.BFC_ERROR_SHUTTING_DOWN
    INTERNAL = _abi.BFC_ERROR_INTERNAL


class Error(Exception):
    """A failed call of libbfc. The message is that of ``bfc_last_error``, with Python's names.

    >>> import bfc
    >>> bfc.stats(300)
    Traceback (most recent call last):
        ...
    bfc.Error: no allocator was created for device 300: create one first
    """

    status: int
    """The reason: a member of :class:`Status`, which equals its number in ``bfc.h``."""

    def __init__(self, words: str, status: int) -> None:
        super().__init__(words, status)
        try:
            self.status = Status(status)
        except ValueError:
            # A newer library may have more.
            self.status = status

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def name(self) -> str:
        """The name of the status in ``bfc.h``, such as ``BFC_ERROR_BUSY``."""
        try:
            return f"BFC_ERROR_{Status(self.status).name}"
        except ValueError:
            return f"bfc_status_t {self.status}"


class OutOfMemoryError(Error, MemoryError):
    """Memory of the device or of the host ran out. The message distinguishes exhaustion from fragmentation."""


# The names that users write.
for _class in (Error, OutOfMemoryError, Status):
    _class.__module__ = "bfc"
