"""CuPy's arrays of blocks: bfc.Pool on a device, on the simulated driver and runtime. See README.md."""

import gc

import pytest

import redirect

if redirect.IMPOSSIBLE:
    pytest.skip(redirect.IMPOSSIBLE, allow_module_level=True)

REDIRECTED = redirect.redirect()

import cupy
import numpy

import bfc
import checks
import simulation
from checks import pattern

pytestmark = pytest.mark.own_process
BOTH = pytest.mark.parametrize("make", [cupy.from_dlpack, cupy.asarray], ids=["from_dlpack", "asarray"])


@pytest.fixture(autouse=True)
def nothing_is_left():
    assert REDIRECTED > 50, REDIRECTED
    cupy.cuda.runtime.free(0)
    with checks.nothing_is_left():
        yield
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


@BOTH
def test_an_array_is_of_the_block_and_keeps_it(make):
    data = pattern(1000, 1)
    with bfc.Pool("cuda:0", limit="64MiB", backend="cuda_vmm") as pool:
        block = pool.alloc(1000)
        array = make(block)
        assert (array.data.ptr, array.shape, array.dtype) == (block.address, (1000,), "uint8")
        del block
        gc.collect()
        array[:] = cupy.asarray(data)
        assert pool.stats().bytes_in_use == 1024 and (array.get() == data).all()
        del array
        assert pool.stats().bytes_in_use == 0


def test_a_block_with_a_tensor_is_not_freed():
    with bfc.Pool("cuda") as pool:
        block = pool.alloc(1000)
        array = cupy.from_dlpack(block)
        with pytest.raises(BufferError, match="a DLPack tensor of it is alive"):
            block.free()
        del array
        block.free()


def test_the_consumers_stream_waits_for_the_blocks():
    with bfc.Pool("cuda:0", limit="64MiB") as pool, cupy.cuda.Stream(non_blocking=True) as own:
        other = cupy.cuda.Stream(non_blocking=True)
        block = pool.alloc(1000, stream=own.ptr)
        assert block.__cuda_array_interface__["stream"] == own.ptr
        waits = simulation.calls("cuStreamWaitEvent")
        # -1: the consumer takes care of it itself; and its own stream needs nothing.
        for stream in (-1, own.ptr):
            block.__dlpack__(stream=stream)
        assert simulation.calls("cuStreamWaitEvent") == waits
        block.__dlpack__(stream=other.ptr)
        assert simulation.calls("cuStreamWaitEvent") == waits + 1
        # The other stream uses it too: who frees it waits for both.
        simulation.hold(other.ptr)
        cupy.cuda.runtime.memsetAsync(block.address, 1, 1000, other.ptr)
        address = block.address
        block.free()
        with pool.alloc(1000, stream=own.ptr) as second:
            assert second.address != address
        simulation.release_all()
        for stream in (own, other):
            bfc.forget_stream(0, stream.ptr)


def test_what_cannot_be_had_is_refused():
    with bfc.Pool("cuda:0", limit="64MiB") as pool, pool.alloc(10) as block:
        assert block.__dlpack_device__() == (2, 0)
        for arguments in [{"stream": 0}, {"copy": True}, {"dl_device": (1, 0)}, {"dl_device": (2, 1)}]:
            with pytest.raises(BufferError):
                block.__dlpack__(**arguments)
        with pytest.raises(BufferError, match="is not the host's"):
            block.view()
        assert not hasattr(block, "__array_interface__")
        with pytest.raises(TypeError, match="is not the host's: use an array library of the device"):
            numpy.asarray(block)


def test_a_lost_context_takes_the_blocks_along():
    """Their addresses may be another's then."""
    with bfc.Pool("cuda:0", limit="64MiB") as pool:
        block, address = pool.alloc(1000), 0
        bfc.lost(0)
        assert pool.stats().bytes_in_use == 1024, "nothing was lost"
        address = block.address
        assert simulation.reset_context(0) == 0
        bfc.lost(0)
        others = [pool.alloc(1000) for _ in range(3)]
        assert any(other.address == address for other in others), "the addresses are others, which tests nothing"
        in_use = pool.stats().bytes_in_use
        del block
        assert pool.stats().bytes_in_use == in_use


@BOTH
def test_arrays_outlive_their_pool(make):
    data = pattern(1000, 2)
    with bfc.Pool("cuda:0", limit="64MiB") as pool:
        block = pool.alloc(1000)
        array = make(block)
    assert not block.freed and checks.has_allocator()
    array.set(data)
    assert (array.get() == data).all()
    del block, array
    # What DLPack's consumer is done with is found by the next call.
    pool.close()
    assert not checks.has_allocator()
