"""The events of the running history as the trace entries of a snapshot.

The viewer begins with the memory of the snapshot and undoes one entry after another. An entry is left out if it cannot be
undone, because the snapshot is taken after the history was read, and other threads continue meanwhile.
"""

from __future__ import annotations

import bisect
import pathlib
import struct
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import _library
from ._errors import Error, Status

# The layout of crates/bfc-formats/src/history/layout.rs.
_MAGIC = b"libbfc history 2"
_HEADER = struct.Struct("<16sIIQQQQQQQQQIIQQ")
_HEADER_BYTES = 4096
_EVENT = struct.Struct("<8Q")
_TEXT = struct.Struct("<HHIII")
_POOL, _OPERATION, _MARK = 1, 2, 3
_ALLOC, _FREE, _PRESENT, _OBTAINED, _RETURNED, _OUT_OF_MEMORY, _MARKED, _STEP, _BEGIN = range(1, 10)

# The stream of segments that are mapped in parts. The viewer merges the parts only if they belong to one stream, and if all streams
# are 0 it compares 0 with null.
MAPPED_STREAM = 1

_Frames = list[dict[str, Any]]


class Event(NamedTuple):
    kind: int
    pool: int
    name: int
    time_us: int
    address: int
    size: int
    requested: int
    stream: int


class History:
    """The events of a file, and its names."""

    def __init__(self, content: bytes) -> None:
        head = _HEADER.unpack_from(content)
        magic, header_bytes, event_bytes, text_bytes, capacity, written, text_used, _ = head[:8]
        ticks, began, last_ticks, last, _, _, _, stack_bytes = head[8:]
        if (magic, header_bytes, event_bytes) != (_MAGIC, _HEADER_BYTES, _EVENT.size):
            raise Error("bfc_history_save: the history is of another version than the package bfc", Status.INTERNAL)
        # A device has one allocator at a time, so the last one is the current one.
        self.pools: dict[int, int] = {}
        self.operations: dict[tuple[int, int], str] = {}
        self.marks: dict[int, str] = {}
        self._read_texts(content[header_bytes : header_bytes + text_used])
        rate = (last - began) / max(last_ticks - ticks, 1)
        self.events = []
        ring = header_bytes + text_bytes + stack_bytes
        for number in range(max(written - capacity, 0), written):
            place = ring + number % capacity * event_bytes
            stamp, now, address, size, requested, stream, _, what = _EVENT.unpack_from(content, place)
            # An event that is being written is left out.
            if stamp & 0xFFFF_FFFF == (2 * number + 1) & 0xFFFF_FFFF:
                time_us = (began + int(max(now - ticks, 0) * rate)) // 1000
                self.events.append(Event(what & 0xFF, what >> 16 & 0xFFFF, what >> 32, time_us, address, size, requested, stream))

    def _read_texts(self, area: bytes) -> None:
        at = 0
        while at + _TEXT.size <= len(area):
            kind, pool, number, size, _ = _TEXT.unpack_from(area, at)
            text = area[at + _TEXT.size : at + _TEXT.size + size].decode(errors="replace")
            if kind == _POOL:
                self.pools[struct.unpack("<i", struct.pack("<I", number))[0]] = pool
            elif kind == _OPERATION:
                self.operations[pool, number] = text
            elif kind == _MARK:
                self.marks[number] = text
            at += _TEXT.size + (size + 7) // 8 * 8


def current() -> History | None:
    """Returns the history being recorded, or None."""
    with tempfile.TemporaryDirectory(prefix="bfc-") as folder:
        file = pathlib.Path(folder, "history")
        try:
            _library.call("bfc_history_save", bytes(file))
        except Error as error:
            if error.status == Status.INVALID_ARGUMENT and "no history is recorded" in str(error):
                return None
            raise
        return History(file.read_bytes())


class _Spans:
    """Ranges of addresses that do not overlap."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self._starts = sorted(start for start, _ in spans)
        self._ends = dict(spans)

    def overlap(self, start: int, end: int) -> bool:
        before = bisect.bisect_left(self._starts, end) - 1
        return before >= 0 and self._ends[self._starts[before]] > start

    def around(self, start: int, end: int) -> tuple[int, int] | None:
        before = bisect.bisect_right(self._starts, start) - 1
        if before < 0 or self._ends[self._starts[before]] < end:
            return None
        return self._starts[before], self._ends[self._starts[before]]

    def add(self, start: int, end: int) -> None:
        bisect.insort(self._starts, start)
        self._ends[start] = end

    def remove(self, start: int) -> int:
        del self._starts[bisect.bisect_left(self._starts, start)]
        return self._ends.pop(start)

    def merge(self, start: int, end: int) -> None:
        if end in self._ends:
            end = self.remove(end)
        before = bisect.bisect_left(self._starts, start) - 1
        if before >= 0 and self._ends[self._starts[before]] == start:
            start = self._starts[before]
            self.remove(start)
        self.add(start, end)


def trace(history: History, device: int, segments: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Returns the entries of a device, which end with these segments."""
    pool = history.pools.get(device)
    is_expandable = any(segment["is_expandable"] for segment in segments)
    spans = _Spans([(segment["address"], segment["address"] + segment["total_size"]) for segment in segments])
    blocks, pending = (
        _Spans(
            [
                (block["address"], block["address"] + block["size"])
                for segment in segments
                for block in segment["blocks"]
                if block["state"] == state
            ]
        )
        for state in ("active_allocated", "active_pending_free")
    )
    entries = list(_described(history, pool, limit, is_expandable))
    kept = [entry for event, entry in reversed(entries) if _undo(event, spans, blocks, pending, is_expandable)]
    kept.reverse()
    return [
        {**entry, "action": action}
        for entry in kept
        for action in (("free_requested", "free_completed") if entry["action"] == "free" else (entry["action"],))
    ]


def _undo(event: Event, spans: _Spans, blocks: _Spans, pending: _Spans, is_expandable: bool) -> bool:
    """Returns whether the current memory can be the state after an event. If so, it becomes the state before the event."""
    start, end = event.address, event.address + event.size
    if event.kind in (_ALLOC, _PRESENT):
        if blocks.around(start, end) != (start, end):
            return False
        blocks.remove(start)
        # The viewer has one block at an address. The snapshot's block stays until then, possibly with its neighbours.
        if (around := pending.around(start, start + 1)) and around[0] == start:
            pending.remove(start)
    elif event.kind == _FREE:
        if blocks.overlap(start, end) or spans.around(start, end) is None:
            return False
        blocks.add(start, end)
    elif event.kind == _OBTAINED:
        whole = spans.around(start, end)
        is_used = blocks.overlap(start, end) or pending.overlap(start, end)
        if whole is None or is_used or not (is_expandable or whole == (start, end)):
            return False
        spans.remove(whole[0])
        for part in ((whole[0], start), (end, whole[1])):
            if part[0] < part[1]:
                spans.add(*part)
    elif event.kind == _RETURNED:
        if spans.overlap(start, end):
            return False
        (spans.merge if is_expandable else spans.add)(start, end)
    return True


def _described(history: History, pool: int | None, limit: int, is_expandable: bool) -> Iterator[tuple[Event, dict[str, Any]]]:
    """Returns the events of a pool and the marks, each with its entry."""
    step, held = 0, 0
    live: dict[int, tuple[int, _Frames]] = {}
    for event in history.events:
        kind, frames, size, address, action = event.kind, [], event.size, event.address, ""
        stream = event.stream
        if kind == _MARKED:
            action, size = "snapshot", 0
            frames = _frame("bfc.mark", 0, history.marks.get(event.name, ""))
        elif event.pool != pool or pool is None:
            continue
        elif kind in (_ALLOC, _PRESENT):
            if event.name:
                name = history.operations.get((pool, event.name), f"operation {event.name}")
                frames = _frame("bfc.scope", step, name)
            size = min(event.requested, event.size)
            live[address] = (size, frames)
            action = "alloc"
        elif kind == _FREE:
            size, frames = live.pop(address, (event.size, []))
            action = "free"
        elif kind == _OBTAINED:
            held += size
            action = "segment_map" if is_expandable else "segment_alloc"
        elif kind == _RETURNED:
            held -= size
            action = "segment_unmap" if is_expandable else "segment_free"
        elif kind == _OUT_OF_MEMORY:
            action, size = "oom", event.requested
        elif kind == _STEP:
            step = event.size
            action, size, frames = "snapshot", 0, _frame("bfc.step", step, f"step {step}")
        if kind in (_OBTAINED, _RETURNED) and is_expandable:
            stream = MAPPED_STREAM
        if action:
            where = {"device_free": max(limit - held, 0)} if action == "oom" else {"addr": address}
            yield (
                event,
                {
                    "action": action,
                    **where,
                    "size": size,
                    "stream": signed(stream),
                    "time_us": event.time_us,
                    "frames": frames,
                },
            )


def _frame(file: str, line: int, name: str) -> _Frames:
    return [{"filename": file, "line": signed(line), "name": name}]


def signed(value: int) -> int:
    """Converts 64 bits to a signed number, like PyTorch's streams, because the viewer's numbers have 8 bytes."""
    return value - (1 << 64) if value >> 63 else value
