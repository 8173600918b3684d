"""One program with one allocator, in a process of its own: prints what it took, as JSON. compare.py starts it."""

import json
import mmap
import resource
import sys
import time

import programs

# Steps whose results are compared. The first is the cold one.
COMPARED = 3


def resident():
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


def highest():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def use_libbfc(program):
    if program in programs.WITH_TORCH:
        import bfc.torch_cpu as client
    elif program is programs.arrow_query:
        import bfc.arrow as client
    elif program in programs.WITH_TENSORFLOW:
        import bfc.tensorflow as client
    elif program in programs.WITH_ONNX:
        import bfc.onnxruntime as client

        programs.session_options = client.session_options
    else:
        import bfc.numpy as client

        # NumPy has its allocator in a context variable: a new thread begins with the default.
        programs.in_each_thread = client.use
    client.use()


def main():
    name, allocator, seconds = sys.argv[1:]
    program = programs.ALL[name]
    if program in programs.WITH_TORCH:
        import torch

        torch.set_num_threads(2)
    if allocator == "libbfc":
        use_libbfc(program)
    step = program()
    results, times, residents = [], [], []
    before = faults()
    for _ in range(COMPARED):
        began = time.perf_counter()
        results.append(step())
        times.append(time.perf_counter() - began)
    warm = faults()
    end = time.perf_counter() + float(seconds)
    while time.perf_counter() < end or len(times) < COMPARED + 3:
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
        residents.append(resident())
    steps = times[COMPARED:]
    print(
        json.dumps(
            {
                "results": results,
                "cold": times[0],
                "steps": steps,
                "faults_at_first": warm - before,
                "faults_a_step": (faults() - warm) / len(steps),
                "resident": sum(residents) / len(residents),
                "highest": highest(),
            }
        )
    )


if __name__ == "__main__":
    main()
