/* BFC_PRELOAD_PINNED=1: pinned host memory from a pool; and without it, passed through. */
#include "held.h"

#define PINNED "BFC_PRELOAD_PINNED=1"

static char *pinned(size_t bytes) {
  void *memory = NULL;
  OK(cudaMallocHost(&memory, bytes));
  CHECK(memory != NULL);
  memset(memory, 0x77, bytes);
  return memory;
}

static char *pooled_pinned(size_t bytes) {
  char *memory = pinned(bytes);
  CHECK(is_pooled(memory));
  return memory;
}

static void passed(void) {
  char *memory = pinned(1000);
  CHECK(!is_pooled(memory));
  OK(cudaFreeHost(memory));
  IS(cudaFreeHost(memory), INVALID_VALUE);
  IS(simcuda_calls("cuMemHostAlloc"), 1);
}

/* A thousand of them cost the driver a call or two. */
static void pools(void) {
  char *memory[1000];
  for (int each = 0; each < 1000; each++) memory[each] = pooled_pinned(1000 + (size_t)each);
  for (int one = 0; one < 1000; one++)
    for (int other = 0; other < one; other++) CHECK(!overlap(memory[one], 2000, memory[other], 1000));
  for (int each = 0; each < 1000; each++) OK(cudaFreeHost(memory[each]));
  CHECK(simcuda_calls("cuMemHostAlloc") <= 2);
  IS(simcuda_calls("cuMemFreeHost"), 0);
}

/* Large ones begin at a page, as the driver's do, whatever lies before. */
static void pages(void) {
  for (int each = 0; each < 40; each++) {
    pooled_pinned(1 + (size_t)each * 700);
    char *large = pooled_pinned(MIB + (size_t)each * 9000);
    IS((uintptr_t)large % (size_t)sysconf(_SC_PAGESIZE), 0);
    if (each % 3 == 0) OK(cudaFreeHost(large));
  }
}

/* The driver says of a pooled pointer what it is: pinned, mapped, of the range that was asked for. */
static void questions(void) {
  char *memory = pooled_pinned(1000), *second = pooled_pinned(5000);
  unsigned flags = 77;
  Address address = 0, base = 0;
  size_t bytes = 0;
  struct cudaPointerAttributes seen;
  CHECK(overlap(memory, 1000, second, 1) == 0);
  OK(cuMemHostGetFlags(&flags, second));
  IS(flags, 2);
  OK(cuMemHostGetDevicePointer_v2(&address, second + 10, 0));
  IS(address, (uint64_t)second + 10);
  OK(cuMemGetAddressRange_v2(&base, &bytes, (Address)second + 4999));
  IS(base, (uint64_t)second);
  IS(bytes, 5000);
  OK(cudaPointerGetAttributes(&seen, second + 3));
  IS(seen.type, cudaMemoryTypeHost);
  OK(cudaFreeHost(second));
  OK(cudaPointerGetAttributes(&seen, second));
  IS(seen.type, cudaMemoryTypeUnregistered);
}

/* Flags want another kind of memory. */
static void with_flags(void) {
  for (unsigned flags = 1; flags < 8; flags++) {
    void *memory = NULL;
    unsigned seen = 0;
    OK(cudaHostAlloc(&memory, 1000, flags));
    CHECK(!is_pooled(memory));
    OK(cuMemHostGetFlags(&seen, memory));
    IS(seen, flags | 2);
    OK(cudaFreeHost(memory));
  }
  void *memory = (void *)0x55;
  IS(cudaHostAlloc(&memory, 1000, 99), INVALID_VALUE);
}

static void frees(void) {
  char *memory = pooled_pinned(1000), *other = pooled_pinned(1000), *device = pooled(1000);
  int variable = 0;
  IS(cudaFreeHost(memory + 64), INVALID_VALUE);
  IS(cudaFreeHost(memory + 1), INVALID_VALUE);
  IS(cudaFreeHost(device), INVALID_VALUE);
  IS(cudaFreeHost(&variable), INVALID_VALUE);
  IS(cudaFree(memory), INVALID_VALUE);
  IS(cudaFreeAsync(memory, NULL), INVALID_VALUE);
  OK(cudaFreeHost(memory));
  IS(cudaFreeHost(memory), INVALID_VALUE);
  OK(cudaFreeHost(NULL));
  OK(cudaFreeHost(other));
  OK(cudaFree(device));
}

/* As cudaFree: work that was queued before goes on reading it. */
static void quarantine(void) {
  cudaStream_t stream = held_stream();
  char *source = pooled_pinned(MIB), *target = pooled(MIB);
  OK(cudaMemcpyAsync(target, source, MIB, cudaMemcpyHostToDevice, stream));
  OK(cudaFreeHost(source));
  char *other = pooled_pinned(MIB);
  CHECK(!overlap(source, MIB, other, MIB));
  memset(other, 0x11, MIB);
  IS(simcuda_pending(stream), 1);
  simcuda_release_all();
  IS(target[0], 0x77);
  IS(target[MIB - 1], 0x77);
  no_misuse();
}

/* BFC_PRELOAD_FREE=sync: cudaFreeHost is a barrier too. */
static void barrier(void) {
  cudaStream_t stream = held_stream();
  char *source = pooled_pinned(MIB), *target = pooled(MIB);
  OK(cudaMemcpyAsync(target, source, MIB, cudaMemcpyHostToDevice, stream));
  OK(cudaFreeHost(source));
  IS(simcuda_pending(stream), 0);
  CHECK(pooled_pinned(MIB) == source);
}

/* Many are freed: asking once serves them, or waiting once where the driver cannot be asked. */
static void many(void) {
  const uint64_t before = settlements(), waits = synchronizations();
  for (int each = 0; each < 5000; each++) OK(cudaFreeHost(pooled_pinned(500)));
  CHECK(settlements() - before >= 4 && settlements() - before <= 5);
  IS(synchronizations() != waits, getenv("SIMCUDA_DRIVER_VERSION") != NULL);
}

/* One buffer at a time, whose work the program waits for in some way: it is always the same. */
static void one_at_a_time(int by_stream) {
  cudaStream_t stream = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const uint64_t before = simcuda_calls("cuMemHostAlloc");
  for (int each = 0; each < 100; each++) {
    char *memory = pooled_pinned(16 * MIB);
    use(stream, memory, MIB, 1 + (uint64_t)each);
    if (by_stream) OK(cudaStreamSynchronize(stream));
    OK(cudaFreeHost(memory));
    if (!by_stream) OK(cudaDeviceSynchronize());
  }
  IS(simcuda_calls("cuMemHostAlloc"), before + 1);
  no_misuse();
}

static void synchronized_device(void) { one_at_a_time(0); }
static void synchronized_stream(void) { one_at_a_time(1); }

/* While a graph is captured nothing is waited for. */
static void capture(void) {
  cudaStream_t captured = NULL;
  cudaGraph_t graph = NULL;
  char *first = pooled_pinned(1000);
  OK(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
  OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal));
  const uint64_t before = synchronizations();
  OK(cudaFreeHost(first));
  for (int each = 0; each < 3000; each++) OK(cudaFreeHost(pooled_pinned(500)));
  IS(synchronizations(), before);
  OK(cudaStreamEndCapture(captured, &graph));
  OK(cudaGraphDestroy(graph));
}

/* The memory ends with the context of its device. */
static void reset(void) {
  for (int round = 0; round < 3; round++) {
    char *memory = pooled_pinned(1000);
    OK(cudaDeviceReset());
    IS(cudaFreeHost(memory), INVALID_VALUE);
    memory = pooled_pinned(1000);
    OK(cudaFreeHost(memory));
  }
  OK(cudaDeviceReset());
  IS(simcuda_live(SIMCUDA_ALLOCATIONS), 0);
}

/* The same where the runtime goes on holding the context. */
static void reset_and_held(void) {
  Handle primary = NULL;
  for (int round = 0; round < 3; round++) {
    char *memory = pooled_pinned(1000), *freed = pooled_pinned(1000);
    OK(cudaFreeHost(freed));
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    IS(simcuda_live(SIMCUDA_ALLOCATIONS), 0);
    simcuda_clear_log();
    IS(cudaFreeHost(memory), INVALID_VALUE);
    memory = pooled_pinned(1000);
    OK(cudaFreeHost(memory));
    IS(simcuda_calls("cuMemHostAlloc"), 1);
  }
}

/* A second device's requests are the driver's. */
static void second_device(void) {
  char *memory = pooled_pinned(1000);
  OK(cudaSetDevice(1));
  char *other = pinned(1000);
  CHECK(!is_pooled(other));
  OK(cudaFreeHost(memory));
  OK(cudaFreeHost(other));
  OK(cudaDeviceReset());
  OK(cudaSetDevice(0));
  OK(cudaFreeHost(pooled_pinned(1000)));
}

/* A limit is for devices. */
static void no_limit(void) {
  void *memory = NULL;
  pooled_pinned(10 * MIB);
  IS(cudaMalloc(&memory, 10 * MIB), OUT_OF_MEMORY);
}

static void sizes_between(void) {
  CHECK(!is_pooled(pinned(100)));
  CHECK(is_pooled(pinned(1000)));
  CHECK(!is_pooled(pinned(2 * MIB)));
}

/* Where the driver has no pinned memory the pool gives back what it can, also what waits, and the driver is asked again. */
static void trimmed(void) {
  void *memory = NULL;
  for (int each = 0; each < 2; each++) {
    OK(cudaFreeHost(pooled_pinned(MIB)));
    simcuda_clear_log();
    OK(simcuda_fail("cuMemHostAlloc", 1, OUT_OF_MEMORY));
    OK(simcuda_fail("cuMemAllocHost", 1, OUT_OF_MEMORY));
    if (each) OK(cuMemAllocHost_v2(&memory, 9 * MIB));
    else OK(cudaHostAlloc(&memory, MIB, 1));
    CHECK(!is_pooled(memory));
    IS(simcuda_calls("cuMemFreeHost"), 1);
    IS(simcuda_calls("cuMemHostAlloc") + simcuda_calls("cuMemAllocHost"), 2);
    OK(cudaFreeHost(memory));
    simcuda_clear_faults();
  }
  /* Where it has nothing to give, another thread may have given something back meanwhile: the driver is asked again too. */
  simcuda_clear_log();
  OK(simcuda_fail("cuMemHostAlloc", 1, OUT_OF_MEMORY));
  OK(cudaHostAlloc(&memory, MIB, 1));
  IS(simcuda_calls("cuMemHostAlloc"), 2);
  OK(cudaFreeHost(memory));
  no_misuse();
}

/* cuMemAllocHost is the same. */
static void the_other_name(void) {
  void *memory = (void *)0x99;
  OK(cudaFree(NULL));
  IS(cuMemAllocHost_v2(NULL, 1000), INVALID_VALUE);
  IS(cuMemHostAlloc(NULL, 1000, 0), INVALID_VALUE);
  IS(cuMemAllocHost_v2(&memory, 0), INVALID_VALUE);
  IS((uintptr_t)memory, 0x99);
  OK(cuMemAllocHost_v2(&memory, 1000));
  CHECK(is_pooled(memory));
  OK(cuMemFreeHost(memory));
}

static const Case CASES[] = {
    {"passed", passed, NULL},
    {"pools", pools, PINNED},
    {"pages", pages, PINNED},
    {"questions", questions, PINNED},
    {"with_flags", with_flags, PINNED},
    {"frees", frees, PINNED},
    {"quarantine", quarantine, PINNED},
    {"quarantine_async", quarantine, PINNED " BFC_PRELOAD_ASYNC=1"},
    {"barrier", barrier, PINNED " BFC_PRELOAD_FREE=sync"},
    {"many", many, PINNED},
    {"many_without_probes", many, PINNED " " WITHOUT_PROBES},
    {"synchronized_device", synchronized_device, PINNED},
    {"synchronized_device_without_probes", synchronized_device, PINNED " " WITHOUT_PROBES},
    {"synchronized_stream", synchronized_stream, PINNED},
    {"capture", capture, PINNED},
    {"reset", reset, PINNED},
    {"reset_and_held", reset_and_held, PINNED},
    {"second_device", second_device, PINNED},
    {"sizes_between", sizes_between, PINNED " BFC_PRELOAD_MIN=512 BFC_PRELOAD_MAX=1M"},
    {"no_limit", no_limit, PINNED " BFC_MEMORY_LIMIT=4M"},
    {"trimmed", trimmed, PINNED " BFC_PRELOAD_MAX=8M"},
    {"the_other_name", the_other_name, PINNED},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
