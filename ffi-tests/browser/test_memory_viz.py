"""Snapshots of libbfc in PyTorch's memory viewer: each view opens without an error, and its numbers are those of the run."""

import json
import pickle

import pytest

import memory_viz
import programs
from memory_viz import SEGMENTS, SETTINGS, STATES, TIMELINE, Viewer
from programs import LIB, ROOT
from recorded import BFC, DEVICE, HOSTILE, reported, run_program


@pytest.fixture
def viewer(browser):
    opened = []

    def open_file(path):
        opened.append(Viewer(browser, path))
        return opened[-1]

    yield open_file
    for each in opened:
        each.close()


def check_trace(shown, device, marks, peaks):
    """Compares every view of a device with what the program said: at each mark the requested bytes and the bytes that were
    held, and the peaks of both."""
    assert device in shown.devices()
    shown.open(STATES, device)
    events = shown.events()
    at_marks = {frames.removeprefix("bfc.mark:0:"): sums for event, *sums, frames in events if frames.startswith("bfc.mark:")}
    assert at_marks == {name: [requested, held] for name, (requested, held) in marks.items()}
    assert max(allocated for _, allocated, _, _ in events) == peaks["requested"]
    assert max(reserved for _, _, reserved, _ in events) == peaks["held"]
    # The last event is selected: the picture is of the end.
    requested, held = list(marks.values())[-1]
    assert sum(shown.segments()) == held
    assert sum(size for size, _ in shown.blocks()) == requested

    shown.open(TIMELINE, device)
    assert max(total for _, total, _ in shown.allocations()) == peaks["requested"]
    return events


@pytest.mark.parametrize("backend", ["host", "vmm"])
def test_a_program_in_c(backend, tmp_path, viewer):
    history, marks, in_use = run_program(tmp_path, backend)
    summary = reported(history)
    (pool,) = summary["pools"]
    shown = viewer(reported(history, to=tmp_path / "c.pickle"))
    peaks = {"requested": max(requested for requested, _ in marks.values()), "held": pool["peak_held"]["bytes"]}
    events = check_trace(shown, DEVICE, marks, peaks)
    assert [frames for event, *_, frames in events if event.startswith("OOM (requested 1.0GiB")] != []
    for action in ("alloc ", "free "):
        assert f"bfc.scope:2:{HOSTILE}" in {frames for event, *_, frames in events if event.startswith(action)}
    assert len([event for event, *_ in events if event.startswith("alloc ")]) == pool["allocations"]
    assert len([event for event, *_ in events if event.startswith("free ")]) == pool["frees"]

    shown.open(SEGMENTS, DEVICE)
    if backend == "host":
        # The viewer has this view for segments that do not change their size.
        assert max(total for _, total, _ in shown.allocations()) == pool["peak_held"]["bytes"]
    shown.open(SETTINGS, DEVICE)
    settings = json.loads(shown.settings())
    assert settings["pools"] == [{"device": DEVICE, "name": "<b>pool</b>"}]

    # The same numbers in the file, and those of bfc report.
    snapshot = pickle.loads((tmp_path / "c.pickle").read_bytes())
    segments = snapshot["segments"]
    assert sum(segment["total_size"] for segment in segments) == pool["held"] == marks["end"][1]
    assert sum(segment["allocated_size"] for segment in segments) == pool["in_use"] == in_use["end"]
    assert sum(segment["requested_size"] for segment in segments) == marks["end"][0]
    for segment in segments:
        end = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == end
            end += block["size"]
        assert end == segment["address"] + segment["total_size"]
        assert segment["is_expandable"] == (backend == "vmm")


PYTHON = """
import json, sys, bfc
with bfc.history(sys.argv[3]) as recording:
    bfc.create(bfc.HOST, backend=sys.argv[2], memory_limit=64 << 20, allow_growth=True)
    marks, kept = {}, []
    for step in range(3):
        with bfc.scope("<img src=x onerror=hacked=1>", step=step):
            kept += [bfc.alloc(bfc.HOST, 1000 * number + 1) for number in range(1, 60)]
        kept += [bfc.alloc(bfc.HOST, (1 + step) << 21)]
        stats = bfc.stats(bfc.HOST)
        marks[f"full-{step}"] = [stats.bytes_requested, stats.pool_bytes]
        recording.mark(f"full-{step}")
        for address in kept[::2]:
            bfc.free(bfc.HOST, address)
        del kept[::2]
    bfc.trim(bfc.HOST)
    stats = bfc.stats(bfc.HOST)
    marks["end"] = [stats.bytes_requested, stats.pool_bytes]
    recording.mark("end")
    bfc.dump_snapshot(sys.argv[1])
    print(json.dumps([marks, {"requested": stats.peak_bytes_requested, "held": stats.peak_pool_bytes}]))
"""


@pytest.mark.parametrize("backend", ["host", "host_vmm"])
def test_a_pool_in_python(backend, tmp_path, viewer):
    file = tmp_path / "python.pickle"
    variables = programs.environment(PYTHONPATH=ROOT / "python/src", BFC_LIBRARY=LIB)
    history = tmp_path / "python.history"
    marks, peaks = json.loads(programs.run("python3", "-c", PYTHON, file, backend, history, env=variables))
    marks = {name: tuple(sums) for name, sums in marks.items()}
    events = check_trace(viewer(file), 256, marks, peaks)
    assert f"bfc.scope:2:{HOSTILE}" in {frames for *_, frames in events}
    # The history ends at the last mark, with the allocator still there.
    report = reported(history, to=tmp_path / "reported.pickle")
    check_trace(viewer(report), 256, marks, peaks)

    # Both writers write the same, except for the file's settings. Times differ because each compares the clocks again.
    snapshots = [pickle.loads(path.read_bytes()) for path in (file, report)]
    del snapshots[1]["allocator_settings"]
    times = [[entry.pop("time_us") for entry in snapshot["device_traces"][256]] for snapshot in snapshots]
    assert snapshots[0] == snapshots[1]
    assert all(abs(one - other) < 100_000 for one, other in zip(*times))


def test_a_history_without_its_beginning(tmp_path, viewer):
    trace = ROOT / "tests/traces/gpt2.trace.gz"
    history = tmp_path / "replay.history"
    programs.run(BFC, "replay", "--repeat", "1", "--quiet", trace, env=programs.environment(BFC_HISTORY_FILE=history, BFC_HISTORY=1024))
    assert reported(history)["overwritten"] > 10_000
    shown = viewer(reported(history, to=tmp_path / "cut.pickle"))
    (device,) = shown.devices()
    shown.open(STATES, device)
    assert len(shown.events()) > 1000
    shown.open(TIMELINE, device)
    assert len(shown.allocations()) > 300


def test_a_history_of_nothing(tmp_path):
    """There is no device to show, and the viewer waits for another file."""
    history = tmp_path / "empty.history"
    programs.run(
        "python3",
        "-c",
        f"import bfc\nwith bfc.history({str(history)!r}): pass",
        env=programs.environment(PYTHONPATH=ROOT / "python/src", BFC_LIBRARY=LIB),
    )
    snapshot = pickle.loads(reported(history, to=tmp_path / "empty.pickle").read_bytes())
    assert (snapshot["segments"], snapshot["device_traces"]) == ([], [])


def test_a_run_of_pytorch(viewer):
    """The snapshot of PyTorch on the simulated driver that the suite pytorch made."""
    file = programs.SCRATCH / "snapshots/pytorch.pickle"
    if not file.exists():
        pytest.skip("there is no snapshot of PyTorch: cargo xtask test --suite pytorch makes it")
    figures = json.loads(file.with_suffix(".json").read_text())
    shown = viewer(file)
    shown.open(STATES, 0)
    assert shown.events()
    assert sum(shown.segments()) == figures["held"]
    assert sum(size for size, _ in shown.blocks()) == figures["requested"]
    for view in (TIMELINE, SEGMENTS, SETTINGS):
        shown.open(view, 0)
