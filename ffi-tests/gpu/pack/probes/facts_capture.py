"""Which calls a stream capture permits. Each question is asked during a capture of its own, for every combination of the
capture's mode, the asking thread and that thread's mode, because a call that is refused may invalidate the capture."""

import ctypes

from driver import GLOBAL, RELAXED, THREAD_LOCAL
from registry import fact

CAPTURES = {"global": GLOBAL, "thread-local": THREAD_LOCAL, "relaxed": RELAXED}
THREAD_MODES = {"default": GLOBAL, "relaxed": RELAXED}


def answers(cu, prepare):
    """Returns the situations of each answer, or the answer if all situations have the same. `prepare(stream)` is called before
    the capture of the stream and returns the question, a function that returns the name of a code."""
    found = {}
    for capture in CAPTURES:
        for where in ["same", "other"]:
            for mode in THREAD_MODES:
                text = answer(cu, prepare, CAPTURES[capture], where, THREAD_MODES[mode])
                found.setdefault(text, []).append(f"{capture} capture, {where} thread, {mode} mode")
    return found if len(found) > 1 else next(iter(found))


def answer(cu, prepare, capture, where, mode):
    stream = cu.stream()
    question = prepare(stream)

    def ask():
        with cu.capture_mode(mode):
            return question()

    cu.begin_capture(stream, capture)
    code = ask() if where == "same" else cu.in_thread(ask)
    outcome = cu.capture_state(stream), cu.end_capture(stream)
    cu.check("cuStreamDestroy_v2", stream)
    if outcome == ("ACTIVE", "SUCCESS"):
        return f"{code}, capture survives"
    if outcome == ("INVALIDATED", "STREAM_CAPTURE_INVALIDATED"):
        return f"{code}, capture invalidated"
    return f"{code}, state of the capture {outcome[0]}, its end {outcome[1]}"


def stream_query(cu, function, stream):
    """Returns the name of the code, and the one or two values that the function wrote."""
    values = [ctypes.c_uint64() for _ in range(2 if function == "cuStreamGetCtx_v2" else 1)]
    code = cu.code(function, stream, *map(ctypes.byref, values))
    return code, [value.value for value in values]


@fact("captured-stream-context")
def captured_stream_context(cu):
    cu.enter()
    other = cu.stream()

    def prepare(function, stream):
        before = stream_query(cu, function, stream)

        def question():
            now = stream_query(cu, function, stream)
            return now[0] if now[0] != "SUCCESS" or now == before else f"{now[0]} with another value than before the capture"

        return question

    results = {}
    for function in ["cuStreamGetCtx", "cuStreamGetCtx_v2", "cuStreamGetId", "cuStreamGetDevice"]:
        if not cu.has(function):
            continue
        results[f"{function} of the captured stream"] = answers(cu, lambda stream: prepare(function, stream))
        results[f"{function} of another stream"] = answers(cu, lambda _: prepare(function, other))
    return results


@fact("captured-free")
def captured_free(cu):
    cu.enter()

    def free(_):
        at = cu.alloc(4096)
        return lambda: cu.code("cuMemFree_v2", at)

    def allocate(_):
        at = ctypes.c_uint64()
        return lambda: cu.code("cuMemAlloc_v2", ctypes.byref(at), 4096)

    return {
        "cuMemFree_v2 of memory of cuMemAlloc_v2": answers(cu, free),
        "cuMemFree_v2 of 0": answers(cu, lambda _: lambda: cu.code("cuMemFree_v2", 0)),
        "cuMemAlloc_v2": answers(cu, allocate),
    }


@fact("captured-synchronize")
def captured_synchronize(cu):
    cu.enter()
    other, event = cu.stream(), cu.event()
    cu.check("cuEventRecord", event, other)
    cu.check("cuStreamSynchronize", other)
    questions = {
        "cuCtxSynchronize": ["cuCtxSynchronize"],
        "cuStreamSynchronize of another stream": ["cuStreamSynchronize", other],
        "cuStreamQuery of another stream": ["cuStreamQuery", other],
        "cuEventQuery of an event of another stream": ["cuEventQuery", event],
        "cuEventSynchronize of an event of another stream": ["cuEventSynchronize", event],
        "cuEventRecord on another stream": ["cuEventRecord", event, other],
    }
    return {text: answers(cu, lambda _: lambda: cu.code(*call)) for text, call in questions.items()}
