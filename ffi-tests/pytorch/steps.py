"""Whole training steps of transformers' models, and what else PyTorch does with memory, as numbers in JSON. See README.md.

`steps.py SCENARIO... --out FILE`, with `--libbfc` where bfc.torch.use() is to be called first. No result of a kernel is looked
at, for on the simulated driver kernels compute nothing.
"""

import argparse
import gc
import json
import os
import random

import torch

import bfc.torch
import facts
import scenarios
from transformer_models import MODELS

SEED = 20251121
STEPS = 5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("scenarios", nargs="+", choices=SCENARIOS)
    parser.add_argument("--out", required=True, help="the file to write")
    parser.add_argument("--libbfc", action="store_true", help="libbfc in the place of PyTorch's own allocator")
    parser.add_argument("--limit", type=int, help="bytes that libbfc may hold")
    parser.add_argument("--mutate", action="store_true", help="with faults, which the suite has to find")
    options = parser.parse_args()
    facts.plain_kernels()
    simulation = facts.Simulation()
    used = bfc.torch.use(memory_limit=options.limit) if options.libbfc else None
    torch.cuda.init()
    facts.begin()
    before = simulation.used()
    books = Books(bfc.torch if options.libbfc else torch.cuda)
    run = Run(books, simulation, used, options.mutate)
    same, seen = {}, {}
    for name in options.scenarios:
        same[name], seen[name] = {}, {}
        SCENARIOS[name](run, same[name], seen[name])
        facts.clean()
    seen["in use at the end"] = simulation.used() - before
    seen["faults"] = simulation.faults()
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({"same": same, "seen": seen}, file, indent=1)


class Run:
    """What a scenario is given."""

    def __init__(self, books, simulation, used, mutate):
        self.books, self.simulation, self.used, self.mutate = books, simulation, used, mutate
        # Until the process ends.
        self.kept = []


class Books:
    """An allocator's statistics: of PyTorch's own by torch.cuda, of libbfc's by bfc.torch, whose functions have the same
    names."""

    KEYS = {
        "allocations": "allocation.all.allocated",
        "frees": "allocation.all.freed",
        "live": "allocation.all.current",
        "requested": "requested_bytes.all.current",
        "peak requested": "requested_bytes.all.peak",
    }

    def __init__(self, module):
        self.module = module

    def reset(self):
        facts.clean()
        self.module.reset_peak_memory_stats()
        self.module.reset_accumulated_memory_stats()

    def requested(self):
        """What must not depend on who allocates."""
        found = self.module.memory_stats()
        return {name: found[key] for name, key in self.KEYS.items()}

    def peaks(self):
        """What is better the lower it is."""
        found = self.module.memory_stats()
        return {"requested": found["requested_bytes.all.peak"], "reserved": found["reserved_bytes.all.peak"]}

    def raw(self):
        """libbfc's own account of the same, without bfc.torch."""
        found = bfc.stats(0)
        return {
            "allocations": found.num_allocs,
            "frees": found.num_frees,
            "live": found.num_chunks - found.num_free_chunks,
            "requested": found.bytes_requested,
            "peak requested": found.peak_bytes_requested,
        }


def train(make):
    """Forward, backward and AdamW on batches of random sizes, the same ones at every run. The model is made on the device, so
    that the host need not compute its first weights."""
    torch.manual_seed(SEED)
    choose = random.Random(SEED)
    with torch.device("cuda"):
        model, batch_of = make()
    optimizer = torch.optim.AdamW(model.train().parameters())
    with facts.Storages() as storages:
        for _ in range(STEPS):
            batch = {name: part.to("cuda", non_blocking=True) for name, part in batch_of(choose).items()}
            optimizer.zero_grad(set_to_none=True)
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    torch.cuda.synchronize()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": parameters, "storages": storages.facts()}


def training(run, same, seen):
    """Each model by itself."""
    for name, make in MODELS.items():
        run.books.reset()
        same[name] = train(make)
        torch._C._cuda_clearCublasWorkspaces()
        gc.collect()
        same[name]["requested"] = run.books.requested()
        seen[name] = {"peaks": run.books.peaks()}
        if run.used:
            backend = os.environ.get("BFC_BACKEND", "cuda_vmm")
            assert f"on device 0 ({backend} backend)" in bfc.report(0), bfc.report(0)
            seen[name]["raw"] = run.books.raw()
            seen[name]["pool"] = {"held": bfc.stats(0).pool_bytes, "of the device": run.simulation.used()}


def mem_pool(run, same, seen):
    """PyTorch's own allocator, which takes what is in a MemPool from libbfc."""
    pool = bfc.torch.mem_pool()
    with torch.cuda.use_mem_pool(pool):
        same["GPT-2"] = train(MODELS["GPT-2"])
    torch.cuda.synchronize()
    segments = sum(segment["total_size"] for segment in pool.snapshot())
    seen["segments"] = {"of the pool": segments, "of libbfc": bfc.stats(0).bytes_requested}
    try:
        with torch.cuda.use_mem_pool(pool):
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except Exception as error:  # whatever it is, that is the fact
        seen["out of memory"] = type(error).__name__
    del pool
    facts.clean()
    bfc._library.lib.bfc_torch_reset()
    seen["held at the end"] = bfc.stats(0).pool_bytes


SCENARIOS = {"training": training, "mem_pool": mem_pool} | scenarios.SCENARIOS

if __name__ == "__main__":
    main()
