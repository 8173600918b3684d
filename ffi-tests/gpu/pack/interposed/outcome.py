"""How a program of the pack reports its outcome: the exit status, and lines that the runner reads."""

import ctypes
import json
import sys

SKIPPED = 77


def skip(reason):
    """Ends the program as skipped. The reason is its last line: what is missing, and how to get it."""
    print(" ".join(str(reason).split()))
    sys.exit(SKIPPED)


def result(**values):
    """Prints values that the runner merges into the row of its result file."""
    print("RESULT", json.dumps(values), flush=True)


def finish(errors, allocations, facts=()):
    """Ends the program, with status 1 if there are errors.

    :param allocations: How many allocations the program has made at least. The runner compares it with what was served.
    :param facts: Lines that must not depend on the allocator.
    """
    for fact in facts:
        print(fact)
    print(f"allocations: {allocations}")
    for error in errors:
        print(f"failed: {error}")
    if not errors:
        print("ok")
    sys.exit(1 if errors else 0)


def first_line(error):
    """The first line of an exception's message, for a reason to skip."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def is_simulated():
    """Whether the driver is the simulated one (crates/simcuda), whose kernels compute nothing."""
    return hasattr(ctypes.CDLL("libcuda.so.1"), "simcuda_calls")
