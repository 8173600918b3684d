"""Numba with bfc.numba: kernels of @cuda.jit on several streams, with shared memory too, and running out of memory. What it
computes is what numpy does."""

import os
import pathlib
import random
import sys

os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "bfc.numba"

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "interposed"))
from outcome import finish, skip

try:
    import numpy
    from numba import cuda, int64
    from numba.cuda.cudadrv.driver import CudaAPIError
except (ImportError, OSError) as error:  # a library that it needs may be missing too
    skip(f"Numba is not here: {error!r}".splitlines()[0])
if not cuda.is_available():
    skip("Numba finds no device that it can use")

import bfc

SEED = 20251121
STREAMS = 4
KEPT = 12
STEPS = 300
MiB = 1 << 20
LIMIT = 512 * MiB
THREADS = 128


@cuda.jit
def saxpy(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += a * x[i]


@cuda.jit
def sums(x, out):
    """The sum of each block's share, by way of shared memory. Whole numbers, so the order does not matter."""
    shared = cuda.shared.array(128, int64)
    i, thread = cuda.grid(1), cuda.threadIdx.x
    shared[thread] = x[i] if i < x.size else 0
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if thread < half:
            shared[thread] += shared[thread + half]
        cuda.syncthreads()
        half //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = shared[0]


def main():
    bfc.create(0, memory_limit=LIMIT)
    manager = type(cuda.current_context().memory_manager)
    assert manager.__module__ == "bfc.numba", manager
    wrong = []
    asked = on_streams(wrong) + reductions(wrong) + out_of_memory(wrong)
    cuda.synchronize()
    served = bfc.stats(0).num_allocs
    if served < asked:
        wrong.append(f"of at least {asked} arrays libbfc has served {served}")
    bfc.check(0)
    print(bfc.report(0).splitlines()[0])
    finish(wrong[:20], served, [])


def blocks(count):
    return (count + THREADS - 1) // THREADS


def on_streams(wrong):
    """Arrays that are dropped while kernels of their stream may still run, and others that get their memory."""
    choose = random.Random(SEED)
    streams = [cuda.stream() for _ in range(STREAMS)]
    kept = []
    for step in range(STEPS):
        stream = streams[step % STREAMS]
        count, a = choose.randrange(1, 1 << choose.randrange(1, 21)), choose.randrange(1000)
        host = numpy.random.default_rng(step).integers(-1000, 1000, count, dtype=numpy.int64)
        x, y = cuda.to_device(host, stream=stream), cuda.to_device(host, stream=stream)
        for _ in range(5):
            saxpy[blocks(count), THREADS, stream](a, x, y)
        del x
        kept.append((step, stream, host, a, y))
        del y
        if len(kept) > KEPT:
            look_at(wrong, *kept.pop(choose.randrange(len(kept))))
    for entry in kept:
        look_at(wrong, *entry)
    return 2 * STEPS


def look_at(wrong, step, stream, host, a, y):
    found = y.copy_to_host(stream=stream)
    stream.synchronize()
    expected = host + 5 * a * host
    if not numpy.array_equal(found, expected):
        wrong.append(f"step {step}: {numpy.count_nonzero(found != expected)} of {found.size} values are wrong")


def reductions(wrong):
    sizes = [1, 127, 1000, 65_537, MiB]
    for count in sizes:
        host = numpy.random.default_rng(count).integers(-1000, 1000, count, dtype=numpy.int64)
        out = cuda.device_array(blocks(count), dtype=numpy.int64)
        sums[blocks(count), THREADS](cuda.to_device(host), out)
        if out.copy_to_host().sum() != host.sum():
            wrong.append(f"the sum of {count}")
    return 2 * len(sizes)


def out_of_memory(wrong):
    """Numba's exception with our report, and then it goes on."""
    kept = cuda.to_device(numpy.ones(LIMIT // 2, dtype=numpy.uint8))
    try:
        cuda.device_array(LIMIT, dtype=numpy.uint8)
        wrong.append(f"{LIMIT} bytes were served, and there are half as many")
    except CudaAPIError as error:
        if "CUDA_ERROR_OUT_OF_MEMORY" not in str(error) or "largest free chunk" not in str(error):
            wrong.append(f"libbfc's report is not in: {error}")
    if not kept.copy_to_host().all():
        wrong.append("what was there before has changed")
    del kept
    if not numpy.array_equal(cuda.to_device(numpy.arange(MiB)).copy_to_host(), numpy.arange(MiB)):
        wrong.append("what came afterwards is wrong")
    return 2


if __name__ == "__main__":
    main()
