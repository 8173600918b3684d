"""Blocks: allocations that free themselves."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from types import TracebackType
from typing import Any, SupportsIndex

from . import _abi, _dlpack, _driver, _library, _numbers
from ._allocator import Allocator, lock
from ._errors import Error


class Block:
    """An allocation of a :class:`Pool`, returned by :meth:`Pool.alloc`. Its elements are bytes.

    A block frees itself when nothing refers to it, at the end of a ``with`` statement, when its pool is closed, or by
    :meth:`free`. Views, arrays and tensors of a block keep its memory alive:

    - host memory: the buffer protocol (``memoryview(block)`` since Python 3.12, :meth:`view` in every version),
      ``__array_interface__``, DLPack
    - device memory: ``__cuda_array_interface__``, DLPack

    >>> import bfc
    >>> with bfc.Pool("host", limit="1MiB") as pool:
    ...     block = pool.alloc(5)
    ...     block.view()[:] = b"hello"
    ...     print(block.size, block.allocated, bytes(block.view()))
    5 256 b'hello'
    """

    __slots__ = ("__weakref__", "_address", "_allocator", "_array", "_generation", "_is_shared", "_live", "_size", "_stream", "_tensors")

    def __init__(self, allocator: Allocator, address: int, size: int, stream: int | None) -> None:
        # A free first takes the allocation from here, which only one thread can do.
        self._live = [address]
        self._allocator = allocator
        self._generation = allocator.generation
        self._address = address
        self._size = size
        self._stream = stream
        self._array: weakref.ref[ctypes.Array[ctypes.c_ubyte]] | None = None
        # The exports to DLPack's consumers.
        self._tensors: set[int] = set()
        # Whether there may be arrays that are not tracked.
        self._is_shared = False
        if address:
            allocator.blocks[address] = weakref.ref(self)

    @property
    def address(self) -> int:
        """The address. 0 for a block of 0 bytes.

        :raises ValueError: The block was freed.
        """
        if not self._live:
            raise ValueError("the block was freed")
        return self._address

    @property
    def size(self) -> int:
        """The requested size in bytes."""
        return self._size

    @property
    def allocated(self) -> int:
        """The usable size in bytes: that of the chunk. 0 for a block of 0 bytes.

        :raises ValueError: The block was freed.
        """
        if self.address == 0:
            return 0
        size = ctypes.c_size_t()
        _library.call("bfc_allocated_size", self.device, self._address, ctypes.byref(size))
        return size.value

    @property
    def device(self) -> int:
        """The ordinal of the pool's device."""
        return self._allocator.device

    @property
    def stream(self) -> int | None:
        """The stream that the block was allocated on, or None."""
        return self._stream

    @property
    def freed(self) -> bool:
        """Whether the block was freed."""
        return not self._live

    def free(self, *, stream: SupportsIndex | None = None) -> None:
        """Frees the block. A second call does nothing.

        :param stream: The stream whose queued work may still use the memory. Default: the block's own stream, if it has one.
        :raises BufferError: A view, an array or a DLPack tensor of the block is alive. Arrays of CuPy and Numba from
            ``__cuda_array_interface__`` are not tracked: free such a block only after they are deleted.
        :raises Error: See ``bfc_free`` and ``bfc_free_async``. The block is then still live.
        """
        number = None if stream is None else _numbers.unsigned(stream, "stream")
        if self._has_arrays():
            raise BufferError("the block cannot be freed: a view, an array or a DLPack tensor of it is alive")
        try:
            address = self._live.pop()
        except IndexError:
            return
        try:
            self._allocator.free(address, self._generation, number)
        except BaseException:
            self._live.append(address)
            raise

    def record_stream(self, stream: SupportsIndex) -> None:
        """Declares that the block is also used on a stream. After its free it is not reused until the work there has completed.

        :raises Error: see ``bfc_record_stream``.
        """
        number = _numbers.unsigned(stream, "stream")
        if self.address:
            _library.call("bfc_record_stream", self.device, self._address, number)

    def view(self) -> memoryview:
        """Returns the memory as a writable :class:`memoryview` of bytes. It keeps the memory alive.

        :raises BufferError: The block is device memory.
        :raises ValueError: The block was freed.
        """
        return memoryview(self._exporter()).cast("B")

    def __buffer__(self, flags: int) -> memoryview:
        return self.view()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if not self._allocator.is_host:
            raise AttributeError(f"the memory of device {self.device} is not the host's: see __cuda_array_interface__")
        # The buffer and not the address: it lets an array keep the memory alive, and free() tracks it.
        return {"shape": (self._size,), "typestr": "|u1", "data": self.view(), "strides": None, "version": 3}

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        if not self._allocator.is_host:
            # Otherwise NumPy would make an array of one object.
            raise TypeError(f"the memory of device {self.device} is not the host's: use an array library of the device, such as cupy.asarray")
        import numpy

        return numpy.array(self.view(), *arguments, **keywords)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._allocator.is_host:
            raise AttributeError(f"the memory of device {self.device} is the host's: see __array_interface__")
        self._is_shared = True
        # 0 is not allowed there, and 1 is the same stream.
        stream = 1 if self._stream == 0 else self._stream
        data = (self.address, False)
        return {"shape": (self._size,), "typestr": "|u1", "data": data, "strides": None, "stream": stream, "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_dlpack.CPU, 0) if self._allocator.is_host else (_dlpack.CUDA, self.device)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Exports the memory as a DLPack capsule: https://dmlc.github.io/dlpack/latest/python_spec.html.

        :raises BufferError: The request cannot be satisfied: another device, a copy of device memory, or a stream for host
            memory.
        """
        device = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"the block cannot be exported to DLPack device {tuple(dl_device)}: it is on {device}")
        versioned = max_version is not None and max_version[0] >= 1
        if not self._allocator.is_host:
            if copy:
                raise BufferError("a block of a device's memory is exported without a copy only")
            self._order(stream)
            return _dlpack.export(self, self.address, self._size, device, versioned, copied=False)
        if stream is not None:
            raise BufferError(f"host memory has no streams: stream must be None, not {stream!r}")
        exported = self._copy() if copy else self
        exported._verify()
        return _dlpack.export(exported, exported.address, self._size, device, versioned, copied=bool(copy))

    def _copy(self) -> Block:
        request = _abi.bfc_request_t(struct_size=ctypes.sizeof(_abi.bfc_request_t), bytes=self._size)
        made = Block(self._allocator, self._allocator.alloc(request), self._size, None)
        made.view()[:] = self.view()
        return made

    def _order(self, stream: int | None) -> None:
        """Orders a consumer's stream after the block's own. -1: the consumer does not want that."""
        if stream == 0:
            raise BufferError("stream 0 is ambiguous in DLPack: pass 1 for the legacy default stream, 2 for that of the thread")
        consumer = 1 if stream is None else stream
        # 0 and 1 are one stream.
        if consumer == -1 or self._stream is None or consumer == (self._stream or 1):
            return
        self.record_stream(consumer)
        _driver.wait(consumer, self._stream)

    def _verify(self) -> None:
        """Raises if the memory no longer exists, for example after a fork."""
        address = self.address
        if address:
            size = ctypes.c_size_t()
            _library.call("bfc_requested_size", self.device, address, ctypes.byref(size))

    def _has_arrays(self) -> bool:
        if self._tensors:
            _dlpack.sweep()
        return bool(self._tensors) or self._exported() is not None

    def _end_with_pool(self) -> None:
        """Frees the block when the pool is closed. If that fails, the block stays live, and so does the allocator."""
        if not self._is_shared and not self._has_arrays():
            with contextlib.suppress(Error):
                self.free()

    def _exported(self) -> ctypes.Array[ctypes.c_ubyte] | None:
        return None if self._array is None else self._array()

    def _exporter(self) -> ctypes.Array[ctypes.c_ubyte]:
        """The object that all views share. It keeps the block alive, and exists as long as there are views."""
        if not self._allocator.is_host:
            raise BufferError(f"the memory of device {self.device} is not the host's: use DLPack or __cuda_array_interface__")
        address = self.address
        with lock():
            array = self._exported()
            if array is None:
                if address:
                    self._verify()
                    array = (ctypes.c_ubyte * self._size).from_address(address)
                else:
                    array = (ctypes.c_ubyte * 0)()
                array._block = self  # type: ignore[attr-defined]
                self._array = weakref.ref(array)
            return array

    def __enter__(self) -> Block:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.free()

    def __repr__(self) -> str:
        where = "freed" if self.freed else f"at {self._address:#x}"
        stream = "" if self._stream is None else f", stream {self._stream:#x}"
        return f"<bfc.Block of {self._size} bytes {where}, device {self.device}{stream}>"

    def __del__(self) -> None:
        try:
            address = self._live.pop()
        except (AttributeError, IndexError):
            return
        self._allocator.free_quietly(address, self._generation)


Block.__module__ = "bfc"
