"""Traces for Perfetto, decoded by its published schema: the numbers are those of the run."""

import collections

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

from recorded import DEVICE, HOSTILE, reported, run_program

EVENT = schema.TrackEvent
# How many allocations have a slice.
SHOWN = 1000


def unknown_fields(message):
    """Fields that the schema does not have, here and in all messages within."""
    found = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is not None:
            values = value if field.is_repeated else [value]
            found += sum(unknown_fields(each) for each in values)
    return found


class Decoded:
    """The counters at each time, and the slices and instants of each track."""

    def __init__(self, path):
        trace = schema.Trace.FromString(path.read_bytes())
        assert unknown_fields(trace) == 0
        self.tracks, self.counters, self.at_marks = {}, {}, {}
        self.slices, self.instants = collections.defaultdict(list), collections.defaultdict(list)
        self.most = collections.Counter()
        (self.clocks,) = [packet.clock_snapshot for packet in trace.packet if packet.HasField("clock_snapshot")]
        open_slices, now = collections.defaultdict(list), 0
        for packet in trace.packet:
            assert packet.trusted_packet_sequence_id == 1
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                assert track.uuid not in self.tracks
                assert track.parent_uuid in self.tracks or track.HasField("process")
                self.tracks[track.uuid] = track
            elif packet.HasField("track_event"):
                assert packet.timestamp >= now
                now = packet.timestamp
                self._see(now, packet.track_event, open_slices)
        assert not any(open_slices.values()), "a slice has no end"

    def _see(self, now, event, open_slices):
        track = self.tracks[event.track_uuid]
        if event.type == EVENT.TYPE_COUNTER:
            assert track.counter.unit == schema.CounterDescriptor.UNIT_SIZE_BYTES
            self.counters[track.name] = event.counter_value
            self.most[track.name] = max(self.most[track.name], event.counter_value)
        elif event.type == EVENT.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid].append((now, event))
        elif event.type == EVENT.TYPE_SLICE_END:
            begin, begun = open_slices[event.track_uuid].pop()
            # The tracks of several allocations have one name, and no two slices of a track are open at once.
            assert not open_slices[event.track_uuid]
            self.slices[track.name].append((begin, now, begun.name, annotations(begun)))
        else:
            assert event.type == EVENT.TYPE_INSTANT
            self.instants[track.name].append((now, event.name, annotations(event)))
            if track.HasField("process"):
                self.at_marks[event.name] = dict(self.counters)


def annotations(event):
    return {each.name: getattr(each, each.WhichOneof("value")) for each in event.debug_annotations}


@pytest.mark.parametrize("backend", ["host", "vmm"])
def test_a_program_in_c(backend, tmp_path):
    history, marks, in_use = run_program(tmp_path, backend)
    summary = reported(history)
    (pool,) = summary["pools"]
    trace = Decoded(reported(history, to=tmp_path / "c.perfetto-trace"))
    (process,) = [track for track in trace.tracks.values() if track.HasField("process")]
    assert (process.process.pid, process.name) == (summary["process"], summary["program"])
    assert [clock.timestamp for clock in trace.clocks.clocks] == [0, summary["began"]]

    # The counters, at each mark and in all.
    said = {name: (at["live"], at["in use"], at["held"]) for name, at in trace.at_marks.items()}
    assert said == {name: (requested, in_use[name], held) for name, (requested, held) in marks.items()}
    assert trace.counters == {"live": marks["end"][0], "in use": pool["in_use"], "held": pool["held"], "limit": pool["limit"]}
    assert trace.most["in use"] == pool["peak"]["in_use"]
    assert trace.most["held"] == pool["peak_held"]["bytes"]

    # Steps, operations, and what failed.
    assert [name for *_, name, _ in trace.slices["steps"]] == [f"step {number}" for number in range(4)]
    assert {name for *_, name, _ in trace.slices["operations"]} == {"attention", HOSTILE}
    (failure,) = trace.instants[f"device {DEVICE} (<b>pool</b>)"]
    (listed,) = pool["failures"]
    assert failure[1:] == (
        "out of memory",
        {"requested bytes": listed["requested"], "largest free chunk": listed["largest_free"], "cause": listed["cause"], "operation": "attention"},
    )

    # Each allocation has a slice, for there are few.
    lifetimes = trace.slices["largest allocations"]
    assert len(lifetimes) == pool["allocations"] < SHOWN
    end = max(end for _, end, *_ in lifetimes)
    alive = [said for _, until, _, said in lifetimes if until == end]
    assert sum(said["bytes"] for said in alive) == pool["in_use"]
    assert sum(said["requested bytes"] for said in alive) == marks["end"][0]
    assert {name for *_, name, _ in lifetimes} == {"attention", HOSTILE, "(no operation)"}
