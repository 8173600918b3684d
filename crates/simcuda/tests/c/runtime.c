/* The simulated runtime (simcuda), linked as libcudart.so.12, as libcudart.so.13, and statically (LINKED_STATICALLY).
 * Without an argument everything is tried; `old` expects a driver that is too old, `none` expects no driver. */
#define _GNU_SOURCE
#include "../../cudart/cudart.h"
#include "../../simcuda.h"
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t (*live)(int);
static uint64_t (*calls)(const char *);
static int (*hold)(void *);
static int (*release)(void *);
static uint64_t (*misuses)(void);
static int (*fail)(const char *, uint64_t, int);

static void steer(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  *(void **)&live = dlsym(library, "simcuda_live");
  *(void **)&calls = dlsym(library, "simcuda_calls");
  *(void **)&hold = dlsym(library, "simcuda_hold");
  *(void **)&release = dlsym(library, "simcuda_release");
  *(void **)&misuses = dlsym(library, "simcuda_misuses");
  *(void **)&fail = dlsym(library, "simcuda_fail");
}

static void symbols(void) {
  char node[32];
  snprintf(node, sizeof node, "libcudart.so.%d", CUDART_MAJOR);
#ifdef LINKED_STATICALLY
  IS(dlsym(RTLD_DEFAULT, "cudaMalloc") == NULL, 1);
#else
  IS(dlvsym(RTLD_DEFAULT, "cudaMalloc", node) == (void *)cudaMalloc, 1);
  IS(dlvsym(RTLD_DEFAULT, "cudaMalloc", "libcudart.so.11.0") == NULL, 1);
#endif
}

static void first_calls(void) {
  int version = 0, count = 0;
  IS(cudaRuntimeGetVersion(&version), cudaSuccess);
  IS(version / 1000, CUDART_MAJOR);
  IS(cudaGetDeviceCount(&count), cudaSuccess);
  IS(count, 2);
  /* NVIDIA's runtimes reach the driver so. */
  IS(calls("cuGetProcAddress_v2") > 10, 1);
  IS(calls("cuGetProcAddress_v2") + calls("cuDriverGetVersion") + calls("cuInit") + calls("cuDeviceGetCount"),
     calls(NULL));
  IS(live(SIMCUDA_CONTEXTS), 0);
  IS(cudaFree(NULL), cudaSuccess); /* the usual way to bring a context to life */
  IS(live(SIMCUDA_CONTEXTS), 1);
  IS(live(SIMCUDA_RETAINS), 1);
}

static void *no_error_here(void *argument) {
  (void)argument;
  IS(cudaGetLastError(), cudaSuccess);
  return NULL;
}

static void memory(void) {
  void *block = &block, *other;
  IS(cudaMalloc(&block, 0), cudaSuccess);
  IS(block == NULL, 1);
  IS(calls("cuMemAlloc"), 0);
  IS(cudaMalloc(NULL, 1), cudaErrorInvalidValue);
  IS(cudaMalloc(&block, (size_t)1 << 50), cudaErrorMemoryAllocation);
  IS(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  pthread_t thread;
  pthread_create(&thread, NULL, no_error_here, NULL);
  pthread_join(thread, NULL);
  IS(cudaGetLastError(), cudaErrorMemoryAllocation);
  IS(cudaGetLastError(), cudaSuccess);

  char text[16] = "simulated", back[16];
  IS(cudaMalloc(&block, 4096), cudaSuccess);
  IS(cudaMalloc(&other, 4096), cudaSuccess);
  IS(cudaMemcpy(block, text, sizeof text, cudaMemcpyHostToDevice), cudaSuccess);
  IS(cudaMemcpy(other, block, sizeof text, cudaMemcpyDefault), cudaSuccess);
  IS(cudaMemcpy(back, other, sizeof text, cudaMemcpyDeviceToHost), cudaSuccess);
  IS(strcmp(text, back), 0);
  IS(cudaMemcpy(back, other, 1, (enum cudaMemcpyKind)9), cudaErrorInvalidMemcpyDirection);
  IS(cudaMemset(block, 0, 4096), cudaSuccess);
  size_t free, total;
  IS(cudaMemGetInfo(&free, &total), cudaSuccess);
  IS(total - free, 8192);

  struct cudaPointerAttributes is;
  IS(cudaPointerGetAttributes(&is, (char *)block + 7), cudaSuccess);
  IS(is.type, cudaMemoryTypeDevice);
  IS(is.device, 0);
  IS(cudaPointerGetAttributes(&is, text), cudaSuccess);
  IS(is.type, cudaMemoryTypeUnregistered);
  void *pinned, *managed;
  IS(cudaMallocHost(&pinned, 64), cudaSuccess);
  IS(cudaMallocManaged(&managed, 64, cudaMemAttachGlobal), cudaSuccess);
  IS(cudaPointerGetAttributes(&is, pinned), cudaSuccess);
  IS(is.type, cudaMemoryTypeHost);
  IS(cudaPointerGetAttributes(&is, managed), cudaSuccess);
  IS(is.type, cudaMemoryTypeManaged);
  IS(cudaFreeHost(pinned), cudaSuccess);
  IS(cudaFree(managed), cudaSuccess);
  size_t pitch;
  void *rows;
  IS(cudaMallocPitch(&rows, &pitch, 100, 3), cudaSuccess);
  IS(pitch, 512);
  IS(cudaFree(rows), cudaSuccess);
  IS(cudaMallocAsync(&rows, 100, NULL), cudaSuccess);
  IS(cudaFreeAsync(rows, NULL), cudaSuccess);
  cudaIpcMemHandle_t handle;
  IS(cudaIpcGetMemHandle(&handle, block), cudaSuccess);
  IS(cudaIpcOpenMemHandle(&rows, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorDeviceUninitialized);
  IS(cudaFree(other), cudaSuccess);
  IS(cudaFree(block), cudaSuccess);
  IS(cudaFree(block), cudaErrorInvalidValue);
  fail("cuMemAlloc", 1, cudaErrorMemoryAllocation);
  IS(cudaMalloc(&block, 512), cudaErrorMemoryAllocation);
  cudaGetLastError();
}

static void streams(void) {
  cudaStream_t stream;
  cudaEvent_t event;
  char *block;
  IS(cudaMalloc((void **)&block, 64), cudaSuccess);
  IS(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  IS(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  hold(stream);
  IS(cudaMemsetAsync(block, 7, 64, stream), cudaSuccess);
  IS(cudaEventRecord(event, stream), cudaSuccess);
  IS(cudaEventQuery(event), cudaErrorNotReady);
  IS(cudaStreamQuery(stream), cudaErrorNotReady);
  IS(cudaGetLastError(), cudaErrorNotReady);
  IS(cudaStreamWaitEvent(NULL, event, 0), cudaSuccess);
  IS(cudaDeviceSynchronize(), cudaSuccess);
  IS(block[63], 7);
  release(stream);
  IS(cudaEventSynchronize(event), cudaSuccess);

  cudaGraph_t graph;
  cudaGraphExec_t executable;
  enum cudaStreamCaptureStatus status;
  IS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  IS(cudaMemsetAsync(block, 8, 64, stream), cudaSuccess);
  IS(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  IS(status, cudaStreamCaptureStatusActive);
  unsigned long long id = 0;
#if CUDART_MAJOR >= 13
  IS(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, NULL, NULL, NULL), cudaSuccess);
#else
  IS(cudaStreamGetCaptureInfo_v2(stream, &status, &id, &graph, NULL, NULL), cudaSuccess);
#endif
  IS(id != 0, 1);
  void *more;
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  IS(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  IS(mode, cudaStreamCaptureModeGlobal);
  IS(cudaMalloc(&more, 64), cudaSuccess);
  IS(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  IS(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  IS(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  IS(cudaGraphLaunch(executable, stream), cudaSuccess);
  IS(block[0], 8);
  IS(cudaGraphExecDestroy(executable), cudaSuccess);
  IS(cudaGraphDestroy(graph), cudaSuccess);
  IS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  IS(cudaMalloc(&more, 64), cudaErrorStreamCaptureUnsupported);
  IS(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  IS(cudaEventDestroy(event), cudaSuccess);
  IS(cudaStreamDestroy(stream), cudaSuccess);
  cudaGetLastError();
}

static void entry_points(void) {
  void *function = NULL;
  enum cudaDriverEntryPointQueryResult how;
  IS(cudaGetDriverEntryPoint("cuMemCreate", &function, 0, &how), cudaSuccess);
  IS(function != NULL && how == cudaDriverEntryPointSuccess, 1);
  IS(cudaGetDriverEntryPointByVersion("cuMemCreate", &function, 9000, 0, &how), cudaSuccess);
  IS(function == NULL && how == cudaDriverEntryPointVersionNotSufficent, 1);
  IS(cudaGetDriverEntryPoint("cuNothing", &function, 0, NULL), cudaSuccess);
  IS(function == NULL, 1);
}

static void devices(void) {
  int device = -1;
  void *block;
  IS(cudaSetDevice(1), cudaSuccess);
  IS(cudaGetDevice(&device), cudaSuccess);
  IS(device, 1);
  IS(live(SIMCUDA_RETAINS), 2);
  IS(cudaSetDevice(2), cudaErrorInvalidDevice);
  IS(cudaMalloc(&block, 64), cudaSuccess);
  IS(cudaDeviceReset(), cudaSuccess);
  IS(live(SIMCUDA_CONTEXTS), 1);
  IS(live(SIMCUDA_RETAINS), 1);
  /* It comes to life again. */
  IS(cudaMalloc(&block, 64), cudaSuccess);
  IS(cudaGetDevice(&device), cudaSuccess);
  IS(device, 1);
  IS(live(SIMCUDA_CONTEXTS), 2);
  cudaGetLastError();
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  if (!strcmp(what, "old") || !strcmp(what, "none")) {
    int version = -1;
    void *block;
    IS(cudaMalloc(&block, 64), cudaErrorInsufficientDriver);
    IS(cudaGetLastError(), cudaErrorInsufficientDriver);
    if (!strcmp(what, "none")) {
      IS(cudaDriverGetVersion(&version), cudaSuccess);
      IS(version, 0);
    }
  } else {
    steer();
    symbols();
    first_calls();
    memory();
    streams();
    entry_points();
    devices();
    IS(misuses(), 0);
  }
  printf("%d failures\n", failures);
  return failures != 0;
}
