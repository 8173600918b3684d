"""libbfc as PyTorch's allocator, or as the source of a MemPool."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import pathlib
from typing import TYPE_CHECKING, Any

from .. import _abi, _library, _options, _shim, _torch_shims, library_path

if TYPE_CHECKING:
    import torch

    from .._options import Backend

_SOURCE = "torch_alloc"

PREBUILT = _shim.SOURCES / f"{_SOURCE}.so"
"""The shim that was compiled with the wheel, without PyTorch."""

# The optional functions by their setters. None may be left out: without the one for record_stream, memory that a second
# stream uses is reused too early, and without the three for pools, so is a graph's memory while the graph lives.
_SETTERS = {
    "set_init_fn": "bfc_torch_init",
    "set_reset_fn": "bfc_torch_reset",
    "set_memory_fraction_fn": "bfc_torch_memory_fraction",
    "set_base_alloc_fn": "bfc_torch_base_alloc",
    "set_record_stream_fn": "bfc_torch_record_stream",
    "set_begin_allocate_to_pool": "bfc_torch_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "bfc_torch_end_allocate_to_pool",
    "set_release_pool": "bfc_torch_release_pool",
}


@dataclasses.dataclass(frozen=True)
class Used:
    """How PyTorch uses libbfc."""

    raises: type[Exception]
    """The exception for out of memory: ``torch.OutOfMemoryError``, a ``RuntimeError``. Without a prebuilt shim for this PyTorch and
    without a C++ compiler that can compile one: ``bfc.torch.OutOfMemoryError``, which is also a ``MemoryError``."""
    shim: pathlib.Path
    """The file with the function that raises it."""


_used: Used | None = None


def use(
    device: Any = None,
    *,
    backend: Backend | str | None = None,
    memory_limit: int | None = None,
    memory_fraction: float | None = None,
    allow_growth: bool = True,
    garbage_collection: bool = True,
    split_always: bool = True,
    fragmentation_fraction: float | None = None,
    initial_region_bytes: int | None = None,
    growth_policy: str | None = None,
    retry_timeout_ms: int | None = None,
    name: str | None = None,
    plan: str | os.PathLike[str] | None = None,
) -> Used:
    """Makes libbfc the allocator of all of PyTorch's device memory. Call it once, before CUDA is initialized: right after the
    imports.

    The allocator of a device is created at its first allocation, as :func:`bfc.create` would with these arguments. Without
    arguments it is created from the environment (docs/environment.md). One default differs: without ``backend`` memory is mapped
    on demand (``"cuda_vmm"``) where the device supports it and all devices can access each other's memory. An allocator that the
    program has created before is used as it is.

    A small piece of C++ stands between PyTorch and libbfc. The first call compiles it, which takes a few seconds and is kept in
    the user's cache; a warning of the logger ``bfc`` says so. Only wheels by ``cargo xtask wheel`` have it prebuilt, for the
    releases of PyTorch that are tested. Without a C++ compiler too, it takes a function that was compiled without PyTorch,
    which sends no events to PyTorch's profiler.

    :param device: Apply the arguments to this device only: an ordinal, a string or a ``torch.device``. Default: all devices.
    :raises RuntimeError: CUDA is already initialized, or PyTorch's allocator was changed before.

    .. code-block:: python

        bfc.torch.use(memory_fraction=0.5)
    """
    global _used
    import torch

    _refuse_if_late(torch)
    options = _options.options(
        backend=backend,
        memory_limit=memory_limit,
        memory_fraction=memory_fraction,
        allow_growth=allow_growth,
        garbage_collection=garbage_collection,
        split_always=split_always,
        fragmentation_fraction=fragmentation_fraction,
        initial_region_bytes=initial_region_bytes,
        growth_policy=growth_policy,
        retry_timeout_ms=retry_timeout_ms,
        name=name,
        plan=plan,
    )
    shim, raises = _shim_for(torch)
    # Without an argument the environment decides.
    if bytes(options) != bytes(_options.options(split_always=True)):
        if backend is None:
            options.backend = _abi.BFC_BACKEND_PREFER_CUDA_VMM
        _library.call("bfc_adapter_options", -1 if device is None else _ordinal(torch, device), ctypes.byref(options))
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        os.fspath(shim), "bfc_shim_torch_alloc", "bfc_shim_torch_free"
    )
    inner = allocator.allocator()
    for setter, function in _SETTERS.items():
        getattr(inner, setter)(_library.address(function))
    torch.cuda.memory.change_current_allocator(allocator)
    _used = Used(raises, shim)
    return _used


def _refuse_if_late(torch: Any) -> None:
    if _used is not None:
        raise RuntimeError("bfc.torch.use() was called already")
    if torch.version.cuda is None:
        raise RuntimeError(f"PyTorch {torch.__version__} is built without CUDA: bfc.torch.use() is for device memory")
    if torch.cuda.memory.get_allocator_backend() == "pluggable":
        raise RuntimeError("PyTorch has another pluggable allocator already: call bfc.torch.use() before any other is set")
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "CUDA is initialised already: call bfc.torch.use() before anything of CUDA, right after the imports"
        )


def _ordinal(torch: Any, device: Any) -> int:
    """Converts a device without calling CUDA, which would initialize it."""
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type != "cuda" or found.index is None:
        raise ValueError(f"device must be a CUDA device with an index, such as 'cuda:0', not {device!r}")
    return int(found.index)


def _shim_for(torch: Any) -> tuple[pathlib.Path, type[Exception]]:
    try:
        return _torch_shims.find(_SOURCE, torch), torch.cuda.OutOfMemoryError
    except _shim.ShimError:
        if not PREBUILT.exists():
            raise
    raised = out_of_memory_error()
    # Borrowed by the shim until the end of the process.
    for kind in (raised, RuntimeError):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kind))
    tell = ctypes.CDLL(os.fspath(PREBUILT)).bfc_shim_torch_raises
    tell.argtypes, tell.restype = [ctypes.py_object, ctypes.py_object], None
    tell(raised, RuntimeError)
    return PREBUILT, raised


@functools.cache
def out_of_memory_error() -> type[Exception]:
    """Returns ``bfc.torch.OutOfMemoryError``, which cannot be created before PyTorch is imported."""
    import torch

    class OutOfMemoryError(torch.cuda.OutOfMemoryError, MemoryError):  # type: ignore[misc, name-defined, unused-ignore]
        """Memory ran out, as reported by a function that was not compiled against PyTorch."""

    OutOfMemoryError.__module__, OutOfMemoryError.__qualname__ = "bfc.torch", "OutOfMemoryError"
    return OutOfMemoryError


_source: Any = None


def mem_pool(**arguments: Any) -> torch.cuda.MemPool:
    """Returns a ``torch.cuda.MemPool`` with segments from libbfc. PyTorch keeps its own allocator with its statistics,
    snapshots and errors. Only allocations in ``torch.cuda.use_mem_pool(pool)`` come from libbfc. Cannot be combined with
    :func:`use`.

    :param arguments: Arguments of ``torch.cuda.MemPool``, except for the allocator.

    .. code-block:: python

        pool = bfc.torch.mem_pool()
        with torch.cuda.use_mem_pool(pool):
            weights = torch.empty(1 << 20, device="cuda")
    """
    global _source
    import torch

    if torch.cuda.memory.get_allocator_backend() == "pluggable":
        raise RuntimeError(
            "bfc.torch.mem_pool() needs PyTorch's own allocator, and another one is set: call it in a program without "
            "bfc.torch.use()"
        )
    if _source is None:
        # A failure is NULL here: PyTorch checks it, tries again and raises its own error.
        _source = torch.cuda.memory.CUDAPluggableAllocator(
            os.fspath(library_path()), "bfc_torch_alloc", "bfc_torch_free"
        )
        # A pool does not keep it alive, and may be gone after this module when the interpreter ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_source))
    return torch.cuda.MemPool(_source.allocator(), **arguments)
