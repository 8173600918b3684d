"""Captures during which a call is made: by the capturing thread or another one, in each mode."""

import ctypes

from driver import GLOBAL, RELAXED, THREAD_LOCAL

# The capture's mode, whether another thread makes the call, and the mode of the thread that makes it.
SCENARIOS = {
    "global": (GLOBAL, False, GLOBAL),
    "global, other thread": (GLOBAL, True, GLOBAL),
    "thread-local": (THREAD_LOCAL, False, GLOBAL),
    "thread-local, other thread": (THREAD_LOCAL, True, GLOBAL),
    "relaxed": (RELAXED, False, GLOBAL),
    "global, relaxed thread": (GLOBAL, False, RELAXED),
    "global, relaxed other thread": (GLOBAL, True, RELAXED),
}
FAILED = "INVALIDATED, STREAM_CAPTURE_INVALIDATED"
FORBIDDEN = f"STREAM_CAPTURE_UNSUPPORTED, {FAILED}"
ALLOWED = "SUCCESS, ACTIVE, SUCCESS"
# A call that is allowed in each of them, and one that is potentially unsafe.
SAFE = dict.fromkeys(SCENARIOS, ALLOWED)
UNSAFE = SAFE | dict.fromkeys(["global", "global, other thread", "thread-local"], FORBIDDEN)
# Three scenarios, for probes of several calls.
SHORT = ["global", "thread-local, other thread", "global, relaxed thread"]


def shorten(outcomes):
    return {scenario: outcomes[scenario] for scenario in SHORT}


def in_captures(cu, call, prepare=None, scenarios=SCENARIOS):
    """Makes a call in captures. Returns the name of its code, the capture's state afterwards and the code of its end, by
    scenario.

    `prepare()` is called before each capture begins, and `call` gets its result. Without it, `call` gets the captured
    stream, which has an event recorded and no work. `call` returns the name of a code."""
    return {scenario: _in_capture(cu, call, prepare, *SCENARIOS[scenario]) for scenario in scenarios}


def _in_capture(cu, call, prepare, mode, by_other_thread, thread_mode):
    stream = cu.stream()
    argument = prepare() if prepare else stream

    def run():
        with cu.capture_mode(thread_mode):
            return call(argument)

    cu.begin_capture(stream, mode)
    code = cu.in_thread(run) if by_other_thread else run()
    return f"{code}, {cu.capture_state(stream)}, {cu.end_capture(stream)}"


def out():
    """Returns an argument for a number that a call writes and the caller ignores."""
    return ctypes.byref(ctypes.c_uint64())
