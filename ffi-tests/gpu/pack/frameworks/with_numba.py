"""Numba with bfc.numba: kernels of @cuda.jit on several streams, one with shared memory, and running out of memory. Its results
must be numpy's."""

import os
import pathlib
import random
import sys

os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "bfc.numba"

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "interposed"))
from outcome import finish, first_line, skip

try:
    import numpy
    from numba import cuda, int64
    from numba.cuda.cudadrv.driver import CudaAPIError

    is_available = cuda.is_available()
except Exception as error:  # numba-cuda loads the CUDA runtime and NVVM, its compiler
    skip(f"Numba cannot be used ({first_line(error)}): pip install numba-cuda[cu13], or install the CUDA toolkit")
if not is_available:
    skip("Numba finds no device: check that nvidia-smi lists one")

import bfc

SEED = 20251121
STREAMS = 4
KEPT = 12
STEPS = 200
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
    """The sum of each block's part, in shared memory. The order of integers does not matter."""
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
    errors = []
    asked = on_streams(errors) + reductions(errors) + out_of_memory(errors)
    cuda.synchronize()
    served = bfc.stats(0).num_allocs
    if served < asked:
        errors.append(f"libbfc served {served} requests for at least {asked} arrays")
    bfc.check(0)
    print(bfc.report(0).splitlines()[0])
    finish(errors[:20], served)


def blocks(count):
    return (count + THREADS - 1) // THREADS


def on_streams(errors):
    """Frees arrays while kernels of their streams may still run, and makes others that may get their memory."""
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
            check(errors, *kept.pop(choose.randrange(len(kept))))
    for entry in kept:
        check(errors, *entry)
    return 2 * STEPS


def check(errors, step, stream, host, a, y):
    found = y.copy_to_host(stream=stream)
    stream.synchronize()
    expected = host + 5 * a * host
    if not numpy.array_equal(found, expected):
        errors.append(f"step {step}: {numpy.count_nonzero(found != expected)} of {found.size} values are wrong")


def reductions(errors):
    sizes = [1, 127, 1000, 65_537, MiB]
    for count in sizes:
        host = numpy.random.default_rng(count).integers(-1000, 1000, count, dtype=numpy.int64)
        out = cuda.device_array(blocks(count), dtype=numpy.int64)
        sums[blocks(count), THREADS](cuda.to_device(host), out)
        if out.copy_to_host().sum() != host.sum():
            errors.append(f"the sum of {count} values is wrong")
    return 2 * len(sizes)


def out_of_memory(errors):
    """A failed request raises Numba's exception with libbfc's report, and later requests succeed."""
    kept = cuda.to_device(numpy.ones(LIMIT // 2, dtype=numpy.uint8))
    try:
        cuda.device_array(LIMIT, dtype=numpy.uint8)
        errors.append(f"{LIMIT} bytes were served although only half of that is free")
    except CudaAPIError as error:
        if "CUDA_ERROR_OUT_OF_MEMORY" not in str(error) or "largest free chunk" not in str(error):
            errors.append(f"the message lacks libbfc's report: {error}")
    if not kept.copy_to_host().all():
        errors.append("an array made before has changed")
    del kept
    if not numpy.array_equal(cuda.to_device(numpy.arange(MiB)).copy_to_host(), numpy.arange(MiB)):
        errors.append("an array made afterwards has wrong values")
    return 2


if __name__ == "__main__":
    main()
