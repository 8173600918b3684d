"""Snapshots for PyTorch's memory viewer."""

import collections
import os
import pathlib
import pickle
import pickletools
import tempfile
import unittest
from typing import Any

import bfc

DEVICE = 300
MiB = 1 << 20
# What the viewer reads: the cases of unpickle in PyTorch's MemoryViz.js.
OPCODES = set(
    """PROTO FRAME MARK STOP EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS BININT
    BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE NONE NEWTRUE NEWFALSE MEMOIZE BINPUT LONG_BINPUT BINGET
    LONG_BINGET""".split()
)


def total(snapshot: dict[str, Any], key: str) -> int:
    return sum(segment[key] for segment in snapshot["segments"])


class Snapshot(unittest.TestCase):
    def created(self, **options: Any) -> None:
        bfc.create(DEVICE, **options)
        self.addCleanup(bfc.destroy, DEVICE, force=True)

    def check(self, snapshot: dict[str, Any]) -> None:
        """Blocks tile their segments, and the sums are the statistics."""
        stats = bfc.stats(DEVICE)
        requested = 0
        for segment in snapshot["segments"]:
            end = segment["address"]
            for block in segment["blocks"]:
                self.assertEqual(block["address"], end)
                end += block["size"]
                requested += block["requested_size"] if block["state"] == "active_allocated" else 0
            self.assertEqual(end, segment["address"] + segment["total_size"])
        self.assertEqual(total(snapshot, "total_size"), stats.pool_bytes)
        self.assertEqual(total(snapshot, "allocated_size"), stats.bytes_in_use)
        self.assertEqual(requested, stats.bytes_requested)

    def test_sums_are_the_statistics(self) -> None:
        for backend in ("host", "host_vmm"):
            with self.subTest(backend=backend):
                bfc.create(DEVICE, backend=backend, memory_limit=64 * MiB)
                try:
                    held = [bfc.alloc(DEVICE, size) for size in (1000, 5 * MiB, 300, 9 * MiB, 700)]
                    for address in held[1::2]:
                        bfc.free(DEVICE, address)
                    snapshot = bfc.memory_snapshot(DEVICE)
                    self.check(snapshot)
                    self.assertEqual({segment["is_expandable"] for segment in snapshot["segments"]}, {backend == "host_vmm"})
                    bfc.trim(DEVICE)
                    self.check(bfc.memory_snapshot(DEVICE))
                finally:
                    bfc.destroy(DEVICE, force=True)

    def test_an_unmapped_range_ends_a_segment(self) -> None:
        self.created(backend="host_vmm", memory_limit=64 * MiB)
        kept = [bfc.alloc(DEVICE, size) for size in (MiB, 16 * MiB, MiB)]
        bfc.free(DEVICE, kept[1])
        bfc.trim(DEVICE)
        self.assertIn("unmapped", [chunk["state"] for region in bfc.memory_map(DEVICE)["regions"] for chunk in region["chunks"]])
        snapshot = bfc.memory_snapshot(DEVICE)
        self.assertGreater(len(snapshot["segments"]), 1)
        self.check(snapshot)

    def test_pending_frees(self) -> None:
        self.created(backend="host", memory_limit=8 * MiB)
        address = bfc.alloc(DEVICE, 5000, stream=1)
        other = bfc.alloc(DEVICE, 1000, stream=2)
        bfc.record_stream(DEVICE, address, 2)
        bfc.free(DEVICE, address, stream=1)
        states = [chunk["state"] for region in bfc.memory_map(DEVICE)["regions"] for chunk in region["chunks"]]
        snapshot = bfc.memory_snapshot(DEVICE)
        found = [block["state"] for segment in snapshot["segments"] for block in segment["blocks"]]
        names = {"in_use": "active_allocated", "held": "active_pending_free", "free": "inactive"}
        self.assertEqual(found, [names[state] for state in states])
        self.assertIn("held", states)
        self.assertEqual(total(snapshot, "active_size") - total(snapshot, "allocated_size"), 5120)
        self.check(snapshot)
        bfc.free(DEVICE, other, stream=2)

    def test_a_pending_free_is_in_the_trace(self) -> None:
        with bfc.history():
            self.created(backend="host", memory_limit=8 * MiB)
            address = bfc.alloc(DEVICE, 5000, stream=1)
            bfc.alloc(DEVICE, 1000, stream=2)
            bfc.record_stream(DEVICE, address, 2)
            bfc.free(DEVICE, address, stream=1)
            snapshot = bfc.memory_snapshot(DEVICE)
        states = [block["state"] for segment in snapshot["segments"] for block in segment["blocks"]]
        self.assertIn("active_pending_free", states)
        actions = [entry["action"] for entry in snapshot["device_traces"][DEVICE]]
        self.assertEqual(actions, ["segment_alloc", "alloc", "alloc", "free_requested", "free_completed"])

    def test_a_scope_is_a_frame(self) -> None:
        self.created(backend="host", memory_limit=8 * MiB)
        with bfc.scope("attention", step=3):
            bfc.alloc(DEVICE, 1000)
        block = bfc.memory_snapshot(DEVICE)["segments"][0]["blocks"][0]
        self.assertEqual(block["frames"], [{"filename": "bfc.scope", "line": 3, "name": "attention"}])

    def test_devices(self) -> None:
        with self.assertRaises(bfc.Error) as caught:
            bfc.memory_snapshot(DEVICE)
        self.assertEqual(caught.exception.status, bfc.Status.NO_ALLOCATOR)
        self.created(backend="host", memory_limit=8 * MiB)
        bfc.alloc(DEVICE, 1000)
        snapshot = bfc.memory_snapshot()
        self.assertEqual({segment["device"] for segment in snapshot["segments"]}, {DEVICE})
        self.assertEqual(snapshot["device_traces"], [[]] * (DEVICE + 1))

    def test_a_history_is_the_trace(self) -> None:
        for backend in ("host", "host_vmm"):
            with self.subTest(backend=backend), bfc.history() as recording:
                bfc.create(DEVICE, backend=backend, memory_limit=64 * MiB, allow_growth=True)
                try:
                    held = []
                    for step in range(3):
                        with bfc.scope("attention" if step else "<b>loss</b>", step=step):
                            held += [bfc.alloc(DEVICE, size + step, stream=5) for size in (1000, 5 * MiB, 300, 3 * MiB)]
                        for address in held[1::2]:
                            bfc.free(DEVICE, address)
                        del held[1::2]
                        recording.mark(f"epoch {step}")
                    bfc.trim(DEVICE)
                    with self.assertRaises(bfc.OutOfMemoryError):
                        bfc.alloc(DEVICE, 1 << 40)
                    snapshot = bfc.memory_snapshot(DEVICE)
                    self.check(snapshot)
                    trace = snapshot["device_traces"][DEVICE]
                    stats = bfc.stats(DEVICE)
                finally:
                    bfc.destroy(DEVICE, force=True)
                count = collections.Counter(entry["action"] for entry in trace)
                names = ("segment_map", "segment_unmap") if backend == "host_vmm" else ("segment_alloc", "segment_free")
                self.assertEqual((count["alloc"], count["oom"]), (stats.num_allocs, 1))
                self.assertEqual((count["free_requested"], count["free_completed"]), (stats.num_frees, stats.num_frees))
                self.assertEqual({entry["stream"] for entry in trace if entry["action"] in ("alloc", "free_completed")}, {5})
                change = {"alloc": 1, "free_completed": -1, names[0]: 1, names[1]: -1}
                sums: collections.Counter[bool] = collections.Counter()
                for entry in trace:
                    action = entry["action"]
                    sums[action in names] += change.get(action, 0) * entry["size"]
                self.assertEqual(sums, {False: stats.bytes_requested, True: stats.pool_bytes})
                frames = [frame for entry in trace for frame in entry["frames"]]
                for frame in (("bfc.scope", 0, "<b>loss</b>"), ("bfc.scope", 2, "attention"), ("bfc.mark", 0, "epoch 1")):
                    self.assertIn(dict(zip(("filename", "line", "name"), frame)), frames)
                self.assertEqual([entry["time_us"] for entry in trace], sorted(entry["time_us"] for entry in trace))
                (failed,) = [entry for entry in trace if entry["action"] == "oom"]
                self.assertEqual((failed["size"], failed["device_free"]), (1 << 40, stats.bytes_limit - stats.pool_bytes))

    def test_a_history_without_its_beginning_has_a_trace_that_can_be_undone(self) -> None:
        with bfc.history(events=1024):
            self.created(backend="host", memory_limit=64 * MiB)
            addresses = [bfc.alloc(DEVICE, 1000 + number) for number in range(1500)]
            for address in addresses[::2]:
                bfc.free(DEVICE, address)
            snapshot = bfc.memory_snapshot(DEVICE)
        trace = snapshot["device_traces"][DEVICE]
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
        live = {block["address"] for block in blocks if block["state"] == "active_allocated"}
        for entry in reversed(trace):
            if entry["action"] == "alloc":
                live.remove(entry["addr"])
            elif entry["action"] == "free_completed":
                self.assertNotIn(entry["addr"], live)
                live.add(entry["addr"])
        # The 1024 last events are the 750 frees and the last allocations.
        self.assertEqual(live, set(addresses[: 1500 - (1024 - 750)]))

    def test_the_pickle_has_what_the_viewer_reads(self) -> None:
        self.created(backend="host", memory_limit=64 * MiB)
        with bfc.scope("x" * 60, step=(1 << 64) - 1):
            addresses = [bfc.alloc(DEVICE, 1 + 7 * number, stream=(1 << 64) - 8) for number in range(3000)]
        for address in addresses[::2]:
            bfc.free(DEVICE, address, stream=(1 << 64) - 8)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "snapshot.pickle")
            file.write_bytes(b"an earlier one")
            file.chmod(0o644)
            for _ in range(2):
                bfc.dump_snapshot(file, DEVICE)
                self.assertEqual(file.stat().st_mode & 0o777, 0o600)
                pickled = file.read_bytes()
                file.unlink()
            bfc.dump_snapshot(file, DEVICE)
            with self.assertRaises(bfc.Error):
                bfc.dump_snapshot(file, DEVICE + 1)
            self.assertEqual((file.read_bytes(), os.listdir(folder)), (pickled, [file.name]))
        self.assertEqual(pickle.loads(pickled), bfc.memory_snapshot(DEVICE))
        operations = list(pickletools.genops(pickled))
        self.assertEqual((operations[0][0].name, operations[0][1]), ("PROTO", 4))
        self.assertEqual({code.name for code, *_ in operations} - OPCODES, set())
        longs = [value for code, value, _ in operations if code.name == "LONG1" and isinstance(value, int)]
        self.assertTrue(longs and all(-(1 << 63) <= value < 1 << 63 for value in longs))


if __name__ == "__main__":
    unittest.main()
