"""A program for `bfc run`, on the simulated driver: its cudaMalloc is served from the pool that `import bfc` sees."""

import ctypes

import bfc

runtime = ctypes.CDLL("libcudart.so.12")
address = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(100_000)) == 0
assert address.value and bfc.owner(address.value) == 0, "the interposer's library and ours are one"
assert bfc.stats(0).bytes_requested == 100_000
assert runtime.cudaFree(address) == 0
print("served from the pool of", bfc.library_path())
