/* As much of NVIDIA's driver as the programs here call, from libcuda.so.1 at run time: no toolkit is needed to build
 * them. The signatures are those of cuda-sys, which a suite of its own holds against NVIDIA's headers.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BFC_GPU_DRIVER_H
#define BFC_GPU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t address_t;
typedef void *handle_t; /* contexts, streams, events, modules, functions, graphs, pools */

/* CUipcMemHandle. */
typedef struct ipc_handle {
  char bytes[64];
} ipc_handle;

/* CUmemLocation, CUmemAllocationProp and CUmemAccessDesc. */
typedef struct location {
  int type, id;
} location;

typedef struct physical {
  int type, handle_types;
  location where;
  void *windows;
  unsigned char flags[8];
} physical;

typedef struct access {
  location where;
  int flags;
} access_t;

/* NAME(symbol, arguments) */
#define DRIVER_FUNCTIONS(NAME)                                                                                       \
  NAME(cuInit, (unsigned))                                                                                           \
  NAME(cuDriverGetVersion, (int *))                                                                                  \
  NAME(cuGetErrorName, (int, const char **))                                                                         \
  NAME(cuDeviceGetCount, (int *))                                                                                    \
  NAME(cuDeviceGet, (int *, int))                                                                                    \
  NAME(cuDeviceGetName, (char *, int, int))                                                                          \
  NAME(cuDevicePrimaryCtxRetain, (handle_t *, int))                                                                  \
  NAME(cuCtxSetCurrent, (handle_t))                                                                                  \
  NAME(cuCtxGetCurrent, (handle_t *))                                                                                \
  NAME(cuCtxSynchronize, (void))                                                                                     \
  NAME(cuMemGetInfo_v2, (size_t *, size_t *))                                                                        \
  NAME(cuMemAlloc_v2, (address_t *, size_t))                                                                         \
  NAME(cuMemFree_v2, (address_t))                                                                                    \
  NAME(cuMemcpyDtoH_v2, (void *, address_t, size_t))                                                                 \
  NAME(cuMemsetD8_v2, (address_t, unsigned char, size_t))                                                            \
  NAME(cuStreamCreate, (handle_t *, unsigned))                                                                       \
  NAME(cuStreamDestroy_v2, (handle_t))                                                                               \
  NAME(cuStreamSynchronize, (handle_t))                                                                              \
  NAME(cuEventCreate, (handle_t *, unsigned))                                                                        \
  NAME(cuEventRecord, (handle_t, handle_t))                                                                          \
  NAME(cuStreamWaitEvent, (handle_t, handle_t, unsigned))                                                            \
  NAME(cuEventDestroy_v2, (handle_t))                                                                                \
  NAME(cuStreamBeginCapture_v2, (handle_t, int))                                                                     \
  NAME(cuStreamEndCapture, (handle_t, handle_t *))                                                                   \
  NAME(cuGraphInstantiateWithFlags, (handle_t *, handle_t, unsigned long long))                                      \
  NAME(cuGraphLaunch, (handle_t, handle_t))                                                                          \
  NAME(cuGraphDestroy, (handle_t))                                                                                   \
  NAME(cuGraphExecDestroy, (handle_t))                                                                               \
  NAME(cuModuleLoadData, (handle_t *, const void *))                                                                 \
  NAME(cuModuleGetFunction, (handle_t *, handle_t, const char *))                                                    \
  NAME(cuLaunchKernel,                                                                                               \
       (handle_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle_t, void **, void **)) \
  NAME(cuIpcGetMemHandle, (ipc_handle *, address_t))                                                                 \
  NAME(cuIpcOpenMemHandle_v2, (address_t *, ipc_handle, unsigned))                                                   \
  NAME(cuIpcCloseMemHandle, (address_t))                                                                             \
  NAME(cuDeviceGetDefaultMemPool, (handle_t *, int))                                                                 \
  NAME(cuMemPoolSetAttribute, (handle_t, int, void *))                                                               \
  NAME(cuMemPoolTrimTo, (handle_t, size_t))                                                                          \
  NAME(cuMemAllocAsync, (address_t *, size_t, handle_t))                                                             \
  NAME(cuMemFreeAsync, (address_t, handle_t))                                                                        \
  NAME(cuMemGetAllocationGranularity, (size_t *, const physical *, int))                                             \
  NAME(cuMemAddressReserve, (address_t *, size_t, size_t, address_t, unsigned long long))                            \
  NAME(cuMemAddressFree, (address_t, size_t))                                                                        \
  NAME(cuMemCreate, (unsigned long long *, size_t, const physical *, unsigned long long))                            \
  NAME(cuMemRelease, (unsigned long long))                                                                           \
  NAME(cuMemMap, (address_t, size_t, size_t, unsigned long long, unsigned long long))                                \
  NAME(cuMemUnmap, (address_t, size_t))                                                                              \
  NAME(cuMemSetAccess, (address_t, size_t, const access_t *, size_t))

typedef struct driver {
#define DRIVER_FIELD(name, arguments) int(*name) arguments;
  DRIVER_FUNCTIONS(DRIVER_FIELD)
#undef DRIVER_FIELD
  int version;
  int simulated; /* it is crates/simcuda, and no device */
} driver;

/* Loaded by open_driver. */
extern driver cuda;

enum { OUT_OF_MEMORY = 2 };

/* NULL, or why there is no driver or no device: then nothing here can run. */
const char *open_driver(void);

/* A function that is not in the list, of the same library. */
void find_function(const char *name, void **function);

/* The primary context of device 0 becomes current, as it is for any program that uses the CUDA runtime. */
void enter_device(void);

const char *error_name(int code);

#endif
