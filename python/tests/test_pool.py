"""Pools and blocks, on host memory."""

import gc
import json
import os
import subprocess
import sys
import threading
import unittest
from unittest import mock

import bfc
from bfc import _abi, _library, _numbers

DEVICE = 301
MiB = 1 << 20


def pool(**options: object) -> bfc.Pool:
    return bfc.Pool(DEVICE, **{"backend": "host", "limit": "8MiB", **options})  # type: ignore[arg-type]


class Pools(unittest.TestCase):
    def exists(self) -> bool:
        try:
            bfc.stats(DEVICE)
        except bfc.Error as error:
            self.assertEqual(error.status, bfc.Status.NO_ALLOCATOR)
            return False
        return True

    def test_a_pool_lasts_as_long_as_its_block(self) -> None:
        with pool() as made:
            self.assertEqual((made.device, made.closed), (DEVICE, False))
            block = made.alloc("1 KiB")
            self.assertEqual((block.size, block.allocated, block.device, block.stream), (1024, 1024, DEVICE, None))
            self.assertEqual(bfc.owner(block.address), DEVICE)
            self.assertIn("in use", made.report())
            self.assertEqual(made.stats().bytes_limit, 8 * MiB)
        self.assertTrue(made.closed and block.freed and not self.exists())
        made.close()
        for use in (made.stats, made.alloc, lambda: block.address, block.view):
            with self.assertRaisesRegex((ValueError, TypeError), "closed|freed|nbytes"):
                use()  # type: ignore[operator]

    def test_blocks_are_freed_once(self) -> None:
        with pool() as made:
            block = made.alloc(1000)
            block.free()
            block.free()
            with made.alloc(1000) as other:
                self.assertFalse(other.freed)
            self.assertTrue(other.freed)
            self.assertEqual((made.stats().num_allocs, made.stats().num_frees), (2, 2))
            ended: list[object] = []
            shared = made.alloc(1000)
            threads = [threading.Thread(target=lambda: ended.append(shared.free())) for _ in range(8)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            self.assertEqual((ended, made.stats().num_frees), ([None] * 8, 3))

    def test_the_last_reference_frees(self) -> None:
        with pool() as made:
            block = made.alloc(1000)
            del block
            gc.collect()
            self.assertEqual(made.stats().bytes_in_use, 0)
            made.alloc(1000)
            gc.collect()
            self.assertEqual(made.stats().num_frees, 2)

    def test_an_allocator_ends_with_its_last_block(self) -> None:
        made = pool()
        block = made.alloc(1000)
        del made
        gc.collect()
        self.assertTrue(self.exists())
        self.assertEqual(bfc.owner(block.address), DEVICE)
        del block
        gc.collect()
        self.assertFalse(self.exists())

    def test_a_block_frees_nothing_of_a_later_pool(self) -> None:
        first = pool()
        block = first.alloc(1000)
        first.close()
        with pool() as second:
            others = [second.alloc(1000) for _ in range(4)]
            block.free()
            del block
            gc.collect()
            self.assertEqual(second.stats().bytes_in_use, 4 * 1024)
            del others

    def test_a_view_keeps_its_memory(self) -> None:
        with pool() as made:
            block = made.alloc(5)
            view = block.view()
            view[:] = b"hello"
            self.assertEqual((bytes(block.view()), view.format, view.readonly), (b"hello", "B", False))
            for end in (block.free, made.close):
                with self.assertRaisesRegex(BufferError, "view"):
                    end()
            del block
            gc.collect()
            self.assertEqual((bytes(view), made.stats().num_frees), (b"hello", 0))
            del view
            gc.collect()
            self.assertEqual(made.stats().num_frees, 1)
            self.assertEqual(len(made.alloc(0).view()), 0)

    @unittest.skipIf(sys.version_info < (3, 12), "classes have the buffer protocol since Python 3.12")
    def test_the_buffer_protocol(self) -> None:
        with pool() as made:
            block = made.alloc(3)
            memoryview(block)[:] = b"abc"
            self.assertEqual(bytes(block), b"abc")

    def test_sizes_are_those_of_the_library(self) -> None:
        options = _abi.bfc_options_t(struct_size=_abi.ctypes.sizeof(_abi.bfc_options_t), backend=_abi.BFC_BACKEND_HOST)
        room, length = _abi.ctypes.create_string_buffer(4096), _abi.ctypes.c_size_t()
        for text in ("4096", "8GiB", "8 gb", "512M", "1.5g", "2TiB", "7b", "100000k", ".5k", "64m "):
            with mock.patch.dict(os.environ, {"BFC_MEMORY_LIMIT": text}):
                _library.call("bfc_resolve_options", DEVICE, _abi.ctypes.byref(options), room, len(room), _abi.ctypes.byref(length))
            self.assertEqual(_numbers.size(text, "limit"), json.loads(room.value)["memory_limit"], text)
        for text in ("", "GiB", "8XiB", "-1", "1e9", "99999999999999999999", "20000000T", "1.2.3", "nan"):
            with self.assertRaisesRegex(ValueError, "limit must be"):
                bfc.Pool(DEVICE, backend="host", limit=text)

    def test_wrong_arguments(self) -> None:
        for device in ("gpu", "cuda:", "cuda:x", "", "host:1"):
            with self.assertRaisesRegex(ValueError, "device must be 'host', 'cuda'"):
                bfc.Pool(device)
        with self.assertRaisesRegex(TypeError, "limit and memory_limit"):
            pool(memory_limit=1)
        with self.assertRaisesRegex(TypeError, "nonsense"):
            pool(nonsense=1)
        with pool(), self.assertRaises(bfc.Error) as caught:
            pool()
        self.assertEqual(caught.exception.status, bfc.Status.ALREADY_EXISTS)
        self.assertFalse(self.exists())

    def test_what_others_allocated_keeps_a_pool_open(self) -> None:
        made = pool()
        address = bfc.alloc(DEVICE, 1000)
        with self.assertRaises(bfc.Error) as caught:
            made.close()
        self.assertEqual((caught.exception.status, made.closed), (bfc.Status.BUSY, False))
        bfc.free(DEVICE, address)
        made.close()

    def test_streams_and_the_interface_of_cuda(self) -> None:
        with pool() as made:
            block = made.alloc(1000, stream=0x10)
            block.record_stream(0x20)
            self.assertEqual(block.stream, 0x10)
            self.assertFalse(hasattr(block, "__cuda_array_interface__"))
            block.free(stream=0x10)

    def test_the_end_of_the_interpreter_and_a_fork(self) -> None:
        script = """if True:
            import bfc, os
            pool = bfc.Pool("host", limit="8MiB")
            block, kept = pool.alloc(1000), [pool.alloc(10) for _ in range(10)]
            view = block.view()
            child = os.fork()
            if child == 0:
                del kept
            else:
                assert os.waitpid(child, 0)[1] == 0
            """
        subprocess.run([sys.executable, "-c", script], check=True)

    def test_statistics_are_a_table(self) -> None:
        with pool() as made:
            made.alloc(1000)
            text, html = str(made.stats()), made.stats()._repr_html_()
            self.assertRegex(text, r"(?m)^  bytes_limit +8.00 MiB$")
            self.assertRegex(text, r"(?m)^  num_allocs +1$")
            self.assertEqual(len(text.splitlines()), 1 + len(_abi.bfc_stats_t._fields_) - 1)
            self.assertIn("<td>bytes_limit</td><td style='text-align: right'>8.00 MiB</td>", html)

    def test_the_version(self) -> None:
        self.assertEqual(bfc.__version__, bfc.version())


if __name__ == "__main__":
    unittest.main()
