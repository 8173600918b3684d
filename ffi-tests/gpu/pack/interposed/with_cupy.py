"""CuPy without its memory pool: each array is a cudaMalloc and a cudaFree. Its results must be numpy's."""

import hashlib
import random

from outcome import finish, first_line, skip

try:
    import cupy
    import numpy
except Exception as error:  # a library that CuPy loads may be missing too
    skip(f"CuPy cannot be imported ({first_line(error)}): pip install cupy-cuda13x")
try:
    count = cupy.cuda.runtime.getDeviceCount()
except Exception as error:
    skip(f"CuPy finds no device ({first_line(error)}): check that nvidia-smi lists one")
if count == 0:
    skip("CuPy finds no device: check that nvidia-smi lists one")

SEED = 20240601
STEPS = 400
STREAMS = 4
KEPT = 12
MOST = 1 << 20

WAIT = r"""
extern "C" __global__ void wait_a_while(unsigned long long nanoseconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}
"""


class Results:
    """What was wrong, a hash of all values, and how many arrays were made at least."""

    def __init__(self):
        self.errors, self.hash, self.arrays = [], hashlib.sha256(), 0

    def compare(self, what, found, expected):
        self.hash.update(numpy.ascontiguousarray(found).tobytes())
        if not numpy.array_equal(found, expected):
            self.errors.append(f"{what}: {numpy.count_nonzero(found != expected)} of {found.size} values are wrong")


def main():
    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
    results = Results()
    on_streams(results)
    whole_numbers(results)
    products(results)
    cupy.cuda.Device().synchronize()
    finish(results.errors[:20], results.arrays, [f"results: {results.hash.hexdigest()}"])


def on_streams(results):
    """Frees arrays while kernels of their streams still run, and makes others that may get their memory. Some results stay
    for a while."""
    choose = random.Random(SEED)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(STREAMS)]
    wait = cupy.RawKernel(WAIT, "wait_a_while")
    kept = []
    for step in range(STEPS):
        stream = streams[step % STREAMS]
        count, seed = choose.randrange(1, 1 << choose.randrange(1, 21)), choose.randrange(1000)
        with stream:
            x = cupy.arange(count, dtype=numpy.int32) + seed
            wait((1,), (1,), (numpy.uint64(150_000),))
            y = 3 * x + seed
            del x
        results.arrays += 4
        kept.append((step, stream, count, seed, y))
        del y
        if len(kept) > KEPT:
            check(results, *kept.pop(choose.randrange(len(kept))))
    for entry in kept:
        check(results, *entry)


def check(results, step, stream, count, seed, y):
    expected = 3 * (numpy.arange(count, dtype=numpy.int32) + seed) + seed
    with stream:
        found = cupy.asnumpy(y, stream=stream)
    stream.synchronize()
    results.compare(f"step {step}", found, expected)


def whole_numbers(results):
    """Sums, sorts and strides on the default stream. Integers make the results exact."""
    choose = numpy.random.default_rng(SEED)
    for size in [1, 1000, 65_537, MOST]:
        host = choose.integers(-1000, 1000, size, dtype=numpy.int64)
        there = cupy.asarray(host)
        results.compare(f"sum of {size}", cupy.asnumpy(there.sum()), host.sum())
        results.compare(f"sums of {size}", cupy.asnumpy(cupy.cumsum(there)), numpy.cumsum(host))
        results.compare(f"{size} sorted", cupy.asnumpy(cupy.sort(there)), numpy.sort(host))
        results.compare(f"{size} reversed", cupy.asnumpy(there[::-1] * 2), host[::-1] * 2)
        results.arrays += 5


def products(results):
    """Products of matrices of integers, small enough for a float to hold every sum exactly."""
    choose = numpy.random.default_rng(SEED + 1)
    for rows in [16, 100, 777]:
        left = choose.integers(-8, 9, (rows, 300)).astype(numpy.float32)
        right = choose.integers(-8, 9, (300, rows + 5)).astype(numpy.float32)
        there = cupy.asarray(left) @ cupy.asarray(right)
        results.compare(f"product of {rows} rows", cupy.asnumpy(there), left @ right)
        results.arrays += 3


if __name__ == "__main__":
    main()
