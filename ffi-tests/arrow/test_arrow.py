"""Arrow's buffers in libbfc's memory. See README.md."""

import gc
import io
import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy
import pyarrow
import pyarrow.compute
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

import bfc
import bfc.arrow
import pages
import programs
from programs import LIB, PREFIX, ROOT

pytestmark = pytest.mark.own_process
MIB = 1 << 20
FOLDER = pathlib.Path(pyarrow.__file__).parent
# The pool of Arrow's C++ library, whatever pyarrow's is.
ARROWS = pyarrow.default_memory_pool()


def table(rows=200_000):
    random = numpy.random.default_rng(1)
    # From lists: an array of NumPy's is not copied.
    return pyarrow.table(
        {
            "key": pyarrow.array(random.integers(0, 100, rows).tolist()),
            "value": pyarrow.array(random.random(rows).tolist()),
            "name": pyarrow.array([f"name {number % 97}" for number in range(rows)]),
        }
    )


def parquet(data):
    file = io.BytesIO()
    pyarrow.parquet.write_table(data, file)
    return pyarrow.parquet.read_table(io.BytesIO(file.getvalue()))


def csv(data):
    file = io.BytesIO()
    pyarrow.csv.write_csv(data.slice(0, 20_000), file)
    return pyarrow.csv.read_csv(io.BytesIO(file.getvalue()))


def feather(data):
    file = io.BytesIO()
    pyarrow.feather.write_feather(data, file)
    return pyarrow.feather.read_table(io.BytesIO(file.getvalue()))


# What takes libbfc's memory for its results, and what takes that of Arrow's C++ library whatever pyarrow's pool is.
OURS = {
    "compute": lambda data: pyarrow.compute.multiply(data["value"], 2.0),
    "cast": lambda data: data["key"].cast("float32"),
    "filter": lambda data: data.filter(pyarrow.compute.greater(data["value"], 0.5)),
    "take": lambda data: data.take(numpy.arange(0, 200_000, 3)),
    "strings": lambda data: pyarrow.compute.utf8_upper(data["name"]),
    "dictionary": lambda data: data["name"].dictionary_encode(),
    "combine": lambda data: pyarrow.concat_tables([data, data]).combine_chunks(),
    "parquet": parquet,
    "csv": csv,
}
ARROWS_OWN = {
    "group_by": lambda data: data.group_by("key", use_threads=False).aggregate([("value", "sum")]),
    "join": lambda data: data.join(data.slice(0, 100), "key", join_type="left semi", use_threads=False),
    "feather": feather,
    "filter by an expression": lambda data: data.filter(pyarrow.compute.field("value") > 0.5),
}


def in_use():
    gc.collect()
    return bfc.stats(bfc.HOST).bytes_in_use


def all_is_freed():
    """Whether nothing is in use. A thread of Arrow's may hold the last reference to what it has read for a moment longer."""
    deadline = time.monotonic() + 10
    while in_use() != 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    return in_use() == 0


def addresses(result):
    """Where the buffers of a result begin."""
    arrays = result.columns if isinstance(result, pyarrow.Table) else [result]
    chunks = [chunk for array in arrays for chunk in (array.chunks if isinstance(array, pyarrow.ChunkedArray) else [array])]
    return [buffer.address for chunk in chunks for buffer in chunk.buffers() if buffer is not None and buffer.size]


def owner(address):
    try:
        return bfc.owner(address)
    except bfc.Error:
        return None


@pytest.mark.parametrize("operation", [*OURS, *ARROWS_OWN])
def test_results_are_those_of_arrows_pool(operation):
    work = (OURS | ARROWS_OWN)[operation]
    expected = work(table())
    with bfc.arrow.use():
        data = table()
        assert {owner(address) for address in addresses(data)} == {bfc.HOST}
        before, own = bfc.stats(bfc.HOST).num_allocs, ARROWS.num_allocations()
        result = work(data)
        assert result.equals(expected)
        if operation in OURS:
            assert bfc.HOST in {owner(address) for address in addresses(result)}
            assert bfc.stats(bfc.HOST).num_allocs > before
        else:
            assert ARROWS.num_allocations() > own
    del data, result
    assert all_is_freed() and pyarrow.default_memory_pool().backend_name != "bfc"


def test_the_statistics_are_those_of_the_allocator():
    bfc.arrow.use(memory_limit=64 * MIB, name="frames")
    pool = pyarrow.default_memory_pool()
    assert pool.backend_name == "bfc"
    buffers = [pyarrow.allocate_buffer(size) for size in (1, 256, 257, 100_000)]
    # Arrow rounds up to 64.
    requested = 64 + 256 + 320 + 100_032
    assert pool.bytes_allocated() == bfc.stats(bfc.HOST).bytes_requested == requested
    assert in_use() == 256 + 256 + 512 + 100_096
    assert all(buffer.address % 256 == 0 for buffer in buffers)
    assert "frames" in bfc.report(bfc.HOST)
    del buffers
    assert (pool.bytes_allocated(), pool.max_memory(), in_use()) == (0, requested, 0)
    assert bfc.stats(bfc.HOST).pool_bytes > 0
    pool.release_unused()
    assert bfc.stats(bfc.HOST).pool_bytes == 0


def test_buffers_keep_their_pool():
    before = pyarrow.allocate_buffer(1000)
    one = bfc.arrow.use()
    inside = pyarrow.allocate_buffer(1000)
    assert (owner(before.address), owner(inside.address)) == (None, bfc.HOST)
    with bfc.arrow.use():
        assert owner(pyarrow.allocate_buffer(1000).address) == bfc.HOST
    assert owner(pyarrow.allocate_buffer(1000).address) == bfc.HOST
    one.restore()
    one.restore()
    assert owner(pyarrow.allocate_buffer(1000).address) is None
    del before, inside
    assert in_use() == 0


def test_a_pool_can_be_passed_to_one_call():
    with bfc.arrow.use():
        pool = pyarrow.default_memory_pool()
    assert owner(pyarrow.allocate_buffer(1000, memory_pool=pool).address) == bfc.HOST
    assert owner(pyarrow.allocate_buffer(1000).address) is None


def test_resizing_keeps_the_contents():
    bfc.arrow.use()
    buffer = pyarrow.allocate_buffer(3000, resizable=True)
    numpy.frombuffer(buffer, "uint8")[:] = numpy.tile(numpy.arange(200, dtype="uint8"), 15)
    for size in (3072, 1_000_000, 50_000_000, 400):
        buffer.resize(size, shrink_to_fit=True)
        assert buffer.to_pybytes()[:400] == bytes(range(200)) * 2 and buffer.size == size
    assert in_use() == 512
    assert pyarrow.allocate_buffer(0).size == 0


def test_exhausted_memory_is_arrows_error():
    bfc.arrow.use(memory_limit=8 * MIB)
    kept = pyarrow.array(range(100_000))
    with pytest.raises(pyarrow.ArrowMemoryError, match="^libbfc cannot allocate 16777216 bytes: out of memory: .*16777216"):
        pyarrow.allocate_buffer(16 * MIB)
    with pytest.raises(MemoryError):
        pyarrow.compute.add(pyarrow.nulls(4 * MIB, "int64"), 1)
    assert kept.to_pylist() == list(range(100_000))
    assert pyarrow.compute.sum(kept).as_py() == 4999950000


def test_the_pool_is_that_of_all_threads():
    bfc.arrow.use()
    data, owners = table(50_000), []

    def run():
        for _ in range(10):
            result = pyarrow.compute.multiply(data["value"], 3.0)
            owners.append({owner(address) for address in addresses(result)})

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert owners == [{bfc.HOST}] * 40
    del data
    assert all_is_freed()


def test_numpy_shares_the_memory():
    bfc.arrow.use()
    array = pyarrow.array([float(number) for number in range(1000)])
    view = array.to_numpy()
    assert bfc.owner(view.ctypes.data) == bfc.HOST
    del array
    assert view.sum() == 499500.0 and in_use() > 0
    del view
    assert in_use() == 0


def test_a_forked_child_goes_on():
    bfc.arrow.use()
    data = table(20_000)
    child = os.fork()
    if child == 0:
        doubled = pyarrow.compute.multiply(data["value"], 2.0)
        is_right = doubled[7].as_py() == 2 * data["value"][7].as_py()
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0) == (child, 0)


@pytest.mark.parametrize("debug", ["", "guard"])
def test_buffers_may_live_to_the_end(debug):
    program = "import bfc.arrow, pyarrow; bfc.arrow.use(); kept = [pyarrow.array(range(n)) for n in range(300)]; kept.append(kept)"
    variables = os.environ | {"BFC_LOG": "warn", "BFC_DEBUG": debug}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables)
    said = [line for line in done.stderr.splitlines() if not line.startswith("compiling arrow.cpp")]
    assert (done.returncode, said) == (0, [])


def test_options_for_an_allocator_that_is_there_are_refused():
    bfc.create(bfc.HOST)
    with pytest.raises(bfc.Error) as raised:
        bfc.arrow.use(memory_limit=MIB)
    assert raised.value.status == bfc.Status.ALREADY_EXISTS
    assert pyarrow.default_memory_pool().backend_name != "bfc"


def run_in_cpp(source, program):
    programs.check(
        [programs.compiler("cpp"), "-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{PREFIX}/include"]
        + ["-isystem", pyarrow.get_include(), source, next(FOLDER.glob("libarrow.so.*"))]
        + [f"-L{LIB}", "-lbfc", "-pthread", f"-Wl,-rpath,{FOLDER}", f"-Wl,-rpath,{LIB}", "-o", program]
    )
    done = subprocess.run([program], capture_output=True, text=True, env=programs.environment())
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done


def test_the_class_in_cpp(tmp_path):
    done = run_in_cpp(ROOT / "ffi-tests/arrow/pool.cpp", tmp_path / "pool")
    refused = [line for line in done.stderr.splitlines() if line.startswith("libbfc: a buffer of Arrow's at ")]
    assert len(refused) == 2, done.stderr


def test_the_page(tmp_path):
    page = pages.Page("arrow")
    page.run_all({})
    run_in_cpp(page.file("cpp-1"), tmp_path / "page")
    page.ran("cpp-1")
