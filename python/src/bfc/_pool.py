"""Pools and blocks: allocators and their memory as objects, which end with a ``with`` statement or with their last reference."""

from __future__ import annotations

import ctypes
import re
import threading
import weakref
from types import TracebackType
from typing import Any, SupportsIndex

from . import _devices, _memory, _numbers, _reports
from ._errors import Error, Status

_DEVICES = re.compile(r"(?:cuda(?::(\d+))?|(host|cpu))", re.IGNORECASE)


def _ordinal(device: SupportsIndex | str) -> int:
    if not isinstance(device, str):
        return _numbers.device(device)
    found = _DEVICES.fullmatch(device)
    if found is None:
        raise ValueError(f"device must be 'host', 'cuda', 'cuda:1' and so on, or an ordinal, not {device!r}")
    return _devices.HOST if found[2] else int(found[1] or 0)


class _State:
    """What a pool shares with its blocks: these must not keep it alive, and must know when it is closed."""

    def __init__(self, device: int, is_host: bool) -> None:
        self.device, self.is_host = device, is_host
        self.is_open, self.is_abandoned = True, False
        # Garbage is collected anywhere, also while this thread holds it.
        self.lock = threading.RLock()
        self.blocks: weakref.WeakSet[Block] = weakref.WeakSet()
        self.live = 0
        # What the garbage collector freed while this thread was in a call of the allocator.
        self.left: list[int] = []

    def collect(self, address: int, stream: int | None) -> None:
        """Frees the memory of a block without references."""
        with self.lock:
            if not self.is_open:
                return
            self.live -= 1
            if address:
                try:
                    _memory.free(self.device, address, stream=stream)
                except Error as error:
                    # In a forked child, for instance, the memory is not this process's.
                    if error.status == Status.BUSY:
                        self.left.append(address)
            if self.is_abandoned:
                self.end()

    def free_left(self) -> None:
        while self.left:
            _memory.free(self.device, self.left[-1])
            self.left.pop()

    def abandon(self) -> None:
        """The pool has no references. Its allocator ends with the last block."""
        with self.lock:
            self.is_abandoned = True
            self.end()

    def end(self) -> None:
        if self.is_open and self.live == 0:
            try:
                self.free_left()
                _devices.destroy(self.device)
            except Error:
                return
            self.is_open = False


class Pool:
    """The allocator of a device, from its creation to the end of a ``with`` statement.

    >>> import bfc
    >>> with bfc.Pool("host", limit="64 MiB") as pool:
    ...     block = pool.alloc(1000)
    ...     block.view()[0] = 7
    ...     pool.stats().bytes_in_use, block.view()[0]
    (1024, 7)

    There is one allocator for each device in a process. All methods may be called from any thread.

    :param device: ``"host"``, ``"cuda"`` (the first device), ``"cuda:1"``, or an ordinal.
    :param limit: The most bytes to hold, as a number or as text like ``"20GiB"``. Else ``BFC_MEMORY_LIMIT``, and after that what
        there is.
    :param options: The other arguments of :func:`bfc.create`.
    :raises Error: ALREADY_EXISTS if the device has an allocator: that one belongs to others, and :func:`bfc.alloc` uses it.
        BACKEND_UNAVAILABLE and others: see ``bfc_create``.
    """

    def __init__(self, device: SupportsIndex | str = "cuda", *, limit: SupportsIndex | str | None = None, **options: Any) -> None:
        if limit is not None:
            if options.get("memory_limit") is not None:
                raise TypeError("limit and memory_limit are the same: give one of them")
            options["memory_limit"] = limit
        ordinal = _ordinal(device)
        _devices.create(ordinal, **options)
        self._state = _State(ordinal, _reports.memory_map(ordinal)["backend"] in ("host", "host_vmm"))
        self._finalizer = weakref.finalize(self, self._state.abandon)
        # At the end of the process there is nothing to do, and modules may be gone.
        self._finalizer.atexit = False

    @property
    def device(self) -> int:
        """The ordinal."""
        return self._state.device

    @property
    def closed(self) -> bool:
        """Whether the allocator was ended."""
        return not self._state.is_open

    def alloc(
        self,
        nbytes: SupportsIndex | str,
        *,
        alignment: SupportsIndex | None = None,
        stream: SupportsIndex | None = None,
        short_lived: bool = False,
    ) -> Block:
        """Allocates a block, which is freed with its last reference at the latest.

        :param nbytes: A number, or text like ``"1 MiB"``.
        :param alignment: A power of two; else 256.
        :param stream: Allocate in the order of a stream, and free in it: see :func:`bfc.alloc`.
        :param short_lived: The block will be freed soon: ``BFC_REQUEST_SHORT_LIVED``.
        :raises OutOfMemoryError: with the reason in words.
        """
        state = self._open()
        with state.lock:
            state.free_left()
        size = _numbers.size(nbytes, "nbytes")
        address = _memory.alloc(state.device, size, alignment=alignment, stream=stream, short_lived=short_lived)
        return Block(state, address, size, None if stream is None else _numbers.unsigned(stream, "stream"))

    def _open(self) -> _State:
        if not self._state.is_open:
            raise ValueError("the pool is closed")
        return self._state

    def stats(self) -> _reports.Stats:
        """The statistics of this moment."""
        return _reports.stats(self._open().device)

    def report(self) -> str:
        """The report for a person who ran out of memory: docs/reports.md."""
        return _reports.report(self._open().device)

    def occupancy(self) -> str:
        """The pool in 100 columns: ``*`` used, ``x`` slack inside a chunk, ``_`` free."""
        return _reports.occupancy(self._open().device)

    def trim(self, keep_bytes: SupportsIndex | str = 0) -> int:
        """Gives free memory back to the backend as long as ``keep_bytes`` stay held. Returns the bytes given back."""
        return _devices.trim(self._open().device, _numbers.size(keep_bytes, "keep_bytes"))

    def close(self) -> None:
        """Frees all blocks and ends the allocator. A second call does nothing.

        :raises BufferError: A view of a block is alive. Nothing was freed.
        :raises Error: BUSY if the allocator has allocations that are no blocks of this pool, or a call of it is under way. The
            blocks are free then, and the pool is open.
        """
        state = self._state
        with state.lock:
            if not state.is_open:
                return
            blocks = list(state.blocks)
            viewed = sum(block._is_viewed() for block in blocks)
            if viewed:
                raise BufferError(f"{viewed} of the pool's blocks have views that are alive")
            for block in blocks:
                block.free()
            state.free_left()
            _devices.destroy(state.device)
            state.is_open = False

    def __enter__(self) -> Pool:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<bfc.Pool of device {self.device}{', closed' if self.closed else ''}>"


class Block:
    """Memory of a :class:`Pool`. It is freed by :meth:`free`, at the end of a ``with`` statement, or with its last reference.

    On host memory it supports the buffer protocol (``memoryview(block)`` since Python 3.12, :meth:`view` in all), NumPy's
    ``asarray``, and DLPack if NumPy is there; on a CUDA device the CUDA Array Interface, by which CuPy, Numba and PyTorch take it without a copy. Elements are
    bytes.
    """

    def __init__(self, state: _State, address: int, size: int, stream: int | None) -> None:
        self._state, self._address, self._size, self._stream = state, address, size, stream
        self._memory: weakref.ref[Any] | None = None
        with state.lock:
            self._finalizer = weakref.finalize(self, state.collect, address, stream)
            self._finalizer.atexit = False
            state.blocks.add(self)
            state.live += 1

    @property
    def address(self) -> int:
        """Where the memory begins; 0 for a block of 0 bytes.

        :raises ValueError: The block was freed. So do all that need its memory.
        """
        if not self._finalizer.alive or not self._state.is_open:
            raise ValueError("the block was freed")
        return self._address

    @property
    def size(self) -> int:
        """The bytes that were asked for."""
        return self._size

    @property
    def allocated(self) -> int:
        """The bytes of the chunk, all of which may be used."""
        return _memory.allocated_size(self.device, self.address) if self._address else 0

    @property
    def device(self) -> int:
        """The ordinal of the pool's device."""
        return self._state.device

    @property
    def stream(self) -> int | None:
        """The stream in whose order the block was allocated and is freed."""
        return self._stream

    @property
    def freed(self) -> bool:
        """Whether the memory was freed."""
        return not self._finalizer.alive or not self._state.is_open

    def record_stream(self, stream: SupportsIndex) -> None:
        """Says that the block is also used on another stream: ``bfc_record_stream``."""
        _memory.record_stream(self.device, self.address, stream)

    def free(self, *, stream: SupportsIndex | None = None) -> None:
        """Frees the memory. A second call does nothing.

        :param stream: The stream whose queued work may still use the memory; else that of the allocation.
        :raises BufferError: A view is alive. Nothing was freed.
        """
        state = self._state
        with state.lock:
            if self._is_viewed():
                raise BufferError("a view of the block is alive")
            if self.freed:
                return
            if self._address:
                _memory.free(self.device, self._address, stream=self._stream if stream is None else stream)
            self._finalizer.detach()
            state.blocks.discard(self)
            state.live -= 1

    def view(self) -> memoryview:
        """The memory as bytes that can be read and written. The view keeps the block alive, and cannot outlive its memory.

        :raises TypeError: The block is not in host memory.
        """
        address = self.address
        if not self._state.is_host:
            raise TypeError(f"the memory of device {self.device} is not the host's")
        if not self._size:
            return memoryview(bytearray())
        memory = None if self._memory is None else self._memory()
        if memory is None:
            kind: Any = type("Memory", (ctypes.c_ubyte * self._size,), {})
            memory = kind.from_address(address)
            memory.block = self
            self._memory = weakref.ref(memory)
        return memoryview(memory).cast("B")

    def _is_viewed(self) -> bool:
        return self._memory is not None and self._memory() is not None

    def __buffer__(self, flags: int, /) -> memoryview:
        return self.view()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        array = numpy.frombuffer(self.view(), dtype=numpy.uint8) if self._size else numpy.empty(0, numpy.uint8)
        return numpy.array(array, dtype=dtype) if copy or dtype not in (None, numpy.uint8) else array

    def __dlpack__(self, **arguments: Any) -> Any:
        """The memory as a DLPack capsule, on the host and by NumPy: ``torch.from_dlpack(block)``.

        :raises BufferError: The block is on a device, where the CUDA Array Interface is for this.
        """
        if not self._state.is_host:
            raise BufferError("a block on a device has __cuda_array_interface__, and no DLPack capsule")
        return self.__array__().__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        # kDLCPU and kDLCUDA of dlpack.h.
        return (1, 0) if self._state.is_host else (2, self.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._state.is_host or not 0 <= self.device < _devices.HOST:
            raise AttributeError("the block is not on a CUDA device")
        # 0 would be ambiguous: the interface knows the default streams as 1 and 2.
        stream = self._stream if self._stream is None else self._stream or 1
        return {"version": 3, "shape": (self._size,), "typestr": "|u1", "data": (self.address, False), "stream": stream}

    def __enter__(self) -> Block:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.free()

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        where = "freed" if self.freed else f"at {self._address:#x}"
        return f"<bfc.Block of {self._size} bytes on device {self.device}, {where}>"


# As users write them.
for _class in (Pool, Block):
    _class.__module__ = "bfc"
