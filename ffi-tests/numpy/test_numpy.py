"""NumPy's arrays in libbfc's memory. See README.md."""

import gc
import mmap
import os
import signal
import subprocess
import sys
import threading

import numpy
import pytest
from numpy._core.multiarray import get_handler_name

import bfc
import bfc.numpy
import pages

pytestmark = pytest.mark.own_process
MIB = 1 << 20


def in_use():
    gc.collect()
    return bfc.stats(bfc.HOST).bytes_in_use


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


def work():
    """What a program does with arrays, as bytes."""
    random = numpy.random.default_rng(1)
    matrix = random.standard_normal((300, 200))
    words = numpy.array(["a", "bb", "ccc"] * 1000)
    results = [
        matrix @ matrix.T,
        numpy.linalg.svd(matrix, compute_uv=False),
        numpy.sort(matrix, axis=None)[::3].copy(),
        numpy.concatenate([matrix, matrix * 2]).cumsum(axis=1),
        numpy.fromiter((number * number for number in range(10000)), dtype="int64"),
        numpy.fft.fft(matrix[:, 0]),
        numpy.unique(words, return_counts=True)[1],
        numpy.where(matrix > 0, matrix, 0).astype("float32"),
        numpy.einsum("ij,ij->i", matrix, matrix),
        numpy.array([]),
    ]
    return [numpy.ascontiguousarray(result).tobytes() for result in results]


def test_results_are_those_of_numpys_allocator():
    expected = work()
    with bfc.numpy.use():
        assert work() == expected
        assert bfc.stats(bfc.HOST).num_allocs > 50
    assert in_use() == 0


def test_arrays_keep_their_allocator():
    before = numpy.ones(1000)
    handler = bfc.numpy.use(memory_limit=64 * MIB, name="arrays")
    inside = numpy.ones(1000)
    assert [get_handler_name(array) for array in (before, inside)] == ["default_allocator", "bfc"]
    assert bfc.owner(inside.ctypes.data) == bfc.HOST and in_use() == 8192
    assert inside.ctypes.data % 256 == 0
    handler.restore()
    handler.restore()
    after = numpy.ones(1000)
    assert get_handler_name(after) == "default_allocator"
    with bfc.numpy.use() as one:
        with bfc.numpy.use():
            assert get_handler_name(numpy.ones(3)) == "bfc"
        assert get_handler_name(numpy.ones(3)) == "bfc"
        one.restore()
        assert get_handler_name(numpy.ones(3)) == "default_allocator"
    del before, inside, after
    assert in_use() == 0


def test_threads_begin_with_numpys_own():
    bfc.numpy.use()
    names, arrays = [], [numpy.ones(100_000)]

    def run():
        names.append(get_handler_name(numpy.ones(5)))
        bfc.numpy.use()
        for size in range(1, 3000):
            assert (numpy.full(size, size) == size).all()
        arrays.append(numpy.ones(200_000))
        arrays.pop(0)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == ["default_allocator"] * 4
    assert {get_handler_name(array) for array in arrays} == {"bfc"}
    arrays.clear()
    assert in_use() == 0


def test_zeros_are_zero_and_resident_when_touched():
    bfc.numpy.use()
    for size in (1, 255, 4096, MIB, 2 * MIB, 5 * MIB + 17, 512 * MIB):
        first = numpy.full(size, 7, dtype="uint8") if size < 64 * MIB else None
        del first
        before = resident()
        array = numpy.zeros(size, dtype="uint8")
        if size == 512 * MIB:
            assert resident() - before < 16 * MIB
            array = array[:: 64 * MIB]
        assert not array.any()
        del array
    assert in_use() == 0


def test_resizing_keeps_the_contents():
    bfc.numpy.use()
    array = numpy.arange(1000)
    array.resize(1_000_000, refcheck=False)
    assert (array[:1000] == numpy.arange(1000)).all() and not array[1000:].any()
    array.resize(10, refcheck=False)
    assert array.tolist() == list(range(10)) and in_use() <= 512
    array.resize(0, refcheck=False)
    assert array.size == 0


def test_exhausted_memory_is_numpys_error():
    bfc.numpy.use(memory_limit=8 * MIB)
    array = numpy.ones(MIB // 8)
    for function in (numpy.empty, numpy.zeros, numpy.ones):
        with pytest.raises(MemoryError, match="Unable to allocate"):
            function(2 * MIB)
    with pytest.raises(MemoryError):
        array.resize(2 * MIB, refcheck=False)
    assert (array == 1).all()
    numpy.empty(MIB // 2)


def test_a_forked_child_goes_on():
    bfc.numpy.use()
    array = numpy.arange(MIB)
    child = os.fork()
    if child == 0:
        array += 1
        ok = (array[:5] == [1, 2, 3, 4, 5]).all() and (numpy.ones(MIB) == 1).all()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0) == (child, 0)
    assert array[0] == 0


def test_foreign_pointers_are_refused():
    array = numpy.ones(1000)
    bfc.numpy.use()
    kept = numpy.ones(10)
    before = in_use()
    bfc._library.lib.bfc_numpy_free(None, array.ctypes.data, 8000)
    assert "is in no region of this allocator" in bfc._library.last_error()
    assert not bfc._library.lib.bfc_numpy_realloc(None, array.ctypes.data, 9000)
    assert in_use() == before and (array == 1).all() and (kept == 1).all()


def test_arrays_may_live_to_the_end():
    program = "import bfc.numpy, numpy; bfc.numpy.use(); kept = [numpy.ones(n) for n in range(1000)]; cycle = [kept]; cycle.append(cycle)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | {"BFC_LOG": "warn"})
    assert (done.returncode, done.stderr) == (0, ""), signal.Signals(-done.returncode) if done.returncode < 0 else done.stderr


def test_the_page():
    pages.Page("numpy").run_all({})
