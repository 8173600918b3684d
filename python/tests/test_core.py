"""The allocators of devices, on host memory."""

import ctypes
import dataclasses
import gc
import json
import os
import pathlib
import re
import sys
import tempfile
import threading
import unittest
import weakref
from typing import Callable
from unittest import mock

import bfc
import bfc.onnxruntime
import bfc.tensorflow
from bfc import _abi, _library, _numbers

DEVICE = 300
MiB = 1 << 20


class Marked(int):
    """A number that prints as markup."""

    def __format__(self, spec: str) -> str:
        return f"<b>{int(self)}"


class Pool(unittest.TestCase):
    """A small allocator for each test."""

    def setUp(self) -> None:
        bfc.create(DEVICE, backend="host", memory_limit=8 * MiB, name="test")
        self.addCleanup(bfc.destroy, DEVICE, force=True)

    def test_addresses_are_live_until_they_are_freed(self) -> None:
        address = bfc.alloc(DEVICE, 1000)
        self.assertEqual((address % 256, bfc.owner(address)), (0, DEVICE))
        self.assertEqual((bfc.requested_size(DEVICE, address), bfc.allocated_size(DEVICE, address)), (1000, 1024))
        self.assertEqual(bfc.allocation_id(DEVICE, address), 1)
        around = bfc.address_range(DEVICE, address + 999)
        self.assertEqual((around.chunk, around.chunk_bytes), (address, 1024))
        self.assertTrue(around.region <= address and address + 1024 <= around.region + around.region_bytes)
        bfc.free(DEVICE, address)
        with self.assertRaises(bfc.Error) as caught:
            bfc.free(DEVICE, address)
        self.assertEqual((caught.exception.status, caught.exception.name), (6, "BFC_ERROR_DOUBLE_FREE"))
        self.assertIn(hex(address), str(caught.exception))

    def test_nothing_of_no_bytes(self) -> None:
        self.assertEqual(bfc.alloc(DEVICE, 0), 0)
        bfc.free(DEVICE, 0)

    def test_alignment(self) -> None:
        address = bfc.alloc(DEVICE, 100, alignment=1 << 16)
        self.assertEqual(address % (1 << 16), 0)
        with self.assertRaises(bfc.Error) as caught:
            bfc.alloc(DEVICE, 100, alignment=3)
        self.assertEqual(caught.exception.status, bfc.Status.INVALID_ARGUMENT)

    def test_out_of_memory_is_both_kinds(self) -> None:
        for kind in [bfc.OutOfMemoryError, bfc.Error, MemoryError]:
            with self.assertRaisesRegex(kind, "test: no memory for 16.00 MiB"):
                bfc.alloc(DEVICE, 16 * MiB)
        self.assertEqual(bfc.stats(DEVICE).num_failures, 3)

    def test_streams(self) -> None:
        """Freed on one stream, memory is another's only when its work is done."""
        first = bfc.alloc(DEVICE, 8 * MiB, stream=7)
        bfc.free(DEVICE, first, stream=7)
        with self.assertRaises(bfc.OutOfMemoryError):
            bfc.alloc(DEVICE, 8 * MiB, stream=8)
        bfc.synchronized(DEVICE, 7)
        second = bfc.alloc(DEVICE, 8 * MiB, stream=8)
        self.assertEqual(first, second)
        bfc.record_stream(DEVICE, second, 9)
        bfc.free(DEVICE, second)
        with self.assertRaises(bfc.OutOfMemoryError):
            bfc.alloc(DEVICE, 8 * MiB, stream=8)
        bfc.forget_stream(DEVICE, 8)
        bfc.synchronized(DEVICE, 9)

    def test_numbers_that_do_not_fit_are_refused(self) -> None:
        """ctypes would cut them off."""
        for call in [
            lambda: bfc.alloc(DEVICE, -1),
            lambda: bfc.alloc(DEVICE, 1 << 64),
            lambda: bfc.alloc(DEVICE + (1 << 32), 1),
            lambda: bfc.free(DEVICE, -256),
            lambda: bfc.synchronized(DEVICE, -1),
        ]:
            self.assertRaises(ValueError, call)
        self.assertRaises(TypeError, bfc.alloc, DEVICE, 1.5)
        self.assertRaises(TypeError, bfc.alloc, "cuda", 1)

    def test_arguments_that_are_wrong_are_named(self) -> None:
        """What is refused, and as what: the message says what it has to be, and what it is."""
        wrong: list[tuple[type[Exception], str, Callable[..., object], dict[str, object]]] = [
            (TypeError, "name must be a str, not bytes", bfc.create, {"name": b"ab"}),
            (TypeError, "name must be a str, not int", bfc.create, {"name": 5}),
            (ValueError, r"name must be encodable as UTF-8, not '\\ud800'", bfc.create, {"name": "\ud800"}),
            (ValueError, r"name must not contain a NUL character: 'a\\x00b'", bfc.create, {"name": "a\0b"}),
            (ValueError, "memory_limit must be a number of bytes or a size such as '8GiB', not '1X'", bfc.create, {"memory_limit": "1X"}),
            (ValueError, "memory_limit must be a number of bytes or a size such as '8GiB', not ''", bfc.create, {"memory_limit": ""}),
            (TypeError, "memory_limit must be a number of bytes or a size such as '8GiB', not float", bfc.create, {"memory_limit": 0.0}),
            (ValueError, r"memory_limit must be from 0 to 2\*\*64 - 1, not -1", bfc.create, {"memory_limit": -1}),
            (ValueError, r"memory_limit must be .*, not 1844674407", bfc.create, {"memory_limit": 1 << 64}),
            (ValueError, "memory_limit must not be 0: leave it out", bfc.create, {"memory_limit": 0}),
            (ValueError, "memory_limit must not be 0: leave it out", bfc.create, {"memory_limit": "0GiB"}),
            (ValueError, "memory_fraction must not be 0: leave it out", bfc.create, {"memory_fraction": 0.0}),
            (TypeError, "memory_fraction must be a number, not str", bfc.create, {"memory_fraction": "0.5"}),
            (TypeError, "memory_fraction must be a number, not str", bfc.create, {"memory_fraction": ""}),
            (TypeError, "fragmentation_fraction must be a number, not l", bfc.create, {"fragmentation_fraction": []}),
            (ValueError, "memory_fraction is too large", bfc.create, {"memory_fraction": 10**400}),
            (TypeError, "initial_region_bytes must be a number of bytes or a size such as '8GiB', not d", bfc.create, {"initial_region_bytes": {}}),
            (TypeError, "retry_timeout_ms must be an integer, not float", bfc.create, {"retry_timeout_ms": 1.5}),
            (ValueError, "backend must be one of 'auto', 'host', 'cuda', 'cuda_vmm', 'host_vmm', not 3", bfc.create, {"backend": 3}),
            (ValueError, "backend must be one of 'auto', .*, not 'gpu'", bfc.create, {"backend": "gpu"}),
            (TypeError, "nbytes must be a number of bytes or a size such as '8GiB', not NoneType", bfc.alloc, {"nbytes": None}),
            (ValueError, "alignment must be a number of bytes or a size such as '8GiB', not ''", bfc.alloc, {"nbytes": 1, "alignment": ""}),
            (ValueError, "alignment must be from 0 to .*, not -2", bfc.alloc, {"nbytes": 1, "alignment": -2}),
            (TypeError, "stream must be an integer, not str", bfc.alloc, {"nbytes": 1, "stream": "7"}),
            (ValueError, "address must be from 0 to .*, not -256", bfc.free, {"address": -256}),
            (ValueError, "stream must be from 0 to .*, not -1", bfc.synchronized, {"stream": -1}),
            (TypeError, "keep_bytes must be a number of bytes or a size such as '8GiB', not float", bfc.trim, {"keep_bytes": 1e6}),
            # Python takes True for 1.
            (TypeError, "nbytes must be a number of bytes or a size such as '8GiB', not bool", bfc.alloc, {"nbytes": True}),
            (TypeError, "alignment must be a number of bytes .*, not bool", bfc.alloc, {"nbytes": 1, "alignment": False}),
            (TypeError, "stream must be an integer, not bool", bfc.alloc, {"nbytes": 1, "stream": True}),
            (TypeError, "memory_limit must be a number of bytes .*, not bool", bfc.create, {"memory_limit": True}),
            (TypeError, "memory_fraction must be a number, not bool", bfc.create, {"memory_fraction": True}),
            (TypeError, "retry_timeout_ms must be an integer, not bool", bfc.create, {"retry_timeout_ms": True}),
            (TypeError, "limit_bytes must be a number of bytes .*, not bool", bfc.set_memory_limit, {"limit_bytes": False}),
        ]
        for kind, words, function, arguments in wrong:
            with self.subTest(function=function.__name__, arguments=arguments):
                self.assertRaisesRegex(kind, f"^{words}", function, 999 if function is bfc.create else DEVICE, **arguments)
        self.assertRaisesRegex(TypeError, "^device must be an integer, not str", bfc.alloc, "cuda", 1)
        self.assertRaisesRegex(ValueError, "^device must be from -2", bfc.stats, 1 << 32)
        self.assertRaisesRegex(TypeError, "^device must be an integer, not bool", bfc.stats, True)
        with self.assertRaisesRegex(TypeError, "^operation must be a str, not bytes"), bfc.scope(b"x"):  # type: ignore[arg-type]
            pass
        for use in [bfc.onnxruntime.use, bfc.tensorflow.use]:
            self.assertRaisesRegex(TypeError, "^device must be an integer, not str", use, "cpu")
            self.assertRaisesRegex(ValueError, "^device must be from", use, 1 << 32)
        self.assertRaisesRegex(ValueError, "^retry_timeout_ms must be", bfc.tensorflow.use, retry_timeout_ms=-1)
        with self.assertRaisesRegex(ValueError, r"^step must be from 0 to 2\*\*64 - 1, not -1"), bfc.scope("x", step=-1):
            pass
        with self.assertRaises(bfc.Error):
            bfc.stats(999)

    def test_words_with_a_nul_are_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "NUL"):
            bfc.create(999, backend="host", name="a\0b")
        with self.assertRaisesRegex(ValueError, "NUL"), bfc.scope("x\0y"):
            pass

    def test_garbage_does_not_change_the_words_of_a_failure(self) -> None:
        def failing(reference: object) -> None:
            bfc._library.lib.bfc_free(998, 1)

        class Node:
            pass

        thresholds = gc.get_threshold()
        self.addCleanup(gc.set_threshold, *thresholds)
        for threshold in range(1, 200):
            node = Node()
            node.itself, kept = node, weakref.ref(node, failing)  # type: ignore[attr-defined]
            del node
            gc.set_threshold(threshold)
            with self.assertRaisesRegex(bfc.OutOfMemoryError, "no memory for") as caught:
                bfc.alloc(DEVICE, 1 << 40)
            gc.set_threshold(*thresholds)
            del caught, kept

    def test_reports(self) -> None:
        with bfc.scope("attention", step=3):
            bfc.alloc(DEVICE, 1000)
        text, line, table = bfc.report(DEVICE), bfc.occupancy(DEVICE), bfc.memory_map(DEVICE)
        self.assertIn('memory of allocator "test" on device 300', text)
        self.assertIn("attention", text)
        self.assertRegex(line, r"^[*x_]{100}$")
        self.assertTrue(table["regions"] or table["chunks"], table)
        bfc.check(DEVICE)

    def test_a_long_report_is_whole(self) -> None:
        """Its length is not known before."""
        for _ in range(3000):
            bfc.alloc(DEVICE, 1)
        self.assertGreater(len(_library.text("bfc_memory_map", DEVICE)), 100_000)
        bfc.memory_map(DEVICE)

    def test_metrics(self) -> None:
        bfc.create(DEVICE + 1, backend="host_vmm", memory_limit=8 * MiB, name='a "b"\\\n')
        self.addCleanup(bfc.destroy, DEVICE + 1, force=True)
        lines = bfc.metrics().splitlines()
        limit = f'bfc_limit_bytes{{device="%d",name="%s",backend="%s"}} {8 * MiB}'
        self.assertIn(limit % (DEVICE, "test", "host"), lines)
        self.assertIn(limit % (DEVICE + 1, 'a \\"b\\"\\\\\\n', "host_vmm"), lines)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, bfc.metrics().encode())
            os._exit(0)
        os.close(writer)
        with open(reader) as forked:
            devices = set(re.findall(r'device="(\d+)"', forked.read()))
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(devices, {str(DEVICE)}, "memory of host_vmm is not in a child")

    def test_statistics(self) -> None:
        address = bfc.alloc(DEVICE, 1000)
        bfc.free(DEVICE, bfc.alloc(DEVICE, 5000))
        stats = bfc.stats(DEVICE)
        self.assertEqual((stats.num_allocs, stats.num_frees, stats.bytes_in_use), (2, 1, 1024))
        self.assertEqual((stats.bytes_limit, stats.peak_bytes_requested), (8 * MiB, 6000))
        self.assertRaises(dataclasses.FrozenInstanceError, setattr, stats, "num_allocs", 0)
        bfc.reset_stats(DEVICE)
        self.assertEqual(bfc.stats(DEVICE).num_allocs, 0)
        bfc.free(DEVICE, address)
        self.assertGreater(bfc.trim(DEVICE), 0)
        self.assertEqual(bfc.stats(DEVICE).pool_bytes, 0)

    def test_statistics_are_a_table(self) -> None:
        made = bfc.Stats(**{field.name: 0 for field in dataclasses.fields(bfc.Stats)})
        made = dataclasses.replace(made, num_allocs=1234567, bytes_in_use=3 << 29, largest_alloc_size=1000)
        lines = repr(made).splitlines()
        self.assertEqual(lines[0], "bfc.Stats")
        self.assertEqual([line.split()[0] for line in lines[1:]], [field.name for field in dataclasses.fields(bfc.Stats)])
        found = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[1:]}
        self.assertEqual(found["num_allocs"], "1,234,567")
        self.assertEqual(found["bytes_in_use"], "1.50 GiB 1610612736 bytes")
        self.assertEqual((found["largest_alloc_size"], found["pool_bytes"]), ("1000 B 1000 bytes", "0 B 0 bytes"))
        self.assertEqual(str(made), repr(made))
        table = made._repr_html_()
        self.assertIn("<tr><th>bytes_in_use</th><td>1.50 GiB</td><td>1610612736 bytes</td></tr>", table)
        # What is no number, if a field is given one, is no markup.
        self.assertNotIn("<b>", dataclasses.replace(made, num_chunks=Marked(1))._repr_html_())
        self.assertIn("&lt;b&gt;1", dataclasses.replace(made, num_chunks=Marked(1))._repr_html_())

    def test_limit(self) -> None:
        address = bfc.alloc(DEVICE, 1000)
        bfc.set_memory_limit(DEVICE, 16 * MiB)
        self.assertEqual(bfc.stats(DEVICE).bytes_limit, 16 * MiB)
        bfc.free(DEVICE, bfc.alloc(DEVICE, 12 * MiB))
        bfc.set_memory_limit(DEVICE, 0)
        self.assertRaises(bfc.OutOfMemoryError, bfc.alloc, DEVICE, 12 * MiB)
        self.assertEqual(bfc.requested_size(DEVICE, address), 1000)
        bfc.free(DEVICE, address)
        for wrong in (-1, 1 << 64):
            self.assertRaises(ValueError, bfc.set_memory_limit, DEVICE, wrong)

    def test_threads(self) -> None:
        failed: list[BaseException] = []

        def work() -> None:
            try:
                for size in range(1, 400):
                    bfc.free(DEVICE, bfc.alloc(DEVICE, size))
                with self.assertRaises(bfc.OutOfMemoryError):
                    bfc.alloc(DEVICE, 1 << 40)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])
        self.assertEqual(bfc.stats(DEVICE).num_frees, 4 * 399)


class History(unittest.TestCase):
    """The history as a block."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_a_block_records_into_a_file(self) -> None:
        file = self.folder / "history"
        with bfc.history(file, events=2000) as recording:
            recording.mark("begin")
            bfc.history_mark("the same")
            with self.assertRaises(bfc.Error) as caught:
                bfc.history().__enter__()
            self.assertEqual(caught.exception.status, bfc.Status.ALREADY_EXISTS)
        self.assertTrue(file.read_bytes().startswith(b"libbfc history 2"))
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)

    def test_backtraces_name_python_functions(self) -> None:
        file = self.folder / "history"
        bfc.create(DEVICE, backend=bfc.Backend.HOST)
        self.addCleanup(bfc.destroy, DEVICE)
        with bfc.history(file, stacks="python"):
            bfc.free(DEVICE, bfc.alloc(DEVICE, 1))
        name = b"History.test_backtraces_name_python_functions" if sys.version_info >= (3, 11) else b"test_backtraces_name"
        self.assertIn(name, file.read_bytes())
        self.assertIn(os.path.basename(__file__).encode(), file.read_bytes())

    def test_backtraces_of_another_kind_are_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "native, python, both, not 'ruby'"):
            bfc.history(stacks="ruby")

    def test_memory_is_saved(self) -> None:
        with bfc.history() as recording:
            recording.save(self.folder / "saved")
        self.assertIn(b"libbfc history 2", (self.folder / "saved").read_bytes())

    def test_what_cannot_be_is_refused(self) -> None:
        with self.assertRaises(TypeError), bfc.history() as recording:
            recording.mark(b"bytes")  # type: ignore[arg-type]
        with self.assertRaisesRegex(bfc.Error, "no history is recorded"):
            recording.mark("late")
        with self.assertRaisesRegex(bfc.Error, "/nonexistent/history"), bfc.history("/nonexistent/history"):
            pass


class Life(unittest.TestCase):
    """Creation and the end."""

    def test_there_is_one_for_each_device(self) -> None:
        bfc.create(DEVICE, backend=bfc.Backend.HOST)
        with self.assertRaises(bfc.Error) as caught:
            bfc.create(DEVICE, backend="host")
        self.assertEqual(caught.exception.name, "BFC_ERROR_ALREADY_EXISTS")
        address = bfc.alloc(DEVICE, 1)
        with self.assertRaises(bfc.Error) as caught:
            bfc.destroy(DEVICE)
        self.assertEqual(caught.exception.status, bfc.Status.BUSY)
        bfc.free(DEVICE, address)
        bfc.destroy(DEVICE)

    def test_options_arrive(self) -> None:
        bfc.create(DEVICE, backend="host", memory_limit=4 * MiB, allow_growth=False, garbage_collection=False, name="ö")
        bfc.alloc(DEVICE, 1)
        self.assertEqual(bfc.stats(DEVICE).pool_bytes, 4 * MiB)
        self.assertIn('"ö"', bfc.report(DEVICE))
        bfc.destroy(DEVICE, force=True)
        bfc.create(DEVICE, backend="host", memory_limit=4 * MiB, initial_region_bytes=65536, split_always=True)
        bfc.alloc(DEVICE, 40000)
        self.assertEqual((bfc.stats(DEVICE).pool_bytes, bfc.stats(DEVICE).bytes_in_use), (65536, 40192))
        bfc.destroy(DEVICE, force=True)
        bfc.create(DEVICE, backend="host", timestamps=True, quarantine=True)
        with self.assertRaises(bfc.Error) as caught:
            bfc.alloc(DEVICE, 1, stream=1)
        self.assertEqual(caught.exception.status, bfc.Status.UNSUPPORTED)
        bfc.destroy(DEVICE)
        bfc.create(DEVICE, backend="host_vmm", memory_limit=5 * MiB)
        self.assertEqual(bfc.stats(DEVICE).bytes_limit, 4 * MiB, "granules of 2 MiB")
        bfc.destroy(DEVICE)
        self.assertRaises(ValueError, bfc.create, DEVICE, backend="gpu")

    def test_switches_are_on_whatever_the_environment_says(self) -> None:
        off = {"BFC_ALLOW_GROWTH": "0", "BFC_GARBAGE_COLLECTION": "0", "BFC_SPLIT_ALWAYS": "0"}
        with mock.patch.dict(os.environ, off):
            bfc.create(DEVICE, backend="host", memory_limit=8 * MiB)
        self.addCleanup(bfc.destroy, DEVICE, force=True)
        first, kept = bfc.alloc(DEVICE, 3072), bfc.alloc(DEVICE, 256)
        self.assertEqual(bfc.stats(DEVICE).pool_bytes, 2 * MiB, "it grows")
        bfc.free(DEVICE, first)
        self.assertEqual(bfc.allocated_size(DEVICE, bfc.alloc(DEVICE, 2048)), 2048, "the remainder is split off")
        # In two regions, so that a third has room only if the first two go back.
        large = [bfc.alloc(DEVICE, 2 * MiB) for _ in range(2)]
        for address in large:
            bfc.free(DEVICE, address)
        self.assertTrue(bfc.alloc(DEVICE, 5 * MiB), "empty regions go back")
        self.assertEqual(bfc.owner(kept), DEVICE)

    def test_growth_is_by_need_unless_tensorflows_is_asked_for(self) -> None:
        for policy, held in [(None, 42), ("need", 42), ("tensorflow", 66)]:
            with self.subTest(policy=policy):
                bfc.create(DEVICE, backend="host", memory_limit=256 * MiB, growth_policy=policy)
                for size in [1, 40 * MiB]:
                    bfc.alloc(DEVICE, size)
                held_now = bfc.stats(DEVICE).pool_bytes
                bfc.destroy(DEVICE, force=True)
                self.assertEqual(held_now // MiB, held)
        with self.assertRaisesRegex(ValueError, "growth_policy must be one of 'need', 'tensorflow', not 'double'"):
            bfc.create(DEVICE, backend="host", growth_policy="double")


    def test_a_plan_is_followed(self) -> None:
        # The second allocation lies before the first.
        text = b"bfc-plan 1\nalignment 256\nbytes 4096\nprologue 2\nrepeated 0\n1024 3072\n1024 0\n"
        checksum = 1469598103934665603
        for byte in text:
            checksum = ((checksum ^ byte) * 1099511628211) % (1 << 64)
        with tempfile.TemporaryDirectory() as folder:
            plan = pathlib.Path(folder) / "of the tests.plan"
            plan.write_bytes(text + b"checksum %016x\n" % checksum)
            bfc.create(DEVICE, backend="host", memory_limit=4 * MiB, plan=plan)
            first, second = bfc.alloc(DEVICE, 1000), bfc.alloc(DEVICE, 1000)
            self.assertEqual((first - second, bfc.stats(DEVICE).num_planned_allocs), (3072, 2))
            bfc.destroy(DEVICE, force=True)
            plan.write_bytes(text)
            with self.assertRaisesRegex(bfc.Error, "of the tests.plan: truncated"):
                bfc.create(DEVICE, backend="host", plan=os.fspath(plan))
        with self.assertRaisesRegex(TypeError, "plan must be a path, not int"):
            bfc.create(DEVICE, backend="host", plan=3)  # type: ignore[arg-type]


    def test_members_are_accepted_by_name_and_listed_where_one_is_wrong(self) -> None:
        bfc.create(DEVICE, backend=bfc.Backend("host"), growth_policy=bfc.GrowthPolicy.TENSORFLOW, memory_limit="64 MiB")
        self.assertEqual(bfc.stats(DEVICE).bytes_limit, 64 * MiB)
        bfc.destroy(DEVICE)
        for kind, wrong in [(bfc.Backend, "gpu"), (bfc.GrowthPolicy, 3)]:
            known = ", ".join(repr(member.value) for member in kind)
            with self.assertRaises(ValueError) as caught:
                kind(wrong)
            self.assertEqual(str(caught.exception), f"{kind.__name__} must be one of {known}, not {wrong!r}")

    def test_the_status_of_an_error_is_a_member(self) -> None:
        with self.assertRaises(bfc.Error) as caught:
            bfc.stats(999)
        self.assertIs(caught.exception.status, bfc.Status.NO_ALLOCATOR)
        self.assertEqual(caught.exception.status, 2)
        self.assertEqual((bfc.Error("of a newer library", 99).status, bfc.Error("", 99).name), (99, "bfc_status_t 99"))


class Sizes(unittest.TestCase):
    """Sizes are those of the environment's variables."""

    def resolved(self, text: str) -> int:
        """What the library takes BFC_MEMORY_LIMIT for: 0 if it is malformed."""
        length, buffer = ctypes.c_size_t(), ctypes.create_string_buffer(1 << 16)
        with mock.patch.dict(os.environ, BFC_MEMORY_LIMIT=text):
            _library.call("bfc_resolve_options", bfc.HOST, None, buffer, len(buffer), ctypes.byref(length))
        return int(json.loads(buffer.value)["memory_limit"])

    def test_text_is_what_the_library_takes_it_for(self) -> None:
        numbers = ["1", "4096", "1.5", ".5", "2.", "0.3", "007", "16777216", "18446744073709551615", "1.2.3", ".", "", "-1", "1e9"]
        units = ["", "b", "B", "k", "Kb", "KiB", "kib", " MiB", "m", "  g", "GB", "TiB", "i", "ib", "XiB", "bb", "GiB "]
        seen = 0
        for number in numbers:
            for unit in units:
                text = number + unit
                try:
                    ours = _numbers.size(text, "limit")
                except ValueError:
                    ours = 0
                seen += ours > 0
                self.assertEqual(ours, self.resolved(text), repr(text))
        self.assertGreater(seen, 80)

    def test_sizes_are_text_or_numbers_wherever_one_is_taken(self) -> None:
        bfc.create(DEVICE, backend="host", memory_limit="8MiB", initial_region_bytes="64KiB", two_ends=True)
        self.addCleanup(bfc.destroy, DEVICE, force=True)
        address = bfc.alloc(DEVICE, "4KiB", alignment="4k", short_lived=True)
        self.assertEqual((bfc.requested_size(DEVICE, address), address % 4096), (4096, 0))
        self.assertEqual(bfc.stats(DEVICE).pool_bytes, 64 << 10)
        bfc.free(DEVICE, address)
        self.assertEqual(bfc.trim(DEVICE, "64KiB"), 0)
        bfc.set_memory_limit(DEVICE, "1g")
        self.assertEqual(bfc.stats(DEVICE).bytes_limit, 1 << 30)

    def test_what_is_short_lived_lies_at_the_upper_end(self) -> None:
        bfc.create(DEVICE, backend="host", memory_limit="1MiB", allow_growth=False, split_always=True)
        self.addCleanup(bfc.destroy, DEVICE, force=True)
        lower, upper = bfc.alloc(DEVICE, 256), bfc.alloc(DEVICE, 256, short_lived=True)
        self.assertEqual(upper - lower, MiB - 256)


class Prototypes(unittest.TestCase):
    """What is declared to ctypes is what the headers declare."""

    def test_all_functions_with_as_many_arguments(self) -> None:
        found = {}
        for header in ["bfc.h", "bfc_adapters.h"]:
            text = (bfc.include_dir() / header).read_text()
            text = re.sub(r"//.*", "", text)
            for name, arguments in re.findall(r"^[a-z][\w \*]*?[ \*](bfc_\w+)\(([^()]*)\);", text, re.MULTILINE):
                found[name] = 0 if arguments.strip() == "void" else arguments.count(",") + 1
        self.assertEqual(set(found), _library.NAMES)
        declared = {name: len(getattr(_library.lib, name).argtypes) for name in found}
        self.assertEqual(found, declared)

    def test_sizes_of_structs(self) -> None:
        """The library refuses a size that ends within a field; these are those of today."""
        structs = (_abi.bfc_suballocator_t, _abi.bfc_options_t, _abi.bfc_request_t)
        self.assertEqual([ctypes.sizeof(struct) for struct in structs], [40, 88, 48])
        self.assertEqual(ctypes.sizeof(_abi.bfc_stats_t), 8 * 18)

    def test_statistics_have_all_fields_of_the_header(self) -> None:
        """In its order, and each with its description."""
        fields = [name for name, *_ in _abi.bfc_stats_t._fields_]
        self.assertEqual(["struct_size", *(field.name for field in dataclasses.fields(bfc.Stats))], fields)


if __name__ == "__main__":
    unittest.main()
