"""What a pair of torch.empty() and its free costs on the host.

The figure for 0 bytes is what PyTorch itself takes, because no memory is allocated then."""

import time

KiB, MiB = 1 << 10, 1 << 20
SIZES = [0, 4 * KiB, 64 * KiB, MiB, 16 * MiB, 128 * MiB, 512 * MiB]
PAIRS, ROUNDS = 1000, 7


def measure(torch, label):
    """Returns a figure for each size: the least of some rounds, in nanoseconds a pair."""
    device = torch.device("cuda")
    figures = []
    for size in SIZES:
        times = []
        # A first round, which is not counted, has the allocator get the memory.
        for _ in range(1 + ROUNDS):
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(PAIRS):
                torch.empty(size, dtype=torch.uint8, device=device)
            times.append((time.perf_counter_ns() - begin) / PAIRS)
        figures.append({"allocator": label, "bytes": size, "pattern": "pair", "nanoseconds": round(min(times[1:]))})
    return figures
