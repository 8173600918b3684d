"""The device and the driver, as they describe themselves."""

import ctypes
import os
import pathlib
import platform

from registry import fact

COMPUTE_MODES = {0: "DEFAULT", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}
# CUdevice_attribute.
ATTRIBUTES = {
    "MULTIPROCESSOR_COUNT": 16,
    "INTEGRATED": 18,
    "CAN_MAP_HOST_MEMORY": 19,
    "CONCURRENT_KERNELS": 31,
    "ECC_ENABLED": 32,
    "L2_CACHE_SIZE": 38,
    "ASYNC_ENGINE_COUNT": 40,
    "UNIFIED_ADDRESSING": 41,
    "STREAM_PRIORITIES_SUPPORTED": 78,
    "MANAGED_MEMORY": 83,
    "MULTI_GPU_BOARD": 84,
    "HOST_NATIVE_ATOMIC_SUPPORTED": 86,
    "PAGEABLE_MEMORY_ACCESS": 88,
    "CONCURRENT_MANAGED_ACCESS": 89,
    "COMPUTE_PREEMPTION_SUPPORTED": 90,
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM": 91,
    "HOST_REGISTER_SUPPORTED": 99,
    "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES": 100,
    "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST": 101,
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 102,
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": 103,
    "GENERIC_COMPRESSION_SUPPORTED": 107,
    "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": 110,
    "READ_ONLY_HOST_REGISTER_SUPPORTED": 113,
    "MEMORY_POOLS_SUPPORTED": 115,
    "GPU_DIRECT_RDMA_SUPPORTED": 116,
    "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS": 117,
    "GPU_DIRECT_RDMA_WRITES_ORDERING": 118,
    "MEMPOOL_SUPPORTED_HANDLE_TYPES": 119,
    "DMA_BUF_SUPPORTED": 124,
    "IPC_EVENT_SUPPORTED": 125,
    "MEM_SYNC_DOMAIN_COUNT": 126,
    "HANDLE_TYPE_FABRIC_SUPPORTED": 128,
    "NUMA_CONFIG": 130,
    "NUMA_ID": 131,
    "MULTICAST_SUPPORTED": 132,
    "MPS_ENABLED": 133,
    "HOST_NUMA_ID": 134,
    "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 141,
    "HOST_NUMA_MEMORY_POOLS_SUPPORTED": 142,
    "HOST_MEMORY_POOLS_SUPPORTED": 144,
    "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 145,
    "HOST_ALLOC_DMA_BUF_SUPPORTED": 146,
}


@fact("driver")
def driver(cu):
    name = ctypes.create_string_buffer(256)
    cu.check("cuDeviceGetName", name, len(name), 0)
    module = pathlib.Path("/proc/driver/nvidia/version")
    return {
        "cuDriverGetVersion": cu.make("cuDriverGetVersion"),
        "kernel module": module.read_text().splitlines()[0] if module.exists() else None,
        "devices": cu.make("cuDeviceGetCount"),
        "device": name.value.decode(),
        "total memory": cu.make("cuDeviceTotalMem_v2", 0),
        "compute capability": f"{cu.attribute(75)}.{cu.attribute(76)}",
        "compute mode": COMPUTE_MODES.get(cu.attribute(20), "unknown"),
        "kernel": platform.release(),
        "glibc": os.confstr("CS_GNU_LIBC_VERSION"),
        "Python": platform.python_version(),
    }


@fact("attributes")
def attributes(cu):
    def answer(number):
        value = ctypes.c_int()
        code = cu.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
        return cu.name(code) if code else value.value

    return {name: answer(number) for name, number in ATTRIBUTES.items()}
