"""Pools and blocks, on host memory."""

import contextlib
import ctypes
import gc
import inspect
import os
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable, Iterator

import bfc
from bfc import _abi, _library, _options

MiB = 1 << 20
DEVICE = 301


@contextlib.contextmanager
def ordinal(device: int = DEVICE) -> Iterator[int]:
    """A device without an allocator, before and afterwards."""
    yield device
    gc.collect()
    with contextlib.suppress(bfc.Error):
        bfc.stats(device)
        raise AssertionError(f"device {device} still has an allocator")


def pool(**options: object) -> bfc.Pool:
    return bfc.Pool(DEVICE, **{"backend": "host", "limit": "8MiB", **options})  # type: ignore[arg-type]


class Devices(unittest.TestCase):
    def test_names(self) -> None:
        for named in ["host", "cpu", bfc.HOST]:
            with ordinal(bfc.HOST), bfc.Pool(named, limit="1MiB") as made:
                self.assertEqual(made.device, bfc.HOST)
        for named, number in [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1), ("cuda:255", 255)]:
            with ordinal(number), bfc.Pool(named, backend="host", limit="1MiB") as made:
                self.assertEqual(made.device, number)
                self.assertIn(f"of device {number}, backend host", repr(made))
        self.assertIn("closed", repr(made))

    def test_others_are_refused(self) -> None:
        for wrong in ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", "host:0", ""]:
            with self.assertRaisesRegex(ValueError, f"device must be 'cuda', 'cuda:N', 'host', 'cpu' or an ordinal, not '{wrong}'"):
                bfc.Pool(wrong)
        self.assertRaisesRegex(ValueError, "device must be at most 'cuda:255', not 'cuda:256'", bfc.Pool, "cuda:256")
        self.assertRaisesRegex(TypeError, "device must be a str or an integer, not bytes", bfc.Pool, b"cuda")
        self.assertRaisesRegex(TypeError, "unexpected keyword argument 'limits'", bfc.Pool, DEVICE, limits=1)
        self.assertRaisesRegex(TypeError, "give one of them", bfc.Pool, DEVICE, limit=1, memory_limit=1)
        self.assertRaisesRegex(ValueError, "limit must be a number of bytes", bfc.Pool, DEVICE, limit="much")
        self.assertRaisesRegex(ValueError, "^limit must not be 0", bfc.Pool, DEVICE, limit=0)


    def test_keywords_are_those_of_create(self) -> None:
        create = inspect.signature(bfc.create).parameters
        declared = _options.Options.__annotations__
        self.assertEqual([name for name in create if name != "device"], list(declared))
        for name, annotation in declared.items():
            # A string in a ForwardRef: nothing is evaluated.
            self.assertEqual(getattr(annotation, "__forward_arg__", annotation), create[name].annotation)


class Pools(unittest.TestCase):
    def test_methods_are_the_functions_on_its_device(self) -> None:
        with ordinal(), pool(name="a pool") as made:
            with made.scope("attention", step=3):
                block = made.alloc("1000 B", alignment="4KiB", short_lived=True)
            self.assertEqual((block.size, block.allocated, block.address % 4096), (1000, 1024, 0))
            self.assertEqual(made.stats(), bfc.stats(DEVICE))
            self.assertIn("attention", made.report())
            self.assertRegex(made.occupancy(), r"^[*x_]{100}$")
            self.assertEqual(made.memory_map()["name"], "a pool")
            block.free()
            self.assertGreater(made.trim(), 0)
            made.reset_stats()
            self.assertEqual(made.stats().num_allocs, 0)
            with made.alloc("1 MiB", stream=7):
                pass
            made.synchronized(7)
            made.forget_stream(7)
        with self.assertRaises(bfc.Error):
            bfc.stats(DEVICE)

    def test_a_closed_pool_does_nothing_more(self) -> None:
        made = pool()
        made.close()
        made.close()
        self.assertTrue(made.closed)
        calls: list[Callable[[], object]] = [made.stats, made.report, made.occupancy, made.memory_map, made.trim, lambda: made.alloc(1)]
        for call in [*calls, lambda: made.scope("x")]:
            self.assertRaisesRegex(ValueError, "the pool is closed", call)

    def test_blocks_end_with_their_pool(self) -> None:
        with ordinal():
            with pool() as made:
                blocks = [made.alloc(5) for _ in range(3)]
            self.assertEqual([block.freed for block in blocks], [True] * 3)
            with pool() as second:
                other = second.alloc(5)
                blocks.clear()
                self.assertEqual((second.stats().num_allocs, second.stats().num_frees, other.freed), (1, 0, False))

    def test_arrays_outlive_their_pool(self) -> None:
        with ordinal():
            with pool() as made:
                block = made.alloc(5)
                view = block.view()
                view[:] = b"alive"
            with self.assertRaisesRegex(bfc.Error, "its pool was closed, and arrays or blocks of it are still alive") as caught:
                pool()
            self.assertEqual(caught.exception.status, bfc.Status.ALREADY_EXISTS)
            del block, made
            self.assertEqual(bytes(view), b"alive")
            view.release()
            del view
            with pool() as second:
                self.assertEqual(second.stats().num_allocs, 0)

    def test_a_pool_that_is_dropped_is_closed(self) -> None:
        with ordinal():
            made = pool()
            block = made.alloc(1)
            del made
            self.assertEqual(bfc.stats(DEVICE).num_allocs, 1)
            block.view()[:] = b"x"
            del block
        with ordinal():
            # The collection finalizes pool and block in an order of its own.
            cycle: list[object] = [pool()]
            cycle += [cycle, cycle[0].alloc(1)]  # type: ignore[attr-defined]
            del cycle

    def test_there_is_one_for_each_device(self) -> None:
        with ordinal(), pool():
            for make in [pool, lambda: bfc.create(DEVICE, backend="host")]:
                with self.assertRaises(bfc.Error) as caught:
                    make()
                self.assertEqual(caught.exception.status, bfc.Status.ALREADY_EXISTS)
        bfc.create(DEVICE, backend="host", name="first")
        with self.assertRaises(bfc.Error) as caught:
            pool()
        # What is not the pool's is not ended with it.
        gc.collect()
        self.assertIn('"first"', bfc.report(DEVICE))
        bfc.destroy(DEVICE)

    def test_a_refused_destruction_names_what_is_live(self) -> None:
        with ordinal():
            bfc.create(DEVICE, backend="host", memory_limit=1 << 20, name="trainer")
            with bfc.scope("weights"):
                bfc.alloc(DEVICE, 2048)
            with self.assertRaisesRegex(bfc.Error, "trainer: 1 allocation is live: 2.00 KiB in 1 of weights; ") as caught:
                bfc.destroy(DEVICE)
            self.assertIs(caught.exception.status, bfc.Status.BUSY)
            bfc.destroy(DEVICE, force=True)

    def test_nothing_replaces_an_allocator_that_has_blocks(self) -> None:
        with ordinal(), pool() as made:
            block = made.alloc(1)
            for force in (False, True):
                with self.assertRaisesRegex(bfc.Error, f"device {DEVICE} belongs to a bfc.Pool: close the pool instead") as caught:
                    bfc.destroy(DEVICE, force=force)
                self.assertEqual(caught.exception.status, bfc.Status.BUSY)
            block.free()

    def test_functions_share_the_allocator(self) -> None:
        with ordinal():
            made = pool()
            address = bfc.alloc(DEVICE, 100)
            made.close()
            # It ends with the last allocation that a block or a pool frees.
            bfc.free(DEVICE, address)
            made.close()

    def test_threads(self) -> None:
        failed: list[BaseException] = []

        def work(made: bfc.Pool) -> None:
            try:
                for size in range(1, 400):
                    kept = made.alloc(size)
                    made.alloc(size).free()
                    del kept
            except BaseException as error:
                failed.append(error)

        with ordinal(), pool() as made:
            threads = [threading.Thread(target=work, args=(made,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual((failed, made.stats().num_frees), ([], 8 * 399))

    def test_a_collection_within_a_callback_loses_nothing(self) -> None:
        """The library refuses calls then."""
        with ordinal(), pool(limit="64MiB") as made:
            kept: list[bfc.Block] = []
            lived: list[int] = []

            def called(data: object, device: int, start: object, size: int, kind: int) -> None:
                lived.append(len(kept))
                kept.clear()

            callback = _abi.bfc_region_callback_t(called)
            _library.call("bfc_set_region_callback", DEVICE, callback, None)
            kept.append(made.alloc(256))
            large = made.alloc("32MiB")
            self.assertEqual((lived[:2], bfc.stats(DEVICE).num_frees), ([0, 1], 0))
            large.free()
            made.alloc(1).free()
            self.assertEqual(made.stats().bytes_in_use, 0)
            made.trim()
            _library.call("bfc_set_region_callback", DEVICE, _abi.bfc_region_callback_t(), None)


class Blocks(unittest.TestCase):
    def setUp(self) -> None:
        self.pool = pool()
        self.addCleanup(self.pool.close)

    def in_use(self) -> int:
        return self.pool.stats().bytes_in_use

    def test_they_free_themselves(self) -> None:
        block = self.pool.alloc(1000)
        self.assertEqual((block.device, block.stream, bfc.owner(block.address), self.in_use()), (DEVICE, None, DEVICE, 1024))
        self.assertIn(f"of 1000 bytes at {block.address:#x}, device {DEVICE}>", repr(block))
        del block
        self.assertEqual(self.in_use(), 0)
        with self.pool.alloc(1000) as block:
            self.assertEqual(self.in_use(), 1024)
        self.assertTrue(block.freed)
        self.assertEqual(self.in_use(), 0)

    def test_a_second_free_does_nothing(self) -> None:
        block = self.pool.alloc(1000)
        address = block.address
        block.free()
        other = self.pool.alloc(1000)
        self.assertEqual(other.address, address)
        block.free()
        del block
        self.assertEqual(self.in_use(), 1024)
        other.free()
        self.assertIn("freed", repr(other))
        uses: list[Callable[[], object]] = [lambda: other.address, lambda: other.allocated, other.view, lambda: other.record_stream(1)]
        for use in uses:
            self.assertRaisesRegex(ValueError, "the block was freed", use)

    def test_nothing_of_no_bytes(self) -> None:
        block = self.pool.alloc(0)
        self.assertEqual((block.address, block.size, block.allocated, bytes(block.view())), (0, 0, 0, b""))
        block.free()

    def test_a_failed_free_leaves_the_block(self) -> None:
        block = self.pool.alloc(1)
        self.assertRaises(ValueError, block.free, stream=-1)
        self.assertRaises(TypeError, block.free, stream="7")
        bfc.free(DEVICE, block.address)
        with self.assertRaises(bfc.Error) as caught:
            block.free()
        self.assertEqual((caught.exception.status, block.freed), (bfc.Status.DOUBLE_FREE, False))

    def test_streams(self) -> None:
        block = self.pool.alloc(8 * MiB, stream=7)
        self.assertEqual(block.stream, 7)
        self.assertIn("stream 0x7", repr(block))
        # By the garbage collection too in the order of its stream.
        del block
        self.assertRaises(bfc.OutOfMemoryError, self.pool.alloc, 8 * MiB, stream=8)
        bfc.synchronized(DEVICE, 7)
        block = self.pool.alloc(8 * MiB, stream=8)
        block.record_stream(9)
        block.free(stream=8)
        self.assertRaises(bfc.OutOfMemoryError, self.pool.alloc, 8 * MiB, stream=8)
        bfc.synchronized(DEVICE, 9)
        self.pool.alloc(8 * MiB, stream=8)

    def test_the_default_stream_is_one(self) -> None:
        self.assertEqual(self.pool.alloc(1, stream=0).stream, 0)

    def test_views(self) -> None:
        block = self.pool.alloc(1000)
        view = block.view()
        self.assertEqual((view.format, view.nbytes, view.readonly, view.shape), ("B", 1000, False, (1000,)))
        self.assertEqual(ctypes.addressof(ctypes.c_char.from_buffer(view)), block.address)
        gc.collect()
        part = view[10:20]
        view.release()
        part[:] = b"0123456789"
        with self.assertRaisesRegex(BufferError, "cannot be freed: a view, an array or a DLPack tensor of it is alive"):
            block.free()
        self.assertEqual(bytes(block.view()[8:12]), b"\0\x0001")
        del block
        self.assertEqual((bytes(part), self.in_use()), (b"0123456789", 1024))
        del part, view
        self.assertEqual(self.in_use(), 0)

    def test_the_buffer_protocol(self) -> None:
        block = self.pool.alloc(5)
        if sys.version_info >= (3, 12):
            with memoryview(block) as view:
                view[:] = b"hello"
                self.assertRaises(BufferError, block.free)
            self.assertEqual(bytes(block), b"hello")
        else:
            self.assertRaises(TypeError, memoryview, block)
            with block.view() as view:
                self.assertRaises(BufferError, block.free)
        block.free()

    def test_the_array_interface(self) -> None:
        block = self.pool.alloc(1000)
        interface = block.__array_interface__
        self.assertEqual((interface["shape"], interface["typestr"], interface["data"].nbytes), ((1000,), "|u1", 1000))
        self.assertFalse(hasattr(block, "__cuda_array_interface__"))
        self.assertRaises(BufferError, block.free)


IN_A_CHILD = """
import gc, os, sys, threading
import bfc
from bfc import _allocator

def child(work):
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0

host = bfc.Pool(302, backend="host", limit="1MiB")
block = host.alloc(5)
block.view()[:] = b"hello"
mapped = bfc.Pool(303, backend="host_vmm", limit="4MiB")
gone = mapped.alloc(5)

def work():
    global block, gone
    assert bytes(block.view()) == b"hello"
    del block
    host.alloc(1).free()
    host.close()
    for use in (gone.view, gone.free, lambda: mapped.alloc(1)):
        try:
            use()
        except bfc.Error as error:
            assert error.status == bfc.Status.SHUTTING_DOWN, error
        else:
            raise AssertionError("the memory is not in the child")
    del gone
    with bfc.Pool(304, backend="host") as pool:
        pool.alloc(1)

held, enough = threading.Event(), threading.Event()

def hold():
    with _allocator.lock():
        held.set()
        enough.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child(work)
enough.set()
thread.join()
block.view()[:] = b"still"
gone.view()[:] = b"there"
"""

AT_THE_END = """
import atexit, sys
import bfc
pool = bfc.Pool(302, backend="host", limit="1MiB")
block = pool.alloc(5)
view = pool.alloc(5).view()
cycle = [pool.alloc(5)]
cycle.append(cycle)
sys.kept = pool.alloc(5).view(), pool
class Late:
    def __del__(self, block=pool.alloc(5)):
        if not block.freed:
            block.view()[:] = b"later"
        block.free()
late = Late()
atexit.register(lambda: block.free())
if "closed" in sys.argv:
    pool.close()
"""


class Processes(unittest.TestCase):
    def run_program(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program, *arguments], env=os.environ, capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_forked_children(self) -> None:
        self.run_program(IN_A_CHILD.replace("pid = os.fork()", "import warnings; warnings.simplefilter('ignore'); pid = os.fork()"))

    def test_blocks_that_live_to_the_end(self) -> None:
        for arguments in [(), ("closed",)]:
            self.run_program(AT_THE_END, *arguments)


if __name__ == "__main__":
    unittest.main()
