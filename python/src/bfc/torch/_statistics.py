"""What ``torch.cuda.memory_*`` refuse to say of an allocator that is not PyTorch's own: by the same names, in the same
units, of libbfc's books."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any

from .. import _reports
from .._errors import Error, Status
from .._reports import Stats
from . import _summary


@dataclasses.dataclass
class _Counted:
    """What was counted before libbfc's own counts were set to 0, less what was there at the last reset of counts."""

    num_allocs: int = 0
    num_frees: int = 0
    num_failures: int = 0


_counted: dict[int, _Counted] = collections.defaultdict(_Counted)
_lock = threading.Lock()
_COUNTS = tuple(field.name for field in dataclasses.fields(_Counted))


def _index(device: Any) -> int:
    """The ordinal that PyTorch means by a device: an int, a string, a ``torch.device``, or None for the current one."""
    import torch

    if torch.cuda.memory.get_allocator_backend() != "pluggable":
        raise RuntimeError("PyTorch's allocator is not libbfc: torch.cuda has its statistics (see bfc.torch.use)")
    if isinstance(device, int):
        return device
    if device is not None:
        found = torch.device(device)
        if found.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        if found.index is not None:
            return int(found.index)
    return int(torch.cuda.current_device())


def _stats(index: int) -> Stats | None:
    """None for a device that was not used yet."""
    try:
        return _reports.stats(index)
    except Error as error:
        if error.status != Status.NO_ALLOCATOR:
            raise
        return None


def _value(device: Any, name: str) -> int:
    stats = _stats(_index(device))
    return 0 if stats is None else int(getattr(stats, name))


def memory_allocated(device: Any = None) -> int:
    """The bytes of device memory that are in use, as ``torch.cuda.memory_allocated``: with what is lost to rounding (to
    multiples of 512 bytes, as with PyTorch's own allocator)."""
    return _value(device, "bytes_in_use")


def max_memory_allocated(device: Any = None) -> int:
    """The highest :func:`memory_allocated` since the beginning, or :func:`reset_peak_memory_stats`."""
    return _value(device, "peak_bytes_in_use")


def memory_reserved(device: Any = None) -> int:
    """The bytes that libbfc holds from the driver, in use or free, as ``torch.cuda.memory_reserved``."""
    return _value(device, "pool_bytes")


def max_memory_reserved(device: Any = None) -> int:
    """The highest :func:`memory_reserved` since the beginning, or :func:`reset_peak_memory_stats`."""
    return _value(device, "peak_pool_bytes")


def memory_stats(device: Any = None) -> collections.OrderedDict[str, int]:
    """Those of the keys of ``torch.cuda.memory_stats`` that libbfc has the numbers of; empty for a device that was not
    used yet.

    - ``allocated_bytes.all.{current,peak}``: as :func:`memory_allocated`
    - ``requested_bytes.all.{current,peak}``: what was asked for
    - ``reserved_bytes.all.{current,peak}``: as :func:`memory_reserved`
    - ``allocation.all.{current,allocated,freed}``: allocations
    - ``segment.all.current``: regions from the driver
    - ``num_ooms``: requests that could not be served

    There is one pool for small and large.
    """
    index = _index(device)
    with _lock:
        found, counted = _stats(index), dataclasses.replace(_counted[index])
    if found is None:
        return collections.OrderedDict()
    # Whoever sets libbfc's own counts to 0 (bfc.reset_stats, a new allocator) sets these back too, and never below 0.
    counts = {name: max(getattr(found, name) + getattr(counted, name), 0) for name in _COUNTS}
    said = {
        "allocated_bytes.all.current": found.bytes_in_use,
        "allocated_bytes.all.peak": found.peak_bytes_in_use,
        "allocation.all.allocated": counts["num_allocs"],
        "allocation.all.current": found.num_chunks - found.num_free_chunks,
        "allocation.all.freed": counts["num_frees"],
        "num_ooms": counts["num_failures"],
        "requested_bytes.all.current": found.bytes_requested,
        "requested_bytes.all.peak": found.peak_bytes_requested,
        "reserved_bytes.all.current": found.pool_bytes,
        "reserved_bytes.all.peak": found.peak_pool_bytes,
        "segment.all.current": found.num_regions,
    }
    return collections.OrderedDict(sorted(said.items()))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Sets the peaks to the current values. Allocations of other threads at this very moment may not be counted. Of
    ``bfc.stats`` it sets the counts to 0 with them."""
    index = _index(device)
    with _lock:
        found = _stats(index)
        if found is None:
            return
        # libbfc sets its counts to 0 together with the peaks.
        _reports.reset_stats(index)
        for name in _COUNTS:
            setattr(_counted[index], name, getattr(_counted[index], name) + getattr(found, name))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Sets the counts of :func:`memory_stats` to 0: allocations, frees and failures."""
    index = _index(device)
    with _lock:
        found = _stats(index)
        if found is not None:
            _counted[index] = _Counted(**{name: -int(getattr(found, name)) for name in _COUNTS})


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A printout of :func:`memory_stats`, and unless it is abbreviated libbfc's report: who holds what, in which sizes, and
    what is free."""
    index = _index(device)
    text = _summary.table(index, memory_stats(index))
    return text if abbreviated else f"{text}\n{report(index)}"


def report(device: Any = None) -> str:
    """libbfc's report for a person who ran out of memory: :func:`bfc.report` of the device that PyTorch means. Empty for
    one that was not used yet."""
    index = _index(device)
    return "" if _stats(index) is None else _reports.report(index)


def empty_cache() -> None:
    """Gives what is wholly free back to the driver, on all devices: ``torch.cuda.empty_cache()``, which works as ever."""
    import torch

    torch.cuda.empty_cache()
