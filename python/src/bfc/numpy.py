"""NumPy's arrays in libbfc's host memory, through the interface of NEP 49 (``PyDataMem_SetHandler``).

::

    import bfc.numpy

    bfc.numpy.use()

See docs/numpy.md.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from types import TracebackType
from typing import Any

from . import _library
from ._devices import HOST, create

__all__ = ["Handler", "use"]

_CAPSULE = b"mem_handler"

# The indexes of these functions in NumPy's table of C functions, since NumPy 1.22 (numpy/_core/code_generators/numpy_api.py).
_SET_HANDLER = 304
_GET_HANDLER = 305


class _Handler(ctypes.Structure):
    """``PyDataMem_Handler`` of numpy/ndarraytypes.h, version 1."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("ctx", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


class Handler:
    """The result of :func:`use`. As a context manager it restores the previous handler at its end."""

    def __init__(self, token: object) -> None:
        self._before = token

    def restore(self) -> None:
        """Restores the handler that was current before :func:`use`, in the calling thread's context. Arrays keep the handler
        that they were allocated with. A second call does nothing."""
        before, self._before = self._before, None
        if before is not None:
            _function(_SET_HANDLER)(before)

    def __enter__(self) -> Handler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restore()


def use(**options: Any) -> Handler:
    """Makes libbfc the allocator of new arrays, in the calling thread (NumPy keeps the handler in a context variable: a new
    thread begins with NumPy's own). Existing arrays stay where they are, and every array is freed by the allocator that it
    came from.

    Without ``options`` the allocator of :data:`bfc.HOST` is created by the first array, from the environment, unless the
    program has created one.

    :param options: Arguments of :func:`bfc.create`, such as ``memory_limit``.
    :returns: A context manager that restores the previous handler. It may be ignored.
    :raises ImportError: NumPy is not installed, or older than 1.22.
    :raises Error: See :func:`bfc.create`.
    """
    _table()
    if options:
        create(HOST, **{"split_always": True, **options})
    return Handler(_function(_SET_HANDLER)(_capsule()))


def _multiarray() -> Any:
    try:
        return importlib.import_module("numpy._core._multiarray_umath")
    except ModuleNotFoundError:
        # Before NumPy 2.
        return importlib.import_module("numpy.core._multiarray_umath")


@functools.cache
def _table() -> Any:
    """Returns NumPy's table of C functions."""
    numpy = importlib.import_module("numpy")
    version = tuple(int(part) for part in numpy.__version__.split(".")[:2])
    if version < (1, 22):
        raise ImportError(f"bfc.numpy needs NumPy 1.22, and this is {numpy.__version__}")
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    address = pointer(("PyCapsule_GetPointer", ctypes.pythonapi))(_multiarray()._ARRAY_API, None)
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))


@functools.cache
def _function(number: int) -> Any:
    arguments = [ctypes.py_object] if number == _SET_HANDLER else []
    return ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(_table()[number])


@functools.cache
def _capsule() -> Any:
    """Returns the handler in NumPy's form. Both live as long as the process, because arrays refer to them."""
    functions = [
        ctypes.cast(getattr(_library.lib, f"bfc_numpy_{name}"), ctypes.c_void_p).value for name in ("malloc", "calloc", "realloc", "free")
    ]
    handler = _Handler(b"bfc", 1, None, *functions)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    capsule = new(("PyCapsule_New", ctypes.pythonapi))(ctypes.addressof(handler), _CAPSULE, None)
    # The last array may be freed when the interpreter has already cleared this module.
    for kept in (handler, capsule):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    return capsule
