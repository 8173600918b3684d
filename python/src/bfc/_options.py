"""The options of an allocator, which devices and pools share."""

from __future__ import annotations

import ctypes
import enum
import os
from typing import NoReturn, SupportsIndex, TypedDict, TypeVar

from . import _abi, _numbers


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
    """The keywords of :func:`bfc.create`, for functions that pass them on."""

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
    """Returns ``bfc_options_t`` for the arguments of :func:`bfc.create`."""
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
