"""What a program can see of the allocator, told as numbers that must not depend on who allocates.

Two things beside it: what the simulated driver says of the run (misuses, what is left), and its calls, which do depend
on who allocates. And how a run begins and ends, so that there is something to tell.
"""

import ctypes
import gc
import hashlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# torch.cuda promises nothing; its own allocator gives this, and some kernels of others rest on it.
ALIGNMENT = 512


def plain_kernels():
    """cuDNN and the fused kinds of attention ask their kernels for sizes. The remaining kinds do not."""
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def begin():
    """Gives each device a context, the first one last."""
    for device in reversed(range(torch.cuda.device_count())):
        torch.cuda.synchronize(device)


def clean():
    """Gives back what can be given back."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch._C._host_emptyCache()


class Storages(TorchDispatchMode):
    """Writes down each new storage on the device: which operation made it, of how many bytes, how aligned."""

    def __init__(self):
        super().__init__()
        self.lines = []
        self.total = 0
        self.misaligned = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        before = {address for address, _ in _storages((args, kwargs))}
        result = function(*args, **(kwargs or {}))
        for address, size in _storages(result):
            if address in before:
                continue
            self.lines.append(f"{function} {size}")
            self.total += size
            self.misaligned += address % ALIGNMENT != 0
        return result

    def facts(self):
        text = "\n".join(self.lines)
        return {
            "count": len(self.lines),
            "bytes": self.total,
            "misaligned": self.misaligned,
            "in order": hashlib.sha256(text.encode()).hexdigest(),
        }


def _storages(values):
    """Addresses and sizes of the storages of all tensors on the device; without those of no bytes."""
    tensors = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor) and value.is_cuda]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return [(storage.data_ptr(), storage.nbytes()) for storage in storages if storage.nbytes()]


def statistics():
    """torch.cuda.memory_stats, those that are not 0; of the native caching allocator if it is on, else few."""
    return {key: value for key, value in sorted(torch.cuda.memory_stats().items()) if value}


def segments():
    """What the native caching allocator took from the driver and gave back, in order."""
    traces = torch.cuda.memory._snapshot()["device_traces"][0]
    of_segments = [entry for entry in traces if entry["action"].startswith("segment_")]
    return [[entry["action"], entry["size"]] for entry in of_segments]


class Simulation:
    """The simulated driver, by the symbols of simcuda.h."""

    KINDS = ["contexts", "streams", "events", "allocations"]
    CALLS = ["cuMemAlloc", "cuMemFree", "cuMemAllocAsync", "cuMemFreeAsync", "cuMemHostAlloc", "cuMemFreeHost"]

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        for name in ["misuses", "mismatches", "live", "used", "calls"]:
            getattr(self.library, f"simcuda_{name}").restype = ctypes.c_uint64

    def used(self):
        """Bytes of the device that are in use."""
        return self.library.simcuda_used(0)

    def live(self):
        """How many there are now of each kind of things."""
        return {kind: self.library.simcuda_live(number) for number, kind in enumerate(self.KINDS)}

    def calls(self):
        """How often the allocation functions of the driver were called."""
        return {name: self.library.simcuda_calls(name.encode()) for name in self.CALLS}

    def faults(self):
        """What the simulation found wrong, in words: a misuse each, or a kernel that did not find what it expected."""
        count = self.library.simcuda_misuses() + self.library.simcuda_mismatches()
        buffer = ctypes.create_string_buffer(1000)
        words = []
        for index in range(min(count, 10)):
            self.library.simcuda_misuse(ctypes.c_uint64(index), buffer, ctypes.c_size_t(len(buffer)))
            words.append(buffer.value.decode())
        return {"count": count, "words": words}
