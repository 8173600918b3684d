"""The allocators of pools: their lifetime, and late frees.

A block may outlive its pool, be collected in any thread and at any moment, and end with the interpreter. Its memory must never
be freed into an allocator that was created later for the same device. So there is one object for each allocator that a pool
created. It ends only when the library says that no allocation lives, and nothing else in this package can end it.
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import threading
import weakref
from typing import Any

from . import _abi, _dlpack, _library, _options, _reports
from ._errors import Error, Status

_free = _library.lib.bfc_free
_destroy = _library.lib.bfc_destroy

_managed: dict[int, Allocator] = {}
"""The allocators that have not ended, by device."""

_postponed: collections.deque[tuple[Allocator, int, int]] = collections.deque()
"""Frees made by the garbage collector within a callback of the library, which refuses calls at that time."""


class _State:
    # The garbage collector, which runs anywhere, may acquire it a second time.
    lock = threading.RLock()


def lock() -> threading.RLock:
    """Held while an allocator is created or ended, and while a view is made."""
    return _State.lock


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    _State.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Allocator:
    """One allocator, from its creation to its end."""

    def __init__(self, device: int, options: _options.Options) -> None:
        self.device = device
        self.closed = False
        self.ended = True
        """Whether frees are no longer permitted."""
        self.generation = 0
        """Increases when the device's context is lost, and all allocations with it."""
        self.blocks: dict[int, weakref.ref[Any]] = {}
        """The live allocations, by address. An entry is removed before its memory is freed, because the address may be reused at once."""
        made = _options.options(**options)
        retry_postponed()
        with lock():
            living = _managed.get(device)
            if living is not None and living.closed:
                raise Error(
                    f"device {device} already has an allocator: its pool was closed, and arrays or blocks of it are still alive",
                    Status.ALREADY_EXISTS,
                )
            self.backend = _backend(device, made)
            _library.call("bfc_create", device, ctypes.byref(made))
            _managed[device] = self
            self.ended = False
        self.is_host = self.backend in ("host", "host_vmm")

    def alloc(self, request: _abi.bfc_request_t) -> int:
        if self.closed:
            raise ValueError("the pool is closed")
        if _postponed or _dlpack.exports:
            retry_postponed()
        address = ctypes.c_void_p()
        _library.call("bfc_alloc_ex", self.device, ctypes.byref(request), ctypes.byref(address))
        return address.value or 0

    def free(self, address: int, generation: int, stream: int | None) -> None:
        """Frees an allocation. Raises on failure."""
        if self.ended or generation != self.generation:
            return
        listed = self.blocks.pop(address, None)
        try:
            if stream is None:
                _library.call("bfc_free", self.device, address)
            else:
                _library.call("bfc_free_async", self.device, address, stream)
        except Error:
            if listed is not None:
                self.blocks[address] = listed
            raise
        if self.closed:
            self.end()

    def free_quietly(self, address: int, generation: int) -> None:
        """Frees an allocation for the garbage collector, which cannot report a failure."""
        if self.ended or generation != self.generation:
            return
        self.blocks.pop(address, None)
        if _free(self.device, address) == _abi.BFC_ERROR_BUSY:
            _postponed.append((self, address, generation))
        elif self.closed:
            self.end()

    def close(self) -> int:
        """Ends the allocator now, or when its last allocation is freed. Returns the status."""
        retry_postponed()
        self.closed = True
        return self.end()

    def end(self) -> int:
        with lock():
            if self.ended:
                return 0
            status: int = _destroy(self.device)
            # Only then may there ever be another one.
            if status != _abi.BFC_ERROR_BUSY:
                self.ended = True
                _managed.pop(self.device, None)
            return status


def retry_postponed() -> None:
    """Frees allocations that could not be freed when they were collected, and those that DLPack's consumers no longer use."""
    _dlpack.sweep()
    for _ in range(len(_postponed)):
        try:
            allocator, address, generation = _postponed.popleft()
        except IndexError:
            return
        allocator.free_quietly(address, generation)


def _backend(device: int, made: _abi.bfc_options_t) -> str:
    """Returns the backend that an allocator will have, from its options and the environment."""
    length, buffer = ctypes.c_size_t(), ctypes.create_string_buffer(1 << 16)
    while True:
        _library.call("bfc_resolve_options", device, ctypes.byref(made), buffer, len(buffer), ctypes.byref(length))
        if length.value < len(buffer):
            return str(json.loads(buffer.value)["backend"])
        buffer = ctypes.create_string_buffer(length.value + 4096)


def refuse_if_managed(device: int) -> None:
    """Refuses devices of pools. Blocks free themselves, so their allocator must not be replaced while they live."""
    if device in _managed:
        raise Error(f"device {device} belongs to a bfc.Pool: close the pool instead", Status.BUSY)


def lost(device: int) -> None:
    """After ``bfc_device_lost``: if the memory is gone, so are the allocations of all blocks, whose addresses may then be
    reused."""
    allocator = _managed.get(device)
    if allocator is not None and _reports.stats(device).bytes_in_use == 0:
        allocator.generation += 1
        allocator.blocks.clear()
