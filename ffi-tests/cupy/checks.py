"""Checks that the tests of CuPy and of Numba share."""

import contextlib
import gc
import random

import numpy

import bfc
import simulation

from pages import Page

KiB, MiB = 1 << 10, 1 << 20


@contextlib.contextmanager
def nothing_is_left():
    """What runs inside must give back all memory of the device, and must not have misused the driver."""
    before = simulation.used(0), simulation.live(simulation.ALLOCATIONS)
    yield
    gc.collect()
    simulation.release_all()
    if has_allocator():
        # It says so if anything is still in use.
        bfc.destroy(0)
    after = simulation.used(0), simulation.live(simulation.ALLOCATIONS)
    assert after == before, f"of the device were in use {before}, and in the end {after}: bytes, allocations"
    assert not simulation.faults(), simulation.faults()


def has_allocator():
    try:
        bfc.stats(0)
        return True
    except bfc.Error as error:
        assert error.name == "BFC_ERROR_NO_ALLOCATOR", error
        return False


def raised(kind, work, *words):
    """Has to raise exactly this exception, with these words."""
    try:
        work()
    except Exception as error:
        assert type(error) is kind, repr(error)
        for word in words:
            assert word in str(error), f"{word!r} is not in: {error}"
        return error
    raise AssertionError(f"nothing was raised, and not {kind}")


def all_is_libbfcs(live_bytes):
    """What is in use of the device is what libbfc holds, and what it hands out is what was asked for."""
    found = bfc.stats(0)
    used = simulation.used(0)
    # The driver counts in pieces of 512 bytes, and a region may end in the midst of one.
    assert used and 0 <= used - found.pool_bytes < 512 * found.num_regions, (used, found)
    assert found.bytes_requested == live_bytes, (found, live_bytes)
    bfc.check(0)


def pattern(nbytes, seed):
    return numpy.random.default_rng(seed).integers(0, 256, nbytes, dtype=numpy.uint8)


def random_sizes(seed, empty, write, read, exhausted):
    """A thousand sizes with failures of the driver; contents are kept. How many requests found no memory, which raises
    `exhausted`; how many a driver that was broken otherwise; how many of its calls failed."""
    choose = random.Random(seed)
    kept, refused, broken = [], 0, 0
    for number in range(1000):
        if number % 10 == 0:
            bfc.trim(0)
            code = choose.choice([simulation.OUT_OF_MEMORY, simulation.UNKNOWN])
            for nth in range(1, 1 + choose.randrange(1, 6)):
                simulation.fail(choose.choice([b"cuMemAlloc", b"cuEventRecord"]), nth, code)
        data = pattern(int(2 ** choose.uniform(0, 22)), number)
        try:
            array = empty(len(data))
        except exhausted as error:
            assert any(words in str(error) for words in ["no memory", "CUDA_ERROR_OUT_OF_MEMORY"]), error
            assert "device 0" in str(error), error
            refused += 1
            del kept[: len(kept) // 2]
            continue
        except bfc.Error as error:
            assert error.name == "BFC_ERROR_BACKEND_FAILED", error
            broken += 1
            continue
        write(array, data)
        kept.append((array, data))
        del array
        if len(kept) > 30 or choose.random() < 0.4:
            array, data = kept.pop(choose.randrange(len(kept)))
            assert (read(array) == data).all()
            del array
    assert all((read(array) == data).all() for array, data in kept)
    all_is_libbfcs(sum(array.nbytes for array, _ in kept))
    kept.clear()
    struck = simulation.struck()
    simulation.clear_faults()
    return refused, broken, struck


def run_the_page(name, scope):
    """Runs the code of a page, block by block, in one scope."""
    Page(name).run_all(scope)
