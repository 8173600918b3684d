"""Histories that no library writes: files that a reader may be slow at, or need much memory for."""

import itertools
import os
import struct

PAGE, TEXT_BYTES, STACK_BYTES = 4096, 1 << 20, 4 << 20
ALLOC, FREE, OBTAINED, RETURNED, MARK, BEGIN = 1, 2, 4, 5, 7, 9
POOL, MARK_NAME, FUNCTION, MODULE = 1, 3, 6, 7
BASE = 1 << 40


def event(kind, address=0, size=0, pool=1, name=0, stack=0):
    return kind, address, size, pool, name, stack


def text(kind, content, pool=1, number=0):
    return struct.pack("<HHIII", kind, pool, number, len(content), 0) + content + bytes(-len(content) % 8)


def module(start, end, path, since=1):
    return text(MODULE, struct.pack("<4Q", start, end, 0, 0) + path, number=since)


def backtrace(native, python=()):
    frames = [*native, *(number << 32 | line for number, line in python)]
    return struct.pack(f"<{1 + len(frames)}Q", len(native) | len(python) << 16, *frames)


def write(path, events=(), texts=b"", stacks=b"", written=None, capacity=None):
    """Writes a history. `written` and `capacity` may claim more events than there are: the file is sparse then."""
    events = list(events)
    written = len(events) if written is None else written
    capacity = capacity or 1 << max(10, (max(written, 1) - 1).bit_length())
    assert len(texts) <= TEXT_BYTES and len(stacks) <= STACK_BYTES
    header = struct.pack("<16sIIQQQQQ", b"libbfc history 2", PAGE, 64, TEXT_BYTES, capacity, written, len(texts), 0)
    header += struct.pack("<4QIIQQQQQ", 0, 0, 10**6, 10**9, 4711, 2, 1, STACK_BYTES, len(stacks), 0, 0)
    with open(path, "wb") as file:
        file.write(header)
        file.seek(PAGE)
        file.write(texts)
        file.seek(PAGE + TEXT_BYTES)
        file.write(stacks)
        file.seek(PAGE + TEXT_BYTES + STACK_BYTES)
        in_use = 0
        for number, (kind, address, size, pool, name, stack) in enumerate(events):
            in_use += size if kind == ALLOC else 0
            stamp = (number * 2 + 1) & 0xFFFFFFFF | stack << 32
            what = kind | pool << 16 | name << 32
            file.write(struct.pack("<8Q", stamp, number, address, size, size, 0, in_use, what))
        os.truncate(file.fileno(), PAGE + TEXT_BYTES + STACK_BYTES + 64 * capacity)


def regions_within_each_other(count):
    """Each part that is given back lies in all regions."""
    obtained = (event(OBTAINED, BASE + index, BASE) for index in range(count // 2))
    return {"events": [*obtained, *(event(RETURNED, BASE + 2 * count - 2 * index, 1) for index in range(count // 2))]}


def regions_that_span_chunks(count):
    chunks = (event(ALLOC, BASE + 512 * index, 256) for index in range(count // 2))
    return {"events": [*chunks, *(event(OBTAINED, BASE, 512 * count) for _ in range(count // 2))]}


def frees_that_span_chunks(count):
    chunks = (event(ALLOC, BASE + 512 * index, 256) for index in range(count // 2))
    return {"events": [*chunks, *(event(FREE, BASE + 1, 512 * count) for _ in range(count // 2))]}


def pools_and_marks(count):
    """Each mark has sums over all pools. A sum is quick, so there are more of them."""
    begins = (event(BEGIN, size=1, pool=1 + index) for index in range(3 * count))
    return {"events": [*begins, *(event(MARK, name=1) for _ in range(3 * count))], "texts": text(MARK_NAME, b"m", number=1)}


def pools_of_one_name(count):
    """Pools are told apart by their names in a comparison."""
    return {"events": [event(BEGIN, size=1, pool=1 + index) for index in range(count)]}


def many_modules(count):
    """Modules that lie around each other, and frames in none of them."""
    modules = (module(BASE + index, 2 * BASE - index, b"/m") for index in range(count // 2))
    stacks = (backtrace([BASE - index * 32 - frame - 1 for frame in range(32)]) for index in range(count // 32))
    return {"texts": b"".join(modules), "stacks": b"".join(stacks), "events": [event(ALLOC, BASE, 256, stack=1)]}


def long_names(count):
    """Each event and each frame has the longest name."""
    texts = text(MARK_NAME, b"m" * 4096, number=1) + text(FUNCTION, b"f" * 1000 + b"\0" + b"g" * 23, number=1)
    texts += b"".join(module(BASE, 2 * BASE, b"/" + b"d" * 4000 + b"/" + b"m" * 255) for _ in range(2))
    lines = itertools.count()
    frames = [backtrace([BASE + next(lines) for _ in range(64)], [(1, next(lines)) for _ in range(64)]) for _ in range(4000)]
    chunks = [event(ALLOC, BASE + 256 * index, 256, name=index, stack=1 + 129 * (index % 4000)) for index in range(count)]
    return {"texts": texts, "stacks": b"".join(frames), "events": chunks + [event(MARK, name=1)] * count}


def long_paths(_):
    """The file of all frames has a path as long as the area of texts."""
    stacks = [backtrace([BASE + 64 * index + frame for frame in range(64)]) for index in range(8000)]
    path = b"/" + b"d" * 1_000_000 + b"/m"
    return {"texts": module(BASE, 2 * BASE, path), "stacks": b"".join(stacks), "events": [event(ALLOC, BASE, 256, stack=1)]}


def sparse(_):
    """A ring of sixteen gibibytes in which only the first page is written."""
    return {"events": [event(ALLOC, BASE, 256)], "written": 1 << 28, "capacity": 1 << 28}


def many_marks_on_many_devices(count):
    pools = b"".join(text(POOL, b"p", pool=1 + index, number=index) for index in range(1000))
    begins = [event(BEGIN, size=1, pool=1 + index) for index in range(1000)]
    return {"texts": pools, "events": begins + [event(MARK)] * 10 * count}
