"""Trains a small GPT on the device with one of the allocators, and writes what it saw as JSON. See README.md above.

    train.py --allocator {native,bfc,bfc_vmm,async} --out FILE

First some steps with deterministic kernels only, whose losses must not depend on who allocates. Then, with a new model and
PyTorch's usual kernels, the rounds that are timed. One process for each allocator, for PyTorch takes one for good.
"""

import argparse
import ctypes
import dataclasses
import gc
import importlib
import itertools
import json
import os
import platform
import statistics
import sys
import time

SEED = 20251121
SKIPPED = 77
# What PyTorch itself calls the allocator, libbfc's backend, and the one function of the driver that all memory is from.
ALLOCATORS = {
    "native": ("native", None, "cuMemAlloc"),
    "bfc": ("pluggable", "cuda", "cuMemAlloc"),
    "bfc_vmm": ("pluggable", "cuda_vmm", "cuMemCreate"),
    "async": ("cudaMallocAsync", None, "cuMemAllocAsync"),
}


def main():
    options = arguments()
    # All are read when CUDA comes to life.
    for name in ["PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_CUDA_ALLOC_CONF"]:
        os.environ.pop(name, None)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if options.allocator == "async":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    torch = imported("torch")
    if not torch.cuda.is_available():
        skip("PyTorch finds no device that it can use")
    memory = torch.cuda if ALLOCATORS[options.allocator][1] is None else libbfc(options.allocator)
    simulated = is_simulated()
    import gpt

    run = Run(torch, memory, gpt, simulated)
    told = {"allocator": options.allocator, "simulated": simulated, "machine": machine(torch)}
    told["losses"] = run.losses(2 if simulated else 20)
    run.clean()
    told["speed"] = run.speed(rounds=3, steps=2 if simulated else 20)
    told["is"] = what_it_is(torch, options.allocator)
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(told, file, indent=1)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--allocator", required=True, choices=ALLOCATORS)
    parser.add_argument("--out", required=True, help="the file to write")
    return parser.parse_args()


def skip(why):
    """Something that the program needs is not here. The reason is its last line."""
    print(why)
    sys.exit(SKIPPED)


def imported(name):
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # a library that it needs may be missing too
        skip(f"{name} is not here: {error!r}".splitlines()[0])


def libbfc(allocator):
    import bfc
    import bfc.torch
    from bfc._shim import ShimError

    backend = ALLOCATORS[allocator][1]
    try:
        # A device's allocator is created at its first allocation: too late to find out that there is no such backend.
        bfc.create(0, backend=backend, name=allocator)
    except bfc.Error as error:
        if error.name != "BFC_ERROR_BACKEND_UNAVAILABLE":
            raise
        skip(f"libbfc has no backend {backend} here: {error}".splitlines()[0])
    try:
        bfc.torch.use()
    except ShimError as error:
        skip(f"bfc.torch.use(): {error}".splitlines()[0])
    return bfc.torch


def is_simulated():
    """Whether the driver is ffi-tests/simcuda, whose kernels compute nothing."""
    return hasattr(ctypes.CDLL("libcuda.so.1"), "simcuda_calls")


def machine(torch):
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": platform.node(),
        "device": properties.name,
        "device bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def what_it_is(torch, allocator):
    """What PyTorch and the allocator say of themselves; they must say what was asked for."""
    name, backend, source = ALLOCATORS[allocator]
    said = {"torch": torch.cuda.get_allocator_backend()}
    assert said["torch"] == name, said
    if backend:
        import bfc

        said["libbfc"] = bfc.report(0).splitlines()[0]
        said["allocations"] = bfc.stats(0).num_allocs
        assert f"({backend} backend)" in said["libbfc"] and said["allocations"] > 0, said
    if is_simulated():
        driver = ctypes.CDLL("libcuda.so.1")
        driver.simcuda_calls.restype = ctypes.c_uint64
        calls = {call: driver.simcuda_calls(call.encode()) for _, _, call in ALLOCATORS.values()}
        said["driver's calls"] = {call: count for call, count in calls.items() if count}
        assert list(said["driver's calls"]) == [source], said
    return said


class Run:
    def __init__(self, torch, memory, gpt, simulated):
        self.torch, self.memory, self.gpt, self.simulated = torch, memory, gpt, simulated
        self.shape = gpt.TINY if simulated else gpt.FULL
        torch.cuda.init()
        self.free_at_first = self.least_free = torch.cuda.mem_get_info()[0]

    def begin(self, shape):
        """A model and its batches, always the same."""
        self.torch.manual_seed(SEED)
        model = self.gpt.Gpt(shape).to("cuda")
        optimizer = self.torch.optim.AdamW(model.parameters(), lr=3e-4)
        return model, optimizer, self.gpt.texts(shape, SEED)

    def losses(self, steps):
        """Of each step, to the last bit."""
        torch = self.torch
        torch.use_deterministic_algorithms(True)
        self.plain_attention(True)
        torch.set_float32_matmul_precision("highest")
        # Plain attention holds a number for each two words of a text: short texts.
        longest = min(self.shape.longest, 256)
        model, optimizer, texts = self.begin(dataclasses.replace(self.shape, longest=longest))
        found = []
        for batch in itertools.islice(texts, steps):
            found.append(self.step(model, optimizer, batch).item().hex())
            self.look()
        torch.use_deterministic_algorithms(False)
        return found

    def speed(self, rounds, steps):
        """Tokens per second of each round, after one that does not count, and the peaks of all of them."""
        torch = self.torch
        self.plain_attention(self.simulated)
        model, optimizer, texts = self.begin(self.shape)
        self.memory.reset_peak_memory_stats()
        self.least_free = self.free_at_first
        told = []
        for _ in range(1 + rounds):
            # A copy from the host would wait for the step before it.
            batches = [batch.to("cuda") for batch in itertools.islice(texts, steps)]
            torch.cuda.synchronize()
            start = time.perf_counter()
            for batch in batches:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    self.step(model, optimizer, batch)
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            told.append(sum(batch[:, 1:].numel() for batch in batches) / seconds)
            self.look()
        return {
            "tokens per second": statistics.median(told[1:]),
            "rounds": told[1:],
            "peak allocated": self.memory.max_memory_allocated(),
            "peak reserved": self.memory.max_memory_reserved(),
            # After rounds only; what a pool took and gave back in between is not seen. With the modules of kernels.
            "peak taken of the device": self.free_at_first - self.least_free,
        }

    def step(self, model, optimizer, batch):
        optimizer.zero_grad(set_to_none=True)
        loss = model.loss(batch.to("cuda"))
        loss.backward()
        optimizer.step()
        return loss.detach()

    def look(self):
        self.least_free = min(self.least_free, self.torch.cuda.mem_get_info()[0])

    def plain_attention(self, wanted):
        """The fused kinds of attention sum in any order, and ask their kernels for sizes."""
        cuda = self.torch.backends.cuda
        for enable in [cuda.enable_flash_sdp, cuda.enable_mem_efficient_sdp, cuda.enable_cudnn_sdp]:
            enable(not wanted)

    def clean(self):
        gc.collect()
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
