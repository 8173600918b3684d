"""Allocation. Addresses are numbers. Nothing here reads or writes the memory."""

from __future__ import annotations

import ctypes
from typing import NamedTuple, SupportsIndex

from . import _abi, _library, _numbers

_Stream = SupportsIndex


def _address(value: SupportsIndex) -> int:
    return _numbers.unsigned(value, "address")


def _stream(value: _Stream) -> int:
    return _numbers.unsigned(value, "stream")


def request(
    nbytes: SupportsIndex | str,
    alignment: SupportsIndex | str | None,
    stream: _Stream | None,
    short_lived: bool,
) -> _abi.bfc_request_t:
    """Returns ``bfc_request_t`` for the arguments of :func:`alloc`."""
    made = _abi.bfc_request_t(struct_size=ctypes.sizeof(_abi.bfc_request_t))
    made.bytes = _numbers.size(nbytes, "nbytes")
    made.alignment = _numbers.optional_size(alignment, "alignment")
    if stream is not None:
        made.stream = _stream(stream)
        made.flags = _abi.BFC_REQUEST_ON_STREAM
    if short_lived:
        made.flags |= _abi.BFC_REQUEST_SHORT_LIVED
    return made


def alloc(
    device: SupportsIndex,
    nbytes: SupportsIndex | str,
    *,
    alignment: SupportsIndex | str | None = None,
    stream: _Stream | None = None,
    short_lived: bool = False,
) -> int:
    """Allocates memory and returns its address, or 0 for 0 bytes.

    :param nbytes: A number of bytes, or text such as ``"64MiB"``. Rounded up to a multiple of 256.
    :param alignment: A power of two in bytes. Default: 256.
    :param stream: Allocate in stream order: a ``CUstream`` as a number (0 and 1: the legacy default stream, 2: the calling
        thread's own default stream). See ``bfc_alloc_async``. Without a stream, freed memory is reusable at once.
    :param short_lived: A hint that the memory will be freed soon. It is placed at the upper end of a free chunk.
    :raises OutOfMemoryError: Memory ran out. The message has the reason.
    :raises Error: NO_ALLOCATOR and others: see ``bfc_alloc``.

    >>> import bfc
    >>> bfc.create(bfc.HOST, memory_limit=1 << 20)
    >>> address = bfc.alloc(bfc.HOST, 1000)
    >>> address % 256, bfc.requested_size(bfc.HOST, address), bfc.allocated_size(bfc.HOST, address)
    (0, 1000, 1024)
    >>> bfc.alloc(bfc.HOST, 1 << 20)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    bfc.OutOfMemoryError: bfc: no memory for 1.00 MiB (1048576 bytes): ...
    >>> bfc.free(bfc.HOST, address)
    >>> bfc.destroy(bfc.HOST)
    """
    made = request(nbytes, alignment, stream, short_lived)
    address = ctypes.c_void_p()
    _library.call("bfc_alloc_ex", _numbers.device(device), ctypes.byref(made), ctypes.byref(address))
    return address.value or 0


def free(device: SupportsIndex, address: SupportsIndex, *, stream: _Stream | None = None) -> None:
    """Frees an allocation of :func:`alloc`. Address 0 does nothing.

    :param stream: The stream whose queued work may still use the memory: see ``bfc_free_async``.
    :raises Error: INVALID_POINTER, DOUBLE_FREE and others: see ``bfc_free``.
    """
    ordinal, number = _numbers.device(device), _address(address)
    if stream is None:
        _library.call("bfc_free", ordinal, number)
    else:
        _library.call("bfc_free_async", ordinal, number, _stream(stream))


def record_stream(device: SupportsIndex, address: SupportsIndex, stream: _Stream) -> None:
    """Declares that a live allocation is also used on a stream: ``bfc_record_stream``."""
    _library.call("bfc_record_stream", _numbers.device(device), _address(address), _stream(stream))


def forget_stream(device: SupportsIndex, stream: _Stream) -> None:
    """Declares that a stream is about to be destroyed: ``bfc_forget_stream``."""
    _library.call("bfc_forget_stream", _numbers.device(device), _stream(stream))


def synchronized(device: SupportsIndex, stream: _Stream = 0) -> None:
    """Declares that all work queued on a stream so far has completed: ``bfc_stream_synchronized``. It synchronizes nothing."""
    _library.call("bfc_stream_synchronized", _numbers.device(device), _stream(stream))


def requested_size(device: SupportsIndex, address: SupportsIndex) -> int:
    """Returns the requested size in bytes.

    :raises Error: INVALID_POINTER if the address is not the start of a live allocation.
    """
    return _size("bfc_requested_size", device, address)


def allocated_size(device: SupportsIndex, address: SupportsIndex) -> int:
    """Returns the usable size in bytes: that of the chunk.

    :raises Error: INVALID_POINTER if the address is not the start of a live allocation.
    """
    return _size("bfc_allocated_size", device, address)


def _size(name: str, device: SupportsIndex, address: SupportsIndex) -> int:
    size = ctypes.c_size_t()
    _library.call(name, _numbers.device(device), _address(address), ctypes.byref(size))
    return size.value


def allocation_id(device: SupportsIndex, address: SupportsIndex) -> int:
    """Returns the number of an allocation, which is unique in its allocator. Numbers rise from 1.

    :raises Error: INVALID_POINTER if the address is not the start of a live allocation.
    """
    number = ctypes.c_int64()
    _library.call("bfc_allocation_id", _numbers.device(device), _address(address), ctypes.byref(number))
    return number.value


class AddressRange(NamedTuple):
    """The live chunk and the region that contain an address."""

    chunk: int
    """The start of the chunk."""
    chunk_bytes: int
    region: int
    """The start of the region, as obtained from the backend."""
    region_bytes: int


def address_range(device: SupportsIndex, address: SupportsIndex) -> AddressRange:
    """Returns the live chunk and the region that contain an address, which may be an interior one.

    :raises Error: INVALID_POINTER if the address is in no live allocation.
    """
    chunk, region = ctypes.c_void_p(), ctypes.c_void_p()
    chunk_bytes, region_bytes = ctypes.c_size_t(), ctypes.c_size_t()
    outs = [ctypes.byref(out) for out in (chunk, chunk_bytes, region, region_bytes)]
    _library.call("bfc_address_range", _numbers.device(device), _address(address), *outs)
    return AddressRange(chunk.value or 0, chunk_bytes.value, region.value or 0, region_bytes.value)


def owner(address: SupportsIndex) -> int:
    """Returns the device whose allocator holds the memory that contains an address, in use or free.

    :raises Error: INVALID_POINTER if no allocator holds it.

    >>> import bfc
    >>> bfc.owner(0x1234)
    Traceback (most recent call last):
        ...
    bfc.Error: 0x1234 is in no region of any allocator
    """
    device = ctypes.c_int32()
    _library.call("bfc_owner", _address(address), ctypes.byref(device))
    return device.value
