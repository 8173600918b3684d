"""The allocators of devices: making and ending them."""

from __future__ import annotations

import ctypes
import enum
import os
from typing import NoReturn, SupportsIndex, TypedDict, TypeVar

from . import _abi, _library, _numbers

HOST = 256
"""The host's ordinal. 0 to 255 are devices, 257 is pinned host memory, 258 to 1023 are the program's to use."""


class _Choice(enum.Enum):
    """Members that are also accepted by their values."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        known = ", ".join(repr(member.value) for member in cls)
        raise ValueError(f"{cls.__name__} must be one of {known}, not {value!r}")


class Backend(_Choice):
    """Where regions come from."""

    AUTO = "auto"
    """CUDA on the ordinals 0 to 255, host memory on 256; never silently host memory for a device."""
    HOST = "host"
    """Host memory by mmap, committed when touched."""
    CUDA = "cuda"
    """Device memory by cuMemAlloc."""
    CUDA_VMM = "cuda_vmm"
    """Device memory by cuMemMap in one range that grows, so that free memory does not stay in pieces."""
    HOST_VMM = "host_vmm"
    """The same with host memory."""


_BACKENDS = {
    Backend.AUTO: _abi.BFC_BACKEND_AUTO,
    Backend.HOST: _abi.BFC_BACKEND_HOST,
    Backend.CUDA: _abi.BFC_BACKEND_CUDA,
    Backend.CUDA_VMM: _abi.BFC_BACKEND_CUDA_VMM,
    Backend.HOST_VMM: _abi.BFC_BACKEND_HOST_VMM,
}


class GrowthPolicy(_Choice):
    """The size of regions with growth."""

    NEED = "need"
    """What the request needs, and at most a sixteenth of the memory held beyond it."""
    TENSORFLOW = "tensorflow"
    """Twice the last region."""


_GROWTH_POLICIES = {
    GrowthPolicy.NEED: _abi.BFC_GROWTH_NEED,
    GrowthPolicy.TENSORFLOW: _abi.BFC_GROWTH_TENSORFLOW,
}


class Options(TypedDict, total=False):
    """The keywords of :func:`create`, for what passes them on."""

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
    """``bfc_options_t`` of the arguments of :func:`create`."""
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
    made.memory_fraction = _numbers.fraction(memory_fraction, "memory_fraction")
    made.fragmentation_fraction = _numbers.fraction(fragmentation_fraction, "fragmentation_fraction")
    made.initial_region_bytes = _numbers.optional_size(initial_region_bytes, "initial_region_bytes")
    if growth_policy is None:
        made.growth_policy = _abi.BFC_GROWTH_PREFER_NEED
    else:
        made.growth_policy = _GROWTH_POLICIES[_choice(GrowthPolicy, growth_policy, "growth_policy")]
    milliseconds = _numbers.optional(retry_timeout_ms, "retry_timeout_ms")
    # Longer than seven weeks is for ever.
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
    """Creates the allocator of a device, of which there is one for each ordinal in a process. No memory is taken
    before the first allocation.

    For what is left out, or 0, the environment counts (``BFC_MEMORY_LIMIT`` and so on, docs/environment.md), and after
    that the default. The six switches are as given here: the environment's count only where all of them are false,
    and ``BFC_FORCE_ALLOW_GROWTH`` always.

    :param device: 0 to 255 are devices, as CUDA counts them; :data:`HOST` is the host.
    :param backend: Where regions come from: a :class:`Backend`, or its value.
    :param memory_limit: The most bytes to hold, as a number or as text such as ``"20GiB"``. Else what there is.
    :param memory_fraction: The same as a share of the device's memory, from 0 to 1.
    :param allow_growth: Take regions on demand, else one of the whole limit at the first allocation.
    :param garbage_collection: Give wholly free regions back before failing.
    :param split_always: Split off any remainder of 256 bytes or more, unless there is a ``fragmentation_fraction``.
    :param timestamps: Stamp frees; excludes streams.
    :param quarantine: With timestamps, hand nothing out whose stamp is not safe.
    :param two_ends: Learn which sizes are freed soon, and take them from the upper end of free chunks: docs/algorithm.md.
    :param fragmentation_fraction: Split off a remainder of this share of the limit.
    :param initial_region_bytes: The first region with growth, and with growth by need the least region; a number or text. Else 2 MiB.
    :param growth_policy: The size of regions with growth, a :class:`GrowthPolicy` or its value: ``"need"``, what is needed and at most a sixteenth of the memory held beyond it, or ``"tensorflow"``, twice the last one. Else ``BFC_GROWTH`` counts, and after that need.
    :param retry_timeout_ms: Wait so long for another thread's free before failing.
    :param name: For reports.
    :param plan: The file of a plan that ``bfc plan`` has computed for the program. Else ``BFC_PLAN`` counts; ``""`` is no plan.
    :raises Error: ALREADY_EXISTS, BACKEND_UNAVAILABLE and others: see ``bfc_create``.
    :raises TypeError: An argument of another type, which the message names; ValueError for one that is out of range.

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
    """Ends the allocator of a device and gives all its memory back.

    :param force: Also while allocations live, whose addresses are then nobody's.
    :raises Error: BUSY while allocations live, and for the device of a :class:`Pool`, which is closed instead; NO_ALLOCATOR and others: see ``bfc_destroy``.
    """
    from . import _allocator

    ordinal = _numbers.device(device)
    _allocator.refuse_if_managed(ordinal)
    _library.call("bfc_destroy_forced" if force else "bfc_destroy", ordinal)


def trim(device: SupportsIndex, keep_bytes: SupportsIndex | str = 0) -> int:
    """Gives wholly free regions back to the backend as long as ``keep_bytes`` stay held; the bytes given back.

    :raises Error: see ``bfc_trim``.
    """
    released = ctypes.c_uint64()
    keep = _numbers.size(keep_bytes, "keep_bytes")
    _library.call("bfc_trim", _numbers.device(device), keep, ctypes.byref(released))
    return released.value


def set_memory_limit(device: SupportsIndex, limit_bytes: SupportsIndex | str) -> None:
    """Changes how many bytes the allocator of a device may hold from its backend.

    Allocations stay valid. If the allocator holds more it stops growing, and free memory is given back. 0 is a limit of 0.

    :raises Error: see ``bfc_set_memory_limit``.
    """
    limit = _numbers.size(limit_bytes, "limit_bytes")
    _library.call("bfc_set_memory_limit", _numbers.device(device), limit)


def lost(device: SupportsIndex) -> None:
    """Says that the program has reset the context that the device's memory belongs to: ``bfc_device_lost``."""
    from . import _allocator

    ordinal = _numbers.device(device)
    _library.call("bfc_device_lost", ordinal)
    _allocator.lost(ordinal)
