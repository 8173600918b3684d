"""Sizes and alignments of plain and of virtual memory."""

import ctypes

from driver import MIB, PINNED, AllocationFlags, AllocationProperties, DEVICE, Location
from registry import fact

KIB = 1 << 10
COUNT = 32
SIZES = [1, 256, 512, 513, 4 * KIB, 64 * KIB, 512 * KIB, MIB - 1, MIB, 2 * MIB, 3 * MIB, 64 * MIB]
FILE_DESCRIPTOR, FABRIC = 1, 8  # CUmemAllocationHandleType


def alignment_of(addresses):
    """Returns the largest power of two that divides all addresses."""
    bits = 0
    for address in addresses:
        bits |= address
    return bits & -bits


@fact("alignment")
def alignment(cu):
    cu.enter()
    # What the driver sets up at the first allocation is not part of any size.
    cu.check("cuMemFree_v2", cu.alloc(1))
    results = {}
    for size in SIZES:
        before = cu.free_memory()
        addresses = [cu.alloc(size) for _ in range(COUNT)]
        taken = before - cu.free_memory()
        for address in addresses:
            cu.check("cuMemFree_v2", address)
        results[str(size)] = {"alignment": alignment_of(addresses), "bytes taken by each": taken / COUNT}
    return results


@fact("granularity")
def granularity(cu):
    cu.enter()
    cu.granularity()  # Skips the fact where there is no virtual memory management.
    kinds = {
        "plain": (0, 0),
        "GPUDirect RDMA": (1, 0),
        "file descriptor": (0, FILE_DESCRIPTOR),
        "GPUDirect RDMA, file descriptor": (1, FILE_DESCRIPTOR),
        "fabric": (0, FABRIC),
    }
    return {
        "cuMemGetAllocationGranularity": {name: granularities(cu, *kind) for name, kind in kinds.items()},
        "cuMemAddressReserve": reservations(cu),
    }


def granularities(cu, rdma, handle_types):
    properties = AllocationProperties(PINNED, handle_types, Location(DEVICE, 0), None, AllocationFlags(rdma=rdma))
    handle = ctypes.c_uint64()

    def ask(option):
        size = ctypes.c_size_t()
        code = cu.cuMemGetAllocationGranularity(ctypes.byref(size), ctypes.byref(properties), option)
        return cu.name(code) if code else size.value

    created = cu.code("cuMemCreate", ctypes.byref(handle), 2 * MIB, ctypes.byref(properties), 0)
    if created == "SUCCESS":
        cu.check("cuMemRelease", handle.value)
    return {"minimum": ask(0), "recommended": ask(1), "cuMemCreate of 2 MiB": created}


def reservations(cu):
    """Returns how ranges are aligned, by their size and by the alignment that is asked for."""
    results = {}
    for size, wanted in [
        (4 * KIB, 0),
        (64 * KIB, 0),
        (2 * MIB, 0),
        (64 * MIB, 0),
        (1024 * MIB, 0),
        (1024 * 1024 * MIB, 0),
        (2 * MIB, 32 * MIB),
        (2 * MIB, 1024 * MIB),
    ]:
        ranges, codes = [], set()
        for _ in range(4):
            at = ctypes.c_uint64()
            codes.add(cu.code("cuMemAddressReserve", ctypes.byref(at), size, wanted, 0, 0))
            ranges += [at.value] if at.value else []
        for at in ranges:
            cu.check("cuMemAddressFree", at, size)
        name = f"{size} bytes" + (f", aligned to {wanted}" if wanted else "")
        results[name] = {"codes": sorted(codes), "alignment": alignment_of(ranges)}
    return results
