"""Recording a program of programs.py for the simulation of cores.py, by a history of the allocator."""

import collections
import math
import pathlib
import statistics
import struct
import sys
import tempfile
import time
from typing import NamedTuple

WINDOWS = 5
# Nanoseconds from which a gap is long: one that may have been interrupted in each window.
LONG = 100_000
# Of events, in crates/bfc-formats/src/history/layout.rs.
KINDS = {1: "alloc", 2: "free", 7: "mark"}


def record(name, seconds, costs):
    """Some steps, with one thread: each gap is the median over windows of the same calls, because other programs interrupt one
    or another.

    A history costs something, and so do the marks at both ends. So what a call takes with a history is taken off each gap.
    What then differs from the processor time of the fastest steps without a history is that of other programs, which is in the
    long gaps, so these are scaled. If they are less than half of the time, all gaps are."""
    import bfc
    import measure
    import programs

    programs.THREADS = 1
    program = programs.ALL[name]
    measure.use_libbfc(program)
    step = program()
    if program in programs.WITH_TORCH:
        import torch

        torch.set_num_threads(1)
    elif program is programs.arrow_query:
        import pyarrow

        pyarrow.set_cpu_count(1)
    times, end = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        began = time.process_time()
        step()
        times.append(time.process_time() - began)
    plain = 1e9 * min(times)
    count = calls_of(bfc, step, 1, 1, 1 << 18)[0].calls
    steps = math.ceil(1000 / count)
    number = min(200, max(WINDOWS, math.ceil(2e9 / (steps * plain))))
    windows = calls_of(bfc, step, steps, number, 1 << math.ceil(math.log2(1.5 * number * steps * count)), count)
    sizes, alike = collections.Counter(tuple(window.sizes) for window in windows).most_common(1)[0]
    if 2 * alike < number:
        sys.exit(f"cores.py: only {alike} of {number} windows of {name} have the same calls; the simulation is of one that all have")
    same = [window for window in windows if tuple(window.sizes) == sizes]
    calls = same[0].calls
    gaps = [max(0, statistics.median(gaps) - costs["hold_history"]) for gaps in zip(*(window.gaps for window in same))]
    left, long = steps * plain - calls * costs["hold"], sum(gap for gap in gaps if gap > LONG)
    least = 0 if long < left / 2 else LONG
    scaled = long if least else sum(gaps)
    scale = (left - sum(gaps) + scaled) / scaled
    print(f"{name}: {calls} calls in {steps} steps of {plain / 1e6:.3f} ms; {alike} of {number} windows; scale {scale:.3f}", flush=True)
    if not 0.9 < scale < 1.1 and not least or scale < 0:
        sys.exit("cores.py: the history seems to change the speed too much; record it again while the machine does less")
    gaps = [gap * scale if gap > least else gap for gap in gaps]
    numbers = [round(number) for gap, size in zip(gaps, sizes) for number in (gap, size)]
    return {"title": program.__doc__.replace(" in 64 threads", ""), "steps": steps, "calls": numbers}


class Window(NamedTuple):
    """Some steps with a history."""

    calls: int
    gaps: list  # before each call, and the last one to the end
    sizes: list  # negative for frees, and 0 for the end


def calls_of(bfc, step, steps, windows, capacity, calls_a_step=0):
    """Windows of so many steps. With the number of calls in a step, the memory of the history has been used up once before: a
    page that is touched for the first time costs as much as many calls."""
    with tempfile.TemporaryDirectory() as folder, bfc.history(events=capacity, stacks="none") as history:
        for _ in range(math.ceil(capacity / calls_a_step) if calls_a_step else 0):
            step()
        history.mark("window")
        for _ in range(windows):
            for _ in range(steps):
                step()
            history.mark("window")
        file = pathlib.Path(folder) / "history"
        history.save(file)
        data = file.read_bytes()
    # crates/bfc-formats/src/history/layout.rs
    if not data.startswith(b"libbfc history 2"):
        sys.exit("cores.py: the history has a layout that cores.py does not know: compare crates/bfc-formats/src/history/layout.rs")
    header_bytes, event_bytes, text_bytes, capacity, written = struct.unpack_from("<IIQQQ", data, 16)
    ticks, nanoseconds, ticks_later, nanoseconds_later = struct.unpack_from("<4Q", data, 64)
    per_tick = (nanoseconds_later - nanoseconds) / (ticks_later - ticks)
    found, live, pools, has_begun, before, gaps, sizes = [], {}, set(), False, 0.0, [], []
    for number in range(max(0, written - capacity), written):
        place = header_bytes + text_bytes + number % capacity * event_bytes
        _, tick, address, size, requested, _, _, what = struct.unpack_from("<8Q", data, place)
        kind, at = KINDS.get(what & 0xFF), tick * per_tick
        if kind == "alloc":
            live[address] = size = requested
        elif kind == "free":
            size = -live.pop(address, size)
        elif kind == "mark":
            size = 0
        else:
            continue
        if has_begun:
            gaps.append(at - before)
            sizes.append(size)
            pools |= {what >> 16 & 0xFFFF} if size else set()
        if kind == "mark":
            if has_begun:
                found.append(Window(len(gaps) - 1, gaps, sizes))
            has_begun, gaps, sizes = True, [], []
        before = at
    if len(pools) > 1:
        sys.exit("cores.py: the program uses several allocators; the simulation is of one")
    if len(found) != windows:
        sys.exit(f"cores.py: {len(found)} of {windows} windows were recorded: steps differ in their number of calls")
    return found
