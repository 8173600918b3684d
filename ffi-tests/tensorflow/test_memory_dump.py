"""TensorFlow's MemoryDump of a history, decoded by TensorFlow's own class."""

import json

import pytest

import programs
import replayed
from pages import Page
from programs import LIB, ROOT
from replayed import BFC, TRACES

# Fills a pool until a request fails, and prints what bfc_stats says then.
PROGRAM = """
import json, sys, bfc
with bfc.history(sys.argv[1]):
    bfc.create(bfc.HOST, backend="host", memory_limit=1 << 22, name="trainer")
    kept = []
    for step in range(4):
        with bfc.scope("attention" if step % 2 else "loss", step=step):
            kept += [bfc.alloc(bfc.HOST, 1000 * (i + 1) + step) for i in range(20)]
        for address in kept[::3]:
            bfc.free(bfc.HOST, address)
        del kept[::3]
    try:
        bfc.alloc(bfc.HOST, 1 << 30)
    except bfc.Error:
        pass
    stats = bfc.stats(bfc.HOST)
    print(json.dumps([{name: getattr(stats, name) for name in
        ("num_allocs", "num_frees", "bytes_in_use", "peak_bytes_in_use", "bytes_requested", "pool_bytes", "largest_free_block_bytes")},
        bfc.memory_map(bfc.HOST)]))
    # What comes after the failure is not in the dump.
    bfc.destroy(bfc.HOST, force=True)
"""


def test_a_dump_is_the_pool_at_the_failure(tmp_path, monkeypatch):
    # The names and the code are those of docs/snapshots.md.
    monkeypatch.chdir(tmp_path)
    history, file = tmp_path / "run.history", tmp_path / "train.memory-dump"
    variables = programs.environment(PYTHONPATH=ROOT / "python/src", BFC_LIBRARY=LIB)
    stats, memory_map = json.loads(programs.run("python3", "-c", PROGRAM, history, env=variables))
    assert programs.run(BFC, "report", history, "-o", file) == ""
    dump = Page("snapshots").run("python-2")["dump"]
    assert dump.allocator_name == "trainer"
    assert dump.stats.num_allocs == stats["num_allocs"]
    assert dump.stats.bytes_in_use == stats["bytes_in_use"]
    assert dump.stats.peak_bytes_in_use == stats["peak_bytes_in_use"]
    assert dump.stats.largest_alloc_size == 20224
    free = stats["pool_bytes"] - stats["bytes_in_use"]
    fragmentation = 1 - stats["largest_free_block_bytes"] / free
    assert abs(dump.stats.fragmentation_metric - fragmentation) < 1e-6
    assert len(dump.snap_shot) == dump.snap_shot[-1].action_count == stats["num_allocs"] + stats["num_frees"]
    assert dump.snap_shot[-1].size == stats["bytes_in_use"]

    # Each chunk is one of the memory map.
    chunks = [chunk for region in memory_map["regions"] for chunk in region["chunks"]]
    expected = [
        (
            int(chunk["address"], 16),
            chunk["size"],
            chunk.get("requested", 0),
            chunk["state"] == "in_use",
            chunk.get("operation", ""),
            chunk.get("step", 0),
        )
        for chunk in chunks
    ]
    found = [(chunk.address, chunk.size, chunk.requested_size, chunk.in_use, chunk.op_name, chunk.step_id) for chunk in dump.chunk]
    assert found == expected
    check_bins(dump, stats, memory_map)


def check_bins(dump, stats, memory_map):
    chunks = [chunk for region in memory_map["regions"] for chunk in region["chunks"]]
    assert sum(summary.total_bytes_in_use for summary in dump.bin_summary) == stats["bytes_in_use"]
    assert sum(summary.total_bytes_in_bin for summary in dump.bin_summary) == stats["pool_bytes"]
    assert sum(summary.total_chunks_in_bin for summary in dump.bin_summary) == len(chunks)
    for chunk in dump.chunk:
        # TensorFlow's bin n begins at 256 << n.
        assert chunk.bin == (-1 if chunk.in_use else min((chunk.size // 256).bit_length() - 1, 20))


@pytest.mark.parametrize("trace", TRACES)
def test_dumps_of_recorded_programs(trace, shared, tmp_path):
    from tensorflow.core.protobuf.bfc_memory_map_pb2 import MemoryDump

    run = replayed.replay(trace, shared)
    file = tmp_path / "run.memory-dump"
    assert programs.run(BFC, "report", run.history, "-o", file) == ""
    dump = MemoryDump.FromString(file.read_bytes())
    names = ("num_allocs", "bytes_in_use", "peak_bytes_in_use", "largest_alloc_size")
    assert {name: getattr(dump.stats, name) for name in names} == {name: run.end[name] for name in names}
    chunks = [chunk for region in run.map["regions"] for chunk in region["chunks"]]
    expected = [(int(chunk["address"], 16), chunk["size"], chunk.get("operation", "")) for chunk in chunks]
    assert [(chunk.address, chunk.size, chunk.op_name) for chunk in dump.chunk] == expected
    check_bins(dump, run.end, run.map)
