/* BFC_PRELOAD_ASYNC=1: cudaMallocAsync from the pool, in the order of streams; and without it, passed through. */
#include "held.h"

#define ASYNC "BFC_PRELOAD_ASYNC=1"
#define LARGE (400 * MIB)
#define LIMITED ASYNC " BFC_MEMORY_LIMIT=1000M"

static char *async_of(size_t bytes, cudaStream_t stream) {
  void *memory = NULL;
  OK(cudaMallocAsync(&memory, bytes, stream));
  CHECK(memory != NULL && (uintptr_t)memory % 512 == 0);
  return memory;
}

static char *pooled_async(size_t bytes, cudaStream_t stream) {
  char *memory = async_of(bytes, stream);
  CHECK(is_pooled(memory));
  return memory;
}

/* Without the setting it is the driver's. */
static void passed(void) {
  char *memory = async_of(1000, NULL);
  CHECK(!is_pooled(memory));
  IS(simcuda_calls("cuMemAllocAsync"), 1);
  OK(cudaFreeAsync(memory, NULL));
  IS(simcuda_calls("cuMemFreeAsync"), 1);
  IS(cudaFreeAsync(memory, NULL), INVALID_VALUE);
  /* Of the pool, freed so: it waits as if cudaFree had been called. */
  cudaStream_t stream = held_stream();
  char *of_the_pool = pooled(MIB);
  use(stream, of_the_pool, MIB, 1);
  OK(cudaFreeAsync(of_the_pool, stream));
  IS(simcuda_calls("cuMemFreeAsync"), 2);
  char *other = pooled(MIB);
  CHECK(!overlap(of_the_pool, MIB, other, MIB));
  IS(cudaFreeAsync(of_the_pool, stream), INVALID_VALUE);
  IS(cudaFreeAsync(other + 512, stream), INVALID_VALUE);
  OK(cudaDeviceSynchronize());
  CHECK(pooled(MIB) == of_the_pool);
  no_misuse();
}

/* In one stream memory is handed on at once; another stream gets it when its work comes after. */
static void order(void) {
  cudaStream_t one = held_stream(), other = held_stream();
  char *first = pooled_async(MIB, one);
  use(one, first, MIB, 1);
  OK(cudaFreeAsync(first, one));
  char *again = pooled_async(MIB, one);
  CHECK(again == first);
  use(one, again, MIB, 2);
  OK(cudaFreeAsync(again, one));
  char *elsewhere = pooled_async(MIB, other);
  CHECK(!overlap(first, MIB, elsewhere, MIB));
  use(other, elsewhere, MIB, 3);
  OK(cudaFreeAsync(elsewhere, other));
  IS(simcuda_pending(one) >= 4, 1);
  simcuda_release_all();
  OK(cudaDeviceSynchronize());
  no_misuse();
  IS(simcuda_calls("cuMemAllocAsync"), 0);
  IS(simcuda_calls("cuMemFreeAsync"), 0);
}

/* No room except memory that another stream has freed: it is handed on, and work there comes after the work here. */
static void between_streams(void) {
  cudaStream_t one = held_stream(), other = NULL;
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  /* A pool that knows one stream records nothing. */
  pooled_async(KIB, other);
  char *first = pooled_async(LARGE, one), *second = pooled_async(LARGE, one);
  use(one, first, MIB, 1);
  OK(cudaFreeAsync(first, one));
  char *third = pooled_async(LARGE, other);
  CHECK(overlap(first, LARGE, third, LARGE) && !overlap(second, LARGE, third, LARGE));
  use(other, third, MIB, 2);
  CHECK(simcuda_pending(one) >= 2 && simcuda_pending(other) >= 2);
  OK(cudaFreeAsync(third, other));
  OK(cudaFreeAsync(second, one));
  simcuda_release_all();
  IS(simcuda_pending(other), 0);
  no_misuse();
}

/* cudaFree of what cudaMallocAsync gave: it waits, for the memory may be handed out at once then. */
static void freed_at_once(void) {
  cudaStream_t stream = held_stream();
  char *memory = pooled_async(LARGE, stream);
  use(stream, memory, MIB, 1);
  OK(cudaFree(memory));
  IS(simcuda_pending(stream), 0);
  char *again = pooled(LARGE);
  use_at_once(again, MIB, 2);
  IS(cudaFree(memory + 512), INVALID_VALUE);
  OK(cudaFree(again));
  IS(cudaFree(again), INVALID_VALUE);
  IS(cudaFreeAsync(again, stream), INVALID_VALUE);
  no_misuse();
}

/* cudaFreeAsync of what cudaMalloc gave, in the order of a stream. */
static void freed_in_order(void) {
  cudaStream_t stream = held_stream();
  char *memory = pooled(MIB);
  use(stream, memory, MIB, 1);
  OK(cudaFreeAsync(memory, stream));
  IS(simcuda_pending(stream) >= 2, 1);
  /* Any stream may use what cudaMalloc gives: it is not what waits there. */
  char *other = pooled(MIB);
  CHECK(!overlap(memory, MIB, other, MIB));
  use_at_once(other, MIB, 2);
  char *behind = pooled_async(MIB, stream);
  CHECK(behind == memory);
  use(stream, behind, MIB, 3);
  IS(cudaFreeAsync(memory + 512, stream), INVALID_VALUE);
  simcuda_release_all();
  no_misuse();
}

/* cudaMalloc's memory is safe on any stream at once, whatever stream the chunk was of before. */
static void any_stream(void) {
  cudaStream_t stream = held_stream();
  for (int each = 0; each < 100; each++) {
    char *memory = pooled_async(256 * KIB, stream);
    use(stream, memory, 256 * KIB, 1 + (uint64_t)each);
    OK(cudaFreeAsync(memory, stream));
    char *other = pooled(256 * KIB);
    use_at_once(other, 256 * KIB, 1000 + (uint64_t)each);
    simcuda_step(stream, 1);
    OK(cudaFree(other));
  }
  simcuda_release_all();
  /* The legacy default stream is a stream like others, too: those that do not block go on beside it. */
  OK(simcuda_hold(NULL));
  char *memory = pooled_async(MIB, NULL);
  use(NULL, memory, MIB, 1);
  OK(cudaFreeAsync(memory, NULL));
  char *other = pooled(MIB);
  CHECK(!overlap(memory, MIB, other, MIB) || simcuda_pending(NULL) == 0);
  IS(simcuda_pending(NULL) >= 2, 1);
  use_at_once(other, MIB, 2);
  simcuda_release_all();
  no_misuse();
}

/* 0 is the per-thread default stream in the twins, and the legacy one else. */
static void twins(void) {
  Address address = 0, other = 0;
  OK(cudaFree(NULL));
  OK(simcuda_hold((void *)2));
  OK(cuMemAllocAsync_ptsz(&address, MIB, NULL));
  CHECK(is_pooled((void *)address));
  use((cudaStream_t)2, (char *)address, MIB, 1);
  OK(cuMemFreeAsync_ptsz(address, NULL));
  OK(cuMemAllocAsync(&other, MIB, (Handle)2));
  IS(other, address);
  use((cudaStream_t)2, (char *)other, MIB, 2);
  OK(cuMemFreeAsync(other, (Handle)2));
  cudaStream_t stream = held_stream();
  char *third = pooled_async(MIB, stream);
  CHECK(!overlap((char *)other, MIB, third, MIB));
  simcuda_release_all();
  no_misuse();
}

/* What a destroyed stream had freed is not another's because its handle is the same: its work may not be done. */
static void destroyed_streams(void) {
  OK(simcuda_set(SIMCUDA_RECYCLE_HANDLES, 1));
  for (int each = 0; each < 20; each++) {
    cudaStream_t first = held_stream();
    char *memory = pooled_async(MIB, first);
    use(first, memory, MIB, 1 + (uint64_t)each);
    OK(cudaFreeAsync(memory, first));
    OK(cudaStreamDestroy(first));
    cudaStream_t second = held_stream();
    CHECK(first == second);
    memory = pooled_async(MIB, second);
    use(second, memory, MIB, 100 + (uint64_t)each);
    /* The second stream fills, then the first does, then the second looks. */
    IS(simcuda_step(second, 1), 1);
    simcuda_release_all();
    OK(cudaFreeAsync(memory, second));
    OK(cudaStreamDestroy(second));
  }
  no_misuse();
}

/* Captured, it is a node of the graph, and the driver's; also in other streams meanwhile. */
static void captured(void) {
  cudaStream_t stream = NULL;
  cudaGraph_t graph = NULL;
  cudaGraphExec_t executable = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  char *before = pooled_async(1000, stream);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  char *node = async_of(1000, stream);
  CHECK(!is_pooled(node));
  OK(cudaMemsetAsync(node, 1, 1000, stream));
  OK(cudaFreeAsync(node, stream));
  IS(cudaFreeAsync(before, stream), INVALID_VALUE);
  const int code = cudaStreamEndCapture(stream, &graph);
  OK(code);
  OK(cudaGraphInstantiate(&executable, graph, 0));
  OK(cudaGraphLaunch(executable, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaFreeAsync(before, stream));
  OK(cudaGraphExecDestroy(executable));
  OK(cudaGraphDestroy(graph));
  pooled_async(1000, stream);
  no_misuse();
}

/* A free in the legacy default stream's order is none in the capture of the thread's own, though both are called 0; and where
 * nothing is captured the driver is not asked. */
static void not_captured(void) {
  cudaGraph_t graph = NULL;
  char *memory = pooled(1000), *other = pooled(1000);
  const uint64_t before = simcuda_calls("cuStreamIsCapturing");
  cudaStream_t stream = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaFreeAsync(pooled(1000), stream));
  /* A pool that tells streams apart records an event at the free, and asks before and after it. */
  const char *in_order = getenv("BFC_PRELOAD_ASYNC");
  IS(simcuda_calls("cuStreamIsCapturing"), before + (in_order ? 2 : 0));
  OK(cudaStreamBeginCapture((cudaStream_t)2, cudaStreamCaptureModeThreadLocal));
  OK(cuMemFreeAsync((Address)memory, NULL));
  IS(cuMemFreeAsync_ptsz((Address)other, NULL), INVALID_VALUE);
  IS(cuMemFreeAsync((Address)other, (Handle)2), INVALID_VALUE);
  OK(cudaStreamEndCapture((cudaStream_t)2, &graph));
  OK(cudaGraphDestroy(graph));
  OK(cudaFreeAsync(other, NULL));
  no_misuse();
}

/* A stream of another device: its pool is not the current device's. */
static void other_device(void) {
  cudaStream_t stream = NULL;
  struct cudaPointerAttributes seen;
  OK(cudaSetDevice(1));
  OK(cudaStreamCreate(&stream));
  char *own = async_of(1000, stream);
  OK(cudaSetDevice(0));
  char *other = async_of(1000, stream);
  CHECK(is_pooled(own) && !is_pooled(other));
  OK(cudaPointerGetAttributes(&seen, own));
  IS(seen.device, 1);
  OK(cudaPointerGetAttributes(&seen, other));
  IS(seen.device, 1);
  OK(cudaFreeAsync(own, stream));
  OK(cudaFreeAsync(other, stream));
  OK(cudaStreamSynchronize(stream));
  no_misuse();
}

/* The driver's own stream-ordered memory goes back to it by either free, also where it came before a limit. */
static void sizes_between(void) {
  char *small = pooled_async(1000, NULL), *large = async_of(2 * MIB, NULL);
  CHECK(!is_pooled(large));
  OK(cudaFreeAsync(small, NULL));
  OK(cudaFreeAsync(large, NULL));
  IS(cudaFreeAsync(large, NULL), INVALID_VALUE);
  large = async_of(2 * MIB, NULL);
  OK(cudaFree(large));
}

/* Contexts that end, with streams that memory was freed on: the pool uses neither these streams nor their events again. */
static void contexts_end(void) {
  Handle first = NULL, own = NULL, popped = NULL;
  cudaStream_t here = held_stream();
  char *known = pooled_async(MIB, here);
  OK(cuCtxGetCurrent(&first));
  simcuda_release_all();
  for (int round = 0; round < 20; round++) {
    Handle stream = NULL;
    char *memory = pooled_async(LARGE, here);
    use_at_once(memory, MIB, 1);
    /* Every second time it is the other device's primary context. */
    if (round % 2) OK(cudaSetDevice(1));
    else OK(cuCtxCreate_v2(&own, 0, 1));
    OK(cuStreamCreate(&stream, 1));
    OK(cudaFreeAsync(memory, stream));
    if (round % 2) OK(cudaDeviceReset());
    else OK(cuCtxPopCurrent_v2(&popped));
    if (round % 2 == 0) OK(cuCtxDestroy_v2(own));
    OK(cuCtxSetCurrent(first));
    at_once = NULL;
  }
  OK(cudaFreeAsync(known, here));
  no_misuse();
}

/* More streams than the table has places. What is freed on the others is freed as by cudaFree. */
static void many_streams(void) {
  enum { COUNT = 1500 };
  static Handle streams[COUNT];
  int of_the_driver = 0;
  OK(cudaFree(NULL));
  for (int each = 0; each < COUNT; each++) OK(cuStreamCreate(&streams[each], 1));
  for (int each = 0; each < COUNT; each++) {
    char *memory = pooled(64 * KIB), *other = async_of(64 * KIB, streams[each]);
    of_the_driver += !is_pooled(other);
    use(streams[each], memory, KIB, 1);
    use(streams[each], other, KIB, 2);
    OK(cudaFreeAsync(memory, streams[each]));
    OK(cudaFreeAsync(other, streams[each]));
  }
  CHECK(of_the_driver > 0 && of_the_driver < COUNT - 500);
  /* Their places are free again when they end. */
  for (int each = 0; each < COUNT; each++) OK(cudaStreamDestroy(streams[each]));
  Handle later = NULL;
  OK(cuStreamCreate(&later, 1));
  pooled_async(MIB, later);
  no_misuse();
}

/* The default stream of another context is not that of the device's own. */
static void default_elsewhere(void) {
  Handle first = NULL, own = NULL, popped = NULL;
  cudaStream_t here = held_stream();
  char *known = pooled_async(MIB, here);
  for (int thread = 1; thread <= 2; thread++) {
    char *memory = pooled_async(MIB, (cudaStream_t)(uintptr_t)thread);
    OK(cudaDeviceSynchronize());
    OK(cuCtxGetCurrent(&first));
    OK(cuCtxCreate_v2(&own, 0, 0));
    Handle there = (Handle)(uintptr_t)thread;
    OK(simcuda_hold(there));
    use(there, memory, MIB, 1);
    CHECK(simcuda_pending(there) == 2);
    OK(cuMemFreeAsync((Address)memory, there));
    /* Nobody gets it before that work is done. */
    const int pending = simcuda_pending(there) != 0;
    OK(cuCtxPopCurrent_v2(&popped));
    char *again = pooled_async(MIB, (cudaStream_t)(uintptr_t)thread);
    CHECK(!pending || !overlap(memory, MIB, again, MIB));
    OK(cuCtxDestroy_v2(own));
  }
  OK(cudaFreeAsync(known, here));
  no_misuse();
}

static const Case CASES[] = {
    {"passed", passed, NULL},
    {"order", order, ASYNC},
    {"between_streams", between_streams, LIMITED},
    {"freed_at_once", freed_at_once, LIMITED},
    {"freed_in_order", freed_in_order, ASYNC},
    {"any_stream", any_stream, ASYNC},
    {"twins", twins, ASYNC},
    {"destroyed_streams", destroyed_streams, ASYNC},
    {"contexts_end", contexts_end, LIMITED},
    {"many_streams", many_streams, ASYNC},
    {"default_elsewhere", default_elsewhere, ASYNC},
    {"captured", captured, ASYNC},
    {"not_captured", not_captured, NULL},
    {"not_captured_in_order", not_captured, ASYNC},
    {"other_device", other_device, ASYNC},
    {"sizes_between", sizes_between, ASYNC " BFC_PRELOAD_MAX=1M"},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
