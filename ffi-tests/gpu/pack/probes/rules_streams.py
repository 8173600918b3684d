"""Rules of streams: destroyed handles, handles that come back, and ids."""

import ctypes

from driver import LEGACY_STREAM, MILLISECOND, PER_THREAD_STREAM
from registry import rule

STALE = "Every use of a destroyed handle"
REUSED = "A handle may come back for another stream"
IDS = "`cuStreamGetId` is another number for each stream"
ELSEWHERE = "`cuStreamSynchronize`, `cuStreamQuery` and copies work"

SIMCUDA_RECYCLE_HANDLES = 6
ROUNDS = 16


@rule("stream-ids-of-default-streams", row=IDS, expected=dict.fromkeys(["stable", "distinct"], True), needs="cuStreamGetId")
def stream_ids_of_default_streams(cu):
    """The ids of default streams of two contexts and two threads, and of created streams. "The Id is unique for the life of the
    program"."""

    def of(stream):
        return cu.ask("cuStreamGetId", stream)

    cu.enter()
    first = [of(LEGACY_STREAM), of(PER_THREAD_STREAM)]
    again = [of(LEGACY_STREAM), of(PER_THREAD_STREAM)]
    ids = [*first, of(cu.stream()), cu.in_thread(of, PER_THREAD_STREAM)]
    is_stable = first == again and cu.in_thread(of, LEGACY_STREAM) == first[0]
    cu.make("cuCtxCreate_v2", 0, 0)
    ids += [of(LEGACY_STREAM), of(PER_THREAD_STREAM), of(cu.stream())]
    return {"stable": is_stable, "distinct": len(set(ids)) == len(ids)}


@rule("stream-id-of-null", row=IDS, expected=True, needs="cuStreamGetId")
def stream_id_of_null(cu):
    """Whether the handles 0 and 1 have one id: both name the legacy default stream."""
    cu.enter()
    return cu.ask("cuStreamGetId", 0) == cu.ask("cuStreamGetId", LEGACY_STREAM)


def create_and_destroy(cu):
    """Creates streams and destroys each with work pending. Returns the handles and the ids."""
    cu.enter()
    cu.load_kernels()
    handles, ids = [], []
    for _ in range(ROUNDS):
        stream = cu.stream()
        handles.append(stream)
        ids.append(cu.ask("cuStreamGetId", stream))
        cu.delay(stream, 2 * MILLISECOND)
        cu.check("cuStreamDestroy_v2", stream)
    cu.check("cuCtxSynchronize")
    return handles, ids


@rule("stream-ids-after-destruction", row=IDS, expected=True, needs="cuStreamGetId")
def stream_ids_after_destruction(cu):
    """Whether streams that are created and destroyed in turn have distinct ids. RMM keys its free lists by them."""
    _, ids = create_and_destroy(cu)
    return len(set(ids)) == len(ids)


@rule("stream-handle-comes-back", row=REUSED, expected=True, needs="cuStreamGetId")
def stream_handle_comes_back(cu):
    """Whether a handle is given to another stream while the work of the old one is pending. RMM (#649): "Stream handles are
    reused aggressively by CUDA driver". The simulation does it with SIMCUDA_RECYCLE_HANDLES only."""
    if cu.is_simulated:
        cu.library.simcuda_set(SIMCUDA_RECYCLE_HANDLES, ctypes.c_int64(1))
    handles, _ = create_and_destroy(cu)
    return len(set(handles)) < len(handles)


@rule("event-handle-comes-back", row=REUSED, expected=True)
def event_handle_comes_back(cu):
    """Whether the handle of a destroyed event, which work still waits for, is given to another event."""
    if cu.is_simulated:
        cu.library.simcuda_set(SIMCUDA_RECYCLE_HANDLES, ctypes.c_int64(1))
    cu.enter()
    cu.load_kernels()
    busy, waiting, handles = cu.stream(), cu.stream(), []
    for _ in range(ROUNDS):
        event = cu.event()
        handles.append(event)
        cu.delay(busy, MILLISECOND)
        cu.check("cuEventRecord", event, busy)
        cu.check("cuStreamWaitEvent", waiting, event, 0)
        cu.check("cuEventDestroy_v2", event)
    cu.check("cuCtxSynchronize")
    return len(set(handles)) < len(handles)


@rule(
    "stream-of-another-context",
    row=ELSEWHERE,
    expected={"query": "NOT_READY", "synchronize": "SUCCESS", "query afterwards": "SUCCESS", "copy": "SUCCESS"},
)
def stream_of_another_context(cu):
    """cuStreamQuery, cuStreamSynchronize and a copy on a stream of another context than the current one. Guide: "A memory copy
    will succeed even if it is issued to a stream that is not associated to the current device"."""
    cu.enter()
    cu.load_kernels()
    stream, at = cu.stream(), cu.alloc(1024)
    cu.make("cuCtxCreate_v2", 0, 0)
    primary = cu.context
    cu.check("cuCtxPushCurrent_v2", primary)
    cu.delay(stream, 200 * MILLISECOND)
    cu.make("cuCtxPopCurrent_v2")
    return {
        "query": cu.code("cuStreamQuery", stream),
        "synchronize": cu.code("cuStreamSynchronize", stream),
        "query afterwards": cu.code("cuStreamQuery", stream),
        "copy": cu.code("cuMemcpyDtoDAsync_v2", at, at + 512, 512, stream),
    }


# Destroyed handles. A driver may crash, which the runner records.


def destroyed_stream(cu):
    cu.enter()
    stream = cu.stream()
    cu.check("cuStreamDestroy_v2", stream)
    return stream


def destroyed_event(cu):
    cu.enter()
    event = cu.event()
    cu.check("cuEventDestroy_v2", event)
    return event


@rule("stale-stream-query", row=STALE, expected="INVALID_HANDLE")
def stale_stream_query(cu):
    """cuStreamQuery of a destroyed stream. lupine (#441): "a garbage stream handle SEGFAULTS"."""
    return cu.code("cuStreamQuery", destroyed_stream(cu))


@rule("stale-stream-get-id", row=STALE, expected="INVALID_HANDLE", needs="cuStreamGetId")
def stale_stream_get_id(cu):
    """cuStreamGetId of a destroyed stream: "Passing an invalid handle will result in undefined behavior"."""
    return cu.code("cuStreamGetId", destroyed_stream(cu), ctypes.byref(ctypes.c_uint64()))


@rule("stale-stream-work", row=STALE, expected="INVALID_HANDLE")
def stale_stream_work(cu):
    """A fill on a destroyed stream."""
    stream = destroyed_stream(cu)
    return cu.code("cuMemsetD8Async", cu.alloc(512), 1, 512, stream)


@rule("stale-stream-destroy", row=STALE, expected="INVALID_HANDLE")
def stale_stream_destroy(cu):
    """cuStreamDestroy of a destroyed stream."""
    return cu.code("cuStreamDestroy_v2", destroyed_stream(cu))


@rule("stale-event-query", row=STALE, expected="INVALID_HANDLE")
def stale_event_query(cu):
    """cuEventQuery of a destroyed event."""
    return cu.code("cuEventQuery", destroyed_event(cu))


@rule("stale-event-record", row=STALE, expected="INVALID_HANDLE")
def stale_event_record(cu):
    """cuEventRecord of a destroyed event."""
    event = destroyed_event(cu)
    return cu.code("cuEventRecord", event, cu.stream())


@rule("stale-event-wait", row=STALE, expected="INVALID_HANDLE")
def stale_event_wait(cu):
    """cuStreamWaitEvent for a destroyed event."""
    event = destroyed_event(cu)
    return cu.code("cuStreamWaitEvent", cu.stream(), event, 0)


@rule("stale-event-destroy", row=STALE, expected="INVALID_HANDLE")
def stale_event_destroy(cu):
    """cuEventDestroy of a destroyed event."""
    return cu.code("cuEventDestroy_v2", destroyed_event(cu))
