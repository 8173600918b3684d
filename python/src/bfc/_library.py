"""libbfc.so, with the prototypes of all its functions.

``lib`` is the :class:`ctypes.CDLL`; each call lets other threads of Python run meanwhile. The prototypes use ctypes and not
a compiled module, so that one wheel serves every version of Python, and works with an installed copy of libbfc.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from ctypes import c_size_t, c_void_p
from typing import Callable

if getattr(sys.modules[__package__], "_DISTRIBUTION", None) != "libbfc":
    raise ImportError(
        "bfc/__init__.py is not libbfc's: the distribution bfc, another project, was installed or removed after libbfc; "
        "run `pip uninstall bfc`, then install libbfc again with --force-reinstall"
    )

from . import _abi, _find
from ._errors import Error, OutOfMemoryError, Status
from ._messages import in_python

NAMES = frozenset(_abi.FUNCTIONS)
"""All functions. A test compares them with the library's exports."""


def _prepared(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{library._name} is not libbfc, or is older than this package: it has no {name}") from None
        function.restype = result
        function.argtypes = arguments
    return library


lib: ctypes.CDLL = _prepared(_find.open_library())
"""The library."""


def address(name: str) -> int:
    """Returns the address of a function, for callers that need it as a number.

    >>> address("bfc_torch_alloc") != 0
    True
    """
    return ctypes.cast(getattr(lib, name), c_void_p).value or 0


class _Words(threading.local):
    """Buffers for the message, created before anything fails: creating an object afterwards may run the garbage collector,
    whose finalizers call libbfc and may fail with messages of their own."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(4096)


_words = _Words()


def last_error() -> str:
    """Returns the message of this thread's last failure, or an empty text if nothing has failed yet."""
    buffer = _words.buffer
    lib.bfc_last_error(buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def failure(status: int) -> Error:
    """Returns the exception for a call of this thread that has just failed."""
    words = in_python(last_error() or lib.bfc_status_string(status).decode())
    return OutOfMemoryError(words, status) if status == Status.OUT_OF_MEMORY else Error(words, status)


def call(name: str, *arguments: object) -> None:
    """Calls a function that returns ``bfc_status_t``. Raises on failure."""
    function: Callable[..., int] = getattr(lib, name)
    _ = _words.buffer
    status = function(*arguments)
    if status:
        raise failure(status)


def text(name: str, *arguments: int) -> str:
    """Returns the text of ``bfc_report`` and similar functions, whose length may change between two calls."""
    length, capacity = c_size_t(), 16 << 10
    while True:
        buffer = ctypes.create_string_buffer(capacity)
        call(name, *arguments, buffer, capacity, ctypes.byref(length))
        if length.value < capacity:
            return buffer.raw[: length.value].decode("utf-8", "replace")
        capacity = length.value + 4096
