/* Contexts that come and go: their memory goes with them, and no other. */
#include "held.h"

#include <pthread.h>

/* cudaDeviceReset, and afterwards, with memory that was never freed too. */
static void reset(void) {
  char *old = NULL;
  for (int round = 0; round < 20; round++) {
    char *memory[50];
    for (int each = 0; each < 50; each++) {
      memory[each] = pooled(100 * KIB * (size_t)(1 + each % 5));
      use_at_once(memory[each], 100 * KIB, (uint64_t)(round * 100 + each));
    }
    for (int each = 0; each < 25; each++) OK(cudaFree(memory[each]));
    old = memory[30];
    OK(cudaDeviceReset());
    at_once = NULL;
    IS(simcuda_used(0), 0);
    IS(simcuda_live(SIMCUDA_ALLOCATIONS), 0);
    IS(cudaFree(old), INVALID_VALUE);
    IS(simcuda_live(SIMCUDA_RETAINS) <= 2, 1);
  }
  no_misuse();
}

/* A reset while the driver is asked by the pool's own streams and waiting chunks: nothing of it is touched later. */
static void reset_with_work(void) {
  for (int round = 0; round < 5; round++) {
    cudaStream_t stream = held_stream();
    char *memory = pooled(MIB);
    use(stream, memory, MIB, 1);
    OK(cudaFree(memory));
    OK(cudaDeviceReset());
    at_once = NULL;
    memory = pooled(MIB);
    use_at_once(memory, MIB, 2);
    OK(cudaFree(memory));
    OK(cudaDeviceSynchronize());
  }
  no_misuse();
}

/* The program's last hold on the primary context ends it, with the pool in between. */
static void released(void) {
  Handle primary = NULL, again = NULL;
  Address address = 0;
  OK(cuInit(0));
  for (int round = 0; round < 10; round++) {
    unsigned flags = 0;
    int active = 0;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    CHECK(primary == again);
    OK(cuCtxSetCurrent(primary));
    OK(cuMemAlloc_v2(&address, 1000));
    CHECK(is_pooled((void *)address));
    if (round % 2) OK(cuMemFree_v2(address));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(active, 1);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(active, 0);
    IS(simcuda_used(0), 0);
    IS(simcuda_live(SIMCUDA_RETAINS), 0);
    IS(simcuda_live(SIMCUDA_CONTEXTS), 0);
    IS(cuMemAlloc_v2(&address, 1000), CONTEXT_IS_DESTROYED);
    IS(cuMemFree_v2(address), CONTEXT_IS_DESTROYED);
    IS(cuDevicePrimaryCtxRelease_v2(0), INVALID_CONTEXT);
  }
  no_misuse();
}

/* Memory of a context that the program creates is the driver's, and dies with it. */
static void created(void) {
  Handle context = NULL, primary = NULL;
  Address own = 0, of_primary = 0;
  OK(cuInit(0));
  for (int round = 0; round < 50; round++) {
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&own, 1000));
    CHECK(!is_pooled((void *)own));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxPushCurrent_v2(primary));
    OK(cuMemAlloc_v2(&of_primary, 1000));
    CHECK(is_pooled((void *)of_primary));
    OK(cuCtxPopCurrent_v2(&primary));
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxPushCurrent_v2(primary));
    IS(cuMemFree_v2(own), INVALID_VALUE);
    OK(cuMemsetD8_v2(of_primary, 1, 1000));
    OK(cuMemFree_v2(of_primary));
    OK(cuCtxPopCurrent_v2(&primary));
    if (round % 3) OK(cuDevicePrimaryCtxRelease_v2(0));
  }
  no_misuse();
}

/* A context's handle is given to another context: what was known about the first is not assumed of the second. */
static void recycled(void) {
  Handle context[40], first = NULL;
  Address address = 0;
  OK(cuInit(0));
  OK(simcuda_set(SIMCUDA_RECYCLE_HANDLES, 1));
  /* More than there are places for. */
  for (int each = 0; each < 40; each++) {
    OK(cuCtxCreate_v2(&context[each], 0, each % 2));
    OK(cuMemAlloc_v2(&address, 1000));
    CHECK(!is_pooled((void *)address));
    if (!each) first = context[0];
  }
  for (int each = 39; each >= 0; each--) OK(cuCtxDestroy_v2(context[each]));
  OK(cuCtxCreate_v2(&context[0], 0, 1));
  CHECK(context[0] == first);
  OK(cuMemAlloc_v2(&address, 1000));
  CHECK(!is_pooled((void *)address));
  OK(cuMemFree_v2(address));
  OK(cuCtxDestroy_v2(context[0]));
  /* There are places again: what another one is, that there was no place for, is asked once. */
  for (int each = 0; each < 20; each++) OK(cuCtxCreate_v2(&context[each], 0, 0));
  OK(cuMemAlloc_v2(&address, 1000));
  const uint64_t before = simcuda_calls("cuDevicePrimaryCtxGetState");
  OK(cuMemAlloc_v2(&address, 1000));
  IS(simcuda_calls("cuDevicePrimaryCtxGetState"), before);
  no_misuse();
}

/* A capture of the current context that begins, in one mode or another. */
static Handle captured(int mode) {
  Handle stream = NULL;
  OK(cuStreamCreate(&stream, 1));
  OK(cuStreamBeginCapture_v2(stream, mode));
  return stream;
}

/* So much that it is waited for, unless something is captured. */
static uint64_t waits(void) {
  const uint64_t before = settlements();
  Address address = 0;
  for (int each = 0; each < 3000; each++) {
    OK(cuMemAlloc_v2(&address, 500));
    CHECK(is_pooled((void *)address));
    OK(cuMemFree_v2(address));
  }
  return settlements() - before;
}

/* A capture ends with its context: afterwards it is waited for again. By a reset: */
static void reset_amid_capture(void) {
  Handle primary = NULL;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxSetCurrent(primary));
  for (int round = 0; round < 6; round++) {
    CHECK(waits() > 0);
    /* The second is the thread's default stream's. */
    captured(round % 3);
    OK(cuStreamBeginCapture_v2((Handle)2, round % 3));
    IS(simcuda_live(SIMCUDA_CAPTURES), 2);
    IS(waits(), 0);
    OK(cuDevicePrimaryCtxReset_v2(0));
    IS(simcuda_live(SIMCUDA_CAPTURES), 0);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuDevicePrimaryCtxRelease_v2(0));
  }
  CHECK(waits() > 0);
  no_misuse();
}

/* By the program's last hold, with a pool that holds the context too, and without. */
static void released_amid_capture(void) {
  Handle primary = NULL;
  unsigned flags = 0;
  int active = 0;
  OK(cuInit(0));
  for (int round = 0; round < 6; round++) {
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    if (round % 2) CHECK(waits() > 0);
    captured(round / 2);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    if (round % 2) IS(waits(), 0);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(active, 0);
    IS(simcuda_live(SIMCUDA_CAPTURES), 0);
    IS(simcuda_used(0), 0);
  }
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  CHECK(waits() > 0);
  no_misuse();
}

/* By the end of a context that the program has created; and others' captures go on. */
static void destroyed_amid_capture(void) {
  Handle primary = NULL, own = NULL, graph = NULL;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  for (int round = 0; round < 3; round++) {
    OK(cuCtxCreate_v2(&own, 0, round % 2));
    captured(round);
    OK(cuCtxSetCurrent(primary));
    const Handle stream = captured(round);
    IS(waits(), 0);
    OK(cuCtxDestroy_v2(own));
    IS(simcuda_live(SIMCUDA_CAPTURES), 1);
    IS(waits(), 0);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    CHECK(waits() > 0);
  }
  /* A release of another device's context neither ends nor breaks a capture. */
  Address address = 0;
  void *pinned = NULL;
  OK(cuDevicePrimaryCtxRetain(&own, 1));
  OK(cuCtxPushCurrent_v2(own));
  OK(cuMemAlloc_v2(&address, 1000));
  OK(cuMemHostAlloc(&pinned, 1000, 0));
  OK(cuCtxPushCurrent_v2(primary));
  const Handle stream = captured(0);
  OK(cuCtxPopCurrent_v2(&primary));
  OK(cuDevicePrimaryCtxRelease_v2(1));
  OK(cuCtxPopCurrent_v2(&own));
  IS(waits(), 0);
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
  CHECK(waits() > 0);
  no_misuse();
}

/* Memory of two devices is kept apart, in use, in what is free, and in a reset. */
static void devices(void) {
  char *memory[2];
  size_t before[2];
  int32_t owner = -1;
  int (*owner_of)(const void *, int32_t *);
  *(void **)&owner_of = dlsym(RTLD_DEFAULT, "bfc_owner");
  for (int device = 0; device < 2; device++) {
    OK(cudaSetDevice(device));
    before[device] = free_bytes();
    memory[device] = pooled(3 * MIB);
    OK(owner_of(memory[device], &owner));
    IS(owner, device);
    IS(before[device] - free_bytes(), 3 * MIB);
    use_at_once(memory[device], 3 * MIB, 5);
    at_once = NULL;
  }
  OK(cudaFree(memory[0]));
  OK(cudaSetDevice(0));
  IS(before[0], free_bytes());
  OK(cudaDeviceReset());
  OK(cudaSetDevice(1));
  use_at_once(memory[1], 3 * MIB, 6);
  OK(cudaFree(memory[1]));
  IS(before[1], free_bytes());
  OK(cudaSetDevice(0));
  OK(owner_of(pooled(1000), &owner));
  IS(owner, 0);
  no_misuse();
}

/* After an error that stays the pool makes it no worse: the error is the program's at the next call that reaches the
 * device, what the pool hands out is apart, and a reset helps. */
static void sticky(void) {
  void *memory = NULL;
  size_t free = 0, total = 0;
  char *first = pooled(1000);
  simcuda_make_sticky(ILLEGAL_ADDRESS);
  IS(cudaDeviceSynchronize(), ILLEGAL_ADDRESS);
  IS(cudaMemset(first, 1, 1000), ILLEGAL_ADDRESS);
  IS(cudaMemGetInfo(&free, &total), ILLEGAL_ADDRESS);
  IS(cudaMalloc(&memory, 1000 * MIB), ILLEGAL_ADDRESS);
  OK(cudaFree(first));
  for (int each = 0; each < 3000; each++) {
    const int code = cudaMalloc(&memory, 1000);
    CHECK(code == 0 || code == ILLEGAL_ADDRESS);
    if (code == 0) OK(cudaFree(memory));
  }
  IS(cuDevicePrimaryCtxReset_v2(0), 0);
  OK(cuDevicePrimaryCtxRelease_v2(0));
  OK(cuDevicePrimaryCtxRetain(&(Handle){NULL}, 0));
  first = pooled(1000);
  OK(cudaMemset(first, 1, 1000));
  OK(cudaFree(first));
  no_misuse();
}

/* The first allocations of several threads at once, in one life after another: the pool is one, and ours, so that
 * cudaFree goes on without waiting and what was freed comes back. */
static pthread_barrier_t start;

static void *first(void *argument) {
  (void)argument;
  OK(cudaSetDevice(0));
  pthread_barrier_wait(&start);
  for (int each = 0; each < 4; each++) OK(cudaFree(pooled(1000)));
  return NULL;
}

static void first_calls(void) {
  enum { THREADS = 6 };
  pthread_t all[THREADS];
  for (int round = 0; round < 300; round++) {
    OK(pthread_barrier_init(&start, NULL, THREADS));
    for (int each = 0; each < THREADS; each++) OK(pthread_create(&all[each], NULL, first, NULL));
    for (int each = 0; each < THREADS; each++) OK(pthread_join(all[each], NULL));
    const uint64_t before = synchronizations();
    char *memory = pooled(1000);
    OK(cudaFree(memory));
    IS(synchronizations(), before);
    OK(cudaDeviceSynchronize());
    const size_t used = simcuda_used(0);
    for (int each = 0; each < 200; each++) {
      OK(cudaFree(pooled(MIB)));
      OK(cudaDeviceSynchronize());
    }
    CHECK(simcuda_used(0) <= used + 2 * MIB);
    OK(cudaDeviceReset());
    OK(pthread_barrier_destroy(&start));
  }
}

static const Case CASES[] = {
    {"reset", reset, NULL},
    {"reset_async", reset, "BFC_PRELOAD_ASYNC=1"},
    {"reset_with_work", reset_with_work, NULL},
    {"reset_with_work_pinned", reset_with_work, "BFC_PRELOAD_PINNED=1"},
    {"released", released, NULL},
    {"released_async", released, "BFC_PRELOAD_ASYNC=1"},
    {"created", created, NULL},
    {"recycled", recycled, NULL},
    {"reset_amid_capture", reset_amid_capture, NULL},
    {"released_amid_capture", released_amid_capture, NULL},
    {"destroyed_amid_capture", destroyed_amid_capture, NULL},
    {"destroyed_amid_capture_pinned", destroyed_amid_capture, "BFC_PRELOAD_PINNED=1"},
    {"devices", devices, NULL},
    {"sticky", sticky, NULL},
    {"first_calls", first_calls, NULL},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
