"""The statistics of ``torch.cuda.memory_*`` for libbfc, with the same names and units. PyTorch provides them for its own allocator
only."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any

from .. import _reports, _snapshot as _snapshots
from .._errors import Error, Status
from .._reports import Stats
from . import _summary


@dataclasses.dataclass
class _Counted:
    """The counts from before libbfc's own counts were set to 0, less those at the last reset of counts."""

    num_allocs: int = 0
    num_frees: int = 0
    num_failures: int = 0


_counted: dict[int, _Counted] = collections.defaultdict(_Counted)
_lock = threading.Lock()
_COUNTS = tuple(field.name for field in dataclasses.fields(_Counted))


def _index(device: Any) -> int:
    """Returns the ordinal of a PyTorch device: an int, a string, a ``torch.device``, or None for the current one."""
    import torch

    _refuse_other_allocators()
    if isinstance(device, int):
        return device
    if device is not None:
        found = torch.device(device)
        if found.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
        if found.index is not None:
            return int(found.index)
    return int(torch.cuda.current_device())


def _refuse_other_allocators() -> None:
    import torch

    if torch.cuda.memory.get_allocator_backend() != "pluggable":
        raise RuntimeError("PyTorch's allocator is not libbfc: torch.cuda has its statistics (see bfc.torch.use)")


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
    """Returns the bytes of device memory in use, like ``torch.cuda.memory_allocated``. Includes rounding to multiples of 512
    bytes, like PyTorch's own allocator."""
    return _value(device, "bytes_in_use")


def max_memory_allocated(device: Any = None) -> int:
    """Returns the highest :func:`memory_allocated` since the start or :func:`reset_peak_memory_stats`."""
    return _value(device, "peak_bytes_in_use")


def memory_reserved(device: Any = None) -> int:
    """Returns the bytes that libbfc holds from the driver, in use or free, like ``torch.cuda.memory_reserved``."""
    return _value(device, "pool_bytes")


def max_memory_reserved(device: Any = None) -> int:
    """Returns the highest :func:`memory_reserved` since the start or :func:`reset_peak_memory_stats`."""
    return _value(device, "peak_pool_bytes")


def memory_stats(device: Any = None) -> collections.OrderedDict[str, int]:
    """Returns the keys of ``torch.cuda.memory_stats`` that libbfc counts. Empty for a device that was not used yet.

    - ``allocated_bytes.all.{current,peak}``: see :func:`memory_allocated`
    - ``requested_bytes.all.{current,peak}``: requested bytes
    - ``reserved_bytes.all.{current,peak}``: see :func:`memory_reserved`
    - ``allocation.all.{current,allocated,freed}``: allocations
    - ``segment.all.current``: regions from the driver
    - ``num_ooms``: failed requests

    There is one pool for small and large allocations.
    """
    index = _index(device)
    with _lock:
        found, counted = _stats(index), dataclasses.replace(_counted[index])
    if found is None:
        return collections.OrderedDict()
    # Setting libbfc's own counts to 0 (bfc.reset_stats, a new allocator) reduces these too, but never below 0.
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
    """Sets the peaks to the current values. Also sets the counts of :func:`bfc.stats` to 0. Allocations of other threads
    during the call may not be counted."""
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
    """Returns :func:`memory_stats` as a table, followed by libbfc's report unless ``abbreviated``."""
    index = _index(device)
    text = _summary.table(index, memory_stats(index))
    return text if abbreviated else f"{text}\n{report(index)}"


def report(device: Any = None) -> str:
    """Returns libbfc's out-of-memory report (:func:`bfc.report`) of a device, by default PyTorch's current one. Empty for a
    device that was not used yet."""
    index = _index(device)
    return "" if _stats(index) is None else _reports.report(index)


def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Returns :func:`bfc.memory_snapshot` of all CUDA devices, as ``torch.cuda.memory._snapshot``. The arguments are accepted
    and have no effect: PyTorch takes all devices too, and the traces have no frames of FX to augment."""
    import torch

    _refuse_other_allocators()
    count = torch.cuda.device_count()
    found = _snapshots.of_devices(range(count))
    # PyTorch has a list for each device.
    found["device_traces"] += [[] for _ in range(count - len(found["device_traces"]))]
    return found


def memory_snapshot(mempool_id: tuple[int, int] | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """Returns the segments of all CUDA devices, as ``torch.cuda.memory_snapshot``: see :func:`bfc.memory_snapshot`.

    :param mempool_id: Must be None: a region of libbfc's has memory of several pools.
    :param include_traces: Has no effect: the traces are in :func:`_snapshot`.
    :raises ValueError: There is a ``mempool_id``.
    """
    if mempool_id is not None:
        raise ValueError(f"mempool_id must be None, not {mempool_id!r}: libbfc's segments have memory of several pools")
    segments: list[dict[str, Any]] = _snapshot()["segments"]
    return segments


def _dump_snapshot(filename: Any = "dump_snapshot.pickle", augment_with_fx_traces: bool = False) -> None:
    """Writes a file for PyTorch's memory viewer, as ``torch.cuda.memory._dump_snapshot``: see :func:`bfc.dump_snapshot`."""
    _snapshots.dump(_snapshot(), filename)


def empty_cache() -> None:
    """Releases wholly free memory to the driver, on all devices. The same as ``torch.cuda.empty_cache()``."""
    import torch

    torch.cuda.empty_cache()
