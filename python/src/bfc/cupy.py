"""CuPy's device memory from libbfc.

::

    import bfc.cupy

    bfc.cupy.use()

CuPy's arrays, and the work areas of its libraries, are then allocations of libbfc. Pinned host memory still comes from CuPy.
See docs/cupy.md.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any, SupportsIndex

from . import _abi, _library
from ._devices import create
from ._errors import Error, OutOfMemoryError, Status
from ._memory import alloc
from ._reports import report, stats

__all__ = ["allocator", "use"]

ALIGNMENT = 512
"""The alignment of every address, in bytes: that of CuPy's own pool."""


def use(device: SupportsIndex | None = None, *, streams: bool = True, **options: Any) -> None:
    """Makes libbfc the allocator of CuPy, in all threads and on all devices. Call it before the first array is created:
    earlier arrays stay in CuPy's own pool.

    Without ``device`` and ``options``, a device's allocator is created at its first request from the environment, unless the
    program has created one.

    :param device: Create the allocator of this device now. Default: CuPy's current device, if there are options.
    :param streams: See :func:`allocator`.
    :param options: Arguments of :func:`bfc.create`, such as ``memory_limit``.
    :raises Error: See :func:`bfc.create`.
    """
    cuda = _cuda()
    if device is not None or options:
        create(cuda.Device().id if device is None else device, **{"split_always": True, **options})
    cuda.set_allocator(allocator(streams=streams))


def allocator(*, streams: bool = True) -> Callable[[int], Any]:
    """Returns an allocator for ``cupy.cuda.set_allocator`` and ``cupy.cuda.using_allocator``.

    If memory runs out it collects garbage and tries again, like CuPy's own pool. Then it raises
    ``cupy.cuda.memory.OutOfMemoryError``, a ``MemoryError``, with libbfc's report in its message. Other failures are
    :class:`bfc.Error`.

    :param streams: Allocate in stream order: memory belongs to CuPy's current stream at the allocation and is freed on it, like
        in CuPy's own pool. That stream reuses it at once. If false, memory belongs to no stream, and freed memory is reused
        only after a synchronization of the context (``bfc_cupy_malloc``), which takes more memory.
    """
    return _in_order() if streams else _for_anyone()


def _cuda() -> Any:
    return importlib.import_module("cupy.cuda")


def _kept_for_good(function: Callable[..., None]) -> Callable[..., None]:
    """The function, which the interpreter never frees.

    If an array and the allocator become garbage at the same time, the garbage collector clears the function's own objects
    before the array calls it, which would raise or end the process. It does not clear objects with a reference that it cannot
    find."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(function))
    return function


@functools.cache
def _in_order() -> Callable[[int], Any]:
    current: Callable[[], Any] = _cuda().get_current_stream
    free: Callable[[int, int], int] = _library.lib.bfc_free

    def give(nbytes: int, device: int) -> int:
        stream = current()
        pointer: int = stream.ptr
        # 0 to 2 are default streams, which never end, even if their objects do.
        if pointer > 2 and (device, id(stream)) not in _streams:
            _streams.add(device, stream)
        return _try_alloc(device, nbytes, pointer) or _alloc_after_recovery(device, nbytes, pointer)

    # Uses nothing from the module, which may be gone when the last array is freed.
    def take_back(address: int, device: int, failure: Callable[[int], Error] = _library.failure) -> None:
        # For memory that was allocated on a stream, this is a free on that stream.
        status = free(device, address)
        if status:
            raise failure(status)

    source: Callable[[int], Any] = _cuda().PythonFunctionAllocator(give, _kept_for_good(take_back)).malloc
    return source


def _try_alloc(
    device: int,
    nbytes: int,
    stream: int,
    # Looked up once, because each array is allocated here, and bfc.alloc takes twice as long.
    allocate: Callable[..., int] = _library.lib.bfc_alloc_ex,
    request: Callable[..., object] = _abi.bfc_request_t,
    size: int = ctypes.sizeof(_abi.bfc_request_t),
) -> int:
    """Allocates memory. Returns 0 if memory ran out, or without an allocator."""
    address = ctypes.c_void_p()
    wanted = request(size, nbytes, ALIGNMENT, stream, 0, _abi.BFC_REQUEST_ON_STREAM, 0)
    status = allocate(device, wanted, address)
    if status == Status.OK or status == Status.OUT_OF_MEMORY or status == Status.NO_ALLOCATOR:
        return address.value or 0
    raise _library.failure(status)


def _alloc_after_recovery(device: int, nbytes: int, stream: int) -> int:
    """Allocates again after steps that may help. Raises if that fails."""
    try:
        # Like bfc_create with NULL for the options: from the environment.
        _library.call("bfc_create", device, None)
    except Error as error:
        if error.status != Status.ALREADY_EXISTS:
            raise
        gc.collect()
    try:
        return alloc(device, nbytes, alignment=ALIGNMENT, stream=stream)
    except OutOfMemoryError as error:
        raise _to_cupy_error(error, nbytes, device) from error


@functools.cache
def _for_anyone() -> Callable[[int], Any]:
    # CuPy's CFunctionAllocator would call the same functions without releasing the interpreter's lock, and what libbfc waits for
    # there (a device, another thread's free) may need it.
    allocate: Callable[[None, int, int], int | None] = _library.lib.bfc_cupy_malloc
    free: Callable[[None, int, int], None] = _library.lib.bfc_cupy_free

    def give(nbytes: int, device: int) -> int:
        address = allocate(None, nbytes, device)
        if address or not nbytes:
            return address or 0
        gc.collect()
        address = allocate(None, nbytes, device)
        if address:
            return address
        error = _library.failure(_library.lib.bfc_adapter_status())
        if isinstance(error, OutOfMemoryError):
            raise _to_cupy_error(error, nbytes, device) from error
        raise error

    def take_back(address: int, device: int) -> None:
        free(None, address, device)

    source: Callable[[int], Any] = _cuda().PythonFunctionAllocator(give, _kept_for_good(take_back)).malloc
    return source


def _to_cupy_error(error: OutOfMemoryError, nbytes: int, device: int) -> MemoryError:
    found = stats(device)
    made: MemoryError = _cuda().memory.OutOfMemoryError(nbytes, found.bytes_in_use, found.bytes_limit)
    made.args = (f"{made}\n{error}\n{report(device)}",)
    return made


class _Streams:
    """CuPy's own streams that libbfc was notified of.

    CuPy destroys such a stream with its last reference, and libbfc must be notified before (``bfc_forget_stream``). So a
    reference to each is kept here; streams without other references are released whenever a new one is added."""

    def __init__(self) -> None:
        # By the device and the identity of the object.
        self._kept: dict[tuple[int, int], Any] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._kept

    def add(self, device: int, stream: Any) -> None:
        """Keeps a stream that ends with its object, and releases unused ones."""
        if not _ends_with_object(stream):
            return
        self._kept[device, id(stream)] = stream
        # If it is locked, another call is in progress, perhaps of this thread through a finalizer.
        if self._lock.acquire(blocking=False):
            try:
                self._give_up()
            finally:
                self._lock.release()

    def _give_up(self) -> None:
        for key in list(self._kept):
            if _references(self._kept, key) == _references_of_one():
                # Nothing else can reach it, so nothing is allocated on it meanwhile.
                stream = self._kept.pop(key)
                # If this fails, the stream's memory waits for a synchronization, or there is no allocator.
                _library.lib.bfc_forget_stream(key[0], stream.ptr)
                del stream


def _ends_with_object(stream: Any) -> bool:
    """Returns whether CuPy destroys the stream with the object.

    Foreign streams are not destroyed, and ``with cupy.cuda.ExternalStream(pointer)`` makes a new object each time. That of
    ``cupy.cuda.Stream.from_external`` is a ``cupy.cuda.Stream`` too, which no public attribute distinguishes."""
    return isinstance(stream, _cuda().Stream) and getattr(stream, "_foreign_stream_ref", None) is None


def _references(objects: dict[Any, Any], key: Any) -> int:
    return sys.getrefcount(objects[key])


@functools.cache
def _references_of_one() -> int:
    """Returns the number of references of an object that is only in a dictionary, which differs between versions of Python."""
    return _references({0: object()}, 0)


_streams = _Streams()
