"""Which memory can be shared with other processes and devices, by which kind of handle."""

import ctypes

import driver
from driver import DEVICE, MIB, PINNED, IpcHandle, Location, PoolProperties
from registry import fact

FILE_DESCRIPTOR, FABRIC = 1, 8  # CUmemAllocationHandleType
DMA_BUF = 1  # CUmemRangeHandleType
PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

driver.SIGNATURES |= {"cuMemPoolExportToShareableHandle": "ppIu", "cuMemPoolExportPointer": "pu"}


@fact("handle-support")
def handle_support(cu):
    cu.enter()
    plain, pooled = cu.alloc(2 * MIB), cu.make("cuMemAllocAsync", 2 * MIB, cu.stream())
    memory = {"cuMemAlloc memory": plain, "cuMemAlloc memory, 1 MiB from its base": plain + MIB}
    memory["cuMemAllocAsync memory"] = pooled
    if cu.attribute(102):
        memory["mapped memory"] = mapped(cu, 0)
    if cu.attribute(103):
        memory["mapped memory with a file descriptor"] = mapped(cu, FILE_DESCRIPTOR)
    return {
        "cuMemCreate with a file descriptor": shareable(cu, FILE_DESCRIPTOR),
        "cuMemCreate with a fabric handle": shareable(cu, FABRIC),
        "cuIpcGetMemHandle": {name: legacy_handle(cu, at) for name, at in memory.items()},
        "cuMemGetHandleForAddressRange as a dma-buf": {name: dma_buf(cu, at) for name, at in memory.items()},
        "cuMemPoolCreate": {
            "without handles": pool(cu, 0),
            "with a file descriptor": pool(cu, FILE_DESCRIPTOR),
            "with a fabric handle": pool(cu, FABRIC),
        },
        "cuDeviceCanAccessPeer": peers(cu),
    }


def mapped(cu, handle_types):
    """Returns the address of a mapped granule."""
    size = cu.granularity()
    handle = cu.make("cuMemCreate", size, ctypes.byref(cu.properties(handle_types=handle_types)), 0)
    at = cu.reserve(size)
    cu.check("cuMemMap", at, size, 0, handle, 0)
    cu.check("cuMemSetAccess", at, size, ctypes.byref(cu.access()), 1)
    return at


def shareable(cu, kind):
    """Creates memory, exports it, and imports it in this process: the code of each step, up to the first failure."""
    if not cu.attribute(102):
        return "the device does not support virtual memory management"
    size, handle, imported = cu.granularity(), ctypes.c_uint64(), ctypes.c_uint64()
    properties = cu.properties(handle_types=kind)
    # A file descriptor is an int, a fabric handle has 64 bytes.
    exported = (ctypes.c_int * 16)()
    steps = {"cuMemCreate": cu.code("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), 0)}
    if steps["cuMemCreate"] != "SUCCESS":
        return steps
    steps["export"] = cu.code("cuMemExportToShareableHandle", ctypes.byref(exported), handle.value, kind, 0)
    if steps["export"] != "SUCCESS":
        return steps
    given = exported[0] if kind == FILE_DESCRIPTOR else ctypes.addressof(exported)
    steps["import"] = cu.code("cuMemImportFromShareableHandle", ctypes.byref(imported), given, kind)
    if steps["import"] == "SUCCESS":
        steps["the import has the exporter's contents"] = is_shared(cu, size, handle.value, imported.value)
    return steps


def is_shared(cu, size, handle, imported):
    at = cu.reserve(2 * size)
    cu.check("cuMemMap", at, size, 0, handle, 0)
    cu.check("cuMemMap", at + size, size, 0, imported, 0)
    cu.check("cuMemSetAccess", at, 2 * size, ctypes.byref(cu.access()), 1)
    cu.check("cuMemsetD8_v2", at, 0x5A, size)
    cu.check("cuCtxSynchronize")
    return cu.read(at + size, 64) == b"\x5a" * 64


def legacy_handle(cu, at):
    handle = IpcHandle()
    code = cu.code("cuIpcGetMemHandle", ctypes.byref(handle), at)
    if code != "SUCCESS":
        return code
    opened = ctypes.c_uint64()
    return f"SUCCESS; opened in this process {cu.code('cuIpcOpenMemHandle_v2', ctypes.byref(opened), handle, PEER_ACCESS)}"


def dma_buf(cu, at):
    file = ctypes.c_int(-1)
    return cu.code("cuMemGetHandleForAddressRange", ctypes.byref(file), at, MIB, DMA_BUF, 0)


def pool(cu, kind):
    """Creates a pool, and exports it and an allocation of it: the code of each step, up to the first failure."""
    made, at = ctypes.c_uint64(), ctypes.c_uint64()
    properties = PoolProperties(PINNED, kind, Location(DEVICE, 0))
    steps = {"create": cu.code("cuMemPoolCreate", ctypes.byref(made), ctypes.byref(properties))}
    if steps["create"] != "SUCCESS":
        return steps
    # The larger of the two is CUmemPoolPtrExportData, with 64 bytes.
    exported = (ctypes.c_uint64 * 8)()
    if kind:
        steps["export"] = cu.code("cuMemPoolExportToShareableHandle", ctypes.byref(exported), made.value, kind, 0)
    stream = cu.stream()
    steps["allocate"] = cu.code("cuMemAllocFromPoolAsync", ctypes.byref(at), 2 * MIB, made.value, stream)
    if steps["allocate"] == "SUCCESS":
        steps["export of the allocation"] = cu.code("cuMemPoolExportPointer", ctypes.byref(exported), at.value)
        steps["cuIpcGetMemHandle of the allocation"] = cu.code("cuIpcGetMemHandle", ctypes.byref(IpcHandle()), at.value)
        cu.check("cuMemFreeAsync", at.value, stream)
    return steps


def peers(cu):
    """Returns a row for each device: which others it can access."""
    count = cu.make("cuDeviceGetCount")
    if count == 1:
        return "one device"
    return [[cu.make("cuDeviceCanAccessPeer", one, other) for other in range(count)] for one in range(count)]
