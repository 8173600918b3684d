"""Rules of device memory, IPC handles and pools."""

import ctypes
import json
import os
import subprocess
import sys

from driver import (
    DEVICE,
    MIB,
    NO_ACCESS,
    PINNED,
    READ,
    READ_WRITE,
    AccessDescription,
    IpcHandle,
    Location,
    PoolProperties,
    skip,
)
from registry import NOT_PROBED, rule

SMALL = "Small allocations are aligned"
LARGE = "From 1 MiB on they are aligned"
WHOLE = "An IPC handle names the whole allocation"
OPENED_TWICE = "A handle that is opened twice"
OWN_HANDLE = "The exporting process cannot open"
POOL_ACCESS = "A pool's own device keeps its access"

NOT_PROBED["A pool is not made accessible to a device that cannot access its own"] = "needs two devices without peer access"
NOT_PROBED["Fills and kernels reach no other device's plain memory"] = "needs two devices"


def alignment(addresses):
    """Returns the largest power of two that divides all addresses."""
    return min(at & -at for at in addresses)


def small_allocations(cu):
    return [cu.alloc(size) for size in [1, 1, 4, 100, 511, 512, 513, 700, 1000, 1024, 1500, 4096, 5000, 10_000] * 3]


def large_allocations(cu):
    return [cu.alloc(size) for size in [MIB, MIB, MIB + 1, MIB + 512, 2 * MIB, 2 * MIB + 512, 3 * MIB, 5 * MIB, 33 * MIB] * 2]


@rule("small-allocation-alignment", row=SMALL, expected=True)
def small_allocation_alignment(cu):
    """Whether each small allocation is aligned to 512 bytes."""
    cu.enter()
    return alignment(small_allocations(cu)) >= 512


@rule("small-allocation-alignment-exact", row=SMALL, expected=512)
def small_allocation_alignment_exact(cu):
    """The alignment that all small allocations have in common."""
    cu.enter()
    return alignment(small_allocations(cu))


@rule("large-allocation-alignment", row=LARGE, expected=True)
def large_allocation_alignment(cu):
    """Whether each allocation of 1 MiB or more is aligned to 64 KiB, as NCCL relies on."""
    cu.enter()
    return alignment(large_allocations(cu)) >= 65536


@rule("large-allocation-alignment-exact", row=LARGE, expected=65536)
def large_allocation_alignment_exact(cu):
    """The alignment that all allocations of 1 MiB or more have in common. Drivers are seen to give 2 MiB, and the simulation
    gives less on purpose."""
    cu.enter()
    return alignment(large_allocations(cu))


@rule(
    "address-range-handle",
    row="`cuMemGetHandleForAddressRange` takes whole pages",
    expected={"pages": "SUCCESS", "part of a page": "INVALID_VALUE", "beyond the end": "INVALID_VALUE"},
    needs="cuMemGetHandleForAddressRange",
)
def address_range_handle(cu):
    """DMA-BUF handles for ranges of cuMemAlloc memory. "Users must ensure the dptr and size are aligned to the host page
    size"."""
    cu.enter()
    if not cu.is_simulated and not cu.attribute(124):
        skip("the device does not support DMA-BUF handles (attribute 124)")
    at = cu.alloc(4 * MIB)

    def code(address, size):
        file = ctypes.c_int(-1)
        code = cu.code("cuMemGetHandleForAddressRange", ctypes.byref(file), address, size, 1, 0)
        if file.value >= 0:
            os.close(file.value)
        return code

    page = os.sysconf("SC_PAGE_SIZE")
    return {
        "pages": code(at + page, 2 * page),
        "part of a page": code(at + 512, page),
        "beyond the end": code(at, 4 * MIB + page),
    }


# IPC.


def ipc_handle(cu, at):
    """Returns the name of the code and the handle."""
    handle = IpcHandle()
    return cu.code("cuIpcGetMemHandle", ctypes.byref(handle), at), bytes(handle.reserved)


def open_elsewhere(*handles):
    """Opens handles in another process, in order, and returns what it found."""
    command = [sys.executable, __file__, *(handle.hex() for handle in handles)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"the other process exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def open_handles(handles):
    """The other process. The first word of what each handle opens tells where that is."""
    from driver import Driver

    cu = Driver()
    cu.enter()
    found = []
    for handle in handles:
        at = ctypes.c_uint64()
        name = IpcHandle.from_buffer_copy(bytes.fromhex(handle))
        code = cu.code("cuIpcOpenMemHandle_v2", ctypes.byref(at), name, 1)
        word = int.from_bytes(cu.read(at.value), "little") if code == "SUCCESS" else None
        found.append({"code": code, "word": word, "at": at.value})
    print(json.dumps(found))


def marked(cu, size, offset, base_word, inner_word):
    """Returns memory with a word at its base and another one at an offset."""
    at = cu.alloc(size)
    cu.check("cuMemsetD32_v2", at, base_word, 1)
    cu.check("cuMemsetD32_v2", at + offset, inner_word, 1)
    cu.check("cuCtxSynchronize")
    return at


@rule(
    "ipc-interior-address",
    row=WHOLE,
    expected={"get": "SUCCESS", "same handle": True, "open": "SUCCESS", "word": 1},
)
def ipc_interior_address(cu):
    """The handle of an address in the middle of a large allocation, and what it opens in another process: 1 is the word at the
    base and 2 the one at the address. cuda.h: "Takes a pointer to the base of an existing device memory allocation"."""
    cu.enter()
    at = marked(cu, 8 * MIB, 4 * MIB, 1, 2)
    (_, base), (code, interior) = ipc_handle(cu, at), ipc_handle(cu, at + 4 * MIB)
    observed = {"get": code, "same handle": base == interior, "open": None, "word": None}
    if code == "SUCCESS":
        (found,) = open_elsewhere(interior)
        observed |= {"open": found["code"], "word": found["word"]}
    return observed


@rule("ipc-small-allocations", row=WHOLE, expected={"first": 1, "second": 3, "interior of the second": 3})
def ipc_small_allocations(cu):
    """What the handles of two small allocations open, which may lie in one block of the driver: 1 and 3 are the words at their
    bases, 2 and 4 those inside. PyTorch: "we must send the *entire* cudaMalloc allocation"."""
    cu.enter()
    first, second = marked(cu, 4096, 2048, 1, 2), marked(cu, 4096, 2048, 3, 4)
    handles = [ipc_handle(cu, at)[1] for at in [first, second, second + 2048]]
    found = open_elsewhere(*handles)
    return dict(zip(["first", "second", "interior of the second"], [one["word"] or one["code"] for one in found]))


@rule("ipc-other-memory", row=WHOLE, expected={"virtual": "INVALID_VALUE", "pool": "INVALID_VALUE"})
def ipc_other_memory(cu):
    """cuIpcGetMemHandle for virtual and for pool memory."""
    cu.enter()
    size, stream = cu.granularity(), cu.stream()
    mapped = cu.reserve(size)
    cu.map_new(mapped, size)
    cu.set_access(mapped, size)
    pool = cu.make("cuMemAllocAsync", MIB, stream)
    cu.check("cuStreamSynchronize", stream)
    return {"virtual": ipc_handle(cu, mapped)[0], "pool": ipc_handle(cu, pool)[0]}


@rule("ipc-opened-twice", row=OPENED_TWICE, expected={"codes": ["SUCCESS", "SUCCESS"], "same address": True})
def ipc_opened_twice(cu):
    """One process opens a handle twice. "The reference count on the handle is incremented by 1 and the existing device pointer
    is returned"."""
    cu.enter()
    _, handle = ipc_handle(cu, marked(cu, 2 * MIB, MIB, 1, 2))
    first, second = open_elsewhere(handle, handle)
    return {"codes": [first["code"], second["code"]], "same address": first["at"] == second["at"]}


@rule("ipc-own-handle", row=OWN_HANDLE, expected={"get": "SUCCESS", "open": "INVALID_CONTEXT"})
def ipc_own_handle(cu):
    """The process that exported a handle opens it."""
    cu.enter()
    code, handle = ipc_handle(cu, cu.alloc(2 * MIB))
    opened = ctypes.c_uint64()
    name = IpcHandle.from_buffer_copy(handle)
    return {"get": code, "open": cu.code("cuIpcOpenMemHandle_v2", ctypes.byref(opened), name, 1)}


# Pools.


@rule(
    "pool-keeps-its-own-devices-access",
    row=POOL_ACCESS,
    expected={
        "none": "INVALID_VALUE",
        "read": "INVALID_VALUE",
        "read and write": "SUCCESS",
        "read and write, then none": "INVALID_VALUE",
        "access": READ_WRITE,
        "memory": "SUCCESS",
    },
)
def pool_keeps_its_own_devices_access(cu):
    """cuMemPoolSetAccess for the pool's own device. cuda-python (#2871): the driver "rejects a non-read-write entry for the
    owning device"."""
    cu.enter()
    stream, here = cu.stream(), Location(DEVICE, 0)
    pool = cu.make("cuMemPoolCreate", ctypes.byref(PoolProperties(PINNED, 0, here)))

    def set_access(*flags):
        entries = (AccessDescription * len(flags))(*(AccessDescription(here, each) for each in flags))
        return cu.code("cuMemPoolSetAccess", pool, entries, len(flags))

    codes = {
        "none": set_access(NO_ACCESS),
        "read": set_access(READ),
        "read and write": set_access(READ_WRITE),
        "read and write, then none": set_access(READ_WRITE, NO_ACCESS),
    }
    access = ctypes.c_uint()
    cu.check("cuMemPoolGetAccess", ctypes.byref(access), pool, ctypes.byref(here))
    at = cu.make("cuMemAllocFromPoolAsync", 4096, pool, stream)
    cu.check("cuMemsetD8Async", at, 1, 4096, stream)
    return codes | {"access": access.value, "memory": cu.code("cuStreamSynchronize", stream)}


if __name__ == "__main__":
    open_handles(sys.argv[1:])
