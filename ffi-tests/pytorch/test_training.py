"""PyTorch trains small models with each of its allocators, with libbfc in their place, and under `bfc run`. What must not
depend on who allocates is the same. See README.md."""

import sys

import pytest

import programs
from programs import LIB
from running import ALLOCATORS, BFC, environment, facts

# The models, and the fewest storages that each makes.
MODELS = {"Perceptron": 300, "Transformer": 1000, "Convolution": 300}
OWN = ["Caching", "Plain", "Async"]
PLUGGABLE = ["--pluggable", str(LIB / "libbfc.so")]


def train(shared, allocator, *arguments, **more):
    more = ALLOCATORS[allocator] | more
    return facts(shared, "train.py", *arguments, **more)


@pytest.fixture
def native(shared):
    return train(shared, "Caching")


@pytest.fixture(params=["Pluggable", "Package"])
def replaced(request, shared, package_environment):
    """PyTorch with libbfc as its only allocator: the kind, and what was seen."""
    if request.param == "Pluggable":
        return request.param, train(shared, "Pluggable", *PLUGGABLE)
    return request.param, train(shared, "Package", "--package", **package_environment)


def wrong(allocator, facts):
    """What does not make sense with any allocator."""
    same, seen = facts["same"], facts["seen"]
    # Without its cache PyTorch hands on what the runtime says; of a pluggable allocator it does not look at the result.
    error = "AcceleratorError" if allocator == "Plain" else "OutOfMemoryError"
    told = [told if allocator == "Pluggable" else told["type"] for told in same["out of memory"]["told"]]
    expected = {
        "misuses of the driver": (seen["faults"]["words"], []),
        "misuses of the driver, in number": (seen["faults"]["count"], 0),
        "leaked": (same["leaked"], 0),
        "copies arrive": (same["copies arrive"], True),
        "on streams, misaligned": (same["on streams"]["misaligned"], 0),
        "out of memory": (told, ["address 0" if allocator == "Pluggable" else error] * 2),
        "served afterwards": (same["out of memory"]["served afterwards"], True),
    }
    expected |= {f"{model}, misaligned": (same["training"][model]["storages"]["misaligned"], 0) for model in MODELS}
    if allocator == "Caching":
        statistics = same["statistics"]
        # What is 0 is left out.
        names = ["allocated_bytes.all.current", "reserved_bytes.all.current", "segment.all.current"]
        expected |= {name: (statistics.get(name), None) for name in names}
        segments = [size if kind == "segment_alloc" else -size for kind, size in same["segments"]]
        # None at all is as wrong as some that stay.
        expected |= {"num_ooms": (statistics["num_ooms"], 2), "segments": (bool(segments) and sum(segments), 0)}
    found = [f"{name}: {value}, and not {wanted}" for name, (value, wanted) in expected.items() if (value, type(value)) != (wanted, type(wanted))]
    return found + [f"{model} made only {storages(facts, model)} storages" for model, least in MODELS.items() if storages(facts, model) < least]


def storages(facts, model):
    return facts["same"]["training"][model]["storages"]["count"]


def left(allocator, facts):
    """What the driver tells of a program that calls it itself."""
    seen = facts["seen"]
    found = [] if seen["used after"] == seen["used before"] else [f"{seen['used after']} bytes are in use at the end"]
    found += [f"{seen['live']['allocations']} allocations are left"] if seen["live"]["allocations"] else []
    ending = "Async" if allocator == "Async" else ""
    allocated, freed = seen["calls"].get(f"cuMemAlloc{ending}", 0), seen["calls"].get(f"cuMemFree{ending}", 0)
    # Two requests fail, and where PyTorch has a cache it gives that back and tries again; libbfc does not ask the driver for
    # more than its limit.
    failed = {"Plain": 2, "Caching": 4, "Async": 4}.get(allocator, 0)
    found += [f"{allocated} allocations and {freed} frees"] if allocated != freed + failed else []
    made = sum(storages(facts, model) for model in MODELS)
    is_cached = allocator not in ("Plain", "Async")
    if allocated * 10 > made if is_cached else allocated < made:
        found.append(f"{allocated} allocations for {made} storages: is the cache on or off?")
    return found


def tensors(facts):
    """What must be the same with every allocator: which tensors there were, in which order, of what sizes."""
    same = {name: value for name, value in facts["same"].items() if name not in ("statistics", "segments", "captured", "out of memory")}
    leave = ("statistics", "requested")
    training = {model: {name: value for name, value in told.items() if name not in leave} for model, told in same["training"].items()}
    return same | {"training": training}


def not_of_libbfc(facts):
    """What libbfc's account and the device's do not agree about."""
    found = []
    for when, is_used in [("libbfc, while it is used", True), ("libbfc, in the end", False)]:
        said = facts["seen"][when]
        if said["pool_bytes"] != said["device"] or (said["pool_bytes"] != 0) != is_used:
            found.append(f"{when}: it holds {said['pool_bytes']}, and {said['device']} are in use")
        if not is_used and said["bytes_in_use"]:
            found.append(f"{when}: {said['bytes_in_use']} are live")
    return found + ([] if "device 0" in facts["seen"]["report"] else [facts["seen"]["report"]])


def keeps_the_graphs_memory(facts):
    captured = facts["same"]["captured"]
    # Else the test would not see it.
    assert captured["overlaps afterwards"] is True
    return captured["overlaps"] == 0 and captured["pieces"] > 1


def test_its_libraries_load_with_every_symbol_resolved():
    # What a stub forgot is missing here.
    program = """import torch, ctypes, os
folder = os.path.join(os.path.dirname(torch.__file__), 'lib')
ctypes.CDLL(os.path.join(folder, 'libtorch_cuda_linalg.so'))
assert torch.cuda.is_available(), 'torch sees no device'"""
    programs.run(sys.executable, "-W", "ignore", "-c", program, env=environment(LD_BIND_NOW="1"))


@pytest.mark.parametrize("allocator", OWN)
def test_what_was_seen_makes_sense(allocator, shared):
    assert not wrong(allocator, train(shared, allocator))


@pytest.mark.parametrize("allocator", OWN)
def test_the_driver_has_it_all_back(allocator, shared):
    assert not left(allocator, train(shared, allocator))


@pytest.mark.parametrize("allocator", ["Plain", "Async"])
def test_the_tensors_are_the_same(allocator, shared, native):
    assert tensors(train(shared, allocator)) == tensors(native)


def test_a_second_run_says_the_same(shared, native):
    again = facts(shared, "train.py", name="again")
    assert again["same"] == native["same"]


def test_a_leak_is_found(shared):
    leak = train(shared, "Caching", "--mutate", "leak")
    assert any(words.startswith("leaked") for words in wrong("Caching", leak)) and left("Caching", leak)


def test_a_layer_of_another_size_is_found(shared, native):
    size = train(shared, "Caching", "--mutate", "size")
    order = lambda facts: facts["same"]["training"]["Perceptron"]["storages"]["in order"]
    assert order(size) != order(native)


# libbfc in the place of PyTorch's own allocator: the same tensors, as much asked for at the same times, and nothing of the
# device's memory is another's.


def test_with_libbfc_what_was_seen_makes_sense(replaced):
    assert not wrong(*replaced) and not left(*replaced)


def test_with_libbfc_the_tensors_are_the_same(replaced, native):
    assert tensors(replaced[1]) == tensors(native)


def test_libbfc_is_asked_as_often_and_for_as_much(replaced, native):
    requested = lambda facts: [facts["same"]["training"][model]["requested"] for model in MODELS]
    assert requested(replaced[1]) == requested(native)


def test_all_of_it_is_libbfcs(replaced):
    assert not not_of_libbfc(replaced[1])


def test_a_graph_keeps_its_memory(replaced):
    assert keeps_the_graphs_memory(replaced[1])


def test_a_leak_of_libbfcs_is_found(shared):
    leak = train(shared, "Pluggable", *PLUGGABLE, "--mutate", "leak")
    assert wrong("Pluggable", leak) and left("Pluggable", leak) and not_of_libbfc(leak)


def test_a_graph_without_a_pool_is_found(shared):
    assert not keeps_the_graphs_memory(train(shared, "Pluggable", *PLUGGABLE, "--mutate", "pools"))


def test_a_mem_pool_of_libbfcs_memory(shared, native):
    seen = train(shared, "Caching", "--mem-pool", str(LIB / "libbfc.so"))
    assert seen["same"]["in a MemPool of libbfc"] == {
        "segments are ours": True,
        "trained in it": True,
        "of the tensor": True,
        "of a tensor outside": False,
        "out of memory": "OutOfMemoryError",
        "in use afterwards": 0,
        "held afterwards": 0,
        "training": native["same"]["training"]["Perceptron"]["storages"],
    }
    assert (seen["same"]["leaked"], seen["seen"]["faults"]["count"], seen["seen"]["live"]["allocations"]) == (0, 0, 0)


# The same run under `bfc run`, in which nothing that PyTorch can see is different. Where PyTorch allocates in the order of
# streams libbfc may do so instead of the driver.
UNDER = [("Caching", []), ("Plain", []), ("Async", []), ("Async", ["--async"])]


@pytest.fixture(params=UNDER, ids=lambda under: " ".join([under[0], *under[1]]))
def interposed(request, shared):
    """The allocator, the options, what was seen alone and under `bfc run`, and the trace."""
    allocator, options = request.param
    trace = shared / f"{allocator} {' '.join(options)}.trace"
    launcher = [BFC, "run", *options, "--trace", trace, "--"]
    name = " ".join(["under bfc run", *options])
    under = facts(shared, "train.py", launcher=launcher, name=name, **ALLOCATORS[allocator])
    return allocator, options, train(shared, allocator), under, trace


def requests(facts):
    """How often the program asked for device memory, failures included."""
    all = [facts["seen"][when] for when in ("calls", "calls before")]
    return sum(calls.get("cuMemAlloc", 0) + calls.get("cuMemAllocAsync", 0) for calls in all)


def test_under_bfc_run_it_is_as_alone(interposed):
    allocator, _, alone, under, _ = interposed
    assert not wrong(allocator, under)
    assert under["same"] == alone["same"]


def test_under_bfc_run_the_driver_is_asked_for_regions_only(interposed):
    allocator, options, alone, under, _ = interposed
    before, now = requests(alone), requests(under)
    if allocator == "Async" and not options:
        # Passed to the driver; what fails is asked for again, after a trim.
        assert now >= before
    else:
        # PyTorch's own cache has few segments already.
        assert now <= (before if allocator == "Caching" else before / 100)


def test_under_bfc_run_the_trace_has_all_of_it(interposed):
    allocator, _, alone, _, trace = interposed
    # Of the requests some fail, and are not in the trace: two, but four where PyTorch tries again.
    count = requests(alone) - (2 if allocator == "Plain" else 4)
    lines = trace.read_text().splitlines()
    assert [sum(line.startswith(sign) for line in lines) for sign in ("+ ", "- ")] == [count, count]
    replay = [BFC, "replay", "--growth", "--quiet", "--limit=16GiB", "--library", LIB, trace]
    programs.run(*replay)
