"""Failures of the library as exceptions."""

from __future__ import annotations

import enum

__all__ = ["Error", "OutOfMemoryError", "Status"]


class Status(enum.IntEnum):
    """What a function of ``bfc.h`` returns: ``bfc_status_t``, without the prefix ``BFC_ERROR_``."""

    OK = 0
    INVALID_ARGUMENT = 1
    NO_ALLOCATOR = 2
    ALREADY_EXISTS = 3
    OUT_OF_MEMORY = 4
    INVALID_POINTER = 5
    DOUBLE_FREE = 6
    BUSY = 7
    BACKEND_UNAVAILABLE = 8
    BACKEND_FAILED = 9
    UNSUPPORTED = 10
    SHUTTING_DOWN = 11
    INTERNAL = 12


class Error(Exception):
    """A call into libbfc that failed. Its text is ``bfc_last_error``'s.

    >>> import bfc
    >>> bfc.stats(300)
    Traceback (most recent call last):
        ...
    bfc.Error: no allocator was created for device 300: call bfc_create first
    """

    status: int
    """The number of the failure, one of :class:`Status`."""

    def __init__(self, words: str, status: int) -> None:
        super().__init__(words, status)
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
    """Memory of the device, or of the host, ran out. The text tells exhaustion from fragmentation."""


# As users write them.
for _class in (Error, OutOfMemoryError, Status):
    _class.__module__ = "bfc"
