"""CuPy without its memory pool: each array is a cudaMalloc and a cudaFree. What it computes is what numpy does."""

import hashlib
import random

from outcome import finish, skip

try:
    import cupy
    import numpy
except Exception as error:  # a library that it needs may be missing too
    skip(f"CuPy is not here: {error!r}".splitlines()[0])
try:
    if cupy.cuda.runtime.getDeviceCount() == 0:
        skip("CuPy finds no device")
except Exception as error:
    skip(f"CuPy finds no device: {error!r}".splitlines()[0])

SEED = 20240601
STEPS = 600
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


class Book:
    """What was wrong, a hash of all results, and how many arrays there were at least."""

    def __init__(self):
        self.wrong, self.hash, self.arrays = [], hashlib.sha256(), 0

    def compare(self, what, found, expected):
        self.hash.update(numpy.ascontiguousarray(found).tobytes())
        if not numpy.array_equal(found, expected):
            self.wrong.append(f"{what}: {numpy.count_nonzero(found != expected)} of {found.size} values are wrong")


def main():
    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
    book = Book()
    on_streams(book)
    whole_numbers(book)
    products(book)
    cupy.cuda.Device().synchronize()
    finish(book.wrong[:20], book.arrays, [f"results: {book.hash.hexdigest()}"])


def on_streams(book):
    """Arrays that are freed while kernels of their stream still run, and others that get their memory. Some results stay
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
        book.arrays += 4
        kept.append((step, stream, count, seed, y))
        del y
        if len(kept) > KEPT:
            look_at(book, *kept.pop(choose.randrange(len(kept))))
    for entry in kept:
        look_at(book, *entry)


def look_at(book, step, stream, count, seed, y):
    expected = 3 * (numpy.arange(count, dtype=numpy.int32) + seed) + seed
    with stream:
        found = cupy.asnumpy(y, stream=stream)
    stream.synchronize()
    book.compare(f"step {step}", found, expected)


def whole_numbers(book):
    """On the default stream: sums, sorting, choosing, all of whole numbers and so exact."""
    choose = numpy.random.default_rng(SEED)
    for size in [1, 1000, 65_537, MOST]:
        host = choose.integers(-1000, 1000, size, dtype=numpy.int64)
        there = cupy.asarray(host)
        book.compare(f"sum of {size}", cupy.asnumpy(there.sum()), host.sum())
        book.compare(f"sums of {size}", cupy.asnumpy(cupy.cumsum(there)), numpy.cumsum(host))
        book.compare(f"{size} sorted", cupy.asnumpy(cupy.sort(there)), numpy.sort(host))
        book.compare(f"{size} reversed", cupy.asnumpy(there[::-1] * 2), host[::-1] * 2)
        book.arrays += 5


def products(book):
    """Products of matrices: whole numbers so small that a float holds every sum."""
    choose = numpy.random.default_rng(SEED + 1)
    for rows in [16, 100, 777]:
        left = choose.integers(-8, 9, (rows, 300)).astype(numpy.float32)
        right = choose.integers(-8, 9, (300, rows + 5)).astype(numpy.float32)
        there = cupy.asarray(left) @ cupy.asarray(right)
        book.compare(f"product of {rows} rows", cupy.asnumpy(there), left @ right)
        book.arrays += 3


if __name__ == "__main__":
    main()
