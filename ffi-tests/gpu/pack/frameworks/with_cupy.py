"""CuPy with bfc.cupy: kernels, reductions, arrays that are freed while kernels of several streams run, products, and running
out of memory. Its results must be numpy's.

    with_cupy.py              memory belongs to the stream of its allocation, which reuses it at once
    with_cupy.py by_anyone    memory belongs to no stream and is reused after a synchronization (use(streams=False))
"""

import pathlib
import sys

# Most of what is computed is that of the program for the interposer.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "interposed"))
import with_cupy as program

cupy, numpy = program.cupy, program.numpy

import bfc
import bfc.cupy

MiB = 1 << 20
LIMIT = 512 * MiB

SAXPY = r"""
extern "C" __global__ void saxpy(int a, const int *x, int *y, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) y[i] += a * x[i];
}
"""


def main():
    bfc.cupy.use(memory_limit=LIMIT, streams=sys.argv[1:] != ["by_anyone"])
    results = program.Results()
    for part in [own_kernel, program.on_streams, program.whole_numbers, program.products]:
        part(results)
        cupy.cuda.Device().synchronize()
    out_of_memory(results)
    found = bfc.stats(0)
    if cupy.get_default_memory_pool().total_bytes():
        results.errors.append("CuPy's own pool has memory")
    # Each array is a request to libbfc.
    if found.num_allocs < results.arrays:
        results.errors.append(f"libbfc served {found.num_allocs} requests for at least {results.arrays} arrays")
    bfc.check(0)
    print(bfc.report(0).splitlines()[0])
    program.finish(results.errors[:20], found.num_allocs, [f"results: {results.hash.hexdigest()}"])


def own_kernel(results):
    """A kernel that CuPy compiles, on arrays of many sizes."""
    saxpy = cupy.RawKernel(SAXPY, "saxpy")
    choose = numpy.random.default_rng(program.SEED + 2)
    for count in [1, 31, 1000, 65_537, MiB + 3]:
        x, y = (choose.integers(-1000, 1000, count, dtype=numpy.int32) for _ in range(2))
        there = cupy.asarray(y)
        saxpy((64,), (256,), (numpy.int32(7), cupy.asarray(x), there, numpy.int32(count)))
        results.compare(f"saxpy of {count}", cupy.asnumpy(there), y + 7 * x)
        results.arrays += 2


def out_of_memory(results):
    """A failed request raises CuPy's exception with libbfc's report, and later requests succeed."""
    ones = numpy.ones(LIMIT // 2, dtype=numpy.uint8)
    kept = cupy.asarray(ones)
    try:
        cupy.empty(LIMIT, dtype=numpy.uint8)
        results.errors.append(f"{LIMIT} bytes were served although only half of that is free")
    except cupy.cuda.memory.OutOfMemoryError as error:
        if "largest free chunk" not in str(error):
            results.errors.append(f"the message lacks libbfc's report: {error}")
    results.compare("the array made before", cupy.asnumpy(kept), ones)
    del kept
    results.compare("an array made afterwards", cupy.asnumpy(cupy.asarray(ones)), ones)
    results.arrays += 2


if __name__ == "__main__":
    main()
