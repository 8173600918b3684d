"""Measures what a pair of allocation and free costs in RMM's memory resources and in libbfc's (bfc.rmm), called from Python.

libbfc's is a callback into Python, so most of its figure is the price of that. bfc/rmm.hpp for C++ has none."""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "interposed"))
from outcome import first_line, is_simulated, result, skip

try:
    import rmm
    import rmm.mr
    from rmm.pylibrmm.stream import Stream
except Exception as error:  # a library that RMM loads may be missing too
    skip(f"RMM cannot be imported ({first_line(error)}): pip install rmm-cu13 cuda-bindings")

import bfc
import bfc.rmm

KiB, MiB = 1 << 10, 1 << 20
SIZES = [4 * KiB, 64 * KiB, MiB, 16 * MiB, 128 * MiB, 512 * MiB]
POOL = 2048 * MiB
PAIRS, ROUNDS = 500, 5
# cudaMalloc and cudaFree take up to a millisecond.
PAIRS_OF_DRIVER = 20
LIBBFC = "libbfc in RMM"


def main():
    try:
        made = resources()
    except Exception as error:
        skip(f"RMM finds no device ({first_line(error)}): check that nvidia-smi lists one")
    figures, refused = [], {}
    for label, make in made.items():
        try:
            resource = make()
            figures += measure(label, resource, PAIRS_OF_DRIVER if label == "RMM cuda" else PAIRS)
        except (MemoryError, RuntimeError) as error:
            refused[label] = first_line(error)
    check_libbfc()
    result(costs=figures, rmm=rmm.__version__, **({"refused": refused} if refused else {}))
    missing = {LIBBFC, *made} - {figure["allocator"] for figure in figures}
    # The simulated driver has no runtime for RMM's own resources.
    sys.exit(f"no figure for {', '.join(sorted(missing))}: {refused}" if missing and not is_simulated() else 0)


def resources():
    """The resources by their labels, each as a function that makes it when the one before it is gone."""
    driver = rmm.mr.CudaMemoryResource()
    driver.deallocate(driver.allocate(KiB), KiB)
    return {
        "RMM cuda": lambda: driver,
        "RMM pool": lambda: rmm.mr.PoolMemoryResource(driver, initial_pool_size=POOL),
        "RMM arena": lambda: rmm.mr.ArenaMemoryResource(driver, arena_size=POOL),
        "RMM cuda_async": lambda: rmm.mr.CudaAsyncMemoryResource(initial_pool_size=POOL),
        LIBBFC: bfc.rmm.resource,
    }


def measure(label, resource, pairs):
    """Returns a figure for each size: the least of some rounds, in nanoseconds a pair."""
    stream = Stream()
    figures = []
    for size in SIZES:
        times = []
        # A first round, which is not counted, has the resource get the memory.
        for _ in range(1 + ROUNDS):
            begin = time.perf_counter_ns()
            for _ in range(pairs):
                resource.deallocate(resource.allocate(size, stream), size, stream)
            times.append((time.perf_counter_ns() - begin) / pairs)
            stream.synchronize()
        figures.append({"allocator": label, "bytes": size, "pattern": "pair", "nanoseconds": round(min(times[1:]))})
    if label == LIBBFC:
        bfc.forget_stream(0, stream.__cuda_stream__()[1])
    return figures


def check_libbfc():
    """A buffer of RMM's keeps its contents in libbfc's memory, and all of it is returned."""
    resource = bfc.rmm.use()
    contents = bytes(range(256)) * 4096
    buffer = rmm.DeviceBuffer.to_device(contents)
    assert bfc.owner(buffer.ptr) == 0, "the buffer is not libbfc's"
    if not is_simulated():
        assert buffer.tobytes() == contents, "the buffer has other contents"
    del buffer
    assert bfc.stats(0).bytes_in_use == 0, bfc.report(0)
    bfc.check(0)
    assert rmm.mr.get_current_device_resource() is resource


if __name__ == "__main__":
    main()
