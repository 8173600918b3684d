"""Running one case of a program: `PROGRAM CASE`."""

import gc
import pathlib
import sys

import bfc
import simulation

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from page import Page

KiB, MiB = 1 << 10, 1 << 20


def run(cases, begin, end):
    """Runs the case that the command line names, between a beginning and an end. It must leave nothing behind, and must not
    have misused the driver."""
    (name,) = sys.argv[1:]
    begin()
    before = simulation.used(0), simulation.live(simulation.ALLOCATIONS)
    cases[name]()
    gc.collect()
    end()
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


def run_the_page(name, scope):
    """Runs the code of a page, block by block, in one scope."""
    Page(name).run_all(scope)
