/* What the programs here use of the driver's interface, as NVIDIA's cuda.h has it: CUresult and enumerations are int,
 * CUdeviceptr is uint64_t, handles are pointers. They are linked to libcuda.so.1, so that with the interposer preloaded
 * the names that it has are its own.
 */
#ifndef BFC_BEHAVIOUR_DRIVER_H
#define BFC_BEHAVIOUR_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t Address;
typedef void *Handle;

enum {
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_CONTEXT = 201,
  ILLEGAL_ADDRESS = 700,
  CONTEXT_IS_DESTROYED = 709,
  CAPTURE_UNSUPPORTED = 900
};

/* CUmemLocation and CUmemAllocationProp of CUDA 12: pinned memory (1) of a device (1). */
typedef struct MemoryKind {
  int type, handle_types, location, device;
  void *security;
  unsigned char compression, rdma;
  unsigned short usage;
  unsigned char reserved[4];
} MemoryKind;

#define MEMORY_OF(device_number) ((MemoryKind){.type = 1, .location = 1, .device = (device_number)})

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(Handle *context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxReset_v2(int device);
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
int cuCtxCreate_v2(Handle *context, unsigned flags, int device);
int cuCtxDestroy_v2(Handle context);
int cuCtxGetCurrent(Handle *context);
int cuCtxSetCurrent(Handle context);
int cuCtxPushCurrent_v2(Handle context);
int cuCtxPopCurrent_v2(Handle *context);
int cuCtxSynchronize(void);
int cuStreamCreate(Handle *stream, unsigned flags);
int cuStreamBeginCapture_v2(Handle stream, int mode);
int cuStreamBeginRecaptureToGraph(Handle stream, int mode, Handle graph, void *callback, void *data);
int cuStreamEndCapture(Handle stream, Handle *graph);
int cuGraphCreate(Handle *graph, unsigned flags);
int cuGraphDestroy(Handle graph);
int cuCtxEnablePeerAccess(Handle context, unsigned flags);
/* CUDA_MEMCPY2D, and CUDA_MEMCPY3D, of which CUDA_MEMCPY3D_PEER has contexts where the other has reserved fields. */
typedef struct Rectangle {
  size_t from_x, from_y;
  unsigned from_type;
  const void *from_host;
  Address from;
  Handle from_array;
  size_t from_pitch, to_x, to_y;
  unsigned to_type;
  void *to_host;
  Address to;
  Handle to_array;
  size_t to_pitch, width, height;
} Rectangle;

typedef struct Box {
  size_t from_x, from_y, from_z, from_level;
  unsigned from_type;
  const void *from_host;
  Address from;
  Handle from_array, from_context;
  size_t from_pitch, from_height, to_x, to_y, to_z, to_level;
  unsigned to_type;
  void *to_host;
  Address to;
  Handle to_array, to_context;
  size_t to_pitch, to_height, width, height, depth;
} Box;

int cuMemcpy2DAsync_v2(const Rectangle *copy, Handle stream);
int cuMemcpy3DAsync_v2(const Box *copy, Handle stream);
int cuMemcpy3DPeerAsync(const Box *copy, Handle stream);
int cuGraphAddMemcpyNode(Handle *node, Handle graph, const Handle *dependencies, size_t count, const Box *copy,
                         Handle context);
int cuMemcpyAsync(Address to, Address from, size_t bytes, Handle stream);
int cuMemcpyPeerAsync(Address to, Handle there, Address from, Handle here, size_t bytes, Handle stream);
int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Handle stream);
int cuMemsetD8Async(Address at, unsigned char value, size_t count, Handle stream);
int cuMemAlloc_v2(Address *address, size_t bytes);
int cuMemFree_v2(Address address);
int cuMemGetInfo_v2(size_t *free, size_t *total);
int cuMemGetAddressRange_v2(Address *base, size_t *bytes, Address address);
int cuMemAllocPitch_v2(Address *address, size_t *pitch, size_t width, size_t height, unsigned element);
int cuMemAllocManaged(Address *address, size_t bytes, unsigned flags);
int cuMemCreate(uint64_t *handle, size_t bytes, const MemoryKind *kind, unsigned long long flags);
int cuMemRelease(uint64_t handle);
/* CUmemAccessDesc: the kind and the number of a location, and flags. */
int cuMemSetAccess(Address at, size_t bytes, const void *access, size_t count);
int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags);
int cuMemAllocHost_v2(void **memory, size_t bytes);
int cuMemFreeHost(void *memory);
int cuMemHostGetFlags(unsigned *flags, void *memory);
int cuMemHostGetDevicePointer_v2(Address *address, void *memory, unsigned flags);
int cuMemAllocAsync(Address *address, size_t bytes, Handle stream);
int cuMemAllocAsync_ptsz(Address *address, size_t bytes, Handle stream);
int cuMemFreeAsync(Address address, Handle stream);
int cuMemFreeAsync_ptsz(Address address, Handle stream);
int cuPointerGetAttribute(void *data, int attribute, Address address);
int cuPointerGetAttributes(unsigned count, int *attributes, void **data, Address address);
int cuPointerSetAttribute(const void *value, int attribute, Address address);
int cuIpcGetMemHandle(void *handle, Address address);
int cuMemGetHandleForAddressRange(void *handle, Address address, size_t bytes, int type, unsigned long long flags);
int cuMemsetD8_v2(Address address, unsigned char value, size_t bytes);

#endif
