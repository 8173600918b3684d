/* Programs whose allocations are known: the suite compares them with the trace and the report. */
#include "held.h"

#include <pthread.h>

/* What of this is in the trace, line by line, is in ffi-tests/preload/test_records.py. */
static void known(void) {
  void *memory[6] = {NULL}, *host = NULL;
  cudaStream_t stream = NULL, other = NULL;
  size_t pitch = 0;
  Handle context = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  OK(cudaMalloc(&memory[0], 1000));
  OK(cudaMalloc(&memory[1], 5 * MIB + 1));
  OK(cudaMalloc(&memory[2], 0));
  OK(cudaMallocAsync(&memory[2], 3000, stream));
  OK(cudaMallocAsync(&memory[3], 4000, other));
  IS(cudaFree((char *)memory[0] + 512), INVALID_VALUE);
  OK(cudaFree(memory[1]));
  IS(cudaFree(memory[1]), INVALID_VALUE);
  /* It lives on. */
  OK(cuCtxGetCurrent(&context));
  OK(cuCtxSetCurrent(NULL));
  IS(cuMemFree_v2((Address)memory[0]), INVALID_CONTEXT);
  OK(cuCtxSetCurrent(context));
  IS(cudaMalloc(&memory[4], SIZE_MAX), OUT_OF_MEMORY);
  OK(cudaFreeAsync(memory[2], stream));
  OK(cudaDeviceSynchronize());
  OK(cudaMalloc(&memory[1], 77));
  OK(cudaFree(memory[3]));
  OK(cudaMallocHost(&host, 1234));
  OK(cudaFreeHost(host));
  OK(cudaMallocPitch(&memory[4], &pitch, 100, 10));
  OK(cudaFree(memory[4]));
  OK(cudaFree(NULL));
  OK(cudaFree(memory[0]));
  OK(cudaSetDevice(1));
  OK(cudaMalloc(&memory[5], 2222));
}

/* Memory that ends with its context: its addresses come again. */
static void gone(void) {
  for (int round = 0; round < 3; round++) {
    pooled(1000);
    OK(cudaFree(pooled(2000)));
    OK(cudaDeviceReset());
  }
}

/* Each thread has a default stream of its own, which the twins mean by 0; the legacy one is everybody's. */
static void *in_default_streams(void *argument) {
  const size_t bytes = 1000 * (size_t)(uintptr_t)argument;
  Address address = 0;
  OK(cudaFree(NULL));
  OK(cuMemAllocAsync_ptsz(&address, bytes, NULL));
  OK(cuMemFreeAsync_ptsz(address, NULL));
  OK(cuMemAllocAsync(&address, bytes + 1, (Handle)2));
  OK(cuMemFreeAsync(address, (Handle)2));
  OK(cuMemAllocAsync(&address, bytes + 2, NULL));
  OK(cuMemFreeAsync(address, NULL));
  return NULL;
}

static void default_streams(void) {
  pthread_t other;
  in_default_streams((void *)1);
  OK(pthread_create(&other, NULL, in_default_streams, (void *)2));
  OK(pthread_join(other, NULL));
  in_default_streams((void *)3);
}

enum { THREADS = 4, EACH = 2000 };

/* Thread t allocates sizes 1000 t + 1 to 1000 t + 500 over and over, and frees all but the last. */
static void *thread(void *argument) {
  const size_t base = 1000 * (size_t)(uintptr_t)argument;
  char *last = NULL;
  for (int each = 0; each < EACH; each++) {
    char *memory = pooled(base + 1 + (size_t)(each % 500));
    OK(cudaFree(last));
    last = memory;
  }
  return NULL;
}

static void threads(void) {
  pthread_t all[THREADS];
  for (intptr_t each = 0; each < THREADS; each++) OK(pthread_create(&all[each], NULL, thread, (void *)each));
  for (int each = 0; each < THREADS; each++) OK(pthread_join(all[each], NULL));
}

/* For the report: as many as go into the limit, with regions that grow twofold. The last line is what the driver saw: regions obtained, regions returned, synchronisations. */
static void counted(void) {
  char *memory[8];
  for (int each = 0; each < 8; each++) memory[each] = pooled(100 * MIB);
  for (int each = 0; each < 8; each++) OK(cudaFree(memory[each]));
  for (int each = 0; each < 4; each++) pooled(100 * MIB);
  for (int each = 0; each < 500; each++) OK(cudaFree(pooled(1000)));
  printf("%llu %llu %llu\n", (unsigned long long)simcuda_calls("cuMemAlloc"),
         (unsigned long long)simcuda_calls("cuMemFree"), (unsigned long long)settlements());
}

/* For the report: enough memory is free, and no piece is large enough. */
static void fragmented(void) {
  char *memory[9];
  void *more = NULL;
  for (int each = 0; each < 9; each++) memory[each] = pooled(10 * MIB);
  for (int each = 0; each < 8; each += 2) OK(cudaFree(memory[each]));
  IS(cudaMalloc(&more, 20 * MIB), OUT_OF_MEMORY);
}

/* For the report: the last of the regions, which double, has no room below the limit for what is free all the same. */
static void doubled(void) {
  void *more = NULL;
  pooled(MIB);
  pooled(3 * MIB);
  pooled(3 * MIB);
  IS(cudaMalloc(&more, 3 * MIB), OUT_OF_MEMORY);
}

static const Case CASES[] = {
    {"known", known, NULL},
    {"gone", gone, NULL},
    {"default_streams", default_streams, NULL},
    {"threads", threads, NULL},
    {"counted", counted, "BFC_MEMORY_LIMIT=1000M"},
    {"doubled", doubled, "BFC_MEMORY_LIMIT=10M BFC_GROWTH=tensorflow"},
    {"fragmented", fragmented, "BFC_MEMORY_LIMIT=100M BFC_FORCE_ALLOW_GROWTH=0"},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
