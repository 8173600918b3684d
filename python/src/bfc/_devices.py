"""The allocators of devices: creation, destruction, limits."""

from __future__ import annotations

import ctypes
import os
from typing import SupportsIndex

from . import _allocator, _library, _numbers
from ._options import Backend, GrowthPolicy, options

HOST = 256
"""The host's ordinal. 0 to 255 are devices, 257 is pinned host memory, 258 to 1023 are for the program."""


def create(
    device: SupportsIndex,
    *,
    backend: Backend | str | None = None,
    memory_limit: SupportsIndex | str | None = None,
    memory_fraction: float | None = None,
    allow_growth: bool = True,
    garbage_collection: bool = True,
    split_always: bool = True,
    timestamps: bool = False,
    quarantine: bool = False,
    two_ends: bool = False,
    fragmentation_fraction: float | None = None,
    initial_region_bytes: SupportsIndex | str | None = None,
    growth_policy: GrowthPolicy | str | None = None,
    retry_timeout_ms: int | None = None,
    name: str | None = None,
    plan: str | os.PathLike[str] | None = None,
) -> None:
    """Creates the allocator of a device. There is one for each ordinal in a process. No memory is obtained before the first
    allocation.

    An argument that is omitted is taken from the environment (``BFC_MEMORY_LIMIT`` and others, docs/environment.md), and
    without a variable from the default. 0 has the same meaning, but is refused as a limit or a fraction of the memory. The six switches (from ``allow_growth`` to ``two_ends``) have the given values: variables
    apply only if all six are false. ``BFC_FORCE_ALLOW_GROWTH`` always applies.

    :param device: An ordinal: 0 to 255 are devices, as CUDA counts them; :data:`HOST` is the host.
    :param backend: The source of memory: a :class:`Backend`, or its value.
    :param memory_limit: The maximum number of bytes to hold: a number, or text such as ``"20GiB"``. Default: the available memory.
    :param memory_fraction: The limit as a fraction of the device's memory, from 0 to 1.
    :param allow_growth: Obtain regions on demand. If false, one region of the whole limit is obtained at the first allocation.
    :param garbage_collection: Release wholly free regions before a request fails.
    :param split_always: Split off any remainder of 256 bytes or more. No effect with ``fragmentation_fraction``.
    :param timestamps: Stamp frees. Excludes streams.
    :param quarantine: With ``timestamps``, hand out no chunk whose stamp is not safe.
    :param two_ends: Learn which sizes are freed soon, and place them at the upper end of free chunks (docs/algorithm.md).
    :param fragmentation_fraction: Split off remainders of at least this fraction of the limit.
    :param initial_region_bytes: The size of the first region with growth, and the smallest region with growth by need: a number or text. Default: 2 MiB.
    :param growth_policy: The sizes of regions with growth: a :class:`GrowthPolicy` or its value. Default: ``BFC_GROWTH``, else ``"need"``.
    :param retry_timeout_ms: Milliseconds to wait for another thread's free before a request fails. Default: 0.
    :param name: The allocator's name in reports.
    :param plan: The file of a plan computed by ``bfc plan``. Default: ``BFC_PLAN``. ``""``: no plan.
    :raises Error: ALREADY_EXISTS, BACKEND_UNAVAILABLE and others: see ``bfc_create``.
    :raises TypeError: An argument has the wrong type. The message names it.
    :raises ValueError: An argument is out of range. The message names it.

    >>> import bfc
    >>> bfc.create(bfc.HOST, memory_limit=1 << 20, name="an example")
    >>> bfc.stats(bfc.HOST).bytes_limit
    1048576
    >>> bfc.destroy(bfc.HOST)
    """
    made = options(
        backend=backend,
        memory_limit=memory_limit,
        memory_fraction=memory_fraction,
        allow_growth=allow_growth,
        garbage_collection=garbage_collection,
        split_always=split_always,
        timestamps=timestamps,
        quarantine=quarantine,
        two_ends=two_ends,
        fragmentation_fraction=fragmentation_fraction,
        initial_region_bytes=initial_region_bytes,
        growth_policy=growth_policy,
        retry_timeout_ms=retry_timeout_ms,
        name=name,
        plan=plan,
    )
    _library.call("bfc_create", _numbers.device(device), ctypes.byref(made))


def destroy(device: SupportsIndex, force: bool = False) -> None:
    """Destroys the allocator of a device and releases all its memory.

    :param force: Destroy it even with live allocations, whose addresses are then invalid.
    :raises Error: BUSY while there are live allocations, and for the device of a :class:`Pool` (close the pool instead); NO_ALLOCATOR and others: see ``bfc_destroy``.
    """
    ordinal = _numbers.device(device)
    _allocator.refuse_if_managed(ordinal)
    _library.call("bfc_destroy_forced" if force else "bfc_destroy", ordinal)


def trim(device: SupportsIndex, keep_bytes: SupportsIndex | str = 0) -> int:
    """Releases wholly free regions to the backend, as long as ``keep_bytes`` stay held. Returns the number of bytes released.

    :raises Error: see ``bfc_trim``.
    """
    released = ctypes.c_uint64()
    keep = _numbers.size(keep_bytes, "keep_bytes")
    _library.call("bfc_trim", _numbers.device(device), keep, ctypes.byref(released))
    return released.value


def set_memory_limit(device: SupportsIndex, limit_bytes: SupportsIndex | str) -> None:
    """Changes how many bytes the allocator of a device may hold from its backend.

    Allocations stay valid. If the allocator holds more than the limit, it obtains no more memory and releases free memory. With
    0 it holds no memory beyond what is in use.

    :raises Error: see ``bfc_set_memory_limit``.
    """
    limit = _numbers.size(limit_bytes, "limit_bytes")
    _library.call("bfc_set_memory_limit", _numbers.device(device), limit)


def lost(device: SupportsIndex) -> None:
    """Notifies the allocator that the device context was reset or destroyed: ``bfc_device_lost``."""
    ordinal = _numbers.device(device)
    _library.call("bfc_device_lost", ordinal)
    _allocator.lost(ordinal)
