"""CuPy with bfc.cupy: kernels, reductions, arrays that are freed while kernels of several streams run, products, and running
out of memory. What it computes is what numpy does. `with_cupy.py [by_anyone]`: the second way of bfc.cupy.use()."""

import pathlib
import sys

# The program that runs with the interposer: what it computes is to be the same here.
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
    book = program.Book()
    for part in [own_kernel, program.on_streams, program.whole_numbers, program.products]:
        part(book)
        cupy.cuda.Device().synchronize()
    out_of_memory(book)
    found = bfc.stats(0)
    if cupy.get_default_memory_pool().total_bytes():
        book.wrong.append("CuPy's own pool has something")
    # Of what a program without a pool asks the driver for, each is a request of ours.
    if found.num_allocs < book.arrays:
        book.wrong.append(f"of at least {book.arrays} arrays libbfc has served {found.num_allocs}")
    bfc.check(0)
    print(bfc.report(0).splitlines()[0])
    program.finish(book.wrong[:20], found.num_allocs, [f"results: {book.hash.hexdigest()}"])


def own_kernel(book):
    """A kernel that CuPy compiles, on arrays of many sizes."""
    saxpy = cupy.RawKernel(SAXPY, "saxpy")
    choose = numpy.random.default_rng(program.SEED + 2)
    for count in [1, 31, 1000, 65_537, MiB + 3]:
        x, y = (choose.integers(-1000, 1000, count, dtype=numpy.int32) for _ in range(2))
        there = cupy.asarray(y)
        saxpy((64,), (256,), (numpy.int32(7), cupy.asarray(x), there, numpy.int32(count)))
        book.compare(f"saxpy of {count}", cupy.asnumpy(there), y + 7 * x)
        book.arrays += 2


def out_of_memory(book):
    """CuPy's exception with our report, and then it goes on."""
    ones = numpy.ones(LIMIT // 2, dtype=numpy.uint8)
    kept = cupy.asarray(ones)
    try:
        cupy.empty(LIMIT, dtype=numpy.uint8)
        book.wrong.append(f"{LIMIT} bytes were served, and there are half as many")
    except cupy.cuda.memory.OutOfMemoryError as error:
        if "largest free chunk" not in str(error):
            book.wrong.append(f"libbfc's report is not in: {error}")
    book.compare("what was there before", cupy.asnumpy(kept), ones)
    del kept
    book.compare("what came afterwards", cupy.asnumpy(cupy.asarray(ones)), ones)
    book.arrays += 2


if __name__ == "__main__":
    main()
