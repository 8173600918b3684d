/* What the files of the simulated runtime share: the driver's functions as they are called here, and the way into a
 * context. Nothing of it is seen outside the library; in the archive the names are prefixed, for there they share the
 * program's. */
#ifndef SIMCUDA_CUDART_INSIDE_H
#define SIMCUDA_CUDART_INSIDE_H

#ifndef CUDART_MAJOR
#error "CUDART_MAJOR is 11, 12 or 13"
#endif

#ifdef WITH_NVIDIA_HEADERS /* to compare the signatures */
#include <cuda_runtime_api.h>
#else
#include "cudart.h"
#endif

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

#ifdef CUDART_STATIC
#define API __attribute__((visibility("hidden")))
#else
#define API __attribute__((visibility("default")))
#endif

#if CUDART_MAJOR >= 13
#define VERSION 13000
#elif CUDART_MAJOR == 12
#define VERSION 12090
#else
#define VERSION 11080
#endif

/* The lookup has one argument less in CUDA 11. */
#if CUDART_MAJOR >= 12
#define LOOKUP(X) X(GetProcAddress, 12000, (const char *, void **, int, uint64_t, int *))
#define LOOKUP_SYMBOL "cuGetProcAddress_v2"
#else
#define LOOKUP(X) X(GetProcAddress, 11030, (const char *, void **, int, uint64_t))
#define LOOKUP_SYMBOL "cuGetProcAddress"
#endif

enum { MOST_DEVICES = 64 };

typedef uint64_t Address;
typedef void *Handle;

/* The driver's functions: how they are called here, by which name, and of which version that signature is. */
#define DRIVER(X)                                                                                  \
  X(DriverGetVersion, 2020, (int *))                                                               \
  X(Init, 2000, (unsigned))                                                                        \
  X(GetErrorName, 6000, (int, const char **))                                                      \
  LOOKUP(X)                                                                                        \
  X(DeviceGetCount, 2000, (int *))                                                                 \
  X(DeviceGetAttribute, 2000, (int *, int, int))                                                   \
  X(DeviceCanAccessPeer, 4000, (int *, int, int))                                                  \
  X(DeviceGetDefaultMemPool, 11020, (Handle *, int))                                               \
  X(DevicePrimaryCtxRetain, 7000, (Handle *, int))                                                 \
  X(DevicePrimaryCtxRelease, 11000, (int))                                                         \
  X(DevicePrimaryCtxReset, 11000, (int))                                                           \
  X(CtxGetCurrent, 4000, (Handle *))                                                               \
  X(CtxSetCurrent, 4000, (Handle))                                                                 \
  X(CtxGetDevice, 2000, (int *))                                                                   \
  X(CtxSynchronize, 2000, (void))                                                                  \
  X(CtxGetStreamPriorityRange, 5050, (int *, int *))                                               \
  X(MemGetInfo, 3020, (size_t *, size_t *))                                                        \
  X(MemAlloc, 3020, (Address *, size_t))                                                           \
  X(MemAllocPitch, 3020, (Address *, size_t *, size_t, size_t, unsigned))                          \
  X(MemAllocManaged, 6000, (Address *, size_t, unsigned))                                          \
  X(MemFree, 3020, (Address))                                                                      \
  X(MemAllocAsync, 11020, (Address *, size_t, Handle))                                             \
  X(MemFreeAsync, 11020, (Address, Handle))                                                        \
  X(MemHostAlloc, 2020, (void **, size_t, unsigned))                                               \
  X(MemFreeHost, 2000, (void *))                                                                   \
  X(Memcpy, 4000, (Address, Address, size_t))                                                      \
  X(MemcpyHtoD, 3020, (Address, const void *, size_t))                                             \
  X(MemcpyDtoH, 3020, (void *, Address, size_t))                                                   \
  X(MemcpyDtoD, 3020, (Address, Address, size_t))                                                  \
  X(MemcpyAsync, 4000, (Address, Address, size_t, Handle))                                         \
  X(MemcpyHtoDAsync, 3020, (Address, const void *, size_t, Handle))                                \
  X(MemcpyDtoHAsync, 3020, (void *, Address, size_t, Handle))                                      \
  X(MemcpyDtoDAsync, 3020, (Address, Address, size_t, Handle))                                     \
  X(MemsetD8, 3020, (Address, unsigned char, size_t))                                              \
  X(MemsetD8Async, 3020, (Address, unsigned char, size_t, Handle))                                 \
  X(PointerGetAttributes, 7000, (unsigned, int *, void **, Address))                               \
  X(StreamCreateWithPriority, 5050, (Handle *, unsigned, int))                                     \
  X(StreamDestroy, 4000, (Handle))                                                                 \
  X(StreamQuery, 2000, (Handle))                                                                   \
  X(StreamSynchronize, 2000, (Handle))                                                             \
  X(StreamWaitEvent, 3020, (Handle, Handle, unsigned))                                             \
  X(LaunchHostFunc, 10000, (Handle, void (*)(void *), void *))                                     \
  X(EventCreate, 2000, (Handle *, unsigned))                                                       \
  X(EventRecord, 2000, (Handle, Handle))                                                           \
  X(EventQuery, 2000, (Handle))                                                                    \
  X(EventSynchronize, 2000, (Handle))                                                              \
  X(EventDestroy, 4000, (Handle))                                                                  \
  X(EventElapsedTime, 2000, (float *, Handle, Handle))                                             \
  X(StreamBeginCapture, 10010, (Handle, int))                                                      \
  X(StreamEndCapture, 10000, (Handle, Handle *))                                                   \
  X(StreamIsCapturing, 10000, (Handle, int *))                                                     \
  X(StreamGetCaptureInfo, 11030, (Handle, int *, uint64_t *, Handle *, const Handle **, size_t *)) \
  X(ThreadExchangeStreamCaptureMode, 10010, (int *))                                               \
  X(GraphInstantiateWithFlags, 11040, (Handle *, Handle, unsigned long long))                      \
  X(GraphLaunch, 10000, (Handle, Handle))                                                          \
  X(GraphDestroy, 10000, (Handle))                                                                 \
  X(GraphExecDestroy, 10000, (Handle))                                                             \
  X(StreamGetPriority, 5050, (Handle, int *))                                                      \
  X(StreamAddCallback, 5000, (Handle, void (*)(Handle, int, void *), void *, unsigned))            \
  X(EventRecordWithFlags, 11010, (Handle, Handle, unsigned))                                       \
  X(MemHostRegister, 6050, (void *, size_t, unsigned))                                             \
  X(MemHostUnregister, 4000, (void *))                                                             \
  X(MemPoolSetAttribute, 11020, (Handle, int, void *))                                             \
  X(MemPoolGetAttribute, 11020, (Handle, int, void *))                                             \
  X(MemPoolSetAccess, 11020, (Handle, const void *, size_t))                                       \
  X(MemPoolTrimTo, 11020, (Handle, size_t))                                                        \
  X(CtxEnablePeerAccess, 4000, (Handle, unsigned))                                                 \
  X(DeviceGetPCIBusId, 4010, (char *, int, int))                                                   \
  X(DeviceGetName, 2000, (char *, int, int))                                                       \
  X(DeviceGetUuid, 11040, (void *, int))                                                           \
  X(DeviceTotalMem, 3020, (size_t *, int))                                                         \
  X(DeviceGetGraphMemAttribute, 11040, (int, int, void *))                                         \
  X(GraphGetNodes, 10000, (Handle, Handle *, size_t *))                                            \
  X(IpcGetEventHandle, 4010, (void *, Handle))                                                     \
  X(IpcGetMemHandle, 4010, (cudaIpcMemHandle_t *, Address))                                        \
  X(IpcOpenMemHandle, 11000, (Address *, cudaIpcMemHandle_t, unsigned))                            \
  X(IpcCloseMemHandle, 4010, (Address))

#define HIDDEN __attribute__((visibility("hidden")))
#define driver simcudart_driver
#define done simcudart_done
#define driver_there simcudart_driver_there
#define enter simcudart_enter
#define context_of simcudart_context_of

struct simcudart_driver {
#define FIELD(name, version, arguments) int(*name) arguments;
  DRIVER(FIELD)
};
extern HIDDEN struct simcudart_driver driver;
/* libcuda.so.1, once driver_there() is 0. */
extern HIDDEN void *simcudart_library;

/* Remembers a failure for cudaGetLastError. */
HIDDEN cudaError_t done(int code);
/* 0 once the driver is loaded and initialised. */
HIDDEN int driver_there(void);
/* A context is current after that: the program's own, or the primary one of the thread's device. */
HIDDEN int enter(void);
/* A device's primary context, retained. */
HIDDEN int context_of(int device, Handle *context);

/* The body of a function that needs a context: a call of the driver. */
#define IN_CONTEXT(call)                 \
  do {                                   \
    int code_ = enter();                 \
    return done(code_ ? code_ : (call)); \
  } while (0)

#endif
