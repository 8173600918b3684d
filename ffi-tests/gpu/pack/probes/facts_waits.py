"""Which calls wait for kernels, and whether memory of a range can be remapped while kernels use the rest of it."""

import contextlib
import ctypes
import time

from driver import BLOCKING, MIB, MILLISECOND, NON_BLOCKING
from registry import fact

KERNEL_MILLISECONDS = 50
VALUE = 0x5EED


def milliseconds(function):
    """Returns what a function returns, and how long it took."""
    start = time.perf_counter()
    result = function()
    return result, round((time.perf_counter() - start) * 1e3, 3)


def timed(cu, stream, name, *arguments, context=None):
    """Calls a function while a stream works, then waits for the stream. `stream` is 0 for an idle device; `context` is the
    stream's context if that is not the current one."""
    code, took = milliseconds(lambda: cu.code(name, *arguments))
    answer = {"milliseconds": took}
    if code != "SUCCESS":
        answer["code"] = code
    if stream:
        with current(cu, context) if context else contextlib.nullcontext():
            answer["kernel still running"] = cu.code("cuStreamQuery", stream) == "NOT_READY"
            cu.check("cuStreamSynchronize", stream)
    return answer


@contextlib.contextmanager
def current(cu, context):
    """Makes another context current while a block runs."""
    cu.check("cuCtxPushCurrent_v2", context)
    try:
        yield
    finally:
        cu.make("cuCtxPopCurrent_v2")


@fact("free-waits")
def free_waits(cu):
    cu.enter()
    cu.load_kernels()
    # The first launch of a kernel and the first free may set something up.
    streams = {"non-blocking stream": cu.stream(NON_BLOCKING), "blocking stream": cu.stream(BLOCKING)}
    for stream in streams.values():
        cu.delay(stream, 1000)
    cu.check("cuCtxSynchronize")
    cu.check("cuMemFree_v2", cu.alloc(MIB))
    results = {}
    for size in [512, 4 * MIB, 256 * MIB]:
        times = results[f"cuMemFree_v2 of {size} bytes"] = {"idle device": timed(cu, 0, "cuMemFree_v2", cu.alloc(size))}
        for name, stream in streams.items():
            at = cu.alloc(size)
            cu.delay(stream, KERNEL_MILLISECONDS * MILLISECOND)
            times[f"kernel on a {name}"] = timed(cu, stream, "cuMemFree_v2", at)
    context = cu.make("cuCtxCreate_v2", 0, 0)
    cu.load_kernels()
    stream = cu.stream()
    cu.delay(stream, 1000)
    cu.check("cuCtxSynchronize")
    cu.make("cuCtxPopCurrent_v2")
    for size in [512, 4 * MIB, 256 * MIB]:
        at = cu.alloc(size)
        with current(cu, context):
            cu.delay(stream, KERNEL_MILLISECONDS * MILLISECOND)
        answer = timed(cu, stream, "cuMemFree_v2", at, context=context)
        results[f"cuMemFree_v2 of {size} bytes"]["kernel in another context of the device"] = answer
    cu.check("cuCtxDestroy_v2", context)
    return {"milliseconds of the kernel": KERNEL_MILLISECONDS} | results


class Comparison:
    """Kernels that compare memory with a value, and their count of words that differ."""

    def __init__(self, cu):
        self.cu = cu
        self.count = cu.alloc(256)
        cu.check("cuMemsetD8_v2", self.count, 0, 256)
        cu.check("cuCtxSynchronize")

    def launch(self, stream, at, words, value, blocks=64, threads=256):
        values = [ctypes.c_uint64(at), ctypes.c_uint32(words), ctypes.c_uint32(value), ctypes.c_uint64(self.count)]
        self.cu.ok(self.cu.launch("expect", stream, *values, blocks=blocks, threads=threads), "the launch of expect")

    def launch_slowly(self, stream, at, words, value):
        """A single thread reads word after word, so that one kernel uses the memory for a long time."""
        self.launch(stream, at, words, value, blocks=1, threads=1)

    def wrong(self):
        """Returns the count; the stream has to be synchronized before."""
        return int.from_bytes(self.cu.read(self.count), "little")


def words_for(cu, comparison, stream, at, words, wanted):
    """Returns the number of words, at most `words`, that one thread reads in `wanted` milliseconds."""
    sample = words // 16
    comparison.launch_slowly(stream, at, sample, VALUE)  # The first launch may take longer.
    cu.check("cuStreamSynchronize", stream)
    comparison.launch_slowly(stream, at, sample, VALUE)
    _, took = milliseconds(lambda: cu.check("cuStreamSynchronize", stream))
    return max(sample, min(words, int(sample * wanted / max(took, 0.01))))


class Range:
    """A reserved range with some granules mapped."""

    def __init__(self, cu, granules):
        self.cu = cu
        self.granule = cu.granularity()
        self.words = self.granule // 4
        self.base = cu.reserve(granules * self.granule)

    def at(self, granule):
        return self.base + granule * self.granule

    def map(self, granule, handle):
        self.cu.check("cuMemMap", self.at(granule), self.granule, 0, handle, 0)
        self.cu.ok(self.cu.cuMemSetAccess(self.at(granule), self.granule, ctypes.byref(self.cu.access()), 1), "cuMemSetAccess")

    def unmap(self, granule):
        self.cu.check("cuMemUnmap", self.at(granule), self.granule)


@fact("unmap-waits")
def unmap_waits(cu):
    cu.enter()
    cu.load_kernels()
    stream, comparison, memory = cu.stream(), Comparison(cu), Range(cu, 2)
    memory.map(0, cu.physical(memory.granule))
    cu.fill(stream, memory.at(0), memory.words, VALUE)
    words = words_for(cu, comparison, stream, memory.at(0), memory.words, KERNEL_MILLISECONDS)
    comparison.launch_slowly(stream, memory.at(0), words, VALUE)
    _, took = milliseconds(lambda: cu.check("cuStreamSynchronize", stream))
    kernels = {
        "idle device": (0, lambda: None),
        "kernel on another granule of the range": (
            stream,
            lambda: comparison.launch_slowly(stream, memory.at(0), words, VALUE),
        ),
        "kernel that uses no memory": (stream, lambda: cu.delay(stream, KERNEL_MILLISECONDS * MILLISECOND)),
    }
    results = {"milliseconds of the kernel on another granule": took}
    for name, (busy, start) in kernels.items():
        results[name] = each_call(cu, busy, start, memory)
    results["wrong words of the kernel"] = comparison.wrong()
    return results


def each_call(cu, stream, start, memory):
    """Times each call on granule 1 while a kernel of its own runs."""
    at, size = memory.at(1), memory.granule
    handle = cu.physical(size)
    memory.map(1, handle)
    results = {}

    def time_of(name, *arguments):
        start()
        results[name] = timed(cu, stream, name, *arguments)

    created = ctypes.c_uint64()
    time_of("cuMemUnmap", at, size)
    time_of("cuMemRelease", handle)
    time_of("cuMemCreate", ctypes.byref(created), size, ctypes.byref(cu.properties()), 0)
    time_of("cuMemMap", at, size, 0, created.value, 0)
    time_of("cuMemSetAccess", at, size, ctypes.byref(cu.access()), 1)
    memory.unmap(1)
    cu.check("cuMemRelease", created.value)
    return results


@fact("granules-move")
def granules_move(cu):
    """One stream uses granule 0 for a while. Meanwhile the memory of another granule moves from address to address in the same
    range; a second stream verifies and rewrites it each time."""
    rounds, most, slots = 10, 100, 4
    cu.enter()
    cu.load_kernels()
    busy, other, memory = cu.stream(), cu.stream(), Range(cu, slots)
    still, moved = Comparison(cu), Comparison(cu)
    memory.map(0, cu.physical(memory.granule))
    handle = cu.physical(memory.granule)
    memory.map(1, handle)
    cu.fill(other, memory.at(1), memory.words, 0)
    cu.fill(busy, memory.at(0), memory.words, VALUE)
    cu.check("cuCtxSynchronize")
    words = words_for(cu, still, busy, memory.at(0), memory.words, 5)
    for value in range(rounds):
        cu.fill(busy, memory.at(0), memory.words, value)
        cu.delay(busy, 5 * MILLISECOND)
        still.launch_slowly(busy, memory.at(0), words, value)
        still.launch(busy, memory.at(0), memory.words, value)
    moves = meanwhile = 0
    slot = 1
    start = time.perf_counter()
    while moves < most:
        memory.unmap(slot)
        slot = slot % (slots - 1) + 1
        memory.map(slot, handle)
        moved.launch(other, memory.at(slot), memory.words, moves)
        moves += 1
        cu.fill(other, memory.at(slot), memory.words, moves)
        moved.launch(other, memory.at(slot), memory.words, moves)
        cu.check("cuStreamSynchronize", other)
        if cu.code("cuStreamQuery", busy) != "NOT_READY":
            break
        meanwhile += 1
    took = (time.perf_counter() - start) * 1e3
    cu.check("cuCtxSynchronize")
    return {
        "moves": moves,
        "moves that ended while the kernels on granule 0 ran": meanwhile,
        "milliseconds of each move": round(took / moves, 3),
        "wrong words in granule 0": still.wrong(),
        "wrong words in the moved granule": moved.wrong(),
    }
