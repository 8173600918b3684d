/* The simulated runtime (simcuda): launches as nvcc's code makes them, and what kernels.c, rest.c and properties.c have
 * besides. Kernels compute nothing; what is tried is that their launches keep their place in a stream and in a graph. */
#define _GNU_SOURCE
#include "../../cudart/cudart.h"
#include "../../simcuda.h"
#include "check.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What nvcc's code calls. */
void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, void *thread,
                            void *block, dim3 *blocks, dim3 *grid, int *warp);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream);

/* Not simulated. */
cudaError_t cudaUserObjectCreate(void);
cudaError_t cudaLibraryUnload(void);

static int (*hold)(void *);
static int (*release)(void *);
static uint64_t (*pending)(void *);
static uint64_t (*step)(void *, uint64_t);
static uint64_t (*misuses)(void);
static uint64_t (*live)(int);

static void steer(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  *(void **)&hold = dlsym(library, "simcuda_hold");
  *(void **)&release = dlsym(library, "simcuda_release");
  *(void **)&pending = dlsym(library, "simcuda_pending");
  *(void **)&step = dlsym(library, "simcuda_step");
  *(void **)&misuses = dlsym(library, "simcuda_misuses");
  *(void **)&live = dlsym(library, "simcuda_live");
}

static dim3 of(unsigned x) { return (dim3){x, 1, 1}; }

/* As nvcc makes it for `__global__ void kernel(int)`. */
static int kernel(int argument) {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
  void *arguments[] = {&argument};
  if (__cudaPopCallConfiguration(&grid, &block, &shared, &stream)) return -1;
  return cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared, stream);
}

/* kernel<<<grid, block, 0, stream>>>(1) */
static int launched(unsigned grid, unsigned block, cudaStream_t stream) {
  return __cudaPushCallConfiguration(of(grid), of(block), 0, stream) ? -1 : kernel(1);
}

static void launches(void) {
  cudaStream_t stream;
  cudaEvent_t event;
  void **binary = __cudaRegisterFatBinary("nothing");
  IS(binary != NULL, 1);
  __cudaRegisterFunction(binary, (const char *)kernel, "kernel", "kernel", -1, NULL, NULL, NULL, NULL, NULL);
  __cudaRegisterFatBinaryEnd(binary);
  IS(kernel(1), -1); /* nothing was pushed */
  IS(cudaGetLastError(), cudaErrorMissingConfiguration);

  IS(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1), cudaSuccess);
  IS(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  hold(stream);
  IS(launched(4, 256, stream), cudaSuccess);
  cudaKernel_t handle = NULL;
  IS(__cudaGetKernel(&handle, (const void *)kernel), cudaSuccess);
  IS(__cudaLaunchKernel(handle, of(1), of(1), NULL, 0, stream), cudaSuccess);
  cudaLaunchConfig_t how = {.gridDim = of(2), .blockDim = of(32), .stream = stream};
  IS(cudaLaunchKernelExC(&how, (const void *)kernel, NULL), cudaSuccess);
  IS(cudaLaunchCooperativeKernel((const void *)kernel, of(1), of(32), NULL, 0, stream), cudaSuccess);
  IS(cudaEventRecordWithFlags(event, stream, 0), cudaSuccess);
  /* Each has its place: the event comes after all four. */
  IS(pending(stream), 5);
  IS(step(stream, 4), 4);
  IS(cudaEventQuery(event), cudaErrorNotReady);
  IS(step(stream, 1), 1);
  IS(cudaEventQuery(event), cudaSuccess);
  release(stream);
  cudaGetLastError();

  IS(launched(0, 1, stream), cudaErrorInvalidConfiguration);
  IS(launched(1, 1025, stream), cudaErrorInvalidConfiguration);
  IS(cudaLaunchKernel(NULL, of(1), of(1), NULL, 0, stream), cudaErrorInvalidDeviceFunction);
  IS(cudaGetLastError(), cudaErrorInvalidDeviceFunction);

  cudaGraph_t graph;
  cudaGraphExec_t executable;
  size_t nodes = 0;
  IS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  IS(launched(1, 1, stream), cudaSuccess);
  IS(launched(1, 1, stream), cudaSuccess);
  IS(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  IS(cudaGraphGetNodes(graph, NULL, &nodes), cudaSuccess);
  IS(nodes, 2);
  IS(cudaGraphInstantiateWithFlags(&executable, graph, 0), cudaSuccess);
  IS(cudaGraphDestroy(graph), cudaSuccess);
  hold(stream);
  IS(cudaGraphLaunch(executable, stream), cudaSuccess);
  IS(pending(stream) > 1, 1);
  release(stream);
  IS(cudaGraphExecDestroy(executable), cudaSuccess);
  IS(cudaEventDestroy(event), cudaSuccess);
  IS(cudaStreamDestroy(stream), cudaSuccess);
  __cudaUnregisterFatBinary(binary);
}

/* What a launch may hold among its arguments: others. */
static void nested(void) {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = NULL;
  for (unsigned depth = 1; depth <= 16; depth++)
    IS(__cudaPushCallConfiguration(of(depth), of(1), depth, (void *)(size_t)depth), 0);
  IS(__cudaPushCallConfiguration(of(1), of(1), 0, NULL), 1);
  for (unsigned depth = 16; depth >= 1; depth--) {
    IS(__cudaPopCallConfiguration(&grid, &block, &shared, &stream), cudaSuccess);
    IS(grid.x == depth && shared == depth && stream == (cudaStream_t)(size_t)depth, 1);
  }
}

static void what_kernels_are(void) {
  struct cudaFuncAttributes attributes;
  int blocks = 0;
  IS(cudaFuncGetAttributes(&attributes, (const void *)kernel), cudaSuccess);
  IS(attributes.binaryVersion == 90 && attributes.ptxVersion == 90, 1);
  IS(attributes.maxThreadsPerBlock, 1024);
  IS(cudaFuncGetAttributes(NULL, (const void *)kernel), cudaErrorInvalidValue);
  IS(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 16), cudaSuccess);
  IS(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)kernel, 128, 0), cudaSuccess);
  IS(blocks, 2);
  IS(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)kernel, 0, 0), cudaErrorInvalidValue);
#if CUDART_MAJOR >= 13
  struct cudaDeviceProp all;
  IS(cudaGetDeviceProperties(&all, 1), cudaSuccess);
  IS(strstr(all.name, "simulated") != NULL, 1);
  IS(all.major == 9 && all.warpSize == 32 && all.maxGridSize[0] == 2147483647 && all.maxGridSize[1] == 65535, 1);
  IS(all.pciBusID, 2);
  size_t free, total;
  IS(cudaMemGetInfo(&free, &total), cudaSuccess);
  IS(all.totalGlobalMem, total);
  IS(cudaGetDeviceProperties(&all, 2), cudaErrorInvalidDevice);
#endif
  cudaGetLastError();
}

static void count_one(cudaStream_t stream, cudaError_t status, void *argument) {
  (void)stream;
  *(int *)argument += status == cudaSuccess;
}

static void the_rest(void) {
  char id[16], host[4096], rows[4][8], back[4][16];
  int priority = 0, called = 0;
  void *block, *other;
  cudaStream_t stream;
  IS(cudaDeviceGetPCIBusId(id, sizeof id, 1), cudaSuccess);
  IS(strcmp(id, "0000:02:00.0"), 0);
  IS(cudaStreamCreateWithPriority(&stream, 0, -1), cudaSuccess);
  IS(cudaStreamGetPriority(stream, &priority), cudaSuccess);
  IS(priority, -1);
  IS(cudaStreamAddCallback(stream, count_one, &called, 0), cudaSuccess);
  IS(cudaStreamSynchronize(stream), cudaSuccess);
  IS(called, 1);

  IS(cudaHostRegister(host, sizeof host, 0), cudaSuccess);
  IS(cudaHostUnregister(host), cudaSuccess);
  IS(cudaHostUnregister(host) != cudaSuccess, 1);

  memset(rows, 5, sizeof rows);
  memset(back, 0, sizeof back);
  IS(cudaMalloc(&block, 4096), cudaSuccess);
  IS(cudaMemcpy2DAsync(block, 512, rows, 8, 8, 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
  IS(cudaMemcpy2DAsync(back, 16, block, 512, 8, 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  IS(cudaMemcpy2DAsync(back, 4, block, 512, 8, 4, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidPitchValue);
  IS(cudaStreamSynchronize(stream), cudaSuccess);
  IS(back[3][7] == 5 && back[3][8] == 0 && back[0][0] == 5, 1);

  IS(cudaSetDevice(1), cudaSuccess);
  IS(cudaMalloc(&other, 4096), cudaSuccess);
  IS(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
  IS(cudaDeviceEnablePeerAccess(1, 0) != cudaSuccess, 1);
  IS(cudaSetDevice(0), cudaSuccess);
  IS(cudaMemcpyPeerAsync(other, 1, block, 0, 512, stream), cudaSuccess);
  IS(cudaMemcpyPeerAsync(other, 2, block, 0, 512, stream), cudaErrorInvalidDevice);
  IS(cudaFree(block), cudaSuccess);
  IS(cudaFree(other), cudaSuccess);
  IS(cudaStreamDestroy(stream), cudaSuccess);

  cudaMemPool_t pool;
  uint64_t threshold = 1 << 20, found = 0;
  IS(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  IS(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), cudaSuccess);
  IS(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &found), cudaSuccess);
  IS(found, threshold);
  IS(cudaMemPoolTrimTo(pool, 0), cudaSuccess);

  cudaGetLastError();
  IS(cudaUserObjectCreate(), cudaErrorNotSupported);
  IS(cudaGetLastError(), cudaErrorNotSupported);
  IS(cudaLibraryUnload(), cudaErrorNotSupported);
  cudaGetLastError();
}

int main(void) {
  steer();
  launches();
  nested();
  what_kernels_are();
  the_rest();
  IS(live(SIMCUDA_ALLOCATIONS), 0);
  IS(misuses(), 0);
  printf("%d failures\n", failures);
  return failures != 0;
}
