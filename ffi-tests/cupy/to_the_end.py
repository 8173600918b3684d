"""An array of CuPy's that the interpreter drops as the last of all; test_cupy.py runs this and reads what it prints."""

import ctypes
import os
import sys

import redirect

redirect.redirect()

import cupy

import bfc
import bfc.cupy


class Last:
    """Is dropped when everything else is gone, and says then whether that freed what it had."""

    def __init__(self, array, freed):
        self.array, self.freed = array, freed

    def __del__(self, write=os.write):
        self.array = None
        write(1, b"freed\n" if self.freed() else b"not freed\n")


bfc.cupy.use()
array, count = cupy.zeros(1 << 20, dtype="b"), bfc._abi.bfc_stats_t(struct_size=ctypes.sizeof(bfc._abi.bfc_stats_t))
statistics = bfc._library.lib.bfc_stats
# The interpreter's own table of modules goes last.
sys.last_array = Last(array, lambda: statistics(0, count) == 0 and count.num_frees == 1)
del array
