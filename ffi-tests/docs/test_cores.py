"""benches/cpu/cores.py: the simulation agrees with a closed form, and the table beside it is what it gives."""

import sys

import pytest

import pages

sys.path.insert(0, str(pages.ROOT / "benches/cpu"))
import cores

PAGE = (pages.ROOT / "benches/cpu/README.md").read_text()
# The others take longer.
RECOMPUTED = ["8", "32"]


@pytest.mark.parametrize("count, gap, lock", cores.CHECKS)
def test_it_agrees_with_the_closed_form(count, gap, lock):
    assert cores.check(count, gap, lock) < 0.03


@pytest.mark.parametrize("place", cores.PLACES)
def test_it_agrees_with_two_real_threads(place):
    # As measured once by contend.c. It may be too pessimistic, above all with calls that follow each other at once.
    costs = cores.machine(place)
    for what, pair, program in cores.two_threads(costs):
        found = cores.simulate(program, 2, cores.lock_of("ours", costs["transfer"], costs))
        assert -0.16 < found.throughput - pair["one"] / pair["both"] < 0.08, what


@pytest.mark.parametrize("lock", [cores.Lock(100), cores.Lock(100, look=1, spins=10**9)])
def test_a_lock_that_is_always_wanted_moves_with_each_call(lock):
    # Every 120 ns one of 16 threads has a call of 20 ns, which alone would take 40 ns with its gap.
    found = cores.simulate(cores.Program([20.0], [20.0]), 16, lock)
    assert found.throughput == pytest.approx(40 / 120 / 16, rel=0.01)


def test_a_waiter_that_has_looked_in_vain_sleeps():
    # Of two threads one holds the lock all the time; the other looks, yields, and sleeps until the end of the window.
    lock = cores.Lock(0, look=10, yielded=100, sleep=10**9)
    found = cores.simulate(cores.Program([0.0], [10_000.0]), 2, lock, least_calls=20)
    assert found.throughput == pytest.approx(0.5, rel=0.01)


def tables(heading):
    """The rows of a section's tables, each by the names of its columns."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    columns, found = None, []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = cells
        elif set(line) - set("|-: "):
            found.append(dict(zip(columns, cells)))
    return found


def test_the_page_has_what_is_simulated():
    names = {cores.title(name): name for name in cores.PROGRAMS}
    rows = [row for row in tables("More cores, simulated") if set(RECOMPUTED) <= set(row)]
    assert {names[row[cores.ROW]] for row in rows} == set(names.values())
    costs, wrong = cores.machine(), []
    for row in rows:
        program = cores.load(names[row[cores.ROW]], costs["hold"])
        for count in RECOMPUTED:
            found = (cores.simulate(program, int(count), cores.lock_of(kind, cores.TRANSFER, costs)) for kind in ("ours", "fifo"))
            cell = cores.cell(*found)
            if row[count] != cell:
                wrong.append(f"{row[cores.ROW]} on {count} cores: {row[count]}, and the simulation says {cell}")
    assert not wrong, "\n".join(wrong)
