"""Keras trains to the same numbers with libbfc, with TensorFlow's own BFC allocator and with neither. See README.md."""

import functools
import json
import os
import pathlib
import sys
import sysconfig

import pytest

from conftest import QUIET
from programs import LIB, PREFIX, SCRATCH, compiled, environment, run

HERE = pathlib.Path(__file__).parent
TENSORFLOW = pathlib.Path(sysconfig.get_path("purelib")) / "tensorflow"
FLAGS = [*"-std=c++17 -O1 -Wall -Wextra -Werror -pthread -DNDEBUG -D_GLIBCXX_USE_CXX11_ABI=1 -fPIC".split()]
FLAGS += ["-isystem", TENSORFLOW / "include", "-I", PREFIX / "include"]
LINKS = ["-L", TENSORFLOW, "-l:libtensorflow_framework.so.2", f"-Wl,-rpath,{TENSORFLOW}"]
# Fewer requests than training takes.
LEAST = 10_000
# Whether TensorFlow uses oneDNN, and how many threads an operation may use. Without oneDNN its usual allocator counts its
# requests.
WAYS = {"without oneDNN": ("0", "1"), "with oneDNN": ("1", "2")}
each_way = pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.xdist_group(way)) for way in WAYS])
without_onednn = pytest.mark.xdist_group("without oneDNN")


def test_the_allocators_of_the_header():
    links = ["-L", LIB, "-l:libbfc.so", f"-Wl,-rpath,{LIB}", *LINKS]
    program = compiled("keras/allocators", [HERE / "allocators.cc", HERE / "derived.cc"], FLAGS, links)
    run(program, env=environment(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0"))


@functools.cache
def train(way, allocator, *more):
    """What train.py has seen."""
    onednn, threads = WAYS[way]
    out = SCRATCH / f"keras/facts {way} {allocator} {' '.join(more)}.json"
    probe = compiled("keras/probe.so", [HERE / "probe.cc"], FLAGS, [*LINKS, "-shared"])
    variables = environment(TF_ENABLE_ONEDNN_OPTS=onednn, PYTHONPATH=os.environ["PYTHONPATH"], BFC_LIBRARY=LIB, **QUIET)
    command = [sys.executable, "-W", "ignore", HERE / "train.py", "--out", out, "--probe", probe, "--threads", threads]
    run(*command, "--allocator", allocator, *more, env=variables)
    return json.loads(out.read_text())


@each_way
def test_losses_and_weights_are_the_same(way):
    assert train(way, "bfc")["same"] == train(way, "usual")["same"]
    assert train(way, "libbfc")["same"] == train(way, "bfc")["same"]


@without_onednn
def test_the_usual_allocators_requests_are_counted():
    # Else a run would say nothing that has none of libbfc's.
    assert train("without oneDNN", "usual")["seen"]["requests of others"] > LEAST


def not_ours(facts, own):
    """Memory of tensors that was not libbfc's, or that TensorFlow's own allocator would have had back."""
    seen, ours = facts["seen"], facts["seen"]["libbfc"]
    expected = {
        "allocator": "bfc_cpu_allocator_for_gpu (libbfc, device 256)",
        # TensorFlow's own functions have served none, and hold nothing.
        "allocators": [["bfc_cpu_allocator_for_gpu", 256, 0, 0]],
        "requests of others": 0,
        "as TensorFlow tells": True,
        "variables": {"count": 15, "of others": 0},
        "results": {"count": 30, "of others": 0},
        "report": 'memory of allocator "TensorFlow" on device 256 (host backend)',
    }
    found = {name: seen.get(name, ours.get(name)) for name in expected}
    wrong = [f"{name}: {found[name]} and not {expected[name]}" for name in expected if found[name] != expected[name]]
    wrong += [f"{count} requests" for count in (seen["requests"], ours.get("allocations", 0)) if count < LEAST]
    # TensorFlow keeps something for itself: constants of functions, states of generators.
    left, own_left = seen["left"]["current"], own["seen"]["left"]["current"]
    if own_left == 0 or left > own_left * 5 / 4:
        wrong.append(f"{left} bytes are left, and {own_left} with TensorFlow's own")
    return wrong


@each_way
def test_all_of_it_was_libbfcs(way):
    assert not not_ours(train(way, "libbfc"), train(way, "bfc"))


@without_onednn
@pytest.mark.parametrize("fault", ["seed", "plain", "leak"])
def test_a_fault_is_found(fault):
    facts, own = train("without oneDNN", "libbfc", "--mutate", fault), train("without oneDNN", "bfc")
    assert facts["same"] != own["same"] if fault == "seed" else not_ours(facts, own)
