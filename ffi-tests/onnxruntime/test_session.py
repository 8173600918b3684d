"""bfc.onnxruntime with the real ONNX Runtime, each test in a process of its own.

What a user writes is run as docs/onnxruntime.md has it.
"""

import doctest
import gc
import re
import threading

import bfc
import bfc.onnxruntime
import numpy
import onnxruntime
import pytest

from pages import Page

pytestmark = [pytest.mark.own_process, pytest.mark.filterwarnings("ignore")]


def page():
    """What the page's blocks of Python define."""
    return Page("onnxruntime").run_all({})


def inputs(count, seed):
    random = numpy.random.default_rng(seed)
    for _ in range(count):
        rows, steps = random.integers(1, 24), random.integers(1, 48)
        yield {"x": random.standard_normal((rows, steps, 64), dtype=numpy.float32)}


def same_bits(some, others):
    return all(one.tobytes() == other.tobytes() for one, other in zip(some, others, strict=True))


def test_as_on_the_page(model):
    """The same outputs to the bit, all of it returned."""
    code = page()
    without = onnxruntime.InferenceSession(model)
    session = code["on_cpu"](model)
    made = bfc.stats(bfc.HOST)
    assert made.num_allocs > 0 and made.bytes_limit == 1 << 30, made
    for values in inputs(40, 1):
        before = bfc.stats(bfc.HOST).num_allocs
        outputs = session.run(None, values)
        assert bfc.owner(outputs[0].ctypes.data) == bfc.HOST, "outputs are not copied"
        assert bfc.stats(bfc.HOST).num_allocs > before + 10
        assert same_bits(outputs, without.run(None, values))
    assert re.fullmatch(r"\d+ allocations, \d+ bytes in use, \d+ held", code["seen"]())
    del session, outputs
    gc.collect()
    stats = bfc.stats(bfc.HOST)
    assert stats.bytes_requested == 0 and stats.num_allocs == stats.num_frees, stats
    bfc.check(bfc.HOST)
    bfc.destroy(bfc.HOST)


def test_out_of_memory(model):
    """ONNX Runtime's own exception, with libbfc's words; then all goes on."""
    # With slack a second session does not fit.
    bfc.create(bfc.HOST, memory_limit=600_000, split_always=False, name="small")
    bfc.onnxruntime.use()
    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(model, bfc.onnxruntime.session_options())
    kept = bfc.stats(bfc.HOST).bytes_requested
    for _ in range(3):
        try:
            session.run(None, {"x": numpy.ones((30, 40, 64), numpy.float32)})
        except Exception as error:
            assert type(error).__module__.startswith("onnxruntime."), type(error)
            assert "bfc_alloc: small: no memory for 450.00 KiB (460800 bytes)" in str(error), error
        else:
            raise AssertionError("it was served")
        assert bfc.stats(bfc.HOST).bytes_requested == kept
        session.run(None, {"x": numpy.ones((1, 2, 64), numpy.float32)})
    try:
        onnxruntime.InferenceSession(model, bfc.onnxruntime.session_options())
    except Exception as error:
        assert "bfc_alloc: small: no memory for" in str(error), error
    else:
        raise AssertionError("a second session was served")


def test_used_again(model):
    """use and stop, in any order; another device; an allocator that cannot be."""
    bfc.onnxruntime.stop()
    bfc.onnxruntime.use()
    bfc.onnxruntime.use()
    options = onnxruntime.SessionOptions()
    assert bfc.onnxruntime.session_options(options) is options
    first = onnxruntime.InferenceSession(model, options)
    before = bfc.stats(bfc.HOST).num_allocs
    assert before > 0
    bfc.onnxruntime.use(300)
    second = onnxruntime.InferenceSession(model, options)
    assert bfc.stats(bfc.HOST).num_allocs == before and bfc.stats(300).num_allocs > 0
    bfc.onnxruntime.stop()
    third = onnxruntime.InferenceSession(model, options)
    assert third.run(None, {"x": numpy.ones((1, 1, 64), numpy.float32)})
    assert bfc.stats(bfc.HOST).num_allocs == before
    del first, second, third
    gc.collect()
    for device in (bfc.HOST, 300):
        bfc.destroy(device)
    try:
        bfc.onnxruntime.use(5000)
    except bfc.Error as error:
        assert error.status == 1 and "ordinals are 0 to 1023" in str(error), error
    else:
        raise AssertionError("there is no device 5000")


def test_graphs_are_refused(model):
    """enable_cuda_graph with libbfc's memory, as each of the texts and values that mean it."""
    for value in (True, 1, "1", "true", "True"):
        try:
            bfc.onnxruntime.provider_options(device_id=0, enable_cuda_graph=value)
        except ValueError as error:
            assert "leave enable_cuda_graph off" in str(error), error
        else:
            raise AssertionError(f"{value!r} was taken")
    for value in (False, 0, "0", "false"):
        options = bfc.onnxruntime.provider_options(enable_cuda_graph=value)
        assert options["enable_cuda_graph"] == str(value), options


def test_threads(model):
    """Several sessions, each in several threads."""
    bfc.onnxruntime.use()
    sessions = [onnxruntime.InferenceSession(model, bfc.onnxruntime.session_options()) for _ in range(2)]
    without = onnxruntime.InferenceSession(model)
    work = [(values, without.run(None, values)) for values in inputs(10, 2)]
    wrong = []

    def run(session):
        wrong.extend(
            1 for values, expected in work for _ in range(3) if not same_bits(session.run(None, values), expected)
        )

    workers = [threading.Thread(target=run, args=[sessions[index % 2]]) for index in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong, wrong
    del sessions
    gc.collect()
    assert bfc.stats(bfc.HOST).bytes_requested == 0


def test_for_the_provider(model):
    """The options, and the addresses in them. (There is no CUDA provider here: it only takes them.)"""
    failed, tried = doctest.testmod(bfc.onnxruntime)
    assert tried > 2 and failed == 0
    options = bfc.onnxruntime.provider_options(device_id=1, do_copy_in_default_stream=True)
    assert options["device_id"] == "1" and options["do_copy_in_default_stream"] == "True"
    for option, name in {
        "alloc": "bfc_ort_alloc",
        "free": "bfc_ort_free",
        "empty_cache": "bfc_ort_empty_cache",
    }.items():
        assert options["gpu_external_" + option] == str(bfc._library.address(name))
    try:
        bfc.onnxruntime.provider_options(gpu_external_free="1")
    except TypeError:
        pass
    else:
        raise AssertionError("it was taken")
    assert page()["on_gpu"]
    # ONNX Runtime says that this build has no such provider, and takes the CPU's.
    onnxruntime.set_default_logger_severity(4)
    assert page()["on_gpu"](model).get_providers() == ["CPUExecutionProvider"]


def test_at_exit(model):
    """Everything is alive when Python ends."""
    global kept
    bfc.onnxruntime.use()
    session = onnxruntime.InferenceSession(model, bfc.onnxruntime.session_options())
    kept = session, session.run(None, {"x": numpy.ones((2, 3, 64), numpy.float32)})
