"""A program that publishes its statistics. It does what it reads from standard input, a command a line, and answers with the
statistics and the metrics of its pool."""

import contextlib
import ctypes
import json
import os
import sys

import bfc

DEVICE = 256


def metrics():
    """What bfc_metrics writes."""
    function = ctypes.CDLL(str(bfc.library_path())).bfc_metrics
    function.argtypes = (ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t))
    length = ctypes.c_size_t()
    buffer = ctypes.create_string_buffer(1 << 16)
    assert function(buffer, len(buffer), ctypes.byref(length)) == 0
    return buffer.value.decode()


def answer():
    stats = bfc.stats(DEVICE)
    figures = {name: getattr(stats, name) for name in stats.__dataclass_fields__}
    print(json.dumps({"stats": figures, "metrics": metrics()}), flush=True)


def in_children(count):
    """Forks children that each create an allocator, and end with this process's input."""
    for number in range(count):
        if os.fork() == 0:
            bfc.create(DEVICE + 2 + number, backend="host", memory_limit=1 << 30, name=f"child {number}")
            bfc.alloc(DEVICE + 2 + number, 1000 * (number + 1))
            os.read(0, 1)
            os._exit(0)


def main():
    bfc.create(DEVICE, backend="host", memory_limit=1 << 30, name=sys.argv[1])
    live = []
    answer()
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "alloc":
            count, size, *scope = rest.split(" ", 2)
            with bfc.scope(scope[0], 7) if scope else contextlib.nullcontext():
                live += [bfc.alloc(DEVICE, int(size)) for _ in range(int(count))]
        elif word == "free":
            for _ in range(int(rest)):
                bfc.free(DEVICE, live.pop())
        elif word == "churn":
            # All chunks are of one size, so that what is in use follows from the counts.
            for _ in range(int(rest)):
                bfc.free(DEVICE, bfc.alloc(DEVICE, 4096))
                live.append(bfc.alloc(DEVICE, 4096))
                if len(live) > 50:
                    while live:
                        bfc.free(DEVICE, live.pop())
        elif word == "pools":
            for number in range(1, int(rest) + 1):
                bfc.create(DEVICE + number, backend="host", memory_limit=1 << 20)
        elif word == "fork":
            in_children(int(rest))
        elif word == "exec":
            os.execv("/bin/sleep", ["sleep", rest])
        answer()


main()
