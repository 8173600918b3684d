"""CuPy's arrays with libbfc's memory, on the simulated driver and runtime. See README.md."""

import gc
import pathlib
import random
import subprocess
import sys
import threading

import pytest

import redirect

if redirect.IMPOSSIBLE:
    pytest.skip(redirect.IMPOSSIBLE, allow_module_level=True)

REDIRECTED = redirect.redirect()

import cupy
import numpy

import bfc
import bfc.cupy
import checks
import simulation
from checks import KiB, MiB, all_is_libbfcs, pattern, raised

OutOfMemoryError = cupy.cuda.memory.OutOfMemoryError
SEED = 20251121


pytestmark = pytest.mark.own_process
# In the order of streams, and with memory that any stream may reuse once the device was idle.
BOTH_ORDERS = pytest.mark.parametrize("streams", [True, False], ids=["in_order", "any_stream"])


@pytest.fixture(autouse=True)
def nothing_is_left():
    assert REDIRECTED > 50, REDIRECTED
    cupy.cuda.runtime.free(0)
    with checks.nothing_is_left():
        yield
        cupy.cuda.set_allocator(None)
        # What copies to the host went by.
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def test_own_pool():
    """Nothing of ours: the redirected runtime is good enough for CuPy's own pool."""
    before, data = simulation.calls("cuMemAlloc"), pattern(MiB, 1)
    assert (cupy.asarray(data).get() == data).all()
    assert simulation.calls("cuMemAlloc") == before + 1
    raised(OutOfMemoryError, lambda: cupy.empty(1 << 40, dtype="b"))
    cupy.get_default_memory_pool().free_all_blocks()
    assert not checks.has_allocator()


@BOTH_ORDERS
def test_arrays(streams):
    """Made, filled, viewed, reshaped, copied out, dropped."""
    bfc.cupy.use(memory_limit=256 * MiB, streams=streams)
    data = pattern(5 * MiB, 2)
    array = cupy.asarray(data)
    zeros = cupy.zeros((1000, 100))
    empty = cupy.empty(0)
    all_is_libbfcs(array.nbytes + zeros.nbytes)
    assert bfc.owner(array.data.ptr) == bfc.owner(zeros.data.ptr) == 0
    assert array.data.ptr % 512 == zeros.data.ptr % 512 == 0
    assert bfc.stats(0).num_allocs == 2, "that of no bytes is none"
    # A view has no memory of its own, and keeps that of its array.
    view = array.reshape(5, MiB)[2, 100:200]
    size, place = array.nbytes, array.data.ptr
    del array, empty
    all_is_libbfcs(size + zeros.nbytes)
    assert (view.get() == data.reshape(5, MiB)[2, 100:200]).all()
    assert bfc.address_range(0, view.data.ptr).chunk == place
    assert not zeros.get().any()
    del view, zeros
    all_is_libbfcs(0)
    assert bfc.stats(0).num_frees == 2
    assert cupy.get_default_memory_pool().total_bytes() == 0


def test_reuse_in_order():
    """What is freed comes back to its stream at once, whatever its work still does, and to others when that is done."""
    bfc.cupy.use(memory_limit=256 * MiB)
    one, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    # Once the pool knows several streams, each free has an event.
    with other:
        cupy.empty(1, dtype="b")
    simulation.hold(one.ptr)
    with one:
        array = cupy.empty(MiB, dtype="b")
        place = array.data.ptr
        simulation.fill(one.ptr, place, MiB, 1)
        del array
        again = cupy.empty(MiB, dtype="b")
        assert again.data.ptr == place
        simulation.fill(one.ptr, place, MiB, 2)
        del again
    with other:
        elsewhere = cupy.empty(MiB, dtype="b")
        assert elsewhere.data.ptr != place
        # Freed under another current stream than that of the allocation.
        with one:
            del elsewhere
        simulation.release_all()
        one.synchronize()
        array = [cupy.empty(MiB, dtype="b") for _ in range(6)]
        assert any(piece.data.ptr <= place < piece.data.ptr + MiB for piece in array)


def test_reuse_by_any_stream():
    """What is freed is not handed out before the device was idle."""
    bfc.cupy.use(memory_limit=32 * MiB, streams=False)
    stream = cupy.cuda.Stream(non_blocking=True)
    simulation.hold(stream.ptr)
    with stream:
        array = cupy.empty(6 * MiB, dtype="b")
        place = array.data.ptr
        simulation.fill(stream.ptr, place, 6 * MiB, 1)
        del array
        # The pool grows as far as it may; only then it waits.
        others = []
        while simulation.pending(stream.ptr):
            others.append(cupy.empty(MiB, dtype="b"))
        inside = [place <= other.data.ptr < place + 6 * MiB for other in others]
        assert len(inside) > 15 and inside[-1] and not any(inside[:-1]), inside


def random_streams(streams):
    """Many streams that come and go, held and stepped at random; each array is filled on one stream and looked at on another."""
    choose = random.Random(SEED)
    simulation.set_option(simulation.RECYCLE_HANDLES, 1)
    living = [cupy.cuda.Stream(non_blocking=bool(number % 2)) for number in range(5)]
    kept = []
    for number in range(2000):
        stream, other = choose.choice(living), choose.choice(living)
        if choose.random() < 0.5:
            simulation.hold(stream.ptr)
        with stream:
            try:
                array = cupy.empty(choose.randrange(8, 2 * MiB, 8), dtype="b")
            except OutOfMemoryError:
                kept.clear()
                continue
        simulation.fill(stream.ptr, array.data.ptr, array.nbytes, number)
        other.wait_event(stream.record())
        simulation.expect(other.ptr, array.data.ptr, array.nbytes, number)
        if streams:
            # As with CuPy's own pool: other streams' work comes before the free in the order of its own.
            stream.wait_event(other.record())
        kept.append(array)
        del array
        if len(kept) > 20:
            kept.pop(choose.randrange(len(kept)))
        if choose.random() < 0.3:
            simulation.step(stream.ptr, choose.randrange(5))
        if choose.random() < 0.05:
            living[choose.randrange(len(living))] = cupy.cuda.Stream(non_blocking=True)
    del kept, stream, other, living
    simulation.release_all()


@BOTH_ORDERS
def test_in_order_on_streams(streams):
    bfc.cupy.use(memory_limit=48 * MiB, streams=streams)
    random_streams(streams)
    assert bfc.stats(0).num_allocs > 1500, bfc.stats(0)
    gc.collect()
    assert simulation.live(simulation.STREAMS) < 10, "streams without a reference are kept"


def test_disorder_is_seen():
    """The same without the order of streams: the case above has to see it."""
    bfc.create(0, memory_limit=48 * MiB)
    plain = cupy.cuda.PythonFunctionAllocator(
        lambda nbytes, device: bfc.alloc(device, nbytes), lambda address, device: bfc.free(device, address)
    )
    cupy.cuda.set_allocator(plain.malloc)
    try:
        random_streams(True)
    except bfc.OutOfMemoryError:
        pass
    assert simulation.mismatches() > 0, "it was not seen"
    simulation.faults = list


def test_streams_end():
    """A stream of CuPy's may be gone with its last reference: its memory is reusable by every stream, and the driver gets no dead handle."""
    bfc.cupy.use(memory_limit=20 * MiB)
    for number in range(300):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            # There is room for two.
            array = cupy.empty(8 * MiB, dtype="b")
            simulation.fill(stream.ptr, array.data.ptr, array.nbytes, number)
            simulation.expect(stream.ptr, array.data.ptr, array.nbytes, number)
        del array, stream
        assert simulation.live(simulation.STREAMS) <= 4, simulation.live(simulation.STREAMS)
    # Arrays may outlive their streams, while the work there is not done.
    outlived = []
    for number in range(20):
        stream = cupy.cuda.Stream(non_blocking=True)
        simulation.hold(stream.ptr)
        with stream:
            outlived.append(cupy.empty(512 * KiB, dtype="b"))
        array = outlived[-1]
        simulation.fill(stream.ptr, array.data.ptr, array.nbytes, number)
        simulation.expect(stream.ptr, array.data.ptr, array.nbytes, number)
        del array, stream
    outlived.clear()
    for number in range(30):
        array = cupy.empty(512 * KiB, dtype="b")
        simulation.fill(0, array.data.ptr, array.nbytes, 1000 + number)
        outlived.append(array)
        del array
    simulation.release_all()
    outlived.clear()
    # One that is current has no other name.
    cupy.cuda.Stream(non_blocking=True).use()
    array = cupy.empty(MiB, dtype="b")
    for _ in range(10):
        with cupy.cuda.Stream():
            cupy.empty(KiB, dtype="b")
    del array
    cupy.cuda.get_current_stream().synchronize()
    cupy.cuda.Stream.null.use()


def test_streams_have_two_objects():
    """A stream of CuPy's that came first by its handle, as a library uses it: it is told of before it is destroyed."""
    bfc.cupy.use(memory_limit=64 * MiB)
    for _ in range(20):
        stream = cupy.cuda.Stream(non_blocking=True)
        with cupy.cuda.ExternalStream(stream.ptr):
            cupy.empty(1000, dtype="b")
        with stream:
            array = cupy.empty(40 * MiB, dtype="b")
        del array, stream
        gc.collect()
        # This asks what is done on all streams that libbfc knows.
        assert cupy.empty(40 * MiB, dtype="b").data.ptr
    assert simulation.live(simulation.STREAMS) <= 4, simulation.live(simulation.STREAMS)


class Foreign:
    """A stream of another library, which lives on."""

    def __init__(self):
        self.handle = cupy.cuda.runtime.streamCreateWithFlags(cupy.cuda.runtime.streamNonBlocking)

    def __cuda_stream__(self):
        return 0, self.handle


@pytest.mark.parametrize(
    "wrap",
    [
        lambda foreign: cupy.cuda.ExternalStream(foreign.handle),
        cupy.cuda.Stream.from_external,
        lambda foreign: cupy.cuda.Stream(null=True),
        lambda foreign: cupy.cuda.Stream(ptds=True),
    ],
    ids=["ExternalStream", "from_external", "null", "ptds"],
)
def test_streams_outlive_their_objects(wrap):
    """A stream that is not CuPy's gets a new object for each use: what comes to an end is the object, not the stream."""
    bfc.cupy.use(memory_limit=400 * KiB)
    foreign, mine = Foreign(), cupy.cuda.Stream(non_blocking=True)
    theirs = wrap(foreign).ptr
    with mine:
        kept = cupy.empty(KiB, dtype="b")
    with wrap(foreign):
        array = cupy.empty(200 * KiB, dtype="b")
    # The object is gone, and a new stream comes.
    with cupy.cuda.Stream(non_blocking=True):
        cupy.empty(KiB, dtype="b")
    simulation.hold(theirs)
    simulation.fill(theirs, array.data.ptr, array.nbytes, 1)
    simulation.expect(theirs, array.data.ptr, array.nbytes, 1)
    del array
    with mine:
        # There is no room for both: either this waits for the stream, or the device does.
        array = cupy.empty(200 * KiB, dtype="b")
    simulation.fill(mine.ptr, array.data.ptr, array.nbytes, 2)
    simulation.step(theirs, 1 << 30)
    simulation.expect(mine.ptr, array.data.ptr, array.nbytes, 2)
    del array, kept
    simulation.release_all()
    if theirs == foreign.handle:
        bfc.forget_stream(0, theirs)
    cupy.cuda.runtime.streamDestroy(foreign.handle)


@BOTH_ORDERS
def test_out_of_memory(streams):
    """At a small limit it raises CuPy's exception with our report, and goes on."""
    bfc.cupy.use(memory_limit=8 * MiB, streams=streams)
    kept = cupy.zeros(4 * MiB, dtype="b")
    words = ["Out of memory allocating 6,291,456 bytes (allocated so far: 4,194,304 bytes, limit set to: 8,388,608", "no memory"]
    error = raised(OutOfMemoryError, lambda: cupy.empty(6 * MiB, dtype="b"), *words, "device 0", "largest free chunk")
    assert isinstance(error, MemoryError)
    assert bfc.stats(0).num_failures >= 1
    assert not kept.get().any() and cupy.empty(MiB, dtype="b").data.ptr
    # What only the garbage collection can find is found.
    gc.disable()
    cycle = [cupy.empty(3 * MiB, dtype="b")]
    cycle.append(cycle)
    del cycle
    assert cupy.empty(3 * MiB + 1, dtype="b").data.ptr
    gc.enable()


@BOTH_ORDERS
def test_an_array_outlives_its_allocator_in_a_cycle(streams):
    """The garbage collector finds array and allocator at once, and takes both apart in an order of its own."""
    bfc.cupy.use(memory_limit=64 * MiB, streams=streams)
    cycle = [cupy.empty(MiB, dtype="b")]
    cycle.append(cycle)
    cupy.cuda.set_allocator(None)
    del cycle
    gc.collect()
    all_is_libbfcs(0)


@BOTH_ORDERS
def test_others_run(streams):
    """While libbfc waits for memory the threads run that will free some: the request is served at the first try."""
    bfc.create(0, memory_limit=64 * MiB, retry_timeout_ms=5_000)
    bfc.cupy.use(streams=streams)
    kept = [cupy.empty(40 * MiB, dtype="b")]
    # Late enough for the request to wait; if it comes before, that is no fault.
    thread = threading.Timer(0.3, kept.clear)
    thread.start()
    assert cupy.empty(40 * MiB, dtype="b").data.ptr
    thread.join()
    assert bfc.stats(0).num_failures == 0


@BOTH_ORDERS
def test_other_failures(streams):
    """What is no lack of memory is libbfc's own exception, and named."""
    bfc.create(0, timestamps=True)
    bfc.cupy.use(streams=streams)
    assert raised(bfc.Error, lambda: cupy.empty(1000)).name == "BFC_ERROR_UNSUPPORTED"
    bfc.destroy(0)
    # The allocator cannot be created; then it can, but the driver gives it nothing.
    for function in [b"cuDevicePrimaryCtxRetain", b"cuMemAlloc"]:
        for nth in range(1, 9):
            simulation.fail(function, nth, simulation.UNKNOWN)
        error = raised(bfc.Error, lambda: cupy.empty(1000), "CUDA_ERROR_UNKNOWN")
        assert error.name == f"BFC_ERROR_BACKEND_{'FAILED' if checks.has_allocator() else 'UNAVAILABLE'}", error.name
        simulation.clear_faults()
        assert cupy.empty(1000).data.ptr
        bfc.trim(0)


@BOTH_ORDERS
def test_random_sizes(streams):
    """A thousand sizes with failures of the driver; contents are kept."""
    bfc.cupy.use(memory_limit=12 * MiB, streams=streams)
    empty = lambda nbytes: cupy.empty(nbytes, dtype=numpy.uint8)
    refused, broken, struck = checks.random_sizes(SEED, empty, cupy.ndarray.set, cupy.ndarray.get, OutOfMemoryError)
    assert refused > 5 and broken > 3 and struck > 20, (refused, broken, struck)


@BOTH_ORDERS
def test_threads(streams):
    """Eight threads, each on a stream of its own; the first request of each may be the device's first."""
    bfc.cupy.use(streams=streams)
    wrong = []

    def work(number):
        try:
            choose = random.Random(number)
            with cupy.cuda.Stream(non_blocking=True) as stream:
                for turn in range(100):
                    data = pattern(choose.randrange(1, 64 * KiB), number * 1000 + turn)
                    array = cupy.asarray(data)
                    stream.synchronize()
                    assert (array.get() == data).all()
        except BaseException as error:  # whatever it is, the case has failed
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert not wrong, wrong
    assert bfc.stats(0).num_allocs == bfc.stats(0).num_frees == 800, bfc.stats(0)


def test_others_stay():
    """Pinned memory is CuPy's, managed memory the driver's; another allocator may be set, and what is ours comes home."""
    bfc.cupy.use()
    array = cupy.zeros(MiB, dtype="b")
    before, pinned = bfc.stats(0), simulation.calls("cuMemHostAlloc")
    memory = cupy.cuda.alloc_pinned_memory(MiB)
    assert simulation.calls("cuMemHostAlloc") == pinned + 1
    with cupy.cuda.using_allocator(cupy.cuda.malloc_managed):
        managed = cupy.zeros(MiB, dtype="b")
    cupy.cuda.set_allocator(None)
    without = cupy.zeros(MiB, dtype="b")
    assert bfc.stats(0) == before
    raised(bfc.Error, lambda: bfc.owner(without.data.ptr))
    with cupy.cuda.using_allocator(bfc.cupy.allocator()):
        ours = cupy.zeros(MiB, dtype="b")
        assert bfc.owner(ours.data.ptr) == 0
    del array, ours
    assert bfc.stats(0).bytes_in_use == 0
    del memory, managed, without
    cupy.get_default_pinned_memory_pool().free_all_blocks()


def test_captured():
    """While a stream is captured nothing is synchronised; what was made before the capture is used in it."""
    bfc.cupy.use(memory_limit=64 * MiB)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.zeros(MiB, dtype="b")
        stream.begin_capture()
        array.data.memset_async(1, MiB)
        inside = cupy.empty(MiB, dtype="b")
        inside.data.memset_async(2, MiB)
        graph = stream.end_capture()
        graph.launch()
        stream.synchronize()
        assert (array.get() == 1).all() and (inside.get() == 2).all()


@BOTH_ORDERS
def test_two_devices(streams):
    """Each device has an allocator of its own; what is freed goes home, whichever device is current."""
    bfc.cupy.use(1, memory_limit=64 * MiB, streams=streams)
    assert bfc.stats(1).bytes_limit == 64 * MiB and not checks.has_allocator()
    first = cupy.zeros(MiB, dtype="b")
    with cupy.cuda.Device(1):
        with cupy.cuda.Stream(non_blocking=True):
            other = cupy.zeros(2 * MiB, dtype="b")
        raised(OutOfMemoryError, lambda: cupy.empty(65 * MiB, dtype="b"), "device 1")
        del first
    assert bfc.owner(other.data.ptr) == 1
    assert (bfc.stats(0).bytes_in_use, bfc.stats(1).bytes_requested) == (0, 2 * MiB)
    del other
    bfc.destroy(1)
    assert simulation.used(1) == 0


def test_at_the_end():
    """Arrays that the interpreter drops as the last of all: nothing is said, and the process ends well."""
    program = pathlib.Path(__file__).with_name("to_the_end.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "freed\n")


def test_page():
    """docs/cupy.md, as it stands there."""
    scope = {}
    checks.run_the_page("cupy", scope)
    scope.clear()
