"""DLPack, with a consumer of the tests' own: NumPy, PyTorch and CuPy are in ffi-tests."""

import ctypes
import os
import subprocess
import sys
import threading
import unittest
from ctypes import c_char_p, c_int, c_void_p, py_object

import bfc
from bfc import _dlpack

DEVICE = 305


def function(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


name_of = function("PyCapsule_GetName", c_char_p, py_object)
pointer = function("PyCapsule_GetPointer", c_void_p, py_object, c_char_p)
rename = function("PyCapsule_SetName", c_int, py_object, c_char_p)


class Consumer:
    """Takes a capsule over, and calls its deleter."""

    def __init__(self, capsule):
        self.name = name_of(capsule)
        kind = {b"dltensor": _dlpack._Managed, b"dltensor_versioned": _dlpack._Versioned}[self.name]
        self.place = pointer(capsule, self.name)
        self.made = kind.from_address(self.place)
        self.used = b"used_" + self.name
        rename(capsule, self.used)

    def bytes(self):
        tensor = self.made.tensor
        (length,) = (ctypes.c_int64 * tensor.ndim).from_address(tensor.shape)
        return ctypes.string_at(tensor.data, length)

    def done(self):
        # As in C: without Python's lock.
        ctypes.CFUNCTYPE(None, c_void_p)(self.made.deleter)(self.place)


class Capsules(unittest.TestCase):
    def setUp(self) -> None:
        self.pool = bfc.Pool(DEVICE, backend="host", limit="1MiB")
        self.addCleanup(self.pool.close)

    def block(self, text: bytes = b"hello") -> bfc.Block:
        block = self.pool.alloc(len(text))
        block.view()[:] = text
        return block

    def in_use(self) -> int:
        return self.pool.stats().bytes_in_use

    def test_a_consumer_keeps_the_memory_until_it_is_done(self) -> None:
        for asked, name in [(None, b"dltensor"), ((0, 8), b"dltensor"), ((1, 0), b"dltensor_versioned"), ((2, 1), b"dltensor_versioned")]:
            block = self.block()
            self.assertEqual(block.__dlpack_device__(), (1, 0))
            consumer = Consumer(block.__dlpack__(max_version=asked))
            tensor = consumer.made.tensor
            self.assertEqual((consumer.name, consumer.bytes(), tensor.data), (name, b"hello", block.address))
            kind = tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset, tensor.device_type, tensor.device_id
            self.assertEqual(kind, (1, 8, 1, 0, 1, 0))
            self.assertEqual(ctypes.c_int64.from_address(tensor.strides).value, 1)
            if name == b"dltensor_versioned":
                self.assertEqual((consumer.made.major, consumer.made.minor, consumer.made.flags), (1, 0, 0))
            with self.assertRaisesRegex(BufferError, "a DLPack tensor of it is alive"):
                block.free()
            del block
            self.assertEqual((self.in_use(), consumer.bytes()), (256, b"hello"))
            thread = threading.Thread(target=consumer.done)
            thread.start()
            thread.join()
            self.assertEqual((self.in_use(), _dlpack.exports), (0, {}))

    def test_a_block_can_be_freed_when_the_consumer_is_done(self) -> None:
        block = self.block()
        consumers = [Consumer(block.__dlpack__()) for _ in range(3)]
        for consumer in consumers:
            self.assertRaises(BufferError, block.free)
            consumer.done()
        block.free()
        self.assertEqual(self.in_use(), 0)

    def test_what_nobody_takes_is_freed(self) -> None:
        capsule = self.block().__dlpack__()
        self.assertEqual(self.in_use(), 256)
        del capsule
        self.assertEqual(self.in_use(), 0)

    def test_an_exception_under_way_stays_what_it_is(self) -> None:
        """Finalizers run while it is raised."""
        with self.assertRaises(ZeroDivisionError):
            (self.block().__dlpack__(), 1 / 0)
        self.assertEqual(self.in_use(), 0)

    def test_the_next_allocation_gets_the_memory(self) -> None:
        consumer = Consumer(self.pool.alloc("1MiB").__dlpack__())
        self.assertRaises(bfc.OutOfMemoryError, self.pool.alloc, "1MiB")
        consumer.done()
        self.pool.alloc("1MiB")

    def test_a_pool_ends_with_its_last_tensor(self) -> None:
        with bfc.Pool(306, backend="host") as pool:
            consumer = Consumer(pool.alloc(1).__dlpack__())
        self.assertRaises(bfc.Error, bfc.Pool, 306, backend="host")
        consumer.done()
        bfc.Pool(306, backend="host").close()

    def test_copies(self) -> None:
        block = self.block()
        consumer = Consumer(block.__dlpack__(max_version=(1, 1), copy=True))
        block.view()[:] = b"other"
        self.assertNotEqual(consumer.made.tensor.data, block.address)
        self.assertEqual((consumer.bytes(), consumer.made.flags), (b"hello", 2))
        block.free()
        consumer.done()
        self.assertEqual(self.in_use(), 0)

    def test_nothing_of_no_bytes(self) -> None:
        consumer = Consumer(self.pool.alloc(0).__dlpack__())
        self.assertEqual((consumer.made.tensor.data, consumer.made.shape), (None, 0))
        consumer.done()

    def test_what_cannot_be_had_is_refused(self) -> None:
        block = self.block()
        self.assertRaisesRegex(BufferError, r"to DLPack device \(2, 0\): it is on \(1, 0\)", block.__dlpack__, dl_device=(2, 0))
        self.assertRaisesRegex(BufferError, "stream must be None, not 1", block.__dlpack__, stream=1)
        block.free()
        self.assertRaisesRegex(ValueError, "the block was freed", block.__dlpack__)


LATE = """
import atexit, ctypes, os, sys
sys.path.insert(0, sys.argv[1])
from test_dlpack import Consumer
import bfc
pool = bfc.Pool(305, backend="host")
block = pool.alloc(5)
block.view()[:] = b"hello"
consumer = Consumer(block.__dlpack__(max_version=(1, 0)))
place, memory, mark = consumer.place, consumer.made.tensor.data, consumer.made.deleter
class Last:
    def __init__(self):
        self.exports = bfc._dlpack.exports
        self.write, self.call = os.write, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(mark)
        self.memory, self.place = (ctypes.c_char * 5).from_address(memory), place
    def __del__(self):
        # As the interpreter may, when it takes modules apart.
        self.exports.clear()
        self.write(1, self.memory.raw)
        self.call(self.place)
os.last = Last()
del block, pool
"""


class TheEnd(unittest.TestCase):
    def test_tensors_outlive_the_interpreter(self) -> None:
        command = [sys.executable, "-c", LATE, os.path.dirname(os.path.abspath(__file__))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "hello", ""))


if __name__ == "__main__":
    unittest.main()
