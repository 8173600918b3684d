/* What went wrong in other interposers and allocators, one case each. Their threads are named; what is said of them here is
 * what was read there. */
#include "held.h"

#include <pthread.h>

/* HAMi-core #257, #67, #321: a free of what the interposer had not handed out was swallowed, and its code was none of
 * CUDA's. Such memory is stream-ordered, or a graph's, or from before, or from a function that is not hooked. */
static void untracked_frees(void) {
  Handle context = NULL, popped = NULL;
  Address address = 0;
  void *memory = NULL;
  size_t pitch = 0;
  cudaStream_t stream = NULL;
  cudaGraph_t graph = NULL;
  cudaGraphExec_t executable = NULL;
  pooled(1000);
  const uint64_t before = simcuda_live(SIMCUDA_ALLOCATIONS);
  OK(cudaMallocAsync(&memory, 3000, NULL));
  OK(cudaFree(memory));
  IS(cudaFree(memory), INVALID_VALUE);
  OK(cudaMallocManaged(&memory, 3000, cudaMemAttachGlobal));
  OK(cudaFree(memory));
  IS(cudaFree(memory), INVALID_VALUE);
  OK(cudaMallocPitch(&memory, &pitch, 100, 100));
  OK(cudaFree(memory));
  IS(cudaFree(memory), INVALID_VALUE);
  /* Of another context of the same device. */
  OK(cuCtxCreate_v2(&context, 0, 0));
  OK(cuMemAlloc_v2(&address, 3000));
  OK(cuCtxPopCurrent_v2(&popped));
  OK(cudaFree((void *)address));
  IS(cudaFree((void *)address), INVALID_VALUE);
  OK(cuCtxDestroy_v2(context));
  IS(simcuda_live(SIMCUDA_ALLOCATIONS), before);
  /* Of a graph that was launched. */
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaMallocAsync(&memory, 3000, stream));
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphInstantiate(&executable, graph, 0));
  OK(cudaGraphLaunch(executable, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaFree(memory));
  IS(cudaFree(memory), INVALID_VALUE);
  OK(cudaGraphExecDestroy(executable));
  OK(cudaGraphDestroy(graph));
  no_misuse();
}

/* HAMi-core #312, #281: what a call that failed had not written was read, or written over. */
static void outputs_of_failures(void) {
  char *memory = pooled(1000);
  const char *names[] = {
      "cuMemAlloc",        "cuMemGetInfo",    "cuMemGetAddressRange", "cuPointerGetAttribute", "cuPointerGetAttributes",
      "cuIpcGetMemHandle", "cuMemAllocPitch", "cuMemAllocManaged",    "cuMemAllocAsync",       "cuMemHostAlloc",
      "cuMemCreate"};
  const MemoryKind kind = MEMORY_OF(0);
  for (int code = 1; code <= 999; code += 499) {
    for (unsigned each = 0; each < sizeof names / sizeof names[0]; each++) {
      uint64_t untouched[16];
      int attributes[2] = {11, 12};
      void *places[2] = {&untouched[8], &untouched[9]};
      memset(untouched, 0x3c, sizeof untouched);
      for (int nth = 1; nth < 10; nth++) OK(simcuda_fail(names[each], nth, code));
      int seen = 0;
      switch (each) {
        case 0: seen = cuMemAlloc_v2(&untouched[0], 3000 * MIB); break;
        case 1: seen = cuMemGetInfo_v2((size_t *)&untouched[1], (size_t *)&untouched[2]); break;
        case 2: seen = cuMemGetAddressRange_v2(&untouched[3], (size_t *)&untouched[4], (Address)memory); break;
        case 3: seen = cuPointerGetAttribute(&untouched[5], 11, (Address)memory); break;
        case 4: seen = cuPointerGetAttributes(2, attributes, places, (Address)memory); break;
        case 5: seen = cuIpcGetMemHandle(&untouched[8], (Address)memory); break;
        case 6: seen = cuMemAllocPitch_v2(&untouched[0], (size_t *)&untouched[1], 100, 100, 4); break;
        case 7: seen = cuMemAllocManaged(&untouched[0], 100, 1); break;
        case 8: seen = cuMemAllocAsync(&untouched[0], 3000 * MIB, NULL); break;
        case 9: seen = cuMemHostAlloc((void **)&untouched[0], 100 * MIB, 1); break;
        default: seen = cuMemCreate(&untouched[0], 2 * MIB, &kind, 0);
      }
      IS(seen, code);
      for (int at = 0; at < 16; at++) IS(untouched[at], 0x3c3c3c3c3c3c3c3cll);
      simcuda_clear_faults();
    }
  }
}

/* HAMi-core #234, #321; llama.cpp #20499: an output that the caller did not want was written through NULL. */
static void nothing_wanted(void) {
  size_t free = 0, total = 0;
  Address base = 0;
  char *memory = pooled(1000);
  OK(cuMemGetInfo_v2(&free, NULL));
  OK(cuMemGetInfo_v2(NULL, &total));
  OK(cuMemGetInfo_v2(NULL, NULL));
  CHECK(free > 0 && free < total);
  OK(cuMemGetAddressRange_v2(&base, NULL, (Address)memory));
  IS(base, (Address)memory);
  OK(cuMemGetAddressRange_v2(NULL, &total, (Address)memory));
  IS(total, 1000);
  OK(cuMemGetAddressRange_v2(NULL, NULL, (Address)memory));
  IS(cuMemAlloc_v2(NULL, 1000), INVALID_VALUE);
  IS(cuMemAllocAsync(NULL, 1000, NULL), INVALID_VALUE);
  IS(cuMemHostAlloc(NULL, 1000, 0), INVALID_VALUE);
  IS(cuMemAllocPitch_v2(NULL, NULL, 10, 10, 4), INVALID_VALUE);
  IS(cuMemAllocManaged(NULL, 10, 1), INVALID_VALUE);
  IS(cuPointerGetAttribute(NULL, 11, (Address)memory), INVALID_VALUE);
  IS(cuPointerGetAttributes(1, NULL, NULL, (Address)memory), INVALID_VALUE);
  IS(cuIpcGetMemHandle(NULL, (Address)memory), INVALID_VALUE);
  IS(cuDevicePrimaryCtxRetain(NULL, 0), INVALID_VALUE);
}

/* HAMi-core #281: managed memory was called unmanaged by one of two functions. */
static void managed_by_both(void) {
  void *memory = NULL;
  OK(cudaMallocManaged(&memory, 1000, cudaMemAttachGlobal));
  void *pointers[2] = {memory, pooled(1000)};
  for (int each = 0; each < 2; each++) {
    unsigned one = 7, both[2] = {7, 7};
    int attributes[2] = {8, 2};
    void *places[2] = {&both[0], &both[1]};
    OK(cuPointerGetAttribute(&one, 8, (Address)pointers[each]));
    OK(cuPointerGetAttributes(2, attributes, places, (Address)pointers[each]));
    IS(one, each == 0);
    IS(both[0], one);
    IS(both[1], 2);
  }
}

/* HAMi-core #172, #187: a thread without a context, and memory that belongs to no device, were taken for device
 * garbage. */
static void *stranger(void *argument) {
  (void)argument;
  const MemoryKind kind = MEMORY_OF(0);
  MemoryKind of_host = MEMORY_OF(0);
  Address address = 0x66;
  uint64_t handle = 0;
  size_t free = 0x66, total = 0x66;
  of_host.location = 2;
  IS(cuMemAlloc_v2(&address, 1000), INVALID_CONTEXT);
  IS(cuMemAllocManaged(&address, 1000, 1), INVALID_CONTEXT);
  IS(cuMemAllocAsync(&address, 1000, NULL), INVALID_CONTEXT);
  IS(cuMemGetInfo_v2(&free, &total), INVALID_CONTEXT);
  IS(address, 0x66);
  IS(free, 0x66);
  OK(cuMemCreate(&handle, 2 * MIB, &kind, 0));
  OK(cuMemRelease(handle));
  CHECK(cuMemCreate(&handle, 2 * MIB, &of_host, 0) != 0);
  OK(cudaFree(pooled(1000)));
  return NULL;
}

static void strangers(void) {
  pthread_t thread;
  OK(cudaFree(pooled(1000)));
  OK(pthread_create(&thread, NULL, stranger, NULL));
  OK(pthread_join(thread, NULL));
}

/* nvshare #11, #14: the runtime of CUDA 12 asks by cuGetProcAddress_v2 and by nothing else, and PyTorch was missed. */
static void by_proc_address(void) {
  void *memory = NULL;
  OK(cudaMalloc(&memory, 1000));
  CHECK(simcuda_calls("cuGetProcAddress") > 10);
  CHECK(is_pooled(memory));
}

/* UCX #3210, #6058: with the runtime linked statically device memory was taken for the host's. Whoever asks the driver, in
 * another library say, is told what it is. */
static void device_memory(void) {
  char *memory = pooled(100000);
  unsigned type = 0;
  Address base = 0;
  size_t bytes = 0;
  int device = -1;
  OK(cuPointerGetAttribute(&type, 2, (Address)memory + 50000));
  IS(type, 2);
  OK(cuPointerGetAttribute(&device, 9, (Address)memory + 50000));
  IS(device, 0);
  OK(cuMemGetAddressRange_v2(&base, &bytes, (Address)memory + 50000));
  CHECK(base == (Address)memory && bytes == 100000);
}

/* rmm #2202, #2203, #2366; PyTorch #97142: destructors run after the driver is gone. What they free is answered with the
 * driver's own code, which those programs know to be benign, and nothing crashes. (What rmm #1655 is could not be found out;
 * the notes name it among these.) */
static char *of_static_storage[3];
static cudaStream_t static_stream;

static void destructors(void) {
  enum { DEINITIALIZED = 4 };
  void *memory = NULL;
  IS(cudaFree(of_static_storage[0]), DEINITIALIZED);
  IS(cudaFreeHost(of_static_storage[1]), DEINITIALIZED);
  IS(cudaFreeAsync(of_static_storage[2], NULL), DEINITIALIZED);
  IS(cudaFreeAsync(of_static_storage[0], static_stream) == 0, 0);
  IS(cudaStreamDestroy(static_stream), DEINITIALIZED);
  IS(cudaMalloc(&memory, 1000), DEINITIALIZED);
  IS(cudaMallocHost(&memory, 1000), DEINITIALIZED);
  IS(cudaDeviceSynchronize(), DEINITIALIZED);
  IS(cudaMemGetInfo(&(size_t){0}, &(size_t){0}), DEINITIALIZED);
}

static void driver_ends(void) { simcuda_shutdown(); }

static void after_the_end(void) {
  void *memory = NULL;
  /* The last that is registered runs first. */
  OK(atexit(destructors));
  of_static_storage[0] = pooled(1000);
  OK(cudaMallocHost(&memory, 1000));
  of_static_storage[1] = memory;
  OK(cudaMallocAsync(&memory, 1000, NULL));
  of_static_storage[2] = memory;
  OK(cudaStreamCreate(&static_stream));
  OK(atexit(driver_ends));
}

static const Case CASES[] = {
    {"untracked_frees", untracked_frees, NULL},
    {"untracked_frees_async", untracked_frees, "BFC_PRELOAD_ASYNC=1"},
    {"outputs_of_failures", outputs_of_failures, NULL},
    {"nothing_wanted", nothing_wanted, NULL},
    {"nothing_wanted_optional", nothing_wanted, "BFC_PRELOAD_ASYNC=1 BFC_PRELOAD_PINNED=1"},
    {"managed_by_both", managed_by_both, NULL},
    {"strangers", strangers, NULL},
    {"by_proc_address", by_proc_address, NULL},
    {"device_memory", device_memory, NULL},
    {"after_the_end", after_the_end, NULL},
    {"after_the_end_optional", after_the_end, "BFC_PRELOAD_ASYNC=1 BFC_PRELOAD_PINNED=1 BFC_PRELOAD_FREE=sync"},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
