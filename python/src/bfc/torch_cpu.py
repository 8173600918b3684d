"""PyTorch's CPU memory from libbfc: docs/pytorch-cpu.md. (:mod:`bfc.torch` is for CUDA.)

::

    import bfc.torch_cpu

    bfc.torch_cpu.use()

PyTorch is imported when a function is called. The first use compiles the small piece of C++ between the two, which needs a C++
compiler and takes some seconds. Only wheels by ``cargo xtask wheel`` have it prebuilt, for the releases of PyTorch that are
tested.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from . import _devices, _torch_shims

__all__ = ["unuse", "use"]

# PyTorch's own allocator has 0. Only an allocator of the same or a higher priority replaces another.
_PRIORITY = 100


class _State:
    library: ctypes.CDLL | None = None


def use(**options: Any) -> None:
    """Makes libbfc's allocator of the host (:data:`bfc.HOST`) the allocator of all CPU tensors created later. Call it
    while no other thread creates tensors. It may be called again.

    A failed allocation raises :class:`torch.OutOfMemoryError` with libbfc's report.

    :param options: Arguments of :func:`bfc.create`, which is then called. Without options an existing allocator is shared, or
        the first tensor creates it from the environment.
    :raises RuntimeError: Another library has set an allocator with a higher priority.
    :raises ModuleNotFoundError: PyTorch is not installed.
    :raises bfc._shim.ShimError: No shim is prebuilt for this release of PyTorch, and there is no C++ compiler, or it failed.
    :raises bfc.Error: See :func:`bfc.create`; ALREADY_EXISTS if options were given and the host has an allocator, whose limit
        :func:`bfc.set_memory_limit` changes.
    """
    library = _State.library or _opened()
    if options:
        _devices.create(_devices.HOST, **{"name": "PyTorch", **options})
    if not library.bfc_torch_cpu_use(ctypes.c_int(_PRIORITY)):
        if options:
            _devices.destroy(_devices.HOST)
        raise RuntimeError("another library has set PyTorch's CPU allocator with a higher priority than libbfc's")
    _State.library = library


def unuse() -> None:
    """Makes PyTorch's own allocator the allocator of all CPU tensors created later. Earlier tensors stay in libbfc's
    memory, and may be freed at any time.

    :raises RuntimeError: Another library has set an allocator with a higher priority.
    """
    library = _State.library
    if library is not None and not library.bfc_torch_cpu_unuse(ctypes.c_int(_PRIORITY)):
        raise RuntimeError("another library has set PyTorch's CPU allocator with a higher priority than libbfc's")


def _opened() -> ctypes.CDLL:
    import torch

    return ctypes.CDLL(os.fspath(_torch_shims.find("torch_cpu", torch)), mode=os.RTLD_NOW)
