"""CUDA from Python by ctypes: `with_ctypes.py driver|runtime LIBRARY`."""

import ctypes
import sys

SIZE = ctypes.c_size_t


def of_driver(name):
    cuda = ctypes.CDLL(name)
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    return lambda place, size: cuda.cuMemAlloc_v2(place, size), cuda.cuMemFree_v2


def of_runtime(name):
    runtime = ctypes.CDLL(name)
    return runtime.cudaMalloc, runtime.cudaFree


allocate, free = {"driver": of_driver, "runtime": of_runtime}[sys.argv[1]](sys.argv[2])
owner = ctypes.CDLL(None).bfc_owner
calls = ctypes.CDLL("libcuda.so.1").simcuda_calls
calls.restype = ctypes.c_uint64
blocks = []
for _ in range(100):
    block, device = ctypes.c_void_p(), ctypes.c_int32(-1)
    assert allocate(ctypes.byref(block), SIZE(1000)) == 0
    assert owner(block, ctypes.byref(device)) == 0 and device.value == 0, device
    blocks.append(block)
for block in blocks:
    assert free(block) == 0
assert calls(b"cuMemAlloc") == 1 and calls(b"cuMemFree") == 0
