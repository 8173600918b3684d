"""Snapshots for PyTorch's memory viewer, built from memory maps.

``bfc report`` writes the format too, from files (crates/cli/src/history/memory_viz). There are two writers, because a program must
get a snapshot without starting another process, and without a history. The library itself has none, because each of its
allocations may fail. ffi-tests/browser/test_memory_viz.py compares what both write.
"""

from __future__ import annotations

import itertools
import os
import pickle
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

from . import _history_trace, _numbers, _reports
from ._errors import Error, Status
from ._history_trace import ALLOC, FREE, MARKED, OBTAINED, OUT_OF_MEMORY, PRESENT, RETURNED, STEP

_MOST_DEVICES = 1024

# The viewer reads protocols 2 to 4. The default of Python 3.14 is 5.
_PROTOCOL = 4

# The stream of segments that are mapped in parts. The viewer merges the parts only if they belong to one stream, and if all streams
# are 0 it compares 0 with null.
_MAPPED_STREAM = 1

# The names of PyTorch's snapshots. Memory that waits for other streams, for a stamp or for the backend is not reusable yet.
_STATES = {"in_use": "active_allocated", "held": "active_pending_free", "free": "inactive"}


def memory_snapshot(device: SupportsIndex | None = None) -> dict[str, Any]:
    """Returns a dictionary with the keys of ``torch.cuda.memory._snapshot()``: ``segments`` and ``device_traces``. Sizes are
    in bytes.

    A segment is a region, or a mapped part of a virtual range. Its blocks tile it in address order, with one of these states:

    - ``active_allocated``: in use
    - ``active_pending_free``: freed, but not reusable yet. The requested size is no longer known: it is that of the block
    - ``inactive``: free

    The scope and the step of an allocation are its only frame. ``device_traces`` has a list for each ordinal up to the
    highest device in the snapshot: the events of its allocator in the running history. Without a history (see
    :class:`history`) the lists are empty.

    Each device is captured at one moment, different devices at different moments. May be called from any thread.

    :param device: An ordinal; None for every device that has an allocator.
    :raises Error: NO_ALLOCATOR for a device without one, and others: see ``bfc_memory_map``.

    >>> import bfc
    >>> bfc.create(bfc.HOST, memory_limit=1 << 20)
    >>> address = bfc.alloc(bfc.HOST, 1000)
    >>> bfc.memory_snapshot(bfc.HOST)["segments"][0]["blocks"][0]["requested_size"]
    1000
    >>> bfc.destroy(bfc.HOST, force=True)
    """
    if device is None:
        return of_devices(range(_MOST_DEVICES))
    return _snapshot(lambda: [_reports.memory_map(_numbers.device(device))])


def dump_snapshot(file: str | os.PathLike[str], device: SupportsIndex | None = None) -> None:
    """Writes :func:`memory_snapshot` to a file that PyTorch's memory viewer opens (https://pytorch.org/memory_viz): a pickle
    of protocol 4. Only its owner may read it. A file of that name is replaced; it stays as it is if there is no snapshot.

    :raises Error: As :func:`memory_snapshot`.
    :raises OSError: The file cannot be written.
    """
    dump(memory_snapshot(device), file)


def dump(snapshot: dict[str, Any], file: str | os.PathLike[str]) -> None:
    # Pickled before the file is opened, so that a failure does not change an older file.
    pickled = pickle.dumps(snapshot, protocol=_PROTOCOL)
    with open(file, "wb", opener=_open_private) as out:
        out.write(pickled)


def _open_private(path: str, flags: int) -> int:
    """Opens the file for its owner only, because names of operations are private."""
    descriptor = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.fchmod(descriptor, 0o600)
    return descriptor


def of_devices(devices: Iterable[int]) -> dict[str, Any]:
    """Returns the snapshot of those devices that have an allocator."""
    return _snapshot(lambda: list(_maps(devices)))


def _maps(devices: Iterable[int]) -> Iterator[dict[str, Any]]:
    for device in devices:
        try:
            yield _reports.memory_map(device)
        except Error as error:
            if error.status != Status.NO_ALLOCATOR:
                raise


def _snapshot(read_maps: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    # The history first: events in between are left out of the traces.
    history = _history_trace.current()
    maps = read_maps()
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max((found["device"] + 1 for found in maps), default=0))]
    segments = []
    for found in maps:
        own = list(_segments(found))
        segments += own
        if history is not None:
            if found["backend"].endswith("_vmm"):
                for segment in own:
                    segment["stream"] = _MAPPED_STREAM
            traces[found["device"]] = _trace(history, found["device"], own, found["stats"]["bytes_limit"])
    return {"segments": segments, "device_traces": traces}


def _segments(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    expandable = found["backend"].endswith("_vmm")
    for region in found["regions"]:
        for is_unmapped, chunks in itertools.groupby(region["chunks"], lambda chunk: chunk["state"] == "unmapped"):
            # The viewer's blocks tile a segment, so an unmapped range ends it.
            if not is_unmapped:
                yield _segment(found["device"], list(chunks), expandable)


def _segment(device: int, chunks: list[dict[str, Any]], expandable: bool) -> dict[str, Any]:
    blocks = [_block(chunk) for chunk in chunks]
    active = [block for block in blocks if block["state"] != "inactive"]
    # Each of PyTorch's segments has one stream and one pool. If a region has several, the field stays 0.
    streams = {chunk["stream"] for chunk in chunks if chunk.get("stream") is not None}
    pools = {chunk.get("pool") for chunk in chunks}
    return {
        "device": device,
        "address": blocks[0]["address"],
        "total_size": sum(block["size"] for block in blocks),
        "allocated_size": sum(block["size"] for block in active if block["state"] == "active_allocated"),
        "active_size": sum(block["size"] for block in active),
        "requested_size": sum(block["requested_size"] for block in active),
        "stream": _signed(int(streams.pop(), 16)) if len(streams) == 1 else 0,
        "segment_type": "large",
        "segment_pool_id": (0, _signed(pools.pop() or 0) if len(pools) == 1 else 0),
        "is_expandable": expandable,
        "frames": [],
        "blocks": blocks,
    }


def _block(chunk: dict[str, Any]) -> dict[str, Any]:
    state = _STATES[chunk["state"]]
    # With 0 the viewer would draw a pending free as lost to rounding.
    pending = chunk["size"] if state == "active_pending_free" else 0
    return {
        "address": int(chunk["address"], 16),
        "size": chunk["size"],
        "requested_size": chunk.get("requested", pending),
        "state": state,
        "frames": _frames("bfc.scope", chunk["step"], chunk["operation"]) if "operation" in chunk else [],
    }


def _trace(history: _history_trace.History, device: int, segments: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Returns the trace entries of a device, which end with these segments.

    The viewer begins with the memory of the snapshot and undoes one entry after another. An entry is left out if it cannot be
    undone, because the snapshot is taken after the history was read, and other threads continue meanwhile.
    """
    is_expandable = any(segment["is_expandable"] for segment in segments)
    blocks = [block for segment in segments for block in segment["blocks"]]
    used, pending = (
        [(block["address"], block["address"] + block["size"]) for block in blocks if block["state"] == state]
        for state in ("active_allocated", "active_pending_free")
    )
    whole = [(segment["address"], segment["address"] + segment["total_size"]) for segment in segments]
    memory = _history_trace.Memory(whole, used, pending, is_expandable)
    events = history.of_device(device)
    kept = [memory.undo(event) for event in reversed(events)]
    entries = _entries(history, events, limit, is_expandable)
    return [entry for described, is_kept in zip(entries, reversed(kept)) if is_kept for entry in described]


def _entries(
    history: _history_trace.History, events: list[_history_trace.Event], limit: int, is_expandable: bool
) -> Iterator[list[dict[str, Any]]]:
    """Returns the entries of each event."""
    step, held = 0, 0
    live: dict[int, tuple[int, int, list[dict[str, Any]]]] = {}
    for event in events:
        actions: tuple[str, ...] = ()
        frames: list[dict[str, Any]] = []
        size, stream, where = event.size, event.stream, {"addr": event.address}
        if event.kind == MARKED:
            actions, size, frames = ("snapshot",), 0, _frames("bfc.mark", 0, history.marks.get(event.name, ""))
        elif event.kind in (ALLOC, PRESENT):
            frames = _frames("bfc.scope", step, history.operation(event)) if event.name else []
            actions, size = ("alloc",), min(event.requested, event.size)
            live[event.address] = (size, stream, frames)
        elif event.kind == FREE:
            # A free may name no stream. PyTorch's entry has that of the allocation.
            size, stream, frames = live.pop(event.address, (size, stream, []))
            actions = ("free_requested", "free_completed")
        elif event.kind in (OBTAINED, RETURNED):
            is_more = event.kind == OBTAINED
            held += size if is_more else -size
            if is_expandable:
                actions, stream = ("segment_map" if is_more else "segment_unmap",), _MAPPED_STREAM
            else:
                actions = ("segment_alloc" if is_more else "segment_free",)
        elif event.kind == OUT_OF_MEMORY:
            actions, size, where = ("oom",), event.requested, {"device_free": max(limit - held, 0)}
        elif event.kind == STEP:
            step = event.size
            actions, size, frames = ("snapshot",), 0, _frames("bfc.step", step, f"step {step}")
        rest = {**where, "size": size, "stream": _signed(stream), "time_us": event.time_us, "frames": frames}
        yield [{"action": action, **rest} for action in actions]


def _frames(file: str, line: int, name: str) -> list[dict[str, Any]]:
    return [{"filename": file, "line": _signed(line), "name": name}]


def _signed(value: int) -> int:
    """Converts 64 bits to a signed number, like PyTorch's streams, because the viewer's numbers have 8 bytes."""
    return value - (1 << 64) if value >> 63 else value
