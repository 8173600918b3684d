"""Numba's device memory from libbfc: ``NUMBA_CUDA_MEMORY_MANAGER=bfc.numba`` in the environment, or :func:`use`.

Requires numba-cuda, the package that has ``numba.cuda``. Pinned, mapped and managed memory still come from Numba. See
docs/numba.md.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

from . import _library
from ._devices import trim
from ._errors import Error, OutOfMemoryError
from ._reports import report, stats

__all__ = ["use"]


def use() -> None:
    """Makes libbfc the source of Numba's device memory. Call it before Numba uses a device: a context keeps its first
    manager."""
    _numba().set_memory_manager(_manager())


def __getattr__(name: str) -> Any:
    """Provides ``MemoryManager``, and ``_numba_memory_manager``, under which Numba looks for it: a subclass of Numba's class, so Numba is
    imported only on access."""
    if name in ("MemoryManager", "_numba_memory_manager"):
        return _manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _numba() -> Any:
    return importlib.import_module("numba.cuda")


def _driver() -> Any:
    return importlib.import_module("numba.cuda.cudadrv.driver")


@functools.cache
def _manager() -> Any:
    cuda, driver = _numba(), _driver()

    class MemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc, name-defined]
        """Numba's External Memory Management plugin, version 1: one for each context.

        Numba names no stream for allocations and frees, and its programs may rely on cudaFree waiting for the device. So freed
        memory is reused only after a synchronization of the context (``bfc_cupy_malloc``, ``bfc_cupy_free``). The allocator of
        a device is created at its first request, from the environment, unless the program has created one.
        """

        @property
        def interface_version(self) -> int:
            """The version of Numba's interface."""
            return 1

        def initialize(self) -> None:
            """Lets Numba defer its own frees (mapped host memory), up to as many bytes as without libbfc."""
            if not self.deallocations.memory_capacity:
                self.deallocations.memory_capacity = driver.driver.cuMemGetInfo()[1]

        def memalloc(self, size: int) -> Any:
            """Allocates device memory.

            :raises CudaAPIError: CUDA_ERROR_OUT_OF_MEMORY with libbfc's report; CUDA_ERROR_INVALID_VALUE for 0 bytes.
            :raises Error: Any other failure of libbfc.
            """
            device: int = self.context.device.id
            if size <= 0:
                raise _api_error("CUDA_ERROR_INVALID_VALUE", f"{size} bytes")
            # Tried twice if necessary: in between, Numba performs the frees that it deferred.
            address: int = self._attempt_allocation(lambda: _allocated(device, size))
            finalizer = _finalizer(self.allocations, address, device)
            memory = driver.AutoFreePointer(
                weakref.proxy(self.context), driver.binding.CUdeviceptr(address), size, finalizer=finalizer
            )
            self.allocations[address] = memory
            return memory.own()

        def get_memory_info(self) -> Any:
            """Returns free and total bytes of the device. Free memory of libbfc's pool counts as free, up to its limit."""
            free, total = driver.driver.cuMemGetInfo()
            try:
                found = stats(self.context.device.id)
            except Error:
                return cuda.MemoryInfo(free=free, total=total)
            idle = found.pool_bytes - found.bytes_in_use
            growth = min(free, max(found.bytes_limit - found.pool_bytes, 0))
            return cuda.MemoryInfo(free=idle + growth, total=total)

        def reset(self) -> None:
            """Frees all device memory of Numba in this context, and releases wholly free memory: Numba may be about to
            reset the context."""
            super().reset()
            try:
                trim(self.context.device.id)
            except Error:
                # There is no allocator, or the context has already ended, with everything in it.
                pass

    return MemoryManager


def _allocated(device: int, size: int) -> int:
    address: int | None = _library.lib.bfc_cupy_malloc(None, size, device)
    if address:
        return address
    error = _library.failure(_library.lib.bfc_adapter_status())
    if isinstance(error, OutOfMemoryError):
        raise _api_error("CUDA_ERROR_OUT_OF_MEMORY", f"{error}\n{report(device)}") from error
    raise error


def _api_error(name: str, words: str) -> Exception:
    driver = _driver()
    made: Exception = driver.CudaAPIError(getattr(driver.binding.CUresult, name), words)
    return made


def _finalizer(allocations: dict[int, Any], address: int, device: int) -> Callable[[], None]:
    free: Callable[..., None] = _library.lib.bfc_cupy_free

    # It must not refer to the memory's object.
    def finalize() -> None:
        allocations.pop(address, None)
        free(None, address, device)

    return finalize
