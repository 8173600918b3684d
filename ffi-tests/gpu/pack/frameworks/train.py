"""Trains two models on the device with one allocator, and writes losses, speed and memory as JSON.

    train.py --allocator {native,expandable,async,bfc,bfc_vmm,bfc_default} --out FILE [--steps N]

First a GPT in float32 with deterministic kernels only, whose losses must not depend on the allocator. Then, with new models,
bfloat16 by autocast and PyTorch's usual kernels, a GPT with texts of many lengths and a residual network with batches of many
sizes. Inputs and the number of steps are the same for every allocator, so that their memory can be compared. Last, what an
allocation and its free cost."""

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import time

import torch_with
from outcome import is_simulated
from torch_with import ALLOCATORS

SEED = 20251121
DETERMINISTIC_STEPS = 20


def main():
    options = arguments()
    # Read when cuBLAS is initialized; needed for deterministic kernels.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch, memory = torch_with.load(options.allocator)
    # They import PyTorch.
    import alloc_costs
    import resnet
    import gpt

    simulated = is_simulated()
    run = Run(torch, memory, simulated, options.steps)
    found = {"allocator": options.allocator, "simulated": simulated, "machine": machine(torch)}
    found["losses"] = run.losses(gpt, 2 if simulated else DETERMINISTIC_STEPS)
    for name, model in {"gpt": gpt, "resnet": resnet}.items():
        found[name] = run.speed(model)
    found["costs"] = alloc_costs.measure(torch, ALLOCATORS[options.allocator].label)
    found["is"] = identity(torch, options.allocator)
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--allocator", required=True, choices=ALLOCATORS)
    parser.add_argument("--out", required=True, help="the file to write")
    parser.add_argument("--steps", type=int, help="timed steps of each model [60, on the simulated driver 2]")
    return parser.parse_args()


def machine(torch):
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "device bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def identity(torch, name):
    """What PyTorch, libbfc and the simulated driver say about the allocator. It must be the one that was asked for."""
    allocator = ALLOCATORS[name]
    said = {"torch": torch.cuda.get_allocator_backend()}
    assert said["torch"] == allocator.name, said
    if name in ("native", "expandable"):
        said["expandable"] = any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
        assert said["expandable"] == (name == "expandable"), said
    if allocator.use is not None:
        import bfc

        said["libbfc"] = bfc.report(0).splitlines()[0]
        said["allocations"] = bfc.stats(0).num_allocs
        assert f"({allocator.use.get('backend', '')}" in said["libbfc"] and said["allocations"] > 0, said
    if is_simulated():
        import ctypes

        driver = ctypes.CDLL("libcuda.so.1")
        driver.simcuda_calls.restype = ctypes.c_uint64
        calls = {source: driver.simcuda_calls(source.encode()) for source in {each.source for each in ALLOCATORS.values()}}
        said["driver calls"] = {source: count for source, count in calls.items() if count}
        assert list(said["driver calls"]) == [allocator.source], said
    return said


class Run:
    def __init__(self, torch, memory, simulated, steps):
        self.torch, self.memory, self.simulated, self.steps = torch, memory, simulated, steps
        torch.cuda.init()
        self.clean()
        self.free_at_first = torch.cuda.mem_get_info()[0]

    def losses(self, model, steps):
        """Returns the loss of each step as a hexadecimal number, which is exact."""
        torch = self.torch
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("highest")
        # Plain attention holds a number for each pair of words.
        shape = self.shape(model)
        shape = model.dataclasses.replace(shape, longest=min(shape.longest, 256))
        with self.plain_attention():
            network, optimizer = self.begin(model, shape)
            batches = model.batches(shape, steps, SEED)
            found = [self.step(model, network, optimizer, batch).item().hex() for batch in batches]
        torch.use_deterministic_algorithms(False)
        return found

    def speed(self, model):
        """Trains a model with kernels as PyTorch chooses them. Returns speed and memory, in bytes."""
        torch, memory = self.torch, self.memory
        warm_up, steps = (1, self.steps or 2) if self.simulated else (model.WARM_UP, self.steps or model.STEPS)
        shape = self.shape(model)
        self.clean()
        memory.reset_peak_memory_stats()
        network, optimizer = self.begin(model, shape)
        # All of them now: a copy from the host would wait for the step before it.
        batches = model.batches(shape, warm_up + steps, SEED)
        with self.plain_attention() if self.simulated else contextlib.nullcontext():
            for batch in batches[:warm_up]:
                self.autocast_step(model, network, optimizer, batch)
            torch.cuda.synchronize()
            events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
            begin = time.perf_counter()
            events[0].record()
            for batch, event in zip(batches[warm_up:], events[1:]):
                self.autocast_step(model, network, optimizer, batch)
                event.record()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begin
        times = [earlier.elapsed_time(later) for earlier, later in zip(events, events[1:])]
        twentieths = statistics.quantiles(times, n=20, method="inclusive")
        allocated, reserved = memory.max_memory_allocated(), memory.max_memory_reserved()
        return {
            "items": model.ITEMS,
            "steps": steps,
            "items per second": sum(map(model.items, batches[warm_up:])) / seconds,
            "median ms": statistics.median(times),
            "5th percentile ms": twentieths[0],
            "95th percentile ms": twentieths[-1],
            "peak allocated": allocated,
            "peak reserved": reserved,
            "reserved over allocated": reserved / allocated,
            # Since CUDA was initialized. No allocator gives memory back by itself while a model is trained, so this is the
            # peak. It includes the code of kernels, as much for each allocator.
            "taken of the device": self.free_at_first - torch.cuda.mem_get_info()[0],
        }

    def shape(self, model):
        return model.TINY if self.simulated else model.FULL

    def begin(self, model, shape):
        """A model and its optimizer. The device's generator makes the weights, the same for each seed."""
        self.torch.manual_seed(SEED)
        with self.torch.device("cuda"):
            return model.training(shape)

    def step(self, model, network, optimizer, batch):
        optimizer.zero_grad(set_to_none=True)
        loss = network.loss(*model.arguments(batch))
        loss.backward()
        optimizer.step()
        return loss.detach()

    def autocast_step(self, model, network, optimizer, batch):
        with self.torch.autocast("cuda", dtype=self.torch.bfloat16):
            self.step(model, network, optimizer, batch)

    def plain_attention(self):
        """Fused kernels of attention add in any order, and ask the device for its properties."""
        attention = self.torch.nn.attention
        return attention.sdpa_kernel(attention.SDPBackend.MATH)

    def clean(self):
        """What the training before it has left is no longer held."""
        gc.collect()
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
