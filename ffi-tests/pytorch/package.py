"""bfc.torch, the package's way to PyTorch, on the simulated driver: `package.py WHAT`. See README.md.

Each case is a process of its own, for PyTorch takes an allocator once. What is wrong is an AssertionError.
"""

import ctypes
import gc
import importlib
import json
import os
import pathlib
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile

import torch

import bfc
import bfc.torch
import facts
import pluggable
from bfc._messages import in_python

MiB = 1 << 20
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY

FIGURE = r"(\d+ bytes|\d+\.\d\d [KMG]iB)"
# PyTorch's own sentence, parts of which programs look for. With NVML it also says what the process has otherwise.
SENTENCE = re.compile(
    rf"CUDA out of memory\. Tried to allocate {FIGURE}\. "
    rf"GPU (\d+) has a total capacity of {FIGURE} of which {FIGURE} is free\. "
    rf"(?:Including non-PyTorch memory, .*? in use\. )?(?:{FIGURE} allowed; )?"
    rf"Of the allocated memory {FIGURE} is allocated by PyTorch, (?:with .*? allocated in private pools .*?, )?"
    rf"and {FIGURE} is reserved by PyTorch but unallocated\. "
)


def tensor(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def raised(work):
    """What something raises that wants too much."""
    try:
        work()
    except Exception as error:  # whatever it is, that is the fact
        return error
    raise AssertionError("it was served")


def failure(size):
    """What is raised for a request that is too large."""
    return raised(lambda: tensor(size))


def size_text(size):
    """A size as PyTorch's messages have it."""
    if size <= 1024:
        return f"{size} bytes"
    unit = next((unit for unit in (10, 20) if size <= 1 << unit + 10), 30)
    return f"{size / (1 << unit):.2f} {' KMG'[unit // 10]}iB"


def check_message(error, size, limit, name, device=0):
    """The text of an exception: PyTorch's sentence with the figures of now, libbfc's reason, and the report."""
    text = str(error)
    found = SENTENCE.match(text)
    assert found, text
    free, total = torch.cuda.mem_get_info(device)
    own = bfc.stats(device)
    figures = [size, total, free, limit, own.bytes_in_use, own.pool_bytes - own.bytes_in_use]
    sizes = [size_text(figure) for figure in figures]
    assert found.groups() == (sizes[0], str(device), *sizes[1:]), (found.groups(), sizes)
    assert text[found.end() :].startswith(f"{name}: no memory for"), text
    lines = text.splitlines()
    # The shim's text has the names of C.
    report = in_python("\n".join(lines[2:]))
    assert lines[1] == "" and report.splitlines() == bfc.report(device).splitlines(), "the report of that moment"


def expect_error(kind, words, work):
    try:
        work()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}: {words}")


def nothing_is_left(simulation, before):
    gc.collect()
    torch.cuda.synchronize()
    assert bfc.stats(0).bytes_in_use == 0, bfc.report(0)
    bfc.trim(0)
    assert bfc.stats(0).pool_bytes == 0, bfc.report(0)
    assert simulation.used() == before, "the driver has not everything back"
    assert simulation.faults()["count"] == 0, simulation.faults()
    bfc.check(0)


def page():
    """The code on the page, with a device of 64 GiB; and PyTorch's own way to a limit."""
    scope = pluggable.PAGE.run("python-1", {})
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert bfc.stats(0).bytes_limit == torch.cuda.mem_get_info()[1] // 4
    assert "libbfc memory summary, device 0" in pluggable.said_by_the_page("python-2", scope)
    for block in ["python-4", "python-5"]:
        said = pluggable.said_by_the_page(block, scope)
        assert "memory of allocator" in said, said
    assert bfc.torch.memory_stats()["num_ooms"] == 1
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert bfc.stats(0).bytes_limit == torch.cuda.mem_get_info()[1] // 2


def page_with_arguments():
    pluggable.PAGE.run("python-3", {"torch": torch, "bfc": bfc})
    kept = tensor(1)
    assert bfc.stats(0).bytes_limit == 20 << 30
    # The message on the page is that of this program.
    shown = re.sub(r"\s+", " ", pluggable.PAGE.text("text-2"))
    said = re.sub(r"\s+", " ", str(failure(1 << 40)))
    for part in shown.split("..."):
        assert part.strip() in said, (part, said)
    del kept


def page_mem_pool():
    """Segments are ours, and failures PyTorch's own."""
    scope = pluggable.PAGE.run("python-6", {"torch": torch, "bfc": bfc})
    assert bfc.owner(scope["weights"].data_ptr()) == 0
    assert bfc.stats(0).num_allocs > 0
    other = tensor(5 * MiB)
    expect_error(bfc.Error, "in no region", lambda: bfc.owner(other.data_ptr()))
    with torch.cuda.use_mem_pool(bfc.torch.mem_pool(use_on_oom=False)):
        error = failure(1 << 40)
        assert isinstance(error, torch.OutOfMemoryError)
        assert SENTENCE.match(str(error)), f"PyTorch's own sentence is another now: {error}"
    expect_error(RuntimeError, "is not libbfc", bfc.torch.memory_allocated)
    torch.cuda.synchronize()
    # The pool is left to the end of the interpreter.


def refused_by_pytorch():
    """What PyTorch does for its own allocator only, and what works with any."""
    bfc.torch.use()
    kept, cuda = tensor(1), torch.cuda
    for work in [
        cuda.memory_stats,
        cuda.memory_allocated,
        cuda.memory_reserved,
        cuda.memory_summary,
        cuda.reset_peak_memory_stats,
        cuda.memory_snapshot,
        lambda: cuda.memory._record_memory_history(stacks="python"),
        cuda.MemPool,
        cuda.get_per_process_memory_fraction,
        kept.untyped_storage()._share_cuda_,
    ]:
        expect_error(RuntimeError, "", work)
    cuda.set_per_process_memory_fraction(0.5)
    cuda.empty_cache()
    assert cuda.mem_get_info()[1] == 2 * bfc.stats(0).bytes_limit


def refusals():
    """use() is for once, and for the beginning."""
    if sys.argv[2] == "late":
        tensor(1)
        expect_error(RuntimeError, "right after the imports", bfc.torch.use)
    elif sys.argv[2] == "other":
        library = str(bfc.library_path())
        other = torch.cuda.memory.CUDAPluggableAllocator(library, "bfc_torch_alloc", "bfc_torch_free")
        torch.cuda.memory.change_current_allocator(other)
        expect_error(RuntimeError, "another pluggable allocator", bfc.torch.use)
    else:
        expect_error(ValueError, "must be a CUDA device with an index", lambda: bfc.torch.use("cuda", memory_limit=1))
        bfc.torch.use()
        expect_error(RuntimeError, "called already", bfc.torch.use)
        expect_error(RuntimeError, "PyTorch's own", bfc.torch.mem_pool)


def limit():
    """Out of memory at a small limit: PyTorch's exception, our words; and the rest goes on."""
    # Regions that double: the driver may refuse one and have enough for the request.
    used = bfc.torch.use("cuda:0", backend="cuda", memory_limit=8 * MiB, growth_policy="tensorflow", name="small")
    assert used.raises is torch.OutOfMemoryError
    simulation = facts.Simulation()
    torch.cuda.init()
    before = simulation.used()
    kept = tensor(3 * MiB)
    for size in [6 * MiB, 1 << 40]:
        error = failure(size)
        assert type(error) is torch.OutOfMemoryError, error
        check_message(error, size, 8 * MiB, "small")
        assert 'memory of allocator "small" on device 0 (cuda backend)' in str(error).splitlines(), error
    assert bfc.stats(0).num_failures == bfc.torch.memory_stats()["num_ooms"] == 2
    # Where the driver does not tell how much memory there is, and PyTorch does not find that error later.
    simulation.library.simcuda_fail(b"cuMemGetInfo", ctypes.c_uint64(1), 999)  # CUDA_ERROR_UNKNOWN
    text = str(failure(6 * MiB))
    assert simulation.library.simcuda_struck() == 1
    assert text.startswith("CUDA out of memory. Tried to allocate 6.00 MiB. 8.00 MiB allowed; Of the"), text
    assert ctypes.CDLL(None).cudaGetLastError() == 0
    simulation.library.simcuda_clear_faults()
    assert bfc.owner(tensor(MiB).data_ptr()) == 0
    # The driver's memory runs out before the limit.
    del kept
    simulation.library.simcuda_fail(b"cuMemAlloc", ctypes.c_uint64(1), OUT_OF_MEMORY)
    bfc.torch.empty_cache()
    assert tensor(7 * MiB).data_ptr(), "libbfc asks for less, or again"
    simulation.library.simcuda_clear_faults()
    nothing_is_left(simulation, before)
    # What was asked for holds for the next one too.
    bfc.destroy(0)
    assert tensor(1).data_ptr() and bfc.stats(0).bytes_limit == 8 * MiB


def sizes_in_messages():
    """Sizes of every kind, with all of the limit in use: as PyTorch rounds them, exact halves to even."""
    bfc.torch.empty_cache()
    kept = tensor(bfc.stats(0).bytes_limit)
    units = [1, 1 << 10, 1 << 20, 1 << 30]
    sizes = [factor * unit + more for unit in units for factor in (1, 9, 700, 1024) for more in (0, 1, unit // 8)]
    for size in [*sizes, 1152, 1408, (1 << 20) - 1, (1 << 30) - 1, 1 << 60]:
        text = str(failure(size))
        assert text.startswith(f"CUDA out of memory. Tried to allocate {size_text(size)}. GPU 0 "), (size, text)
    del kept


def one_of_two_devices():
    """What use() is told is for the device that it names."""
    bfc.torch.use("cuda:1", memory_limit=8 * MiB)
    kept = [torch.empty(MiB, dtype=torch.uint8, device=device) for device in ["cuda:0", "cuda:1"]]
    assert [bfc.owner(one.data_ptr()) for one in kept] == [0, 1]
    assert bfc.stats(1).bytes_limit == 8 * MiB < bfc.stats(0).bytes_limit
    assert tensor(16 * MiB).data_ptr()
    error = raised(lambda: torch.empty(16 * MiB, dtype=torch.uint8, device="cuda:1"))
    assert type(error) is torch.OutOfMemoryError and "on device 1" in str(error), error
    with torch.cuda.device(1):
        check_message(error, 16 * MiB, 8 * MiB, "bfc", device=1)
    assert bfc.torch.memory_stats(1)["num_ooms"] == 1 and bfc.torch.memory_stats(0)["num_ooms"] == 0
    kept.clear()
    bfc.torch.empty_cache()
    assert (bfc.stats(0).pool_bytes, bfc.stats(1).pool_bytes) == (0, 0)


def between_devices():
    """Devices that cannot access each other's memory: copies work by default, and with mapped memory through the CPU."""
    is_mapped = sys.argv[2:] == ["mapped"]
    bfc.torch.use(backend="cuda_vmm" if is_mapped else None)
    assert not torch.cuda.can_device_access_peer(0, 1)
    data = torch.arange(1000)
    there = data.to("cuda:0")
    if is_mapped:
        expect_error(RuntimeError, "INVALID_VALUE", lambda: there.to("cuda:1"))
    else:
        assert torch.equal(there.to("cuda:1").cpu(), data)
    assert torch.equal(there.cpu().to("cuda:1").cpu(), data)


def of_another_device():
    """A stream of another device that uses memory: empty_cache() does not wait for its work, and finds that it is done."""
    bfc.torch.use(memory_limit=2 * MiB)
    other = torch.cuda.Stream(device=1)
    used = tensor(MiB)
    used.record_stream(other)
    del used
    torch.cuda.synchronize(1)
    bfc.torch.empty_cache()
    assert bfc.stats(0).pool_bytes == 0


def configured():
    """Options of PyTorch's own allocator are in the environment, and nothing is different."""
    assert "expandable_segments" in os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    statistics()


def other_failures():
    """What is no lack of memory is none in PyTorch either."""
    bfc.torch.use(name="broken")
    simulation = facts.Simulation()
    torch.cuda.init()
    for nth in range(1, 5):
        simulation.library.simcuda_fail(b"cuMemCreate", ctypes.c_uint64(nth), 801)  # CUDA_ERROR_NOT_SUPPORTED
    error = failure(MiB)
    assert type(error) is RuntimeError and str(error).startswith("libbfc: "), repr(error)
    simulation.library.simcuda_clear_faults()
    assert tensor(MiB).data_ptr()


def without_a_compiler():
    """The function that was compiled with the package."""
    used = bfc.torch.use(memory_limit=8 * MiB, name="small")
    assert used.raises is bfc.torch.OutOfMemoryError and used.shim.name == "torch_alloc.so"
    assert pickle.loads(pickle.dumps(used.raises)) is used.raises
    simulation = facts.Simulation()
    elsewhere = torch.nn.Parameter(torch.ones(16 * MiB // 4))
    for work in [
        lambda: tensor(16 * MiB),
        lambda: elsewhere.to("cuda"),
        # By way of pybind11.
        lambda: torch.ops.aten.empty([4 * MiB], device=torch.device("cuda")),
    ]:
        error = raised(work)
        assert type(error) is used.raises, repr(error)
        assert isinstance(error, torch.OutOfMemoryError) and isinstance(error, MemoryError)
        check_message(error, 16 * MiB, 8 * MiB, "small")
    sizes_in_messages()
    assert bfc.owner(tensor(MiB).data_ptr()) == 0
    bfc.torch.empty_cache()
    for nth in range(1, 5):
        simulation.library.simcuda_fail(b"cuMemCreate", ctypes.c_uint64(nth), 801)  # CUDA_ERROR_NOT_SUPPORTED
    error = failure(3 * MiB)
    assert type(error) is RuntimeError and str(error).startswith("libbfc: "), repr(error)
    simulation.library.simcuda_clear_faults()
    assert tensor(3 * MiB).data_ptr()


def profiled_events():
    """What torch.profiler and the trace of GPU memory are told of a few requests: bytes and total of each event, and the
    addresses. The same with PyTorch's own allocator."""
    kept, traced = [tensor(1)], []
    torch._C._activate_gpu_trace()
    trace = importlib.import_module("torch.cuda._gpu_trace")
    trace.register_callback_for_memory_allocation(lambda address: traced.append(("allocated", address)))
    trace.register_callback_for_memory_deallocation(lambda address: traced.append(("freed", address)))
    wanted = []
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        for size in [3 * MiB, 700, 4 * MiB]:
            kept.append(tensor(size))
            wanted.append(("allocated", kept[-1].data_ptr()))
        for place in [1, 1]:
            wanted.append(("freed", kept[place].data_ptr()))
            del kept[place]
        failure(1 << 40)
        tensor(0)
    assert traced == wanted, (traced, wanted)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "trace.json")
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    events = [(event["name"], event["args"]) for event in events if event["name"] in ("[memory]", "[OutOfMemory]")]
    addresses = [args["Addr"] for name, args in events if name == "[memory]"]
    assert addresses == [address for _, address in wanted], (addresses, wanted)
    assert all((args["Device Type"], args["Device Id"]) == (1, 0) for _, args in events), events
    return [(name, args["Bytes"], args["Total Allocated"]) for name, args in events], events[-1][1]["Total Reserved"]


def profiler():
    """The profiler and the trace of GPU memory are told the same as by PyTorch's own allocator."""
    if sys.argv[2:] == ["native"]:
        print(json.dumps(profiled_events()[0]))
        return
    # Chunks of the sizes that PyTorch's own allocator would cut.
    bfc.torch.use(memory_limit=64 * MiB, split_always=True)
    native = subprocess.run([sys.executable, *sys.argv, "native"], capture_output=True, text=True, check=True)
    ours, reserved = profiled_events()
    assert json.loads(native.stdout.splitlines()[-1]) == [list(event) for event in ours], (native.stdout, ours)
    assert reserved == bfc.torch.memory_reserved()


class Grown(torch.autograd.Function):
    """Its gradient takes more than there is, in a thread of PyTorch's."""

    @staticmethod
    def forward(context, number):
        return number.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient.new_empty(16 * MiB)


def in_a_thread_of_pytorchs():
    """The exception comes through PyTorch's threads as well: with the shim that is compiled, and with the other."""
    used = bfc.torch.use(memory_limit=8 * MiB, name="small")
    error = raised(lambda: Grown.apply(torch.ones(1, device="cuda", requires_grad=True)).backward())
    assert type(error) is used.raises, repr(error)
    assert str(error).startswith("CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has"), error
    # That thread lets go of its work after it has told of the failure. If Python ends meanwhile, the process aborts
    # (PyTorch 2.15 with Python 3.11, with its own allocator too): this one ends without Python's end.
    sys.stdout.flush()
    os._exit(0)


def statistics():
    """Ours by PyTorch's names."""
    bfc.torch.use()
    assert bfc.torch.memory_allocated() == 0 and bfc.torch.memory_stats() == {} and bfc.torch.report() == ""
    kept = [tensor(size) for size in [1, 1000, 3 * MiB, 700]]
    del kept[2:]
    said, own = bfc.torch.memory_stats(), bfc.stats(0)
    assert said["allocation.all.current"] == len(kept)
    assert (said["allocation.all.allocated"], said["allocation.all.freed"]) == (own.num_allocs, own.num_frees) == (4, 2)
    assert bfc.torch.memory_allocated() == said["allocated_bytes.all.current"] == own.bytes_in_use == 512 + 1024
    assert said["requested_bytes.all.current"] == own.bytes_requested == 1001
    for device in [None, 0, "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)]:
        assert bfc.torch.max_memory_allocated(device) == own.peak_bytes_in_use
        assert bfc.torch.memory_reserved(device) == own.pool_bytes
        assert bfc.torch.max_memory_reserved(device=device) == own.peak_pool_bytes
    expect_error(ValueError, "Expected a cuda device", lambda: bfc.torch.memory_allocated("cpu"))
    failure(1 << 40)
    bfc.torch.reset_peak_memory_stats()
    assert bfc.torch.max_memory_allocated() == bfc.torch.memory_allocated() == 1536
    said = bfc.torch.memory_stats()
    counts = [said[key] for key in ["allocation.all.allocated", "allocation.all.freed", "num_ooms"]]
    assert counts == [4, 2, 1], "the counts go on"
    tensor(1)
    bfc.torch.reset_accumulated_memory_stats()
    kept.append(tensor(1))
    said = bfc.torch.memory_stats()
    counts = [said[key] for key in ["allocation.all.allocated", "allocation.all.freed", "num_ooms"]]
    assert counts == [1, 0, 0], counts
    summary = bfc.torch.memory_summary()
    assert "libbfc memory summary, device 0" in summary and bfc.report(0) in summary
    assert bfc.report(0) not in bfc.torch.memory_summary(abbreviated=True)


def snapshots():
    """torch.cuda._memory_viz reads ours, and its figures are the statistics."""
    expect_error(RuntimeError, "is not libbfc", bfc.torch.memory_snapshot)
    bfc.torch.use()
    assert bfc.torch.memory_snapshot() == []
    kept = [tensor(size) for size in [1, 1000, 30 * MiB, 700, 5 * MiB]]
    del kept[2:4]
    said, segments = bfc.torch.memory_stats(), bfc.torch.memory_snapshot()
    assert sum(segment["total_size"] for segment in segments) == said["reserved_bytes.all.current"]
    assert sum(segment["allocated_size"] for segment in segments) == said["allocated_bytes.all.current"]
    assert sum(segment["requested_size"] for segment in segments) == said["requested_bytes.all.current"]
    expect_error(ValueError, "mempool_id must be None", lambda: bfc.torch.memory_snapshot((0, 1)))
    with tempfile.TemporaryDirectory() as folder:
        file, page = pathlib.Path(folder, "snapshot.pickle"), pathlib.Path(folder, "page.html")
        bfc.torch._dump_snapshot(file)
        assert pickle.loads(file.read_bytes()) == {"segments": segments, "device_traces": [[]] * torch.cuda.device_count()}
        viz = [sys.executable, "-W", "ignore", "-m", "torch.cuda._memory_viz"]
        summary = subprocess.run([*viz, "stats", file], capture_output=True, text=True, check=True).stdout
        subprocess.run([*viz, "trace_plot", file, "-o", page], check=True)
        assert "add_local_files" in page.read_text()
    size = importlib.import_module("torch.cuda._memory_viz").Bytes
    for line in [
        f"segments: {len(segments)}",
        f"total_reserved: {size(said['reserved_bytes.all.current'])}",
        f"total_allocated: {size(said['requested_bytes.all.current'])}",
    ]:
        assert line in summary.splitlines(), (line, summary)
    recorded(kept)


def keep_for_the_viewer(file, stats):
    """The suite browser opens the snapshot in the viewer's own page (ffi-tests/browser/test_memory_viz.py)."""
    if scratch := os.environ.get("LIBBFC_TESTS_SCRATCH"):
        folder = pathlib.Path(scratch, "snapshots")
        folder.mkdir(parents=True, exist_ok=True)
        figures = {"in_use": stats.bytes_in_use, "requested": stats.bytes_requested, "held": stats.pool_bytes}
        (folder / "pytorch.json").write_text(json.dumps(figures))
        shutil.copy(file, folder / "pytorch.pickle")


def recorded(kept):
    """With a history the snapshot has a trace, which torch.cuda._memory_viz reads, and its figures are the statistics."""
    with bfc.history(), tempfile.TemporaryDirectory() as folder:
        before = bfc.stats(0)
        with bfc.scope("attention", step=2):
            kept.append(tensor(3 * MiB))
        kept += [tensor(1000 * number) for number in range(1, 20)]
        del kept[4::2]
        file = pathlib.Path(folder, "snapshot.pickle")
        bfc.torch._dump_snapshot(file)
        stats, snapshot = bfc.stats(0), pickle.loads(file.read_bytes())
        keep_for_the_viewer(file, stats)
        trace = snapshot["device_traces"][0]
        viz = [sys.executable, "-W", "ignore", "-m", "torch.cuda._memory_viz", "trace", file]
        lines = subprocess.run(viz, capture_output=True, text=True, check=True).stdout.splitlines()
    change = {"alloc": 1, "free_completed": -1}
    assert sum(change.get(entry["action"], 0) * entry["size"] for entry in trace) == stats.bytes_requested
    frees = [entry for entry in trace if entry["action"] == "free_completed"]
    assert len(frees) == stats.num_frees - before.num_frees > 5
    assert sum(line.startswith("# free completed") for line in lines) == len(frees)
    assert [{"filename": "bfc.scope", "line": 2, "name": "attention"}] in [entry["frames"] for entry in trace]


def random_sizes():
    """A thousand requests, for which the limit is too small, while the driver fails too."""
    bfc.torch.use(memory_limit=64 * MiB, name="random")
    simulation, choose = facts.Simulation(), random.Random(20240601)
    torch.cuda.init()
    before, kept, failed = simulation.used(), [], 0
    side = torch.cuda.Stream()
    for _ in range(1000):
        if choose.random() < 0.25:
            # So that there is something to ask the driver for.
            bfc.torch.empty_cache()
            nth = choose.randrange(1, 3)
            simulation.library.simcuda_fail(b"cuMemCreate", ctypes.c_uint64(nth), OUT_OF_MEMORY)
        size = int(2 ** choose.uniform(0, 25))
        try:
            with torch.cuda.stream(side if choose.random() < 0.3 else torch.cuda.current_stream()):
                kept.append(tensor(size))
        except torch.OutOfMemoryError as error:
            assert "memory of allocator" in str(error)
            failed += 1
        if kept and choose.random() < 0.45:
            kept.pop(choose.randrange(len(kept)))
        places = sorted((one.data_ptr(), one.data_ptr() + one.nbytes) for one in kept)
        assert all(end <= start for (_, end), (start, _) in zip(places, places[1:])), "two overlap"
        assert places == [] or places[0][0] != 0
    assert failed > 50 and simulation.library.simcuda_struck() > 10, (failed, simulation.library.simcuda_struck())
    own = bfc.stats(0)
    assert own.bytes_requested == sum(one.nbytes for one in kept)
    assert own.num_failures == failed == bfc.torch.memory_stats()["num_ooms"]
    simulation.library.simcuda_clear_faults()
    kept.clear()
    nothing_is_left(simulation, before)


def mem_pool_random_sizes():
    """A thousand requests in MemPools, which keep their segments as long as they live. The segments are from an allocator
    that was there before, whose limit is too small, and its driver fails too."""
    bfc.create(0, memory_limit=64 * MiB, name="segments")
    simulation, choose = facts.Simulation(), random.Random(20261121)
    torch.cuda.init()
    before, failed = simulation.used(), 0
    for _ in range(50):
        pool, kept = bfc.torch.mem_pool(), []
        for _ in range(20):
            if choose.random() < 0.2:
                nth = choose.randrange(1, 3)
                simulation.library.simcuda_fail(b"cuMemAlloc", ctypes.c_uint64(nth), OUT_OF_MEMORY)
            try:
                with torch.cuda.use_mem_pool(pool):
                    kept.append(tensor(int(2 ** choose.uniform(0, 25))))
            except torch.OutOfMemoryError as error:
                assert str(error).startswith("CUDA out of memory. Tried to allocate"), error
                failed += 1
            if kept and choose.random() < 0.3:
                kept.pop(choose.randrange(len(kept)))
            assert all(bfc.owner(one.data_ptr()) == 0 for one in kept)
            places = sorted((one.data_ptr(), one.data_ptr() + one.nbytes) for one in kept)
            assert all(end <= start for (_, end), (start, _) in zip(places, places[1:])), "two overlap"
        assert bfc.stats(0).bytes_requested == sum(segment["total_size"] for segment in pool.snapshot())
        kept.clear()
        del pool
        torch.cuda.empty_cache()
        # The next begins with the driver.
        nothing_is_left(simulation, before)
    struck, own = simulation.library.simcuda_struck(), bfc.stats(0)
    assert failed > 30 and struck > 50 and own.num_failures >= failed, (failed, struck, own)
    assert own.bytes_limit == 64 * MiB and own.num_allocs == own.num_frees


if __name__ == "__main__":
    globals()[sys.argv[1]]()
