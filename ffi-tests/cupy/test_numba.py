"""Numba's arrays with libbfc's memory, on the simulated driver. See README.md.

Numba needs no help to find the simulation: it calls the driver only.
"""

import gc
import os
import random

import numpy
import pytest
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

import bfc
import checks
import simulation
from checks import KiB, MiB, all_is_libbfcs, pattern, raised

SEED = 20251121
VARIABLE = "NUMBA_CUDA_MEMORY_MANAGER"


# The environment names the module to Numba.
pytestmark = pytest.mark.own_process(env={VARIABLE: "bfc.numba"})


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    if request.node.name != "test_page":
        # A context and its default stream, which the page makes itself.
        cuda.current_context()
        cuda.synchronize()
    with checks.nothing_is_left():
        yield
        cuda.current_context().deallocations.clear()
        cuda.current_context().memory_manager.deallocations.clear()


def manager():
    return cuda.current_context().memory_manager


def test_by_the_variable():
    """The environment names the module, and Numba has taken it."""
    assert os.environ[VARIABLE] == "bfc.numba"
    assert type(manager()).__module__ == "bfc.numba"
    array = cuda.device_array(MiB, dtype=numpy.uint8)
    all_is_libbfcs(MiB)
    del array


@pytest.mark.own_process(env={VARIABLE: None})
def test_own_manager():
    """Without the variable and without a call nothing is ours."""
    assert VARIABLE not in os.environ
    before = simulation.calls("cuMemAlloc")
    array = cuda.device_array(1000)
    assert simulation.calls("cuMemAlloc") == before + 1
    assert not checks.has_allocator()
    del array


def test_arrays():
    """Made, filled, viewed, copied out, dropped; on streams, too."""
    bfc.create(0, memory_limit=256 * MiB)
    data = pattern(5 * MiB, 2)
    array = cuda.to_device(data)
    stream = cuda.stream()
    other = cuda.to_device(data[: 100 * KiB], stream=stream)
    none = cuda.device_array((0, 5))
    all_is_libbfcs(array.nbytes + other.nbytes)
    address = array.device_ctypes_pointer.value
    assert bfc.owner(address) == 0 and address % 512 == 0
    assert bfc.stats(0).num_allocs == 2, "that of no bytes is none"
    view, size = array.reshape(5, MiB)[2, 100:200], array.nbytes
    del array, none
    all_is_libbfcs(size + other.nbytes)
    assert (view.copy_to_host() == data.reshape(5, MiB)[2, 100:200]).all()
    assert (other.copy_to_host(stream=stream) == data[: 100 * KiB]).all()
    stream.synchronize()
    # Frees are not kept for later, for they do not wait.
    with cuda.defer_cleanup():
        del view, other
        assert bfc.stats(0).num_frees == 2
    all_is_libbfcs(0)


def test_reuse():
    """What is freed is not handed out before the device was idle."""
    bfc.create(0, memory_limit=32 * MiB)
    stream = cuda.stream()
    simulation.hold(int(stream))
    array = cuda.device_array(6 * MiB, dtype=numpy.uint8)
    place = array.device_ctypes_pointer.value
    simulation.fill(int(stream), place, 6 * MiB, 1)
    del array
    others = []
    while simulation.pending(int(stream)):
        others.append(cuda.device_array(MiB, dtype=numpy.uint8))
    inside = [place <= other.device_ctypes_pointer.value < place + 6 * MiB for other in others]
    assert len(inside) > 15 and inside[-1] and not any(inside[:-1]), inside


def random_streams():
    choose = random.Random(SEED)
    streams = [cuda.stream() for _ in range(4)]
    kept = []
    for number in range(1500):
        stream, other = choose.choice(streams), choose.choice(streams)
        if choose.random() < 0.5:
            simulation.hold(int(stream))
        try:
            array = cuda.device_array(choose.randrange(8, 2 * MiB, 8), dtype=numpy.uint8)
        except CudaAPIError:
            kept.clear()
            continue
        place = array.device_ctypes_pointer.value
        simulation.fill(int(stream), place, array.nbytes, number)
        event = cuda.event(timing=False)
        event.record(stream)
        event.wait(other)
        simulation.expect(int(other), place, array.nbytes, number)
        kept.append(array)
        del array
        if len(kept) > 20:
            kept.pop(choose.randrange(len(kept)))
        if choose.random() < 0.3:
            simulation.step(int(stream), choose.randrange(5))
    simulation.release_all()


def test_on_streams():
    """Each array is filled on one stream and looked at on another, and dropped while that is under way."""
    bfc.create(0, memory_limit=48 * MiB)
    random_streams()
    assert bfc.stats(0).num_allocs > 1000, bfc.stats(0)


def test_disorder_is_seen():
    """The same where frees are those of no stream's order at all: the case above has to see it."""
    import bfc._library as library
    import ctypes

    bfc.create(0, memory_limit=48 * MiB)
    plain = ctypes.CDLL(str(bfc.library_path()))
    plain.bfc_alloc.argtypes = [ctypes.c_int32, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]

    def allocate(_, size, device):
        address = ctypes.c_void_p()
        plain.bfc_alloc(device, size, address)
        return address.value

    library.lib.bfc_cupy_malloc = allocate
    library.lib.bfc_cupy_free = lambda _, address, device: bfc.free(device, address)
    random_streams()
    assert simulation.mismatches() > 0, "it was not seen"
    simulation.faults = list


def test_out_of_memory():
    """At a small limit it raises Numba's exception with our report, and goes on."""
    bfc.create(0, memory_limit=8 * MiB)
    kept = cuda.device_array(4 * MiB, dtype=numpy.uint8)
    words = ["CUDA_ERROR_OUT_OF_MEMORY", "no memory for 6.00 MiB", "device 0", "largest free chunk"]
    raised(CudaAPIError, lambda: cuda.device_array(6 * MiB, dtype=numpy.uint8), *words)
    assert bfc.stats(0).num_failures >= 1
    assert cuda.device_array(MiB, dtype=numpy.uint8).copy_to_host().size == MiB
    # What Numba itself keeps for later is given back before: mapped memory of the host.
    before = simulation.calls("cuMemFreeHost")
    mapped = cuda.mapped_array(1000)
    del mapped
    assert simulation.calls("cuMemFreeHost") == before
    raised(CudaAPIError, lambda: cuda.device_array(6 * MiB, dtype=numpy.uint8))
    assert simulation.calls("cuMemFreeHost") == before + 1
    del kept
    raised(CudaAPIError, lambda: manager().memalloc(0), "CUDA_ERROR_INVALID_VALUE")


def test_other_failures():
    """What is no lack of memory is libbfc's own exception, and named."""
    bfc.create(0, timestamps=True)
    assert raised(bfc.Error, lambda: cuda.device_array(1000)).name == "BFC_ERROR_UNSUPPORTED"
    bfc.destroy(0)
    simulation.fail(b"cuMemAlloc", 1, simulation.UNKNOWN)
    assert raised(bfc.Error, lambda: cuda.device_array(1000), "CUDA_ERROR_UNKNOWN").name == "BFC_ERROR_BACKEND_FAILED"
    assert cuda.device_array(1000).size == 1000


def test_random_sizes():
    """A thousand sizes with failures of the driver; contents are kept."""
    bfc.create(0, memory_limit=12 * MiB)
    empty = lambda nbytes: cuda.device_array(nbytes, dtype=numpy.uint8)
    write, read = lambda array, data: array.copy_to_device(data), lambda array: array.copy_to_host()
    refused, broken, struck = checks.random_sizes(SEED, empty, write, read, CudaAPIError)
    assert refused > 5 and broken > 3 and struck > 20, (refused, broken, struck)


def test_others_stay():
    """Pinned, mapped and managed memory stays Numba's."""
    array = cuda.device_array(1000)
    before = bfc.stats(0)
    calls = {name: simulation.calls(name) for name in ["cuMemHostAlloc", "cuMemAllocManaged"]}
    kept = [cuda.pinned_array(1000), cuda.mapped_array(1000), cuda.managed_array(1000)]
    assert simulation.calls("cuMemHostAlloc") == calls["cuMemHostAlloc"] + 2
    assert simulation.calls("cuMemAllocManaged") == calls["cuMemAllocManaged"] + 1
    assert bfc.stats(0) == before
    del array, kept


def test_memory_info():
    """Free is what the device has, and what we have."""
    free, total = cuda.current_context().get_memory_info()
    assert total == free + simulation.used(0)
    bfc.create(0, memory_limit=64 * MiB)
    array = cuda.device_array(20 * MiB, dtype=numpy.uint8)
    del array
    assert cuda.current_context().get_memory_info() == (64 * MiB, total)
    array = cuda.device_array(20 * MiB, dtype=numpy.uint8)
    used = bfc.stats(0).bytes_in_use
    assert used >= array.nbytes and cuda.current_context().get_memory_info() == (64 * MiB - used, total)
    bfc.trim(0)
    assert cuda.current_context().get_memory_info() == (64 * MiB - used, total)


def test_ipc():
    """A handle names the region, and where in it the memory is. Nothing can open it in the same process."""
    first, array = cuda.device_array(1000), cuda.to_device(numpy.arange(1000.0))
    handle = array.get_ipc_handle()._ipc_handle
    place = bfc.address_range(0, array.device_ctypes_pointer.value)
    assert handle.offset == place.chunk - place.region != 0
    assert handle.size == array.nbytes
    del first, array, handle


def test_reset():
    """All that Numba has is freed, and given back; what others have is not."""
    arrays = [cuda.device_array(MiB, dtype=numpy.uint8) for _ in range(10)]
    others = bfc.alloc(0, 1000)
    manager().reset()
    found = bfc.stats(0)
    assert found.bytes_requested == 1000 and found.num_regions == 1, found
    del arrays
    assert bfc.stats(0).num_frees == found.num_frees, "freed twice"
    bfc.free(0, others)


def test_two_devices():
    """Each device has an allocator of its own; what is freed goes home, whichever device is current."""
    first = cuda.device_array(MiB, dtype=numpy.uint8)
    with cuda.gpus[1]:
        other = cuda.device_array(2 * MiB, dtype=numpy.uint8)
        del first
    assert bfc.owner(other.device_ctypes_pointer.value) == 1
    assert (bfc.stats(0).bytes_in_use, bfc.stats(1).bytes_requested) == (0, 2 * MiB)
    del other
    bfc.destroy(1)
    assert simulation.used(1) == 0


def test_beside_cupy():
    """CuPy in the same process has the same allocator, and each may look at the other's memory."""
    import redirect

    if redirect.IMPOSSIBLE:
        pytest.skip(redirect.IMPOSSIBLE)
    redirect.redirect()
    import cupy

    import bfc.cupy

    bfc.cupy.use()
    ours = cuda.to_device(pattern(MiB, 1))
    theirs = cupy.asarray(pattern(MiB, 2))
    all_is_libbfcs(2 * MiB)
    seen = cupy.asarray(ours)
    assert seen.data.ptr == ours.device_ctypes_pointer.value
    assert (seen.get() == pattern(MiB, 1)).all()
    assert (cuda.as_cuda_array(theirs).copy_to_host() == pattern(MiB, 2)).all()
    del ours
    all_is_libbfcs(2 * MiB)
    del seen, theirs
    all_is_libbfcs(0)
    cupy.cuda.set_allocator(None)
    cupy.get_default_pinned_memory_pool().free_all_blocks()


@pytest.mark.own_process(env={VARIABLE: None})
def test_page():
    """docs/numba.md, as it stands there."""
    scope = {}
    checks.run_the_page("numba", scope)
    scope.clear()
