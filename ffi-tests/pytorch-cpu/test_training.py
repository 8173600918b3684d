"""PyTorch trains on the CPU with its own memory and with libbfc's, to the same losses and weights. See README.md."""

import json
import pathlib
import sys

import pytest

import programs
from pages import Page
from programs import LIB, PREFIX, compiled, run
from running import TORCH, with_bfc

HERE = pathlib.Path(__file__).parent
# The models, and the fewest storages that each makes.
MODELS = {"language_model": 3000, "Convolution": 500}
# Threads of an operation, and forked processes that make the batches.
WAYS = {"one thread": ("1", "0"), "three threads and two workers": ("3", "2")}
FLAGS = [*"-std=c++17 -O1 -Wall -Wextra -Werror -pthread -D_GLIBCXX_USE_CXX11_ABI=1".split(), "-isystem", TORCH / "include"]
FLAGS += ["-I", PREFIX / "include"]
# libc10 alone needs nothing of NVIDIA's.
LINKS = [word for folder, name in [(LIB, "libbfc.so"), (TORCH / "lib", "libc10.so")] for word in (f"-L{folder}", f"-l:{name}", f"-Wl,-rpath,{folder}")]


def train(shared, way, *arguments):
    threads, workers = WAYS[way]
    out = shared / f"{way} {' '.join(arguments)}.json"
    with programs.alone(f"pytorch-cpu {out.name}"):
        if not out.exists():
            command = [sys.executable, "-W", "ignore", HERE / "train.py", "--out", f"{out}.half", "--threads", threads]
            run(*command, "--workers", workers, *arguments, env=with_bfc())
            pathlib.Path(f"{out}.half").rename(out)
    return json.loads(out.read_text())


def not_ours(facts):
    found = []
    for model, least in MODELS.items():
        seen = facts["seen"][model]
        owners, live = seen["storages"]["by owner"], seen["live"]
        if list(owners) != ["256"] or owners["256"] < least:
            found.append(f"{model}: the owners of its memory: {owners}")
        is_well = seen["storages"]["misaligned"] == 0 and seen["made in the workers by"] == [256]
        if not is_well or live["of others"] != 0 or live["tensors"] <= 10:
            found.append(f"{model}: {seen}")
    end = facts["seen"]["in the end"]
    is_back = [end.get(name) for name in ("bytes_in_use", "left", "num_failures")] == [0] * 3
    is_back = is_back and end["num_allocs"] == end["num_frees"] >= 5000
    return found + ([] if is_back else [f"in the end: {end}"])


@pytest.mark.parametrize("way", WAYS)
def test_losses_and_weights_are_the_same(way, shared):
    own = train(shared, way)["same"]
    assert train(shared, way, "--libbfc")["same"] == own
    assert all(len(own[model]["losses"]) >= 10 for model in MODELS)


@pytest.mark.parametrize("way", WAYS)
def test_all_of_it_was_libbfcs(way, shared):
    assert not not_ours(train(shared, way, "--libbfc"))


@pytest.mark.parametrize("fault", ["seed", "native", "leak"])
def test_a_fault_is_found(fault, shared):
    faulty = train(shared, "one thread", "--libbfc", "--mutate", fault)
    assert faulty["same"] != train(shared, "one thread")["same"] if fault == "seed" else not_ours(faulty)


def test_the_allocator_of_the_header():
    run(compiled("pytorch-cpu/allocator", [HERE / "allocator.cc"], FLAGS, LINKS))


def test_the_cpp_of_the_page():
    page = Page("pytorch-cpu")
    run(compiled("pytorch-cpu/page", [page.file("cpp-1")], FLAGS, LINKS))
    page.ran("cpp-1")
