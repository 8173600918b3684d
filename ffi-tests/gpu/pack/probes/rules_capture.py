"""Rules of stream captures: which calls a capture forbids to which threads.

`cuThreadExchangeStreamCaptureMode` names "potentially unsafe API calls" and gives cudaMalloc as the only example. The probes
of this file make one call each in captures of every kind (captures.SCENARIOS)."""

import ctypes

from captures import ALLOWED, FORBIDDEN, SAFE, SHORT, UNSAFE, in_captures, out, shorten
from driver import LEGACY_STREAM, NON_BLOCKING
from registry import rule

MEMORY = "Potentially unsafe: `cuMemAlloc` and other memory"
QUERIES = "Potentially unsafe: queries of events and streams"
STREAMS = "Potentially unsafe: `cuStreamGetCtx`"
POOLS = "Potentially unsafe: `cuMemPoolGetAttribute`"
VIRTUAL = "Potentially unsafe: virtual memory"
HARMLESS = "`cuMemGetInfo`, `cuStreamCreate`"
CODE = "Such a call returns STREAM_CAPTURE_UNSUPPORTED"

RELEASE_THRESHOLD, RESERVED_NOW = 4, 5


@rule("capture-mem-alloc", row=MEMORY, expected=UNSAFE)
def capture_mem_alloc(cu):
    """cuMemAlloc. "The local thread is prohibited from potentially unsafe API calls", such as cudaMalloc."""
    cu.enter()
    return in_captures(cu, lambda _: cu.code("cuMemAlloc_v2", out(), 1 << 20))


@rule("capture-mem-free", row=MEMORY, expected=UNSAFE)
def capture_mem_free(cu):
    """cuMemFree. PyTorch (#187795): in a capture it fails with STREAM_CAPTURE_INVALIDATED on some GPUs."""
    cu.enter()
    return in_captures(cu, lambda at: cu.code("cuMemFree_v2", at), prepare=lambda: cu.alloc(512))


@rule("capture-mem-free-null", row=MEMORY, expected=UNSAFE)
def capture_mem_free_null(cu):
    """cuMemFree of NULL, which frees nothing: is it refused as well?"""
    cu.enter()
    return in_captures(cu, lambda _: cu.code("cuMemFree_v2", 0))


@rule("capture-host-memory", row=MEMORY, expected=dict.fromkeys(["alloc", "free"], shorten(UNSAFE)))
def capture_host_memory(cu):
    """cuMemHostAlloc and cuMemFreeHost."""
    cu.enter()
    return {
        "alloc": in_captures(cu, lambda _: cu.code("cuMemHostAlloc", out(), 4096, 0), scenarios=SHORT),
        "free": in_captures(
            cu,
            lambda at: cu.code("cuMemFreeHost", at),
            prepare=lambda: cu.make("cuMemHostAlloc", 4096, 0),
            scenarios=SHORT,
        ),
    }


@rule("capture-codes-of-end", row=CODE, expected={"call": "STREAM_CAPTURE_UNSUPPORTED", "end": "STREAM_CAPTURE_INVALIDATED"})
def capture_codes_of_end(cu):
    """The code of a forbidden call, and that of cuStreamEndCapture afterwards. "Any associated capture graphs are
    invalidated"."""
    cu.enter()
    stream = cu.stream()
    cu.begin_capture(stream)
    return {"call": cu.code("cuMemAlloc_v2", out(), 512), "end": cu.end_capture(stream)}


@rule(
    "capture-work-after-forbidden-call",
    row=CODE,
    expected={"record": "STREAM_CAPTURE_INVALIDATED", "fill": "STREAM_CAPTURE_INVALIDATED", "other stream": "SUCCESS"},
)
def capture_work_after_forbidden_call(cu):
    """What a capturing stream and another one return once the capture is invalidated and not ended."""
    cu.enter()
    stream, other, at = cu.stream(), cu.stream(), cu.alloc(512)
    cu.begin_capture(stream)
    cu.code("cuMemAlloc_v2", out(), 512)
    return {
        "record": cu.code("cuEventRecord", cu.event(), stream),
        "fill": cu.code("cuMemsetD8Async", at, 1, 512, stream),
        "other stream": cu.code("cuMemsetD8Async", at, 1, 512, other),
    }


@rule("capture-forbidden-call-fails-all-captures", row=CODE, expected=["INVALIDATED", "INVALIDATED", "ACTIVE"])
def capture_forbidden_call_fails_all_captures(cu):
    """Which of three captures one forbidden call invalidates: two in global mode and one in relaxed mode."""
    cu.enter()
    streams = [cu.stream(), cu.stream(), cu.stream()]
    for stream, mode in zip(streams, [0, 0, 2]):
        cu.begin_capture(stream, mode)
    cu.code("cuMemAlloc_v2", out(), 512)
    return [cu.capture_state(stream) for stream in streams]


@rule(
    "capture-relaxed-alloc-and-free",
    row="In relaxed mode `cuMemAlloc` and `cuMemFree`",
    expected={"alloc": "SUCCESS", "free": "SUCCESS", "free null": "SUCCESS", "capture": "ACTIVE", "end": "SUCCESS"},
)
def capture_relaxed_alloc_and_free(cu):
    """Memory is allocated and freed by the capturing thread in relaxed mode. "The local thread is not prohibited from
    potentially unsafe API calls"; aws-ofi-nccl (#1342) wraps both functions so."""
    cu.enter()
    old, stream, at = cu.alloc(512), cu.stream(), ctypes.c_uint64()
    cu.begin_capture(stream)
    with cu.capture_mode(2):
        alloc = cu.code("cuMemAlloc_v2", ctypes.byref(at), 64 << 20)
        free = cu.code("cuMemFree_v2", old)
        free_null = cu.code("cuMemFree_v2", 0)
    state = cu.capture_state(stream)
    return {"alloc": alloc, "free": free, "free null": free_null, "capture": state, "end": cu.end_capture(stream)}


# Queries and waits.


def recorded(cu):
    """Returns an event whose work is done."""
    stream, event = cu.stream(), cu.event()
    cu.check("cuEventRecord", event, stream)
    cu.check("cuEventSynchronize", event)
    return event


@rule("capture-event-query", row=QUERIES, expected=UNSAFE)
def capture_event_query(cu):
    """cuEventQuery of an event that has nothing to do with the capture. PyTorch (#55860): "Calling EventQuery while
    capture is underway is also illegal"."""
    cu.enter()
    return in_captures(cu, lambda event: cu.code("cuEventQuery", event), prepare=lambda: recorded(cu))


@rule("capture-event-query-unrecorded", row=QUERIES, expected=shorten(UNSAFE))
def capture_event_query_unrecorded(cu):
    """cuEventQuery of an event that was never recorded."""
    cu.enter()
    return in_captures(cu, lambda event: cu.code("cuEventQuery", event), prepare=cu.event, scenarios=SHORT)


@rule("capture-event-synchronize", row=QUERIES, expected=UNSAFE)
def capture_event_synchronize(cu):
    """cuEventSynchronize for an event that has nothing to do with the capture."""
    cu.enter()
    return in_captures(cu, lambda event: cu.code("cuEventSynchronize", event), prepare=lambda: recorded(cu))


@rule("capture-stream-query", row=QUERIES, expected=UNSAFE)
def capture_stream_query(cu):
    """cuStreamQuery of another stream than the captured one."""
    cu.enter()
    return in_captures(cu, lambda stream: cu.code("cuStreamQuery", stream), prepare=cu.stream)


@rule("capture-stream-synchronize", row=QUERIES, expected=UNSAFE)
def capture_stream_synchronize(cu):
    """cuStreamSynchronize for another stream than the captured one."""
    cu.enter()
    return in_captures(cu, lambda stream: cu.code("cuStreamSynchronize", stream), prepare=cu.stream)


@rule("capture-legacy-stream-query", row=QUERIES, expected=shorten(UNSAFE))
def capture_legacy_stream_query(cu):
    """cuStreamQuery of the legacy default stream while a non-blocking stream is captured."""
    cu.enter()
    return in_captures(cu, lambda _: cu.code("cuStreamQuery", LEGACY_STREAM), scenarios=SHORT)


# Identity of streams.


def stream_identity(cu, function, prepare):
    cu.enter()
    return in_captures(cu, lambda stream: cu.code(function, stream, out()), prepare)


@rule("capture-stream-get-id", row=STREAMS, expected=UNSAFE, needs="cuStreamGetId")
def capture_stream_get_id(cu):
    """cuStreamGetId of another stream. CCCL (#9395): it "would be rejected with cudaErrorStreamCaptureUnsupported and
    would *invalidate* the in-flight capture"."""
    return stream_identity(cu, "cuStreamGetId", cu.stream)


@rule("capture-stream-get-id-captured", row=STREAMS, expected=UNSAFE, needs="cuStreamGetId")
def capture_stream_get_id_captured(cu):
    """cuStreamGetId of the captured stream itself."""
    return stream_identity(cu, "cuStreamGetId", None)


@rule("capture-stream-get-ctx", row=STREAMS, expected=UNSAFE)
def capture_stream_get_ctx(cu):
    """cuStreamGetCtx of another stream."""
    return stream_identity(cu, "cuStreamGetCtx", cu.stream)


@rule("capture-stream-get-ctx-captured", row=STREAMS, expected=UNSAFE)
def capture_stream_get_ctx_captured(cu):
    """cuStreamGetCtx of the captured stream itself."""
    return stream_identity(cu, "cuStreamGetCtx", None)


@rule("capture-stream-get-device", row=STREAMS, expected=UNSAFE, needs="cuStreamGetDevice")
def capture_stream_get_device(cu):
    """cuStreamGetDevice of another stream."""
    return stream_identity(cu, "cuStreamGetDevice", cu.stream)


@rule("capture-stream-get-device-captured", row=STREAMS, expected=UNSAFE, needs="cuStreamGetDevice")
def capture_stream_get_device_captured(cu):
    """cuStreamGetDevice of the captured stream itself."""
    return stream_identity(cu, "cuStreamGetDevice", None)


# Pools, modules, virtual memory and copies.


@rule(
    "capture-pool-attributes",
    row=POOLS,
    expected={
        "cuMemPoolGetAttribute": shorten(UNSAFE),
        "cuMemPoolSetAttribute": shorten(UNSAFE),
        "cuDeviceGetDefaultMemPool": shorten(SAFE),
        "cuDeviceGetMemPool": shorten(SAFE),
        "cuDeviceGetAttribute": shorten(SAFE),
    },
)
def capture_pool_attributes(cu):
    """CCCL (#11360): the attributes of pools are potentially unsafe, and the lookup of a default pool "is a pure query and
    is legal under capture"."""
    cu.enter()
    pool = cu.make("cuDeviceGetDefaultMemPool", 0)
    calls = {
        "cuMemPoolGetAttribute": (pool, RESERVED_NOW, out()),
        "cuMemPoolSetAttribute": (pool, RELEASE_THRESHOLD, out()),
        "cuDeviceGetDefaultMemPool": (out(), 0),
        "cuDeviceGetMemPool": (out(), 0),
        "cuDeviceGetAttribute": (out(), 102, 0),
    }
    return {name: in_captures(cu, lambda _: cu.code(name, *calls[name]), scenarios=SHORT) for name in calls}


@rule("capture-module-unload", row="Potentially unsafe: `cuModuleUnload`", expected=UNSAFE)
def capture_module_unload(cu):
    """cuModuleUnload. ROCm/rocm-systems#11698: it "invalidates the capture, which matches CUDA"."""
    cu.enter()
    return in_captures(cu, lambda module: cu.code("cuModuleUnload", module), prepare=cu.load_kernels)


VIRTUAL_CALLS = [
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAddressFree",
]


@rule("capture-virtual-memory", row=VIRTUAL, expected=dict.fromkeys(VIRTUAL_CALLS, shorten(UNSAFE)))
def capture_virtual_memory(cu):
    """Each function of virtual memory management. cuda.h says nothing of them and captures; a capture that allows them lets
    a pool grow while a program captures."""
    cu.enter()
    size = cu.granularity()
    properties, access = cu.properties(), cu.access()

    def mapped():
        at = cu.reserve(size)
        cu.map_new(at, size)
        return at

    reserved, physical = (lambda: cu.reserve(size)), (lambda: cu.physical(size))
    calls = {
        "cuMemAddressReserve": (None, lambda _: (out(), size, 0, 0, 0)),
        "cuMemCreate": (None, lambda _: (out(), size, ctypes.byref(properties), 0)),
        "cuMemMap": (lambda: (reserved(), physical()), lambda both: (both[0], size, 0, both[1], 0)),
        "cuMemSetAccess": (mapped, lambda at: (at, size, ctypes.byref(access), 1)),
        "cuMemUnmap": (mapped, lambda at: (at, size)),
        "cuMemRelease": (physical, lambda handle: (handle,)),
        "cuMemAddressFree": (reserved, lambda at: (at, size)),
    }
    return {
        name: in_captures(cu, lambda made: cu.code(name, *arguments(made)), prepare, SHORT) for name, (prepare, arguments) in calls.items()
    }


COPIES = ["cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoD_v2", "cuMemsetD8_v2"]


@rule("capture-synchronous-copies", row=VIRTUAL, expected=dict.fromkeys(COPIES, shorten(UNSAFE)))
def capture_synchronous_copies(cu):
    """Synchronous copies and fills on the default stream while a non-blocking stream is captured."""
    cu.enter()
    at, host = cu.alloc(4096), ctypes.create_string_buffer(512)
    arguments = [(host, at, 512), (at, host, 512), (at, at + 2048, 512), (at, 1, 512)]
    return {name: in_captures(cu, lambda _: cu.code(name, *values), scenarios=SHORT) for name, values in zip(COPIES, arguments)}


HARMLESS_CALLS = ["cuMemGetInfo_v2", "cuStreamCreate", "cuEventCreate", "cuEventDestroy_v2"]


@rule("capture-harmless-calls", row=HARMLESS, expected=dict.fromkeys(HARMLESS_CALLS, SAFE))
def capture_harmless_calls(cu):
    """The four calls of the rule."""
    cu.enter()
    return {
        "cuMemGetInfo_v2": in_captures(cu, lambda _: cu.code("cuMemGetInfo_v2", out(), out())),
        "cuStreamCreate": in_captures(cu, lambda _: cu.code("cuStreamCreate", out(), NON_BLOCKING)),
        "cuEventCreate": in_captures(cu, lambda _: cu.code("cuEventCreate", out(), 2)),
        "cuEventDestroy_v2": in_captures(cu, lambda event: cu.code("cuEventDestroy_v2", event), prepare=cu.event),
    }


OTHER_HARMLESS = ["cuStreamDestroy_v2", "cuEventRecord", "cuPointerGetAttribute", "cuMemGetAddressRange_v2", "cuMemsetD8Async"]


@rule("capture-other-harmless-calls", row=HARMLESS, expected=dict.fromkeys(OTHER_HARMLESS, shorten(SAFE)))
def capture_other_harmless_calls(cu):
    """Further calls on other streams that the simulation allows: the destruction of a stream, a record of an event, questions
    about a pointer, and work."""
    cu.enter()
    at, stream, event = cu.alloc(512), cu.stream(), cu.event()
    calls = {
        "cuEventRecord": (event, stream),
        "cuPointerGetAttribute": (out(), 7, at),
        "cuMemGetAddressRange_v2": (out(), out(), at),
        "cuMemsetD8Async": (at, 1, 512, stream),
    }
    answers = {name: in_captures(cu, lambda _: cu.code(name, *calls[name]), scenarios=SHORT) for name in calls}
    return {
        "cuStreamDestroy_v2": in_captures(cu, lambda other: cu.code("cuStreamDestroy_v2", other), cu.stream, SHORT),
        **answers,
    }


@rule(
    "capture-stream-ordered-allocation-elsewhere",
    row="Who may make potentially unsafe calls",
    expected={"alloc": SAFE, "free": SAFE},
)
def capture_stream_ordered_allocation_elsewhere(cu):
    """cuMemAllocAsync and cuMemFreeAsync on another stream than the captured one: they are not potentially unsafe."""
    cu.enter()
    other = cu.stream()
    return {
        "alloc": in_captures(cu, lambda _: cu.code("cuMemAllocAsync", out(), 1 << 20, other)),
        "free": in_captures(
            cu,
            lambda at: cu.code("cuMemFreeAsync", at, other),
            prepare=lambda: cu.make("cuMemAllocAsync", 512, other),
        ),
    }


@rule(
    "capture-exchange-returns-the-mode-before",
    row="Who may make potentially unsafe calls",
    expected={"initial": 0, "after relaxed": 2, "other thread": 0, "forbidden": FORBIDDEN, "allowed": ALLOWED},
)
def capture_exchange_returns_the_mode_before(cu):
    """The mode is the thread's own and begins as global. "Swaps the stream capture interaction mode for a thread"."""
    cu.enter()
    initial = cu.exchange_mode(2)
    other = cu.in_thread(lambda: cu.exchange_mode(0))
    relaxed = cu.exchange_mode(0)
    outcomes = in_captures(cu, lambda _: cu.code("cuMemAlloc_v2", out(), 512), scenarios=SHORT)
    return {
        "initial": initial,
        "after relaxed": relaxed,
        "other thread": other,
        "forbidden": outcomes["global"],
        "allowed": outcomes["global, relaxed thread"],
    }
