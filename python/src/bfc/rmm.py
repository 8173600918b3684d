"""Memory from libbfc for RMM, and thus for cuDF, cuML and other libraries built on it.

>>> import bfc.rmm
>>> bfc.rmm.use()                               # doctest: +SKIP
>>> frame = cudf.DataFrame({"a": [1, 2, 3]})    # doctest: +SKIP

Each allocation and each free calls Python (RMM's ``CallbackMemoryResource``), which takes some microseconds. ``bfc/rmm.hpp`` for
C++ does not. See docs/rmm.md in libbfc's source.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _library, _numbers
from ._errors import Error, Status

if TYPE_CHECKING:
    from rmm.mr import CallbackMemoryResource  # type: ignore[import-not-found, import-untyped, unused-ignore]

__all__ = ["resource", "use"]


def resource(device: int | None = None) -> CallbackMemoryResource:
    """Returns a resource of RMM over the allocator of a device, which is created from the environment if there is none.

    Memory is stream-ordered: memory freed on a stream is reusable there at once, and on other streams when the work has
    completed. Call :func:`bfc.forget_stream` before a stream is destroyed. The alignment is 256, because RMM does not pass the
    requested alignment to callbacks.

    Every failed allocation is a ``MemoryError`` with the reason, in C++ ``rmm::out_of_memory``. A failed free is only reported in
    libbfc's log.

    :param device: The ordinal, as CUDA counts. Default: the current device at this call.
    :raises bfc.Error: There is no such device, and the errors of :func:`bfc.create`.
    :raises ImportError: RMM is not installed.
    """
    import rmm.mr  # type: ignore[import-not-found, import-untyped, unused-ignore]

    ordinal = _current_device() if device is None else _numbers.device(device)
    return rmm.mr.CallbackMemoryResource(*_functions(ordinal))


def use(device: int | None = None) -> CallbackMemoryResource:
    """Makes :func:`resource` RMM's resource of its device. Earlier allocations stay where they are."""
    import rmm.mr  # type: ignore[import-not-found, import-untyped, unused-ignore]

    ordinal = _current_device() if device is None else _numbers.device(device)
    made = resource(ordinal)
    rmm.mr.set_per_device_resource(ordinal, made)
    return made


def _functions(device: int) -> tuple[Callable[[int, Any], int], Callable[[int, int, Any], None]]:
    """The functions with which RMM allocates and frees. They hold everything they need, because some frees happen while Python exits."""
    _create(device)
    # The second is like bfc_free_async. It logs failures, because the caller cannot receive them.
    bfc_alloc, bfc_free = _library.lib.bfc_alloc_async, _library.lib.bfc_torch_free
    failure, pointer, byref = _library.failure, ctypes.c_void_p, ctypes.byref

    def allocate(nbytes: int, stream: Any) -> int:
        address = pointer()
        status = bfc_alloc(device, nbytes, stream.__cuda_stream__()[1], byref(address))
        if status:
            # Any other exception would be a std::runtime_error in C++, which no caller there treats as out of memory.
            raise MemoryError(str(failure(status)))
        return address.value or 0

    def deallocate(address: int, nbytes: int, stream: Any) -> None:
        bfc_free(address, nbytes, device, stream.__cuda_stream__()[1])

    return allocate, deallocate


def _create(device: int) -> None:
    try:
        _library.call("bfc_create", device, None)
    except Error as error:
        if error.status != Status.ALREADY_EXISTS:
            raise


def _current_device() -> int:
    from cuda.bindings import runtime  # type: ignore[import-not-found, import-untyped, unused-ignore]

    status, device = runtime.cudaGetDevice()
    if status != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"cudaGetDevice failed: {status.name}")
    return int(device)
