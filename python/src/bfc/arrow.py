"""Apache Arrow's buffers in libbfc's host memory: pyarrow's default memory pool.

::

    import bfc.arrow

    bfc.arrow.use()

pyarrow is imported when a function is called. The first use compiles a small piece of C++ against the installed pyarrow, which
needs a C++ compiler and takes some seconds. See docs/arrow.md.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from types import TracebackType
from typing import Any

from . import _devices, _shim

__all__ = ["Pool", "use"]


class _State:
    library: ctypes.CDLL | None = None


class Pool:
    """The result of :func:`use`. As a context manager it restores the previous memory pool at its end."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._before: int | None = library.bfc_arrow_use()

    def restore(self) -> None:
        """Makes the pool that was pyarrow's default before :func:`use` the default again. Buffers stay where they are, and each is
        freed by the pool that it came from. A second call does nothing."""
        before, self._before = self._before, None
        if before is not None:
            self._library.bfc_arrow_restore(ctypes.c_void_p(before))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.restore()


def use(**options: Any) -> Pool:
    """Makes libbfc the default memory pool of pyarrow, in all threads, for later calls without a ``memory_pool``.
    ``pyarrow.default_memory_pool()`` returns it, with its statistics.

    Without ``options`` the allocator of :data:`bfc.HOST` is created by the first buffer, from the environment, unless the
    program has created one.

    :param options: Arguments of :func:`bfc.create`, such as ``memory_limit``.
    :returns: A context manager that restores the previous pool. It may be ignored.
    :raises ModuleNotFoundError: pyarrow is not installed.
    :raises bfc._shim.ShimError: There is no C++ compiler, or it failed.
    :raises Error: See :func:`bfc.create`; ALREADY_EXISTS if options were given and the host has an allocator.
    """
    library = _State.library or _opened()
    if options:
        _devices.create(_devices.HOST, **{"name": "Arrow", **options})
    _State.library = library
    return Pool(library)


def _opened() -> ctypes.CDLL:
    import pyarrow

    folder = pathlib.Path(pyarrow.__file__).parent
    # libarrow.so.2600: by the names that pyarrow has loaded. A wheel has copies under longer names.
    libraries = [min(folder.glob(f"{name}.so.*[0-9]")) for name in ("libarrow", "libarrow_python")]
    path = _shim.build(
        "arrow",
        flags=["-std=c++20"],
        include_dirs=[pyarrow.get_include()],
        libraries=libraries,
        key=[pyarrow.__version__],
        announced=f"pyarrow {pyarrow.__version__}",
    )
    library = ctypes.CDLL(os.fspath(path), mode=os.RTLD_NOW)
    library.bfc_arrow_use.restype = ctypes.c_void_p
    return library
