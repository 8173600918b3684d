"""TensorFlow's CPU memory from libbfc instead of its own BFC allocator: docs/tensorflow.md.

Before any module imports TensorFlow::

    import bfc.tensorflow

    bfc.tensorflow.use()
    import tensorflow as tf

This module does not import TensorFlow. The first use compiles a small piece of C++ against its headers, which needs a C++
compiler and takes some seconds.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import sys
from typing import Any, NamedTuple, SupportsIndex

from . import _devices, _find, _numbers, _shim

__all__ = ["Allocator", "allocators", "use"]

# The flags of the wheel. Only called functions of TensorFlow's headers may need TensorFlow, because it is loaded later.
_FLAGS = (
    "-std=c++17",
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "-DNDEBUG",
    "-ffunction-sections",
    "-fdata-sections",
    "-Wl,--gc-sections",
    "-Wl,--no-undefined",
)

# The headers on which the replaced functions depend.
_HEADERS = ("xla/tsl/framework/bfc_allocator.h", "xla/tsl/framework/allocator.h")

_VARIABLE = "TF_CPU_ALLOCATOR_USE_BFC"


class Allocator(NamedTuple):
    """One of TensorFlow's BFC allocators."""

    name: str
    """The name in TensorFlow."""
    device: int | None
    """The ordinal of the libbfc allocator that serves it, as for :func:`bfc.stats`. None if TensorFlow serves it itself."""
    own_allocations: int
    """Number of requests that TensorFlow served itself, by its own statistics."""
    own_bytes: int
    """Bytes that TensorFlow holds for it itself."""


class _State:
    library: ctypes.CDLL | None = None


def use(
    device: SupportsIndex = _devices.HOST,
    *,
    retry_timeout_ms: SupportsIndex = 10_000,
    name_operations: bool = False,
    **options: Any,
) -> None:
    """Makes libbfc the allocator of TensorFlow's CPU memory in this process. Call it before TensorFlow is imported. A second
    call does nothing.

    It sets ``TF_CPU_ALLOCATOR_USE_BFC=1`` in the environment, which child processes inherit. A child process that does not call
    this function uses TensorFlow's own BFC allocator.

    :param device: The ordinal, 256 or one of 258 to 1023. An existing allocator is shared.
    :param retry_timeout_ms: Milliseconds that a request for a tensor waits for other threads' frees before it fails. The default
        is that of TensorFlow's own allocator. 0: fail at once.
    :param name_operations: Show the memory of each TensorFlow operation in :func:`bfc.report`, at a small cost.
    :param options: Arguments of :func:`bfc.create`, which is then called at once. Without options the allocator is created at
        TensorFlow's first request, with the smaller of its limit (``TF_CPU_BFC_MEM_LIMIT_IN_MB``) and libbfc's
        (``BFC_MEMORY_LIMIT``, or the machine's memory).
    :raises RuntimeError: TensorFlow is already imported, or is not supported.
    :raises ModuleNotFoundError: TensorFlow is not installed.
    :raises bfc._shim.ShimError: There is no C++ compiler, or it failed.
    :raises bfc.Error: See :func:`bfc.create`.
    """
    if _State.library is not None:
        return
    ordinal = _numbers.device(device)
    milliseconds = min(_numbers.unsigned(retry_timeout_ms, "retry_timeout_ms"), (1 << 31) - 1)
    if "tensorflow" in sys.modules:
        raise RuntimeError("TensorFlow is imported already: call bfc.tensorflow.use() before tensorflow or keras is")
    shim = _built(_package())
    if options:
        _devices.create(ordinal, **{"name": "TensorFlow", **options})
    try:
        library = _opened(shim)
    except BaseException:
        if options:
            _devices.destroy(ordinal)
        raise
    library.bfc_tensorflow_use(ctypes.c_int32(ordinal), ctypes.c_int(milliseconds), ctypes.c_int(bool(name_operations)))
    os.environ[_VARIABLE] = "1"
    _State.library = library


def allocators() -> list[Allocator]:
    """Returns TensorFlow's BFC allocators that have served requests. Empty before the first request.

    :raises RuntimeError: :func:`use` was not called.
    """
    library = _State.library
    if library is None:
        raise RuntimeError("bfc.tensorflow.use() was not called")
    found: list[Allocator] = []
    name, device = ctypes.create_string_buffer(256), ctypes.c_int32()
    count, held = ctypes.c_int64(), ctypes.c_int64()
    outs = [ctypes.byref(out) for out in (device, count, held)]
    while library.bfc_tensorflow_allocator(ctypes.c_size_t(len(found)), name, ctypes.c_size_t(len(name)), *outs):
        served = device.value if device.value >= 0 else None
        found.append(Allocator(name.value.decode(), served, count.value, held.value))
    return found


def _package() -> pathlib.Path:
    """Returns the folder in which TensorFlow is installed."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("TensorFlow is not installed", name="tensorflow")
    return pathlib.Path(spec.submodule_search_locations[0])


def _built(package: pathlib.Path) -> pathlib.Path:
    include = package / "include"
    headers = [include / header for header in _HEADERS]
    missing = [header for header in headers if not header.exists()]
    if missing:
        raise RuntimeError(f"this TensorFlow is not one that libbfc can serve: it has no {missing[0]}")
    version = package.parent.glob("tensorflow*.dist-info")
    key = [header.read_text(encoding="utf-8") for header in headers] + sorted(folder.name for folder in version)
    return _shim.build("tensorflow", flags=_FLAGS, include_dirs=[include], key=key)


def _opened(shim: pathlib.Path) -> ctypes.CDLL:
    """Opens it for all libraries that are loaded later, so that TensorFlow's find its functions before their own."""
    library = ctypes.CDLL(os.fspath(shim), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    if not library.bfc_tensorflow_is_in_front():
        library.bfc_tensorflow_in_front.restype = ctypes.c_void_p
        function = _find.mapped_file(library.bfc_tensorflow_in_front())
        raise RuntimeError(f"TensorFlow's functions are {function}'s already, so libbfc cannot come before them")
    return library
