"""Trains small models on CUDA and tells what can be seen of memory, as JSON. See README.md.

No result of a kernel is looked at, for on the simulated driver kernels compute nothing. Copies between the host and the
device are real there, and are looked at.
"""

import argparse
import json
import os
import random
import sys

import torch
from torch import nn

import facts
import pluggable
from models import CLASSES, Convolution, Perceptron, Transformer

SEED = 20240601
STEPS = 8
MiB = 1 << 20


def main():
    options = arguments()
    torch.manual_seed(SEED)
    facts.plain_kernels()
    simulation = facts.Simulation()
    ours = None
    if options.pluggable:
        without = "set_begin_allocate_to_pool" if options.mutate == "pools" else None
        scope = pluggable.use(options.pluggable, without)
        ours = pluggable.Library(options.pluggable)
    if options.package:
        import bfc.torch

        bfc.torch.use()
        ours = pluggable.Library(str(bfc.library_path()))
    torch.cuda.init()
    facts.begin()
    if is_native():
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=1_000_000)
    first_use()
    facts.clean()
    before, used_before, calls_before = torch.cuda.mem_get_info(), simulation.used(), simulation.calls()

    same = {"device": device(), "copies arrive": copies_arrive(), "on streams": on_streams(), "training": {}}
    taken = {}
    for model in [Perceptron(1100 if options.mutate == "size" else 1024), Transformer(), Convolution()]:
        name = type(model).__name__
        same["training"][name] = train(model, ours)
        taken[name] = before[0] - torch.cuda.mem_get_info()[0]
    del model
    if is_native() and is_cached():
        same["captured"] = captured()
    seen = {}
    if ours:
        seen["libbfc, while it is used"] = ours.facts(simulation)
        report = bfc.torch.report().splitlines()[0] if options.package else pluggable.report(scope)
        seen["report"] = report
        same["captured"] = pluggable.captured(Perceptron(256), Perceptron.inputs)
    kept = torch.empty(3 * MiB, dtype=torch.uint8, device="cuda") if options.mutate == "leak" else None
    same["out of memory"] = out_of_memory()
    facts.clean()
    if options.mem_pool:
        in_pool = lambda: train(Perceptron())["storages"]
        same["in a MemPool of libbfc"] = pluggable.mem_pool(options.mem_pool, in_pool)
        facts.clean()
    same["statistics"] = statistics()
    same["segments"] = facts.segments() if is_native() else []
    same["leaked"] = before[0] - torch.cuda.mem_get_info()[0]

    calls = {name: count - calls_before[name] for name, count in simulation.calls().items()}
    seen.update({"calls": calls, "calls before": calls_before, "live": simulation.live()})
    seen.update({"used before": used_before, "used after": simulation.used()})
    seen.update({"taken after training": taken, "faults": simulation.faults()})
    if ours:
        seen["libbfc, in the end"] = ours.facts(simulation)
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({"same": same, "seen": seen}, file, indent=1)
    del kept


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="the file to write")
    parser.add_argument("--pluggable", metavar="LIBRARY", help="libbfc.so, for all of PyTorch's memory")
    parser.add_argument("--package", action="store_true", help="bfc.torch.use(), for all of PyTorch's memory")
    parser.add_argument("--mem-pool", metavar="LIBRARY", help="libbfc.so, for that of a MemPool")
    parser.add_argument("--mutate", choices=["leak", "size", "pools"], help="a fault that the suite has to find")
    return parser.parse_args()


def is_native():
    """Whether PyTorch's own allocator is on; else it is cudaMallocAsync's pool."""
    return torch.cuda.get_allocator_backend() == "native"


def is_cached():
    return os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") is None


def statistics():
    """Those of cudaMallocAsync's pool are the driver's affair."""
    return facts.statistics() if is_native() else {}


def device():
    properties = torch.cuda.get_device_properties(0)
    return {
        "count": torch.cuda.device_count(),
        "name": properties.name,
        "capability": list(torch.cuda.get_device_capability()),
        "bytes": properties.total_memory,
        "total": torch.cuda.mem_get_info()[1],
    }


def first_use():
    """What comes to life with the first product of matrices stays: handles and their memory are not leaked."""
    ones = torch.ones(8, 8, device="cuda", requires_grad=True)
    (ones @ ones).sum().backward()
    torch.cuda.synchronize()


def copies_arrive():
    """Data through the device and back, in pieces of many sizes, from pageable and from pinned memory."""
    choose = random.Random(SEED)
    kept = []
    for _ in range(60):
        data = torch.randint(0, 256, (choose.randrange(1, 2 * MiB),), dtype=torch.uint8)
        there = (data.pin_memory() if choose.random() < 0.5 else data).to("cuda", non_blocking=True)
        kept.append((data, there.clone() if choose.random() < 0.5 else there))
        if len(kept) > 20:
            kept.pop(choose.randrange(len(kept)))
    torch.cuda.synchronize()
    return all(torch.equal(data, there.cpu()) for data, there in kept)


def on_streams():
    """Memory of one stream that another uses: record_stream, with and without events between them."""
    choose = random.Random(SEED + 1)
    streams = [torch.cuda.Stream(), torch.cuda.Stream(priority=-1)]
    with facts.Storages() as storages:
        for _ in range(40):
            stream = choose.choice(streams)
            tensor = torch.empty(choose.randrange(1, 3 * MiB), dtype=torch.uint8, device="cuda")
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                other = tensor.clone()
                tensor.record_stream(stream)
                event = torch.cuda.Event()
                event.record()
            del tensor
            event.wait()
            other.record_stream(torch.cuda.current_stream())
            del other
    torch.cuda.synchronize()
    return storages.facts()


def requested(ours):
    """How often memory was asked for, and the most that was there at a time of what was asked for, by the allocator's
    books; of the native one if its cache is on, or of libbfc."""
    if ours:
        statistics = ours.statistics()
        return {"allocations": statistics.num_allocs, "peak": statistics.peak_bytes_requested}
    if not is_native() or not is_cached():
        return None
    statistics = torch.cuda.memory_stats()
    return {
        "allocations": statistics["allocation.all.allocated"],
        "peak": statistics["requested_bytes.all.peak"],
    }


def reset_requested(ours):
    if ours:
        ours.reset_statistics()
    else:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()


def train(model, ours=None):
    """Some steps with Adam. The batches' sizes are random, and the same at every run."""
    choose = random.Random(SEED)
    model = model.to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    reset_requested(ours)
    with facts.Storages() as storages:
        for _ in range(STEPS):
            batch = model.batch(choose).to("cuda", non_blocking=True)
            labels = torch.zeros(len(batch), dtype=torch.long).to("cuda") % CLASSES
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(batch), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    torch.cuda.synchronize()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    told = {"parameters": parameters, "storages": storages.facts(), "statistics": statistics()}
    return told | {"requested": requested(ours)}


def captured():
    """A captured graph with its private pool, and a MemPool: what both hold is theirs until they are gone."""
    model = Perceptron(256).to("cuda").eval()
    rows = torch.zeros(64, Perceptron.inputs, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        model(rows)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = model(rows)
    for _ in range(3):
        graph.replay()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(5 * MiB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    of_pool = [segment["total_size"] for segment in pool.snapshot()]
    held = statistics()
    del graph, result, tensor, pool
    facts.clean()
    return {"held": held, "in the pool": of_pool, "afterwards": statistics()}


def out_of_memory():
    """A request that no device has, what is raised, and that the next request is served as if nothing had been."""
    told = []
    for size in [1 << 40, torch.cuda.mem_get_info()[1] + 1]:
        try:
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            told.append("served" if tensor.data_ptr() else "address 0")
        except Exception as error:  # whatever it is, that is the fact
            told.append({"type": type(error).__name__, "words": str(error)})
    after = torch.full((1000,), 7.0).to("cuda")
    return {"told": told, "served afterwards": after.cpu().eq(7.0).all().item()}


if __name__ == "__main__":
    sys.exit(main())
