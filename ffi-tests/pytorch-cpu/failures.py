"""A pool for the host whose regions come from functions of this program, which may refuse. For libbfc's Python package."""

import ctypes
import mmap
import random

import bfc
from bfc import _abi, _library


class Refusing:
    """While it is entered, the pool of an ordinal takes its regions from anonymous mappings, and of the requests for one a
    share is refused."""

    def __init__(self, device, share, limit, seed=1):
        self.device = device
        self.choose = random.Random(seed)
        self.share = share
        self.limit = limit
        self.mapped = {}
        self.refused = 0
        # They are kept as long as the pool may call them.
        self.functions = (_abi.bfc_region_alloc_t(self.alloc), _abi.bfc_region_free_t(self.free))

    def alloc(self, _, alignment, size, received):
        if self.choose.random() < self.share:
            self.refused += 1
            return None
        region = mmap.mmap(-1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(region))
        assert address % alignment == 0, "a page is aligned enough"
        self.mapped[address] = region
        return address

    def free(self, _, address, size):
        region = self.mapped.pop(address)
        assert len(region) == size

    def __enter__(self):
        source = _abi.bfc_suballocator_t(ctypes.sizeof(_abi.bfc_suballocator_t), None, *self.functions, 0, 0)
        options = _abi.bfc_options_t(struct_size=ctypes.sizeof(_abi.bfc_options_t))
        options.backend = _abi.BFC_BACKEND_CUSTOM
        options.flags = _abi.BFC_ALLOW_GROWTH | _abi.BFC_GARBAGE_COLLECTION
        options.memory_limit = self.limit
        options.initial_region_bytes = 64 << 10
        options.suballocator = ctypes.pointer(source)
        _library.call("bfc_create", self.device, ctypes.byref(options))
        return self

    def __exit__(self, kind, *_):
        # What went wrong before is what is to be told.
        bfc.destroy(self.device, force=kind is not None)
        assert not self.mapped, "regions are left"
