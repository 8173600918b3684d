"""Rules of captured streams and events themselves, and of the end of captures."""

from captures import FAILED, FORBIDDEN, SCENARIOS, in_captures, out
from driver import BLOCKING, LEGACY_STREAM
from registry import rule

QUERIED = "A captured stream or event, or a context with a captured stream"
DESTROYED = "Destroying the stream of a capture"
STAYS = "A captured event stays one after the capture"
OUTSIDE = "A captured stream that waits for an event from outside"
EXTERNAL = "External records and waits outside a capture"

REFUSED = dict.fromkeys(SCENARIOS, FORBIDDEN)
REFUSED_EVENT = dict.fromkeys(SCENARIOS, f"CAPTURED_EVENT, {FAILED}")


@rule("captured-stream-query", row=QUERIED, expected=REFUSED)
def captured_stream_query(cu):
    """cuStreamQuery of the captured stream. "It is invalid to synchronize or query the execution status of a stream which is
    being captured"; also in relaxed mode?"""
    cu.enter()
    return in_captures(cu, lambda stream: cu.code("cuStreamQuery", stream))


@rule("captured-stream-synchronize", row=QUERIED, expected=REFUSED)
def captured_stream_synchronize(cu):
    """cuStreamSynchronize for the captured stream."""
    cu.enter()
    return in_captures(cu, lambda stream: cu.code("cuStreamSynchronize", stream))


@rule("captured-context-synchronize", row=QUERIED, expected=REFUSED)
def captured_context_synchronize(cu):
    """cuCtxSynchronize while a stream of the context is captured: "a broader handle which encompasses an active stream
    capture"."""
    cu.enter()
    return in_captures(cu, lambda _: cu.code("cuCtxSynchronize"))


def in_captures_of_an_event(cu, function):
    """Calls a function of an event that was recorded in the capture."""
    cu.enter()
    events = [cu.event() for _ in SCENARIOS]

    def call(stream):
        event = events.pop()
        cu.check("cuEventRecord", event, stream)
        return cu.code(function, event)

    return in_captures(cu, call)


@rule("captured-event-query", row=QUERIED, expected=REFUSED_EVENT)
def captured_event_query(cu):
    """cuEventQuery of an event that was recorded in the capture. `CUresult`: "the operation is not permitted on an event
    which was last recorded in a capturing stream"."""
    return in_captures_of_an_event(cu, "cuEventQuery")


@rule("captured-event-synchronize", row=QUERIED, expected=REFUSED_EVENT)
def captured_event_synchronize(cu):
    """cuEventSynchronize for an event that was recorded in the capture."""
    return in_captures_of_an_event(cu, "cuEventSynchronize")


@rule(
    "captured-event-after-the-capture",
    row=STAYS,
    expected={
        "query": "CAPTURED_EVENT",
        "synchronize": "CAPTURED_EVENT",
        "stream waits": "CAPTURED_EVENT",
        "record": "SUCCESS",
        "query after record": "SUCCESS",
    },
)
def captured_event_after_the_capture(cu):
    """What an event returns after the capture in which it was recorded has ended, and after a record elsewhere."""
    cu.enter()
    stream, other, event = cu.stream(), cu.stream(), cu.event()
    cu.begin_capture(stream)
    cu.check("cuEventRecord", event, stream)
    cu.end_capture(stream)
    observed = {
        "query": cu.code("cuEventQuery", event),
        "synchronize": cu.code("cuEventSynchronize", event),
        "stream waits": cu.code("cuStreamWaitEvent", other, event, 0),
        "record": cu.code("cuEventRecord", event, other),
    }
    cu.check("cuStreamSynchronize", other)
    return observed | {"query after record": cu.code("cuEventQuery", event)}


@rule(
    "captured-stream-waits-for-outside-event",
    row=OUTSIDE,
    expected=dict.fromkeys(["recorded", "unrecorded"], f"STREAM_CAPTURE_ISOLATION, {FAILED}"),
)
def captured_stream_waits_for_outside_event(cu):
    """cuStreamWaitEvent of a captured stream for an event from outside, recorded or never recorded. "It is invalid to wait on
    a non-captured event from a stream which is being captured"."""
    cu.enter()
    other, recorded = cu.stream(), cu.event()
    cu.check("cuEventRecord", recorded, other)
    observed = {}
    for kind, event in {"recorded": recorded, "unrecorded": cu.event()}.items():
        outcomes = in_captures(cu, lambda stream: cu.code("cuStreamWaitEvent", stream, event, 0), scenarios=["global"])
        observed[kind] = outcomes["global"]
    return observed


@rule(
    "captured-blocking-stream-and-legacy-stream",
    row="While a blocking stream is captured",
    expected={
        "status": "STREAM_CAPTURE_IMPLICIT",
        "before": "ACTIVE",
        "use": "STREAM_CAPTURE_IMPLICIT",
        "after": "INVALIDATED",
    },
)
def captured_blocking_stream_and_legacy_stream(cu):
    """The capture status of the legacy default stream and its use, while a blocking stream is captured. "The blocking stream
    capture is not invalidated" by the question."""
    cu.enter()
    stream, event = cu.stream(BLOCKING), cu.event()
    cu.begin_capture(stream)
    return {
        "status": cu.capture_state(LEGACY_STREAM),
        "before": cu.capture_state(stream),
        "use": cu.code("cuEventRecord", event, LEGACY_STREAM),
        "after": cu.capture_state(stream),
    }


@rule("capture-origin-destroyed", row=DESTROYED, expected={"destroy": "SUCCESS", "allocation afterwards": "SUCCESS"})
def capture_origin_destroyed(cu):
    """The stream on which a capture began is destroyed. A potentially unsafe call shows whether the capture has ended."""
    cu.enter()
    stream = cu.stream()
    cu.begin_capture(stream)
    return {"destroy": cu.code("cuStreamDestroy_v2", stream), "allocation afterwards": cu.code("cuMemAlloc_v2", out(), 512)}


@rule(
    "capture-joined-stream-destroyed",
    row=DESTROYED,
    expected={"destroy": "SUCCESS", "capture": "INVALIDATED", "end": "STREAM_CAPTURE_INVALIDATED"},
)
def capture_joined_stream_destroyed(cu):
    """A stream that joined the capture of another one, with work there, is destroyed before it joins back."""
    cu.enter()
    origin, joined, fork, at = cu.stream(), cu.stream(), cu.event(), cu.alloc(512)
    cu.begin_capture(origin)
    cu.check("cuEventRecord", fork, origin)
    cu.check("cuStreamWaitEvent", joined, fork, 0)
    cu.check("cuMemsetD8Async", at, 1, 512, joined)
    destroy = cu.code("cuStreamDestroy_v2", joined)
    return {"destroy": destroy, "capture": cu.capture_state(origin), "end": cu.end_capture(origin)}


@rule(
    "capture-joined-back-stream-destroyed",
    row=DESTROYED,
    expected={"destroy": "SUCCESS", "capture": "INVALIDATED", "end": "STREAM_CAPTURE_INVALIDATED"},
)
def capture_joined_back_stream_destroyed(cu):
    """A stream is destroyed after its work in the capture of another one has joined back."""
    cu.enter()
    origin, joined, fork, join, at = cu.stream(), cu.stream(), cu.event(), cu.event(), cu.alloc(512)
    cu.begin_capture(origin)
    cu.check("cuEventRecord", fork, origin)
    cu.check("cuStreamWaitEvent", joined, fork, 0)
    cu.check("cuMemsetD8Async", at, 1, 512, joined)
    cu.check("cuEventRecord", join, joined)
    cu.check("cuStreamWaitEvent", origin, join, 0)
    destroy = cu.code("cuStreamDestroy_v2", joined)
    return {"destroy": destroy, "capture": cu.capture_state(origin), "end": cu.end_capture(origin)}


@rule("event-external-outside-capture", row=EXTERNAL, expected={"record": "INVALID_VALUE", "wait": "INVALID_VALUE"})
def event_external_outside_capture(cu):
    """cuEventRecordWithFlags and cuStreamWaitEvent with the external flag on a stream that is not captured. "This flag is
    invalid outside of stream capture"."""
    cu.enter()
    stream, event = cu.stream(), cu.event()
    cu.check("cuEventRecord", event, stream)
    return {
        "record": cu.code("cuEventRecordWithFlags", event, stream, 1),
        "wait": cu.code("cuStreamWaitEvent", stream, event, 1),
    }
