"""Pools: an allocator as an object."""

from __future__ import annotations

import contextlib
import re
from types import TracebackType
from typing import TYPE_CHECKING, Any, SupportsIndex

from . import _abi, _devices, _library, _memory, _numbers, _options, _reports
from ._allocator import Allocator, retry_postponed
from ._block import Block

if TYPE_CHECKING:
    # In typing since Python 3.11.
    from typing_extensions import Unpack

_CUDA = re.compile(r"cuda(?::([0-9]{1,9}))?")


def _ordinal(device: SupportsIndex | str) -> int:
    """Returns the ordinal of a device given by its number, or by its name as frameworks write it."""
    if isinstance(device, str):
        if device in ("host", "cpu"):
            return _devices.HOST
        found = _CUDA.fullmatch(device)
        if not found:
            raise ValueError(f"device must be 'cuda', 'cuda:N', 'host', 'cpu' or an ordinal, not {device!r}")
        number = int(found[1] or 0)
        if number >= _devices.HOST:
            raise ValueError(f"device must be at most 'cuda:{_devices.HOST - 1}', not {device!r}")
        return number
    if not hasattr(device, "__index__"):
        raise TypeError(f"device must be a str or an integer, not {type(device).__name__}")
    return _numbers.device(device)


class Pool:
    """An allocator of a device, which is created with the pool and destroyed when the pool is closed. Thread-safe.

    :param device: ``"cuda"`` (device 0), ``"cuda:1"``, ``"host"`` or ``"cpu"``, or an ordinal.
    :param limit: The maximum number of bytes to hold, as a number or as text such as ``"20GiB"``. The same as ``memory_limit``.
    :param options: The other keywords of :func:`bfc.create`, with the same meanings.
    :raises Error: ALREADY_EXISTS if the device has an allocator, and the errors of :func:`bfc.create`.

    There is one allocator for each device in a process, so only one pool can be open on a device.

    The end of the ``with`` statement closes the pool: its blocks are freed, and all memory is released to the device. Blocks with
    live arrays stay valid, and so does the allocator: until they are gone the device cannot have another pool. A pool that is
    garbage collected frees no block. Its allocator ends with the last of them.

    >>> import bfc
    >>> with bfc.Pool("host", limit="1GiB") as pool:
    ...     with pool.alloc("64KiB") as block:
    ...         print(block.size, pool.stats().bytes_in_use)
    65536 65536
    """

    def __init__(self, device: SupportsIndex | str, *, limit: SupportsIndex | str | None = None, **options: Unpack[_options.Options]) -> None:
        if limit is not None:
            if options.get("memory_limit") is not None:
                raise TypeError("limit and memory_limit are the same: give one of them")
            options["memory_limit"] = limit = _numbers.size(limit, "limit")
            _numbers.refuse_zero(limit, "limit")
        self._allocator = Allocator(_ordinal(device), options)

    @property
    def device(self) -> int:
        """The device's ordinal; :data:`bfc.HOST` is the host."""
        return self._allocator.device

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._allocator.closed

    def alloc(
        self,
        nbytes: SupportsIndex | str,
        *,
        alignment: SupportsIndex | str | None = None,
        stream: SupportsIndex | None = None,
        short_lived: bool = False,
    ) -> Block:
        """Allocates memory as a block, which frees itself when nothing refers to it.

        :param nbytes: A number of bytes, or text such as ``"64MiB"``.
        :param alignment: A power of two in bytes. Default: 256.
        :param stream: Allocate in stream order: a ``CUstream`` as a number. The block is then also freed in the order of that
            stream. Without a stream, freed memory is reusable at once.
        :param short_lived: A hint that the memory will be freed soon: see "Two ends" in docs/algorithm.md.
        :raises OutOfMemoryError: Memory ran out. The message has the reason.
        :raises ValueError: The pool is closed.
        """
        request = _memory.request(nbytes, alignment, stream, short_lived)
        address = self._allocator.alloc(request)
        return Block(self._allocator, address, request.bytes, None if stream is None else request.stream or 0)

    def stats(self) -> _reports.Stats:
        """Returns the current statistics: :func:`bfc.stats`."""
        return _reports.stats(self._open())

    def report(self) -> str:
        """Returns the out-of-memory report: :func:`bfc.report`."""
        return _reports.report(self._open())

    def occupancy(self) -> str:
        """Returns the pool as one line of 100 columns: :func:`bfc.occupancy`."""
        return _reports.occupancy(self._open())

    def memory_map(self) -> dict[str, Any]:
        """Returns regions, chunks, bins and statistics: :func:`bfc.memory_map`."""
        return _reports.memory_map(self._open())

    def reset_stats(self) -> None:
        """Resets the counts to 0 and the peaks to the current values: :func:`bfc.reset_stats`."""
        _reports.reset_stats(self._open())

    def synchronized(self, stream: SupportsIndex = 0) -> None:
        """Declares that all work queued on a stream so far has completed: :func:`bfc.synchronized`."""
        _memory.synchronized(self._open(), stream)

    def forget_stream(self, stream: SupportsIndex) -> None:
        """Declares that a stream is about to be destroyed: :func:`bfc.forget_stream`."""
        _memory.forget_stream(self._open(), stream)

    def trim(self, keep_bytes: SupportsIndex | str = 0) -> int:
        """Releases wholly free regions, as long as ``keep_bytes`` stay held. Returns the bytes released: :func:`bfc.trim`."""
        return _devices.trim(self._open(), keep_bytes)

    def scope(self, operation: str, step: SupportsIndex = 0) -> contextlib.AbstractContextManager[None]:
        """Sets the operation that this thread allocates for, from any pool: :func:`bfc.scope`."""
        self._open()
        return _reports.scope(operation, step)

    def close(self) -> None:
        """Closes the pool: frees its blocks, and destroys the allocator. Blocks with live arrays stay valid, and the
        allocator ends with the last of them. A second call does nothing.

        :raises Error: The library could not release the memory. The pool is closed nevertheless.
        """
        self._allocator.closed = True
        retry_postponed()
        block: Block | None = None
        for listed in list(self._allocator.blocks.values()):
            block = listed()
            if block is not None:
                block._end_with_pool()
        del block
        status = self._allocator.close()
        if status not in (_abi.BFC_OK, _abi.BFC_ERROR_BUSY):
            raise _library.failure(status)

    def _open(self) -> int:
        if self._allocator.closed:
            raise ValueError("the pool is closed")
        retry_postponed()
        return self._allocator.device

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        backend = self._allocator.backend
        return f"<bfc.Pool of device {self.device}, backend {backend}{', closed' if self.closed else ''}>"

    def __del__(self) -> None:
        # The attribute is missing if creation failed.
        allocator = getattr(self, "_allocator", None)
        if allocator is not None:
            allocator.close()


Pool.__module__ = "bfc"
