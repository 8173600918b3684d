"""Tensors and NumPy's arrays of blocks: bfc.Pool on the host."""

import gc

import numpy
import pytest
import torch

import bfc

pytestmark = [pytest.mark.own_process(env={"BFC_LOG": "warn"}), pytest.mark.usefixtures("no_complaint")]


@pytest.fixture
def pool():
    with bfc.Pool("cpu", limit="1MiB") as made:
        yield made
        gc.collect()
        assert made.stats().bytes_in_use == 0


MAKERS = {
    "torch.from_dlpack": torch.from_dlpack,
    "torch.frombuffer": lambda block: torch.frombuffer(block.view(), dtype=torch.uint8),
    "numpy.from_dlpack": numpy.from_dlpack,
    "numpy.asarray": numpy.asarray,
    "numpy.frombuffer": lambda block: numpy.frombuffer(block.view(), dtype=numpy.uint8),
}


@pytest.mark.parametrize("name", MAKERS)
def test_an_array_is_of_the_block_and_keeps_it(pool, name):
    block = pool.alloc(1000)
    made = MAKERS[name](block)
    address = made.data_ptr() if isinstance(made, torch.Tensor) else made.ctypes.data
    assert (address, tuple(made.shape), str(made.dtype).rpartition(".")[2]) == (block.address, (1000,), "uint8")
    made[:] = 7
    assert bytes(block.view()) == bytes([7]) * 1000
    with pytest.raises(BufferError):
        block.free()
    part = made[10:20]
    del block, made
    gc.collect()
    assert pool.stats().bytes_in_use == 1024 and int(part.sum()) == 70
    del part
    assert pool.stats().bytes_in_use == 0


def test_a_copy_is_of_its_own(pool):
    block = pool.alloc(5)
    block.view()[:] = b"hello"
    copy = torch.from_dlpack(block, copy=True)
    block.view()[:] = b"other"
    block.free()
    assert bytes(copy.tolist()) == b"hello" and bfc.owner(copy.data_ptr()) == bfc.HOST


def test_an_exception_that_drops_a_tensor_stays_what_it_is(pool):
    with pytest.raises(ZeroDivisionError):
        (torch.from_dlpack(pool.alloc(5)), numpy.from_dlpack(pool.alloc(5)), pool.alloc(5).__dlpack__(), 1 / 0)
    assert pool.stats().bytes_in_use == 0


def test_tensors_outlive_their_pool():
    with bfc.Pool("cpu", limit="1MiB") as pool:
        tensor = torch.from_dlpack(pool.alloc(1000))
    tensor.fill_(3)
    assert int(tensor.sum()) == 3000
    with pytest.raises(bfc.Error, match="arrays or blocks of it are still alive"):
        bfc.Pool("cpu")
    del tensor
    bfc.Pool("cpu").close()
