"""Each view of each recorded program has the figures that bfc_stats had at that moment of the run."""

import json
import pickle
import re

import pytest

import programs
import replayed
from conftest import page_of, report, summary
from programs import ROOT
from recorded import reported
from replayed import BFC, DEVICE, TRACES
from test_figures import cards
from test_perfetto import Decoded


@pytest.fixture(params=TRACES)
def run(request, shared):
    return replayed.replay(request.param, shared)


def test_the_document(run):
    (pool,) = summary(run.history)["pools"]
    end = run.end
    assert (pool["in_use"], pool["held"], pool["limit"]) == (end["bytes_in_use"], end["pool_bytes"], end["bytes_limit"])
    assert (pool["allocations"], pool["frees"], pool["failed"]) == (end["num_allocs"], end["num_frees"], end["num_failures"])
    assert (pool["peak"]["in_use"], pool["peak_held"]["bytes"]) == (end["peak_bytes_in_use"], end["peak_pool_bytes"])
    (failure,) = pool["failures"]
    assert (failure["in_use"], failure["held"], failure["largest_free"]) == (
        end["bytes_in_use"],
        end["pool_bytes"],
        end["largest_free_block_bytes"],
    )
    for holders in (pool["holders"], failure["holders"]):
        assert sum(holder["bytes"] for holder in holders) == end["bytes_in_use"]
        assert sum(holder["allocations"] for holder in holders) == end["num_allocs"] - end["num_frees"]
    marks = {mark["name"]: (mark["in_use"], mark["held"]) for mark in summary(run.history)["marks"]}
    assert marks == {name: (stats["bytes_in_use"], stats["pool_bytes"]) for name, stats in run.marks.items()}
    text = report(run.history)
    for bytes_ in (end["bytes_in_use"], end["pool_bytes"], end["peak_bytes_in_use"], end["peak_pool_bytes"]):
        assert f"({bytes_})" in text


def test_the_page(run, opened):
    page = opened(page_of(run.history)).ready()
    end = run.end
    assert cards(page) == {
        "limit": end["bytes_limit"],
        "peak": end["peak_bytes_in_use"],
        "held": end["peak_pool_bytes"],
        "in-use": end["bytes_in_use"],
        "allocations": end["num_allocs"],
        "failed": end["num_failures"],
    }


def test_perfetto(run, tmp_path):
    trace = Decoded(reported(run.history, to=tmp_path / "run.perfetto-trace"))
    found = {name: (at["live"], at["in use"], at["held"]) for name, at in trace.at_marks.items()}
    assert found == {name: (stats["bytes_requested"], stats["bytes_in_use"], stats["pool_bytes"]) for name, stats in run.marks.items()}
    peaks = {"live": "peak_bytes_requested", "in use": "peak_bytes_in_use", "held": "peak_pool_bytes", "limit": "bytes_limit"}
    assert dict(trace.most) == {name: run.end[peak] for name, peak in peaks.items()}


def test_pytorchs_snapshot(run, tmp_path):
    snapshot = pickle.loads(reported(run.history, to=tmp_path / "run.pickle").read_bytes())
    segments, end = snapshot["segments"], run.end
    sums = {name: sum(segment[name] for segment in segments) for name in ("total_size", "allocated_size", "requested_size")}
    assert sums == {"total_size": end["pool_bytes"], "allocated_size": end["bytes_in_use"], "requested_size": end["bytes_requested"]}
    assert len(segments) == end["num_regions"]
    assert sum(len(segment["blocks"]) for segment in segments) == end["num_chunks"]
    # The viewer adds up the trace so.
    live = held = 0
    found, most = {}, {"requested": 0, "held": 0}
    for entry in snapshot["device_traces"][DEVICE]:
        sign = {"alloc": 1, "free_completed": -1}.get(entry["action"], 0)
        live += sign * entry["size"]
        held += {"segment_alloc": 1, "segment_free": -1}.get(entry["action"], 0) * entry["size"]
        most = {"requested": max(most["requested"], live), "held": max(most["held"], held)}
        # Steps are listed in the same way.
        if entry["action"] == "snapshot" and entry["frames"][0]["filename"] == "bfc.mark":
            found[entry["frames"][0]["name"]] = (live, held)
    assert found == {name: (stats["bytes_requested"], stats["pool_bytes"]) for name, stats in run.marks.items()}
    assert most == {"requested": end["peak_bytes_requested"], "held": end["peak_pool_bytes"]}


def test_leaks(run):
    leaks = json.loads(report(run.history, "--leaks", "--json"))
    end = run.end
    assert (leaks["bytes"], leaks["requested"]) == (end["bytes_in_use"], end["bytes_requested"])
    assert leaks["allocations"] == end["num_allocs"] - end["num_frees"]
    (pool,) = leaks["pools"]
    chunks = [chunk for region in run.map["regions"] for chunk in region["chunks"] if chunk["state"] == "in_use"]
    by_name = {}
    for chunk in chunks:
        count, size = by_name.get(chunk["operation"], (0, 0))
        by_name[chunk["operation"]] = (count + 1, size + chunk["size"])
    assert {each["operation"]: (each["allocations"], each["bytes"]) for each in pool["operations"]} == by_name


def test_a_diff(run):
    names = list(run.marks)
    before, after = names[1], names[-1]
    document = json.loads(programs.run(BFC, "diff", "--json", f"{run.history}@{before}", f"{run.history}@{after}"))
    totals = {
        "allocations": "num_allocs",
        "frees": "num_frees",
        "failures": "num_failures",
        "in_use": "bytes_in_use",
        "requested": "bytes_requested",
        "held": "pool_bytes",
        "limit": "bytes_limit",
        "peak_in_use": "peak_bytes_in_use",
        "peak_held": "peak_pool_bytes",
    }
    (pool,) = document["pools"]
    for name, statistic in totals.items():
        expected = {"a": run.marks[before][statistic], "b": run.marks[after][statistic]}
        assert pool["totals"].get(name, expected) == expected, name
    assert set(totals) <= set(pool["totals"])


def test_the_terminal_and_metrics(run):
    (pool,) = run.top
    assert pool["stats"] == run.end
    said = [(re.match(r"\w+", line)[0], line.rsplit(" ", 1)[1]) for line in run.metrics.splitlines() if line[0] != "#"]
    values = {name: float(value) for name, value in said}
    # The table of docs/metrics.md.
    rows = re.findall(r"^\| `(bfc_\w+)` \| \w+ \| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(), flags=re.M)
    assert {statistic for _, statistic in rows} == set(run.end)
    assert {name: values[name] for name, _ in rows} == {name: run.end[statistic] for name, statistic in rows}
