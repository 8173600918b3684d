"""The events of the running history, and which of them lead to the memory of a snapshot."""

from __future__ import annotations

import bisect
import pathlib
import struct
import tempfile
from typing import NamedTuple

from . import _library
from ._errors import Error, Status

# The layout of crates/bfc-formats/src/history/layout.rs.
_MAGIC = b"libbfc history 2"
_HEADER = struct.Struct("<16sIIQQQQQQQQQIIQQ")
_HEADER_BYTES = 4096
_EVENT = struct.Struct("<8Q")
_TEXT = struct.Struct("<HHIII")
_POOL, _OPERATION, _MARK = 1, 2, 3
ALLOC, FREE, PRESENT, OBTAINED, RETURNED, OUT_OF_MEMORY, MARKED, STEP = range(1, 9)


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

    def of_device(self, device: int) -> list[Event]:
        """Returns the events of a device's allocator, and the marks."""
        pool = self.pools.get(device)
        return [event for event in self.events if event.kind == MARKED or event.pool == pool]

    def operation(self, event: Event) -> str:
        return self.operations.get((event.pool, event.name), f"operation {event.name}")

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


_Ranges = list[tuple[int, int]]


class _Spans:
    """Ranges of addresses that do not overlap."""

    def __init__(self, spans: _Ranges) -> None:
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


class Memory:
    """The segments of a device and their blocks in use and with a pending free, which events undo from the last to the first."""

    def __init__(self, segments: _Ranges, used: _Ranges, pending: _Ranges, is_expandable: bool) -> None:
        self._segments, self._used, self._pending = _Spans(segments), _Spans(used), _Spans(pending)
        self._is_expandable = is_expandable

    def undo(self, event: Event) -> bool:
        """Returns whether this can be the memory after an event. If so, it becomes the memory before the event."""
        start, end = event.address, event.address + event.size
        if event.kind in (ALLOC, PRESENT):
            if self._used.around(start, end) != (start, end):
                return False
            self._used.remove(start)
            # The viewer has one block at an address. The snapshot's block stays until then, possibly with its neighbours.
            if (around := self._pending.around(start, start + 1)) and around[0] == start:
                self._pending.remove(start)
        elif event.kind == FREE:
            if self._used.overlap(start, end) or self._segments.around(start, end) is None:
                return False
            self._used.add(start, end)
        elif event.kind == OBTAINED:
            whole = self._segments.around(start, end)
            is_used = self._used.overlap(start, end) or self._pending.overlap(start, end)
            if whole is None or is_used or not (self._is_expandable or whole == (start, end)):
                return False
            self._segments.remove(whole[0])
            for part in ((whole[0], start), (end, whole[1])):
                if part[0] < part[1]:
                    self._segments.add(*part)
        elif event.kind == RETURNED:
            if self._segments.overlap(start, end):
                return False
            (self._segments.merge if self._is_expandable else self._segments.add)(start, end)
        return True
