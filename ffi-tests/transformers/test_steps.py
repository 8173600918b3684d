"""Whole training steps of GPT-2, BERT and ViT, inference on streams, captured graphs and running out of memory, with PyTorch's
own allocator and with libbfc in its place by `bfc.torch.use()`: ffi-tests/pytorch/steps.py.

What was asked for must be the same by the accounts of both, to the byte.
"""

import os

import pytest

from programs import LIB
from running import facts

# The models of transformer_models.py with their parameters: those of GPT-2, BERT base and ViT base.
MODELS = {"GPT-2": 124_439_808, "BERT": 109_514_298, "ViT": 85_800_194}
# In which libbfc may run out of memory.
LIMIT = 1 << 30
# libbfc with regions, and with granules of one range.
BACKENDS = ["cuda", "cuda_vmm"]


def steps(shared, *arguments, **variables):
    more = {"PYTHONPATH": os.environ["PYTHONPATH"], "BFC_LIBRARY": LIB, "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"], "HF_HUB_OFFLINE": "1"}
    return facts(shared, "steps.py", *arguments, **more, **variables)


@pytest.fixture
def native(shared):
    return steps(shared, "training", "serving", "mem_pool")


@pytest.fixture(params=BACKENDS)
def libbfc(request, shared):
    return steps(shared, "training", "serving", "recorded", "graphs", "--libbfc", BFC_BACKEND=request.param)


def wrong(facts):
    """What does not make sense with any allocator."""
    seen, found = facts["seen"], []
    if seen["faults"] != {"count": 0, "words": []} or seen["in use at the end"] != 0:
        found.append(f"{seen['faults']}, {seen['in use at the end']} bytes of the device are in use at the end")
    for model, parameters in MODELS.items():
        told = facts["same"]["training"][model]
        # Weights, gradients and both moments are there at once.
        is_well = told["parameters"] == parameters and told["requested"]["peak requested"] >= 16 * parameters
        is_well = is_well and told["requested"]["live"] == 0 and told["storages"]["count"] >= 5000 and told["storages"]["misaligned"] == 0
        found += [] if is_well else [f"{model}: {told}"]
    serving = facts["same"]["serving"]["requested"]
    return found + ([] if serving["allocations"] >= 5000 and serving["live"] == 0 else [f"serving: {serving}"])


def test_with_pytorchs_own_what_was_seen_makes_sense(native):
    assert not wrong(native)


def test_the_segments_of_a_mem_pool_are_libbfcs(native):
    said = native["seen"]["mem_pool"]
    assert said["segments"]["of the pool"] == said["segments"]["of libbfc"] > 0
    assert (said["out of memory"], said["held at the end"]) == ("OutOfMemoryError", 0)
    assert native["same"]["mem_pool"]["GPT-2"]["storages"] == native["same"]["training"]["GPT-2"]["storages"]


def test_with_libbfc_what_was_seen_makes_sense(libbfc):
    assert not wrong(libbfc)


@pytest.mark.parametrize("scenario", ["training", "serving"])
def test_it_is_as_with_pytorchs_own_to_the_byte(scenario, libbfc, native):
    assert libbfc["same"][scenario] == native["same"][scenario]


def test_bfc_torch_tells_what_libbfc_counts(libbfc):
    for model in MODELS:
        seen = libbfc["seen"]["training"][model]
        assert seen["raw"] == libbfc["same"]["training"][model]["requested"]
        assert seen["pool"]["held"] == seen["pool"]["of the device"] > 0


def test_other_streams_get_nothing_too_early(libbfc):
    assert libbfc["seen"]["recorded"] == {"mismatches": 0}


def test_graphs_keep_their_memory(libbfc):
    seen = libbfc["seen"]["graphs"]
    assert seen["taken while they live"] == 0 and libbfc["same"]["graphs"]["results are apart"] is True
    # Else the test would not see it.
    assert seen["places"] > 20 and seen["taken afterwards"] > 0


@pytest.fixture
def exhausted(shared):
    return steps(shared, "out_of_memory", "--libbfc", "--limit", LIMIT)


def test_at_a_limit_pytorch_s_exception_has_our_report_and_it_goes_on(exhausted):
    seen = exhausted["seen"]["out_of_memory"]
    for error in seen["told"]:
        assert error["type"] == "OutOfMemoryError"
        for part in ["CUDA out of memory. ", "no memory for ", "device 0 ", "largest free chunk"]:
            assert part in error["words"]
    assert seen["told"] and len(seen["done"]) >= 5 and seen["failures"] == len(seen["told"])
    # Of a thousand requests.
    names = seen["random sizes"]
    assert set(names) == {"OutOfMemoryError: no memory for", "RuntimeError: CUDA_ERROR_UNKNOWN"} and all(names.values())


def test_at_a_limit_nothing_is_left(exhausted):
    assert (exhausted["seen"]["in use at the end"], exhausted["seen"]["faults"]["count"]) == (0, 0)


def test_a_byte_more_that_stays_and_a_stream_that_is_not_told_are_found(shared, native):
    faulty = steps(shared, "serving", "recorded", "--libbfc", "--mutate")
    requested = lambda facts: facts["same"]["serving"]["requested"]["peak requested"]
    assert requested(faulty) != requested(native)
    assert faulty["seen"]["recorded"] != {"mismatches": 0} and faulty["seen"]["in use at the end"] != 0
