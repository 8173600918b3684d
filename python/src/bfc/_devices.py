"""The allocators of devices: creation, destruction, limits."""

from __future__ import annotations

import ctypes
import enum
import os
from typing import NoReturn, SupportsIndex, TypedDict, TypeVar

from . import _abi, _library, _numbers

HOST = 256
"""The host's ordinal. 0 to 255 are devices, 257 is pinned host memory, 258 to 1023 are for the program."""


class _Choice(enum.Enum):
    """Members that are also accepted by their values."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        known = ", ".join(repr(member.value) for member in cls)
        raise ValueError(f"{cls.__name__} must be one of {known}, not {value!r}")


class Backend(_Choice):
    """The source of memory."""

    AUTO = "auto"
    """CUDA on ordinals 0 to 255, host memory on 256. A device never silently gets host memory."""
    HOST = "host"
    """Host memory from mmap, resident only where it is touched."""
    CUDA = "cuda"
    """Device memory from cuMemAlloc."""
    CUDA_VMM = "cuda_vmm"
    """Device memory in one growing virtual range (cuMemMap), which does not fragment."""
    HOST_VMM = "host_vmm"
    """Host memory in one growing virtual range."""


_BACKENDS = {
    Backend.AUTO: _abi.BFC_BACKEND_AUTO,
    Backend.HOST: _abi.BFC_BACKEND_HOST,
    Backend.CUDA: _abi.BFC_BACKEND_CUDA,
    Backend.CUDA_VMM: _abi.BFC_BACKEND_CUDA_VMM,
    Backend.HOST_VMM: _abi.BFC_BACKEND_HOST_VMM,
}


class GrowthPolicy(_Choice):
    """The sizes of regions with growth."""

    NEED = "need"
    """As large as the request needs, plus at most a sixteenth of the memory held."""
    TENSORFLOW = "tensorflow"
    """Twice the size of the previous region."""


_GROWTH_POLICIES = {
    GrowthPolicy.NEED: _abi.BFC_GROWTH_NEED,
    GrowthPolicy.TENSORFLOW: _abi.BFC_GROWTH_TENSORFLOW,
}


class Options(TypedDict, total=False):
    """The keywords of :func:`create`, for functions that pass them on."""

    backend: Backend | str | None
    memory_limit: SupportsIndex | str | None
    memory_fraction: float | None
    allow_growth: bool
    garbage_collection: bool
    split_always: bool
    timestamps: bool
    quarantine: bool
    two_ends: bool
    fragmentation_fraction: float | None
    initial_region_bytes: SupportsIndex | str | None
    growth_policy: GrowthPolicy | str | None
    retry_timeout_ms: int | None
    name: str | None
    plan: str | os.PathLike[str] | None


def options(
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
) -> _abi.bfc_options_t:
    """Returns ``bfc_options_t`` for the arguments of :func:`create`."""
    made = _abi.bfc_options_t(struct_size=ctypes.sizeof(_abi.bfc_options_t))
    made.backend = _BACKENDS[Backend.AUTO if backend is None else _choice(Backend, backend, "backend")]
    flags = [
        (allow_growth, _abi.BFC_ALLOW_GROWTH),
        (garbage_collection, _abi.BFC_GARBAGE_COLLECTION),
        (timestamps, _abi.BFC_TIMESTAMPS),
        (split_always and not fragmentation_fraction, _abi.BFC_SPLIT_ALWAYS),
        (quarantine, _abi.BFC_QUARANTINE),
        (two_ends, _abi.BFC_TWO_ENDS),
    ]
    made.flags = sum(flag for wanted, flag in flags if wanted)
    made.memory_limit = _numbers.optional_size(memory_limit, "memory_limit")
    if memory_limit is not None:
        _numbers.refuse_zero(made.memory_limit, "memory_limit")
    made.memory_fraction = _numbers.fraction(memory_fraction, "memory_fraction")
    if memory_fraction is not None:
        _numbers.refuse_zero(made.memory_fraction, "memory_fraction")
    made.fragmentation_fraction = _numbers.fraction(fragmentation_fraction, "fragmentation_fraction")
    made.initial_region_bytes = _numbers.optional_size(initial_region_bytes, "initial_region_bytes")
    if growth_policy is None:
        made.growth_policy = _abi.BFC_GROWTH_PREFER_NEED
    else:
        made.growth_policy = _GROWTH_POLICIES[_choice(GrowthPolicy, growth_policy, "growth_policy")]
    milliseconds = _numbers.optional(retry_timeout_ms, "retry_timeout_ms")
    # More than seven weeks means forever.
    made.retry_timeout_ms = min(milliseconds, (1 << 32) - 1)
    made.name = _numbers.text(name, "name") if name is not None else None
    made.plan = _numbers.path(plan, "plan") if plan is not None else None
    return made


_C = TypeVar("_C", bound=_Choice)


def _choice(kind: type[_C], value: object, what: str) -> _C:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise ValueError(f"{what} must be one of {known}, not {value!r}") from None


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
    from . import _allocator

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
    from . import _allocator

    ordinal = _numbers.device(device)
    _library.call("bfc_device_lost", ordinal)
    _allocator.lost(ordinal)
