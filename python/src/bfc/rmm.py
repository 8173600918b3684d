"""RMM, and so cuDF, cuML and what else is built on it, with memory of libbfc.

>>> import bfc.rmm
>>> bfc.rmm.use()                               # doctest: +SKIP
>>> frame = cudf.DataFrame({"a": [1, 2, 3]})    # doctest: +SKIP

Each allocation and each free calls Python, as RMM's own page says of its ``CallbackMemoryResource``: some microseconds.
A program in C++ has ``bfc/rmm.hpp``, which does not. ``docs/rmm.md`` in libbfc's source has the rest.
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
    """A resource of RMM over the allocator of a device, which is made from the environment if there is none.

    Memory is in the order of a stream: what was freed on one is at once that stream's, and another's when the work is
    done. Before a stream of the program's ends, call :func:`bfc.forget_stream`. The alignment is 256: RMM does not tell
    callbacks what was asked for.

    Whatever fails is a ``MemoryError`` with the reason in words, in C++ ``rmm::out_of_memory``. A free that fails says so
    in libbfc's log only.

    :param device: The ordinal, as CUDA counts; else the current device. It stays that of the resource.
    :raises bfc.Error: there is no such device, and others: see :func:`bfc.create`.
    :raises ImportError: RMM is not installed.
    """
    import rmm.mr  # type: ignore[import-not-found, import-untyped, unused-ignore]

    ordinal = _current_device() if device is None else _numbers.device(device)
    return rmm.mr.CallbackMemoryResource(*_functions(ordinal))


def use(device: int | None = None) -> CallbackMemoryResource:
    """Makes :func:`resource` RMM's own for its device, from now on: what was allocated before stays where it is."""
    import rmm.mr  # type: ignore[import-not-found, import-untyped, unused-ignore]

    ordinal = _current_device() if device is None else _numbers.device(device)
    made = resource(ordinal)
    rmm.mr.set_per_device_resource(ordinal, made)
    return made


def _functions(device: int) -> tuple[Callable[[int, Any], int], Callable[[int, int, Any], None]]:
    """What RMM calls to allocate and to free. They hold all that they need: some frees come while Python ends."""
    _create(device)
    # The second as bfc_free_async; it logs what fails, for there is nobody to tell.
    bfc_alloc, bfc_free = _library.lib.bfc_alloc_async, _library.lib.bfc_torch_free
    failure, pointer, byref = _library.failure, ctypes.c_void_p, ctypes.byref

    def allocate(nbytes: int, stream: Any) -> int:
        address = pointer()
        status = bfc_alloc(device, nbytes, stream.__cuda_stream__()[1], byref(address))
        if status:
            # Any other exception would be a std::runtime_error in C++, which nobody there takes for a lack of memory.
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
