"""Rules of virtual memory management: granularity, access, unmapping, reserved ranges, and what a reset leaves."""

import ctypes

from driver import BLOCKING, MIB, READ_WRITE, skip
from registry import NOT_PROBED, rule

SIZES = "Sizes, addresses and offsets"
ACCESS = "Nothing is accessible before"
OVER = "No mapping over another one"
UNMAP = "No part of a mapping is unmapped"
FREE = "A reserved range is freed as a whole"
COUNTS = "Memory counts until it is released and unmapped"
RDMA = "gpuDirectRDMACapable is INVALID_VALUE"
RANGE = "The range of a mapped address"
RESET = "A reset of a primary context leaves virtual memory alone"
COPIES = "Copies of pool, graph, virtual and imported memory"

NOT_PROBED["`cuMemSetAccess` for a device that cannot access"] = "needs two devices without peer access"

SIMCUDA_VMM = 8
CONTEXT, RANGE_START, RANGE_SIZE, MAPPING_SIZE, MAPPING_BASE = 1, 11, 12, 18, 19  # CUpointer_attribute


def reserved(cu, granules):
    """Enters the primary context and returns the granularity and the address of a reserved range."""
    cu.enter()
    size = cu.granularity()
    return size, cu.reserve(granules * size)


def mapped(cu, *granules):
    """Returns the granularity and the address of adjacent mappings of this many granules each."""
    size, at = reserved(cu, sum(granules))
    offset = 0
    for count in granules:
        cu.map_new(at + offset, count * size)
        offset += count * size
    return size, at


def is_mapped(cu, at):
    """Returns whether something is mapped at an address, whatever its access."""
    handle = ctypes.c_uint64()
    code = cu.cuMemRetainAllocationHandle(ctypes.byref(handle), at)
    if code == 0:
        cu.check("cuMemRelease", handle.value)
    return code == 0


def what_is_mapped(cu, at, size, granules):
    return [is_mapped(cu, at + index * size) for index in range(granules)]


@rule("granularity", row=SIZES, expected={"minimum": 2 * MIB, "recommended": 2 * MIB})
def granularity(cu):
    """The granularities of the device's memory, both kinds."""
    cu.enter()
    return {"minimum": cu.granularity(), "recommended": cu.granularity(recommended=True)}


@rule(
    "parts-of-granules",
    row=SIZES,
    expected=dict.fromkeys(["create", "reserve", "map: size", "map: address", "map: offset"], "INVALID_VALUE"),
)
def parts_of_granules(cu):
    """Sizes, addresses and offsets of half a granule. `cuMemMap`: "must be a multiple of the value given via
    cuMemGetAllocationGranularity"."""
    size, at = reserved(cu, 4)
    handle, out, half = cu.physical(2 * size), ctypes.c_uint64(), size // 2
    return {
        "create": cu.code("cuMemCreate", ctypes.byref(out), half, ctypes.byref(cu.properties()), 0),
        "reserve": cu.code("cuMemAddressReserve", ctypes.byref(out), half, 0, 0, 0),
        "map: size": cu.code("cuMemMap", at, half, 0, handle, 0),
        "map: address": cu.code("cuMemMap", at + half, size, 0, handle, 0),
        "map: offset": cu.code("cuMemMap", at, size, size, handle, 0),
    }


@rule("map-a-part-of-a-handle", row=SIZES, expected="SUCCESS")
def map_a_part_of_a_handle(cu):
    """cuMemMap of the first of a handle's two granules."""
    size, at = reserved(cu, 2)
    return cu.code("cuMemMap", at, size, 0, cu.physical(2 * size), 0)


@rule("map-over-a-mapping", row=OVER, expected="INVALID_VALUE")
def map_over_a_mapping(cu):
    """cuMemMap where something is mapped: it "can only create mappings on VA range reservations that are not currently
    mapped"."""
    size, at = mapped(cu, 2)
    return cu.code("cuMemMap", at + size, size, 0, cu.physical(size), 0)


# Unmapping.


@rule("unmap-several", row=UNMAP, expected={"code": "SUCCESS", "mapped": [False, False, True]})
def unmap_several(cu):
    """cuMemUnmap over two whole mappings of three in one call. "The range must be the entire contiguous address range that was
    mapped to"."""
    size, at = mapped(cu, 1, 1, 1)
    return {"code": cu.code("cuMemUnmap", at, 2 * size), "mapped": what_is_mapped(cu, at, size, 3)}


@rule("unmap-several-with-access", row=UNMAP, expected={"code": "SUCCESS", "mapped": [False] * 4})
def unmap_several_with_access(cu):
    """cuMemUnmap over mappings of different sizes, which are accessible, in one call."""
    size, at = mapped(cu, 1, 2, 1)
    for offset, count in [(0, 1), (1, 2), (3, 1)]:
        cu.set_access(at + offset * size, count * size)
    return {"code": cu.code("cuMemUnmap", at, 4 * size), "mapped": what_is_mapped(cu, at, size, 4)}


@rule("unmap-several-with-a-gap", row=UNMAP, expected={"code": "INVALID_VALUE", "mapped": [True, False, True]})
def unmap_several_with_a_gap(cu):
    """cuMemUnmap over two mappings and the unmapped granule between them."""
    size, at = mapped(cu, 1, 1, 1)
    cu.check("cuMemUnmap", at + size, size)
    return {"code": cu.code("cuMemUnmap", at, 3 * size), "mapped": what_is_mapped(cu, at, size, 3)}


@rule("unmap-a-part", row=UNMAP, expected={"first": "INVALID_VALUE", "second": "INVALID_VALUE", "mapped": [True, True]})
def unmap_a_part(cu):
    """cuMemUnmap of the first or the second granule of a mapping of two. It "cannot unmap a sub-range of an address range
    mapped"."""
    size, at = mapped(cu, 2)
    codes = {"first": cu.code("cuMemUnmap", at, size), "second": cu.code("cuMemUnmap", at + size, size)}
    return codes | {"mapped": what_is_mapped(cu, at, size, 2)}


@rule("unmap-one-and-a-half", row=UNMAP, expected={"code": "INVALID_VALUE", "mapped": [True, True, True]})
def unmap_one_and_a_half(cu):
    """cuMemUnmap over a whole mapping and half of the next one."""
    size, at = mapped(cu, 1, 2)
    return {"code": cu.code("cuMemUnmap", at, 2 * size), "mapped": what_is_mapped(cu, at, size, 3)}


# Access.


@rule(
    "set-access-of-several",
    row=ACCESS,
    expected={"code": "SUCCESS", "fill": "SUCCESS", "bytes": "0707", "one alone": "SUCCESS"},
)
def set_access_of_several(cu):
    """cuMemSetAccess over two adjacent mappings in one call, a fill across both, and another call for one of them. "The range
    must be a fully mapped address range"."""
    size, at = mapped(cu, 1, 1)
    code = cu.set_access(at, 2 * size)
    fill = cu.code("cuMemsetD8_v2", at, 7, 2 * size) if code == "SUCCESS" else None
    read = cu.read(at + size - 1, 2).hex() if fill == "SUCCESS" else None
    return {"code": code, "fill": fill, "bytes": read, "one alone": cu.set_access(at + size, size)}


@rule("set-access-of-a-part", row=ACCESS, expected={"part": "INVALID_VALUE", "with a gap": "INVALID_VALUE"})
def set_access_of_a_part(cu):
    """cuMemSetAccess for one granule of a mapping of two, and for a range that is mapped in part."""
    size, at = mapped(cu, 2, 1, 1)
    cu.check("cuMemUnmap", at + 2 * size, size)
    return {"part": cu.set_access(at, size), "with a gap": cu.set_access(at + 2 * size, 2 * size)}


@rule("copy-without-access", row=COPIES, expected={"copy": "INVALID_VALUE", "context afterwards": "SUCCESS"})
def copy_without_access(cu):
    """A copy from mapped memory before cuMemSetAccess: is it refused, or does the context fail? UCX (#10671): "cuda_copy did
    not work with vmm because of missing access permissions". Copies between devices are not probed."""
    _, at = mapped(cu, 1)
    buffer = ctypes.create_string_buffer(512)
    return {"copy": cu.code("cuMemcpyDtoH_v2", buffer, at, 512), "context afterwards": cu.code("cuCtxSynchronize")}


# Reserved ranges and the lifetime of memory.


@rule(
    "address-free-while-mapped",
    row=FREE,
    expected={"while mapped": "INVALID_VALUE", "mapped": True, "unmap": "SUCCESS", "then": "SUCCESS"},
)
def address_free_while_mapped(cu):
    """cuMemAddressFree of a range with a mapping, and after that is unmapped."""
    size, at = reserved(cu, 2)
    cu.map_new(at, size)
    code = cu.code("cuMemAddressFree", at, 2 * size)
    left = is_mapped(cu, at)
    return {
        "while mapped": code,
        "mapped": left,
        "unmap": cu.code("cuMemUnmap", at, size),
        "then": cu.code("cuMemAddressFree", at, 2 * size),
    }


@rule("address-free-of-a-part", row=FREE, expected={"first": "INVALID_VALUE", "second": "INVALID_VALUE", "whole": "SUCCESS"})
def address_free_of_a_part(cu):
    """cuMemAddressFree of parts of a reserved range. "The size must match what was given to memAddressReserve"."""
    size, at = reserved(cu, 2)
    return {
        "first": cu.code("cuMemAddressFree", at, size),
        "second": cu.code("cuMemAddressFree", at + size, size),
        "whole": cu.code("cuMemAddressFree", at, 2 * size),
    }


@rule("released-memory-stays-mapped", row=COUNTS, expected={"bytes": "09090909", "mapped": True})
def released_memory_stays_mapped(cu):
    """The bytes of a mapping after cuMemRelease of its handle."""
    size, at = reserved(cu, 1)
    handle = cu.physical(size)
    cu.check("cuMemMap", at, size, 0, handle, 0)
    cu.set_access(at, size)
    cu.check("cuMemsetD8_v2", at, 9, size)
    cu.check("cuMemRelease", handle)
    return {"bytes": cu.read(at).hex(), "mapped": is_mapped(cu, at)}


def create_for_rdma(cu):
    """Returns the codes of the granularity and of an allocation with the flag for GPUDirect RDMA."""
    size, out, properties = cu.granularity(), ctypes.c_uint64(), cu.properties(rdma=True)
    return {
        "granularity": cu.code("cuMemGetAllocationGranularity", ctypes.byref(out), ctypes.byref(properties), 0),
        "create": cu.code("cuMemCreate", ctypes.byref(out), size, ctypes.byref(properties), 0),
    }


@rule("rdma-flag-unsupported", row=RDMA, expected={"granularity": "INVALID_VALUE", "create": "INVALID_VALUE"})
def rdma_flag_unsupported(cu):
    """The flag gpuDirectRDMACapable on a device whose attribute 110 is 0."""
    if cu.is_simulated:
        cu.library.simcuda_set(SIMCUDA_VMM, ctypes.c_int64(2))
    cu.enter()
    return skip("attribute 110 is 1") if cu.attribute(110) else create_for_rdma(cu)


@rule("rdma-flag-supported", row=RDMA, expected={"granularity": "SUCCESS", "create": "SUCCESS"})
def rdma_flag_supported(cu):
    """The flag gpuDirectRDMACapable on a device whose attribute 110 is 1: "Device supports specifying the GPUDirect RDMA flag
    with cuMemCreate"."""
    cu.enter()
    return create_for_rdma(cu) if cu.attribute(110) else skip("attribute 110 is 0")


@rule(
    "range-of-a-mapped-address",
    row=RANGE,
    expected={
        "range": ["SUCCESS", 0, "SUCCESS", 4],
        "mapping": ["SUCCESS", 1, "SUCCESS", 2],
        "cuMemGetAddressRange": ["SUCCESS", 1, 2],
        "context": ["SUCCESS", 0],
    },
)
def range_of_a_mapped_address(cu):
    """Pointer attributes and cuMemGetAddressRange of an address in a mapping of two granules, one granule into a reserved range
    of four: starts relative to the range and sizes, in granules. RANGE_START_ADDR is "not necessarily the address of the mapped
    region, but the address of the mappable address range"."""
    size, at = reserved(cu, 4)
    cu.map_new(at + size, 2 * size)
    cu.set_access(at + size, 2 * size)
    inside = at + 2 * size + 4096

    def ask(attribute):
        value = ctypes.c_uint64()
        return cu.code("cuPointerGetAttribute", ctypes.byref(value), attribute, inside), value.value

    def region(start_attribute, size_attribute):
        (start_code, start), (size_code, length) = ask(start_attribute), ask(size_attribute)
        return [start_code, granules(start - at, start_code), size_code, granules(length, size_code)]

    def granules(number, code):
        return number / size if code == "SUCCESS" else None

    base, length = ctypes.c_uint64(), ctypes.c_size_t()
    code = cu.code("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(length), inside)
    context_code, context = ask(CONTEXT)
    return {
        "range": region(RANGE_START, RANGE_SIZE),
        "mapping": region(MAPPING_BASE, MAPPING_SIZE),
        "cuMemGetAddressRange": [code, granules(base.value - at, code), granules(length.value, code)],
        "context": [context_code, context],
    }


# Resets.

UNHARMED = {
    "end": "SUCCESS",
    "retain": "SUCCESS",
    "mapped": True,
    "copy": "SUCCESS",
    "bytes": "05050505",
    "map an old handle": "SUCCESS",
    "unmap": "SUCCESS",
    "address free": "SUCCESS",
}


def survives(cu, end):
    """Ends the primary context, makes it live again, and returns what is left of virtual memory."""
    size, at = mapped(cu, 1)
    other, handle = cu.reserve(size), cu.physical(size)
    cu.set_access(at, size)
    cu.check("cuMemsetD8_v2", at, 5, size)
    cu.check("cuCtxSynchronize")
    context, buffer = ctypes.c_uint64(), ctypes.create_string_buffer(4)
    observed = {"end": cu.code(end, 0)}
    observed["retain"] = cu.code("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    cu.check("cuCtxSetCurrent", context.value)
    observed["mapped"] = is_mapped(cu, at)
    # A copy from what is gone could fail the context, or read whatever the host has there.
    observed["copy"] = cu.code("cuMemcpyDtoH_v2", buffer, at, 4) if observed["mapped"] else None
    observed["bytes"] = buffer.raw.hex()
    observed["map an old handle"] = cu.code("cuMemMap", other, size, 0, handle, 0)
    observed["unmap"] = cu.code("cuMemUnmap", at, size)
    observed["address free"] = cu.code("cuMemAddressFree", at, size)
    return observed


@rule("reset-leaves-virtual-memory", row=RESET, expected=UNHARMED)
def reset_leaves_virtual_memory(cu):
    """Mappings, their bytes, handles and reserved ranges after cuDevicePrimaryCtxReset and another retain. cuda.h: it "destroys
    and cleans up all resources associated with the current device in the current process"."""
    return survives(cu, "cuDevicePrimaryCtxReset_v2")


@rule("release-leaves-virtual-memory", row=RESET, expected=UNHARMED)
def release_leaves_virtual_memory(cu):
    """The same after the last release: "the context is automatically reset once the last reference to it is released"."""
    return survives(cu, "cuDevicePrimaryCtxRelease_v2")


@rule("reset-frees-plain-memory", row=RESET, expected={"free": "INVALID_VALUE", "attribute": "INVALID_VALUE"})
def reset_frees_plain_memory(cu):
    """cuMemAlloc memory, in contrast, is gone after a reset."""
    cu.enter()
    at = cu.alloc(4 * MIB)
    cu.check("cuDevicePrimaryCtxReset_v2", 0)
    cu.enter()
    out = ctypes.c_uint64()
    return {
        "attribute": cu.code("cuPointerGetAttribute", ctypes.byref(out), RANGE_START, at),
        "free": cu.code("cuMemFree_v2", at),
    }


@rule(
    "virtual-memory-in-another-context",
    row="Contexts of one device access each other's memory",
    expected={"copy": "SUCCESS", "fill": "SUCCESS", "unmap": "SUCCESS"},
)
def virtual_memory_in_another_context(cu):
    """Memory that was mapped while the primary context was current is used and unmapped with another one current."""
    size, at = mapped(cu, 1)
    cu.set_access(at, size, READ_WRITE)
    cu.make("cuCtxCreate_v2", 0, 0)
    stream, buffer = cu.stream(BLOCKING), ctypes.create_string_buffer(512)
    cu.check("cuMemsetD8Async", at, 3, size, stream)
    fill = cu.code("cuStreamSynchronize", stream)
    return {
        "copy": cu.code("cuMemcpyDtoH_v2", buffer, at, 512),
        "fill": fill,
        "unmap": cu.code("cuMemUnmap", at, size),
    }
