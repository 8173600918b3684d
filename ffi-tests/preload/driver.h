/* The driver's functions that these programs use, with the types of NVIDIA's cuda.h (64-bit addresses). */
#ifndef BFC_TESTS_PRELOAD_DRIVER_H
#define BFC_TESTS_PRELOAD_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;

/* Values of CUresult, and flags and answers of cuGetProcAddress. */
enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NOT_FOUND = 500 };
enum { LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };
enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(CUcontext *context, int device);
int cuCtxSetCurrent(CUcontext context);
int cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
int cuMemFree_v2(CUdeviceptr address);
int cuGetProcAddress(const char *name, void **place, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **place, int version, uint64_t flags, int *status);

#endif
