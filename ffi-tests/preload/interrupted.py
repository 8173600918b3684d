"""A script that allocates, and is then interrupted by Ctrl-C: `interrupted.py LIBRARY`, a CUDA runtime."""

import ctypes
import signal
import sys
import time

# A script that starts the tests with & has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
runtime = ctypes.CDLL(sys.argv[1])


def allocated(size):
    block = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(size)) == 0
    return block


first = allocated(1000)
allocated(2000)
assert runtime.cudaFree(first) == 0
allocated(3000)
print("ready", flush=True)
time.sleep(100)
