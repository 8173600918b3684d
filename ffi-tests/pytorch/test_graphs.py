"""Captured graphs of PyTorch's own allocators under `bfc run`: captures stay valid, data arrives, and what PyTorch sees is as
without."""

import pytest

from programs import PREFIX
from running import ALLOCATORS, facts

BFC = PREFIX / "bin/bfc"
# Cases of graphs.py that run in one process, those that fail one, which have a process of their own, and those of pools.
TOGETHER = """simple default_stream no_nodes reset_recapture side_streams generators workspaces two_successive
    concurrent_replay three_successive after_the_graph recorded_stream recurrent graphed_callables other_thread""".split()
OF_POOLS = "simple reset_recapture two_successive concurrent_replay three_successive after_the_graph graphed_callables other_thread".split()
RUNS = {"Caching": TOGETHER, "oom": ["oom"], "oom_full": ["oom_full"], "Async": OF_POOLS}
LAUNCHERS = {"alone": [], "under bfc run": [BFC, "run", "--"], "under bfc run --async": [BFC, "run", "--async", "--"]}
# Where a case tells that data has arrived.
ARRIVED = {
    "simple": [1, 0],
    "reset_recapture": [0],
    "two_successive": ["apart", 0, 0],
    "concurrent_replay": ["apart", 0, 1],
    "three_successive": ["apart", 1, 1],
    "after_the_graph": [3, 0],
    "other_thread": [0, 2],
    "oom": [1, 2],
    "oom_full": [1, 2],
}
ALL = [pytest.param(run, case, id=f"{run}-{case}") for run, cases in RUNS.items() for case in cases]
UNDER = list(LAUNCHERS)[1:]


def graphs(shared, run, name):
    """What graphs.py tells, on a device of a GiB."""
    variables = ALLOCATORS["Async" if run == "Async" else "Caching"] | {"SIMCUDA_MEMORY": str(1 << 30)}
    return facts(shared, "graphs.py", *RUNS[run], launcher=LAUNCHERS[name], name=name, **variables)


@pytest.mark.parametrize("run, case", ALL)
def test_captures_are_valid_and_data_arrives(run, case, shared):
    told = graphs(shared, run, "alone")["same"][case]
    # It is one that ends early: the default stream cannot be captured.
    assert told is not None and (not isinstance(told, str) or (case == "default_stream" and "non-default" in told)), told
    place = told
    for step in ARRIVED.get(case, []):
        place = place[step]
    assert case not in ARRIVED or place is True


@pytest.mark.parametrize("name", LAUNCHERS)
@pytest.mark.parametrize("run", RUNS)
def test_nothing_of_the_driver_is_misused(run, name, shared):
    assert graphs(shared, run, name)["seen"]["faults"] == {"count": 0, "words": []}


@pytest.mark.parametrize("name", UNDER)
@pytest.mark.parametrize("run, case", ALL)
def test_it_is_as_alone(run, case, name, shared):
    assert graphs(shared, run, name)["same"][case] == graphs(shared, run, "alone")["same"][case]
