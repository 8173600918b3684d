"""Rules of contexts: the primary context's handle and id, destroyed contexts, several contexts of a device, and forks."""

import ctypes
import os
import select
import signal

from captures import out
from driver import LEGACY_STREAM, MIB
from registry import rule

HANDLE = "A primary context's handle is the same"
ID = "A primary context that was reset and retained again"
DESTROYED = "Without a current context calls return INVALID_CONTEXT"
STALE = "Streams, events and modules of a destroyed context"
FORK = "In a forked child of a process"
SHARED = "Contexts of one device access"
FUNCTION = "A function is INVALID_HANDLE in a stream of another context"
EVENT = "An event belongs to the context"

RESET, RELEASE = "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2"


def end_and_enter(cu, end):
    """Returns the handle and the id of the primary context before its end and after another retain."""
    first = cu.enter()
    first_id = cu.ask("cuCtxGetId", first)
    cu.alloc(512)
    cu.check(end, 0)
    second = cu.enter()
    return first, second, first_id, cu.ask("cuCtxGetId", second)


@rule("primary-context-handle-after-reset", row=HANDLE, expected=True)
def primary_context_handle_after_reset(cu):
    """Whether the primary context has the same handle after a reset and another retain."""
    first, second, _, _ = end_and_enter(cu, RESET)
    return first == second


@rule("primary-context-handle-after-release", row=HANDLE, expected=True)
def primary_context_handle_after_release(cu):
    """The same after the last release and another retain."""
    first, second, _, _ = end_and_enter(cu, RELEASE)
    return first == second


@rule("primary-context-id-after-reset", row=ID, expected=True, needs="cuCtxGetId")
def primary_context_id_after_reset(cu):
    """Whether the id is another one after a reset and another retain. "The Id is unique for the life of the program for this
    instance of CUDA"."""
    _, _, first, second = end_and_enter(cu, RESET)
    return first != second


@rule("primary-context-id-after-release", row=ID, expected=True, needs="cuCtxGetId")
def primary_context_id_after_release(cu):
    """The same after the last release and another retain."""
    _, _, first, second = end_and_enter(cu, RELEASE)
    return first != second


@rule(
    "primary-context-after-reset",
    row=DESTROYED,
    expected={
        "active": 0,
        "current": True,
        "alloc": "CONTEXT_IS_DESTROYED",
        "id": "CONTEXT_IS_DESTROYED",
        "retain": "SUCCESS",
        "alloc after retain": "SUCCESS",
    },
)
def primary_context_after_reset(cu):
    """What the thread returns in which the primary context was current, after a reset, and after another retain without
    cuCtxSetCurrent. `CUresult`: "or is a primary context which has not yet been initialized"."""
    context = cu.enter()
    cu.check(RESET, 0)
    flags, active = ctypes.c_uint(), ctypes.c_int()
    cu.check("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    return {
        "active": active.value,
        "current": cu.make("cuCtxGetCurrent") == context,
        "alloc": cu.code("cuMemAlloc_v2", out(), 512),
        "id": cu.code("cuCtxGetId", context, out()),
        "retain": cu.code("cuDevicePrimaryCtxRetain", out(), 0),
        "alloc after retain": cu.code("cuMemAlloc_v2", out(), 512),
    }


@rule(
    "reset-releases-nothing",
    row="A primary context lives while it is retained",
    expected={"release": "SUCCESS", "another release": "INVALID_CONTEXT"},
)
def reset_releases_nothing(cu):
    """Releases after one retain and a reset. "Resetting the primary context does not release it"."""
    cu.enter()
    cu.check(RESET, 0)
    return {"release": cu.code(RELEASE, 0), "another release": cu.code(RELEASE, 0)}


@rule("no-current-context", row=DESTROYED, expected={"none": "INVALID_CONTEXT", "destroyed": "CONTEXT_IS_DESTROYED"})
def no_current_context(cu):
    """cuMemAlloc without a current context, and in a thread whose context another one has destroyed."""
    none = cu.code("cuMemAlloc_v2", out(), 512)
    context = cu.make("cuCtxCreate_v2", 0, 0)
    cu.in_thread(lambda: cu.check("cuCtxDestroy_v2", context))
    return {"none": none, "destroyed": cu.code("cuMemAlloc_v2", out(), 512)}


# Handles of a destroyed context. A driver may crash, which the runner records.


def destroyed_context(cu, make):
    """Makes something in a context of its own, destroys that, and returns what was made, with the primary context current."""
    cu.enter()
    context = cu.make("cuCtxCreate_v2", 0, 0)
    made = make()
    cu.check("cuCtxDestroy_v2", context)
    return made


@rule("stale-stream-of-destroyed-context-query", row=STALE, expected="INVALID_HANDLE")
def stale_stream_query(cu):
    """cuStreamQuery of a stream of a destroyed context: "doing so will result in undefined behavior"."""
    return cu.code("cuStreamQuery", destroyed_context(cu, cu.stream))


@rule("stale-stream-of-destroyed-context-destroy", row=STALE, expected="INVALID_HANDLE")
def stale_stream_destroy(cu):
    """cuStreamDestroy of a stream of a destroyed context. UCX (#11437) and UCC (#954) check for it because it crashes."""
    return cu.code("cuStreamDestroy_v2", destroyed_context(cu, cu.stream))


@rule("stale-event-of-destroyed-context-query", row=STALE, expected="INVALID_HANDLE")
def stale_event_query(cu):
    """cuEventQuery of an event of a destroyed context."""
    return cu.code("cuEventQuery", destroyed_context(cu, cu.event))


@rule("stale-event-of-destroyed-context-destroy", row=STALE, expected="INVALID_HANDLE")
def stale_event_destroy(cu):
    """cuEventDestroy of an event of a destroyed context."""
    return cu.code("cuEventDestroy_v2", destroyed_context(cu, cu.event))


@rule("stale-module-of-destroyed-context-unload", row=STALE, expected="INVALID_HANDLE")
def stale_module_unload(cu):
    """cuModuleUnload of a module of a destroyed context."""
    return cu.code("cuModuleUnload", destroyed_context(cu, cu.load_kernels))


@rule("stale-stream-after-reset-query", row=STALE, expected="INVALID_HANDLE")
def stale_stream_after_reset(cu):
    """cuStreamQuery of a stream from before a reset of the primary context, which is live again."""
    cu.enter()
    stream = cu.stream()
    cu.check(RESET, 0)
    cu.enter()
    return cu.code("cuStreamQuery", stream)


@rule("stale-event-after-reset-query", row=STALE, expected="INVALID_HANDLE")
def stale_event_after_reset(cu):
    """cuEventQuery of an event from before a reset of the primary context, which is live again."""
    cu.enter()
    event = cu.event()
    cu.check(RESET, 0)
    cu.enter()
    return cu.code("cuEventQuery", event)


# Two contexts of one device.


@rule(
    "memory-of-another-context",
    row=SHARED,
    expected={"kernels": "SUCCESS", "wrong words": 0, "fill": "SUCCESS", "copy": "01010101", "free": "SUCCESS"},
)
def memory_of_another_context(cu):
    """Kernels, fills, copies and cuMemFree of memory that was allocated in another context of the same device."""
    cu.enter()
    cu.load_kernels()
    at, stream = cu.alloc(MIB), cu.stream()
    cu.fill(stream, at, MIB // 4, 1)
    cu.check("cuStreamSynchronize", stream)
    cu.make("cuCtxCreate_v2", 0, 0)
    cu.load_kernels()
    other = cu.stream()
    cu.expect(other, at, MIB // 4, 1)
    kernels = cu.code("cuStreamSynchronize", other)
    wrong = cu.wrong_words() if kernels == "SUCCESS" else None
    fill = cu.code("cuMemsetD8_v2", at, 1, MIB)
    copy = ctypes.create_string_buffer(4)
    copied = cu.code("cuMemcpyDtoH_v2", copy, at, 4)
    return {
        "kernels": kernels,
        "wrong words": wrong,
        "fill": fill,
        "copy": copy.raw.hex() if copied == "SUCCESS" else copied,
        "free": cu.code("cuMemFree_v2", at),
    }


@rule("function-in-another-contexts-stream", row=FUNCTION, expected="INVALID_HANDLE")
def function_in_another_contexts_stream(cu):
    """cuLaunchKernel with a function of one context and a stream of another one of the same device. Guide: "A kernel launch will
    fail if it is issued to a stream that is not associated to the current device"."""
    cu.enter()
    stream = cu.stream()
    cu.make("cuCtxCreate_v2", 0, 0)
    cu.load_kernels()
    return cu.name(cu.launch("delay", stream, ctypes.c_uint64(1)))


@rule(
    "event-on-another-contexts-stream",
    row=EVENT,
    expected={"record": "INVALID_HANDLE", "default stream": "INVALID_HANDLE", "wait": "SUCCESS", "query": "SUCCESS"},
)
def event_on_another_contexts_stream(cu):
    """cuEventRecord, cuStreamWaitEvent and cuEventQuery across two contexts of one device. "hEvent and hStream must be from the
    same context otherwise CUDA_ERROR_INVALID_HANDLE is returned"; RMM (#1306) met it."""
    cu.enter()
    event = cu.event()
    cu.make("cuCtxCreate_v2", 0, 0)
    stream = cu.stream()
    return {
        "record": cu.code("cuEventRecord", event, stream),
        "default stream": cu.code("cuEventRecord", event, LEGACY_STREAM),
        "wait": cu.code("cuStreamWaitEvent", stream, event, 0),
        "query": cu.code("cuEventQuery", event),
    }


# Forks.

FORKED_CALLS = [
    "cuInit",
    "cuDeviceGetCount",
    "cuCtxGetCurrent",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuEventQuery",
]


@rule("forked-child", row=FORK, expected=dict.fromkeys(FORKED_CALLS, "NOT_INITIALIZED") | {"parent": "SUCCESS"})
def forked_child(cu):
    """What calls return in a forked child of a process with a context, and whether the parent works afterwards. A child that
    hangs is killed after ten seconds, and the calls that it has not made are missing."""
    cu.enter()
    at, event = cu.alloc(512), cu.event()
    calls = [
        lambda: cu.cuInit(0),
        lambda: cu.cuDeviceGetCount(out()),
        lambda: cu.cuCtxGetCurrent(out()),
        lambda: cu.cuMemGetInfo_v2(out(), out()),
        lambda: cu.cuMemAlloc_v2(out(), 512),
        lambda: cu.cuMemFree_v2(at),
        lambda: cu.cuEventQuery(event),
    ]
    # Functions are looked up before the fork, so that the child only calls them.
    for name in FORKED_CALLS:
        getattr(cu, name)
    codes = in_child(calls)
    observed = {name: cu.name(code) for name, code in zip(FORKED_CALLS, codes)}
    return observed | {"parent": cu.code("cuMemFree_v2", at)}


def in_child(calls, seconds=10):
    """Makes calls in a forked child and returns the codes of those that have returned."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever happens, the child may not return into the probe.
        try:
            for call in calls:
                os.write(writer, b"%d\n" % call())
        finally:
            os._exit(0)
    os.close(writer)
    text = b""
    while select.select([reader], [], [], seconds)[0] and (part := os.read(reader, 4096)):
        text += part
    os.close(reader)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return [int(line) for line in text.split()]
