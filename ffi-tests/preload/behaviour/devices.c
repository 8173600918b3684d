/* Several devices and contexts. A pool waits for the work of its own device, and of others only once that work may touch
 * its memory: a program whose threads drive a device each may queue work on one that goes on only when another's has begun,
 * and cudaMalloc on either must not wait for it.
 *
 * With held streams, work is done when the program waits for it, so what is still pending afterwards was not waited
 * for. */
#include "held.h"

#include <pthread.h>

#define LARGE (700 * MIB)
#define LIMIT "BFC_MEMORY_LIMIT=1000M"

/* Device 0 is busy; device 1 is current. */
static cudaStream_t busy;

static void make_busy(void) {
  OK(cudaSetDevice(0));
  busy = held_stream();
  use(busy, pooled(MIB), MIB, 1);
  OK(cudaSetDevice(1));
}

static void still_busy(void) {
  IS(simcuda_pending(busy), 2);
  no_misuse();
}

/* Where there is no room on device 1, it waits for device 1. */
static void unrelated(void) {
  make_busy();
  cudaStream_t stream = held_stream();
  for (int each = 0; each < 3; each++) {
    char *memory = pooled(LARGE);
    use(stream, memory, MIB, 2);
    OK(cudaFree(memory));
    memory = pooled(LARGE);
    IS(simcuda_pending(stream), 0);
    use_at_once(memory, MIB, 3);
    OK(cudaFree(memory));
  }
  still_busy();
}

static void unrelated_many(void) {
  make_busy();
  cudaStream_t stream = held_stream();
  use(stream, pooled(MIB), MIB, 2);
  for (int each = 0; each < 1100; each++) OK(cudaFree(pooled(KIB)));
  IS(simcuda_pending(stream), getenv("SIMCUDA_DRIVER_VERSION") ? 0 : 2);
  still_busy();
}

static void unrelated_barrier(void) {
  make_busy();
  cudaStream_t stream = held_stream();
  char *memory = pooled(MIB);
  use(stream, memory, MIB, 2);
  OK(cudaFree(memory));
  IS(simcuda_pending(stream), 0);
  still_busy();
}

/* The driver has no memory for something else: what waits on device 1 goes back, and device 0 goes on. */
static void unrelated_trim(void) {
  void *memory = NULL;
  make_busy();
  OK(cudaFree(pooled(3000 * MIB)));
  OK(cudaMallocManaged(&memory, 3000 * MIB, cudaMemAttachGlobal));
  OK(cudaFree(memory));
  still_busy();
}

/* A context of the program's own on device 0. */
static void unrelated_context(void) {
  Handle context = NULL, popped = NULL;
  Address address = 0;
  OK(cudaSetDevice(1));
  pooled(MIB);
  OK(cuCtxCreate_v2(&context, 0, 0));
  OK(cuStreamCreate((Handle *)&busy, 1));
  OK(simcuda_hold(busy));
  OK(cuMemAlloc_v2(&address, MIB));
  use(busy, (char *)address, MIB, 1);
  OK(cuCtxPopCurrent_v2(&popped));
  OK(cudaFree(pooled(LARGE)));
  OK(cudaFree(pooled(LARGE)));
  IS(simcuda_pending(busy), 2);
  /* Its work may touch what is device 0's. */
  OK(cudaSetDevice(0));
  OK(cudaFree(pooled(LARGE)));
  OK(cudaFree(pooled(LARGE)));
  IS(simcuda_pending(busy), 0);
  no_misuse();
}

/* The program's own synchronization of a device is enough for its pool. */
static void own_synchronization(void) {
  make_busy();
  cudaStream_t stream = held_stream();
  char *memory = pooled(MIB);
  use(stream, memory, MIB, 2);
  OK(cudaFree(memory));
  OK(cudaDeviceSynchronize());
  const uint64_t before = synchronizations();
  CHECK(pooled(MIB) == memory);
  IS(synchronizations(), before);
  still_busy();
}

/* Two threads, with a collective: what device 0 does goes on when device 1 has begun. The thread of device 1 allocates
 * first. */
static void *second(void *held) {
  OK(cudaSetDevice(1));
  OK(cudaFree(pooled(LARGE)));
  char *memory = pooled(LARGE);
  /* Its part begins. */
  use_at_once(memory, MIB, 5);
  simcuda_release(held);
  return NULL;
}

static void collective(void) {
  pthread_t thread;
  alarm(20);
  OK(simcuda_set(SIMCUDA_SYNCHRONIZE_WAITS, 1));
  cudaStream_t stream = held_stream();
  char *memory = pooled(LARGE);
  use(stream, memory, MIB, 4);
  OK(cudaFree(memory));
  OK(pthread_create(&thread, NULL, second, stream));
  /* This one waits for its own device, and for the other's part. */
  memory = pooled(LARGE);
  use_at_once(memory, MIB, 6);
  OK(pthread_join(thread, NULL));
  no_misuse();
}

/* The same where the devices are peers: device 1's pool grows rather than wait for device 0. */
static void *second_peer(void *held) {
  OK(cudaSetDevice(1));
  for (int each = 0; each < 1500; each++) OK(cudaFree(pooled(100 * KIB)));
  char *memory = pooled(LARGE);
  use_at_once(memory, MIB, 5);
  simcuda_release(held);
  return NULL;
}

static void peers_collective(void) {
  pthread_t thread;
  Handle contexts[2];
  alarm(20);
  for (int device = 0; device < 2; device++) {
    OK(cudaSetDevice(device));
    pooled(MIB);
    OK(cuCtxGetCurrent(&contexts[device]));
  }
  for (int device = 0; device < 2; device++) {
    OK(cuCtxSetCurrent(contexts[device]));
    OK(cuCtxEnablePeerAccess(contexts[1 - device], 0));
  }
  OK(cudaSetDevice(0));
  OK(simcuda_set(SIMCUDA_SYNCHRONIZE_WAITS, 1));
  cudaStream_t stream = held_stream();
  use(stream, pooled(MIB), MIB, 4);
  OK(pthread_create(&thread, NULL, second_peer, stream));
  OK(cudaStreamSynchronize(stream));
  OK(pthread_join(thread, NULL));
  no_misuse();
}

/* What peers have freed is handed out again once their work is done, which is asked after; nothing waits. */
static void peers_reuse(void) {
  Handle contexts[2];
  cudaStream_t stream[2];
  char *memory[100];
  for (int device = 0; device < 2; device++) {
    OK(cudaSetDevice(device));
    stream[device] = held_stream();
    use(stream[device], pooled(MIB), MIB, 1);
    OK(cuCtxGetCurrent(&contexts[device]));
  }
  OK(cuCtxEnablePeerAccess(contexts[0], 0));
  OK(cudaSetDevice(0));
  const size_t before = free_bytes();
  const uint64_t synchronized = synchronizations();
  for (int round = 0; round < 20; round++) {
    for (int each = 0; each < 100; each++) use_at_once(memory[each] = pooled(MIB), KIB, (uint64_t)each);
    for (int each = 0; each < 100; each++) OK(cudaFree(memory[each]));
  }
  /* As long as one of them works, nothing is. */
  CHECK(simcuda_used(0) >= 2000 * MIB);
  IS(simcuda_pending(stream[0]), 2);
  IS(simcuda_pending(stream[1]), 2);
  simcuda_release_all();
  const uint64_t used = simcuda_used(0);
  for (int round = 0; round < 20; round++) {
    for (int each = 0; each < 100; each++) use_at_once(memory[each] = pooled(MIB), KIB, (uint64_t)each);
    for (int each = 0; each < 100; each++) OK(cudaFree(memory[each]));
  }
  IS(simcuda_used(0), used);
  IS(synchronizations(), synchronized);
  CHECK(free_bytes() <= before);
  no_misuse();
}

/* The same with a context that ends, and its events with it. */
static void users_end(void) {
  Handle first = NULL, other = NULL, popped = NULL;
  char *memory[100];
  pooled(MIB);
  OK(cuCtxGetCurrent(&first));
  for (int round = 0; round < 40; round++) {
    OK(cuCtxCreate_v2(&other, 0, 1));
    OK(cuCtxEnablePeerAccess(first, 0));
    cudaStream_t stream = held_stream();
    OK(cuCtxPopCurrent_v2(&popped));
    for (int each = 0; each < 100; each++) memory[each] = pooled(MIB);
    use(stream, memory[0], MIB, 7);
    for (int each = 0; each < 100; each++) OK(cudaFree(memory[each]));
    char *again = pooled(MIB);
    CHECK(!overlap(again, MIB, memory[0], MIB));
    OK(cudaFree(again));
    if (round % 2) simcuda_release(stream);
    OK(cuCtxDestroy_v2(other));
  }
  CHECK(simcuda_used(0) < 1000 * MIB);
  no_misuse();
}

/* "Access granted by this call is unidirectional": device 0 may touch device 1's memory, and not the other way round. */
static void one_way(void) {
  Handle first = NULL, other = NULL;
  make_busy();
  pooled(MIB);
  OK(cuCtxGetCurrent(&other));
  OK(cudaSetDevice(0));
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxSetCurrent(other));
  cudaStream_t stream = held_stream();
  use(stream, pooled(MIB), MIB, 2);
  OK(cuCtxSetCurrent(first));
  OK(cuCtxEnablePeerAccess(other, 0));
  /* Device 0's memory is its own. */
  OK(cudaFree(pooled(LARGE)));
  OK(cudaFree(pooled(LARGE)));
  IS(simcuda_pending(busy), 0);
  IS(simcuda_pending(stream), 2);
  use(busy, pooled(MIB), MIB, 3);
  OK(cudaSetDevice(1));
  OK(cudaFree(pooled(LARGE)));
  OK(cudaFree(pooled(LARGE)));
  IS(simcuda_pending(stream), 0);
  IS(simcuda_pending(busy), 0);
  no_misuse();
}

/* Each kind of copy or fill by device 1 that reaches device 0's memory. */
typedef int Touch(Address there, Address here, Handle stream, Handle contexts[2]);

static int touch_async(Address there, Address here, Handle stream, Handle contexts[2]) {
  (void)contexts;
  return cuMemcpyAsync(here, there, MIB, stream);
}
static int touch_back(Address there, Address here, Handle stream, Handle contexts[2]) {
  (void)contexts;
  return cuMemcpyAsync(there, here, MIB, stream);
}
static int touch_peer(Address there, Address here, Handle stream, Handle contexts[2]) {
  return cuMemcpyPeerAsync(here, contexts[1], there, contexts[0], MIB, stream);
}
static int touch_dtod(Address there, Address here, Handle stream, Handle contexts[2]) {
  (void)contexts;
  return cuMemcpyDtoDAsync_v2(here, there, MIB, stream);
}
static int touch_inside(Address there, Address here, Handle stream, Handle contexts[2]) {
  (void)contexts;
  return cuMemcpyDtoDAsync_v2(here + 512 * KIB, there + 512 * KIB, 1000, stream);
}
static int touch_by_runtime(Address there, Address here, Handle stream, Handle contexts[2]) {
  (void)contexts;
  return cudaMemcpyAsync((void *)here, (void *)there, MIB, cudaMemcpyDefault, stream);
}
static int touch_fill(Address there, Address here, Handle stream, Handle contexts[2]) {
  (void)here, (void)contexts;
  return cuMemsetD8Async(there, 7, MIB, stream);
}

static int touch_rectangle(Address there, Address here, Handle stream, Handle contexts[2]) {
  const Rectangle copy = {.from_type = 2,
                          .from = there,
                          .from_pitch = 16,
                          .to_type = 4,
                          .to = here,
                          .to_pitch = 16,
                          .width = 10,
                          .height = 10};
  (void)contexts;
  return cuMemcpy2DAsync_v2(&copy, stream);
}

static int touch_box(Address there, Address here, Handle stream, Handle contexts[2]) {
  const Box copy = {.from_type = 2, .from = here, .to_type = 2, .to = there, .width = 10, .height = 10, .depth = 10};
  (void)contexts;
  return cuMemcpy3DAsync_v2(&copy, stream);
}
/* The simulation does not support this one, so other work stands for its own. */
static int touch_peer_box(Address there, Address here, Handle stream, Handle contexts[2]) {
  const Box copy = {.from_type = 2, .from = there, .to_type = 2, .to = here, .width = 10, .height = 10, .depth = 10};
  (void)contexts;
  CHECK(cuMemcpy3DPeerAsync(&copy, stream) != 0);
  use(stream, (char *)here, MIB, 8);
  return 0;
}
static int touch_node(Address there, Address here, Handle stream, Handle contexts[2]) {
  const Box copy = {.from_type = 2, .from = there, .to_type = 2, .to = here, .width = 10, .height = 10, .depth = 10};
  Handle graph = NULL, node = NULL;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, contexts[1]));
  OK(cuGraphDestroy(graph));
  /* For the graph's. */
  use(stream, (char *)here, MIB, 8);
  return 0;
}

static void copies(void) {
  Touch *const touches[] = {touch_async, touch_back,      touch_peer, touch_dtod,     touch_inside, touch_by_runtime,
                            touch_fill,  touch_rectangle, touch_box,  touch_peer_box, touch_node};
  for (unsigned each = 0; each < sizeof touches / sizeof touches[0]; each++) {
    Handle contexts[2];
    char *memory[2];
    for (int device = 0; device < 2; device++) {
      OK(cudaSetDevice(device));
      memory[device] = pooled(MIB);
      OK(cuCtxGetCurrent(&contexts[device]));
    }
    cudaStream_t stream = held_stream();
    /* Freed before the other device has anything to do with it. */
    OK(cudaSetDevice(0));
    OK(cudaFree(pooled(LARGE)));
    OK(cudaSetDevice(1));
    OK(touches[each]((Address)memory[0], (Address)memory[1], stream, contexts));
    CHECK(simcuda_pending(stream) > 0);
    OK(cudaSetDevice(0));
    OK(cudaFree(memory[0]));
    OK(cudaDeviceSynchronize());
    CHECK(simcuda_pending(stream) > 0);
    char *other = pooled(MIB);
    CHECK(!overlap(memory[0], MIB, other, MIB));
    /* Where there is no room it waits for both. The simulation has fills reach no other device, which NVIDIA leaves open: this
     * one never runs. */
    if (touches[each] != touch_fill) {
      pooled(LARGE);
      IS(simcuda_pending(stream), 0);
    }
    no_misuse();
    for (int device = 0; device < 2; device++) {
      OK(cudaSetDevice(device));
      OK(cudaDeviceReset());
    }
    /* Handles of streams may be used again. */
    at_once = NULL;
  }
}

/* Functions that are not analysed: once one was called, every pool waits for every context. The simulation does not
 * have
 * them, so other work of device 1 stands for theirs. */
static void not_analysed(const char *symbol) {
  Address there = 0;
  OK(cudaSetDevice(0));
  char *memory = pooled(MIB);
  there = (Address)memory;
  OK(cudaFree(pooled(LARGE)));
  OK(cudaSetDevice(1));
  char *here = pooled(MIB);
  cudaStream_t stream = held_stream();
  int (*call)(Address, Address, size_t, Handle);
  *(void **)&call = dlsym(RTLD_DEFAULT, symbol);
  if (call) call(there, (Address)here, MIB, stream);
  use(stream, here, MIB, 8);
  OK(cudaSetDevice(0));
  OK(cudaFree(memory));
  OK(cudaDeviceSynchronize());
  CHECK(simcuda_pending(stream) > 0);
  char *other = pooled(MIB);
  CHECK(!overlap(memory, MIB, other, MIB));
  pooled(LARGE);
  IS(simcuda_pending(stream), 0);
  no_misuse();
}

static void batches(void) { not_analysed("cuMemcpyBatchAsync_v2"); }
static void attributes(void) { not_analysed("cuMemcpyWithAttributesAsync_ptsz"); }
static void nodes(void) { not_analysed("cuGraphAddNode_v2"); }
static void node_changes(void) { not_analysed("cuGraphExecNodeSetParams"); }
static void written_values(void) { not_analysed("cuStreamWriteValue32_v2"); }
static void rectangles_filled(void) { not_analysed("cuMemsetD2D8Async"); }
/* An unknown function counts when it is looked up. */
static void later_copies(void) { not_analysed("cuMemcpyByTelepathyAsync"); }

/* The program lets other devices touch what is pooled by mapping it. */
static void mapped(void) {
  const struct {
    int type, device;
    unsigned flags;
  } access = {1, 1, 3};
  OK(cudaSetDevice(0));
  char *memory = pooled(MIB);
  OK(cudaSetDevice(1));
  char *here = pooled(MIB);
  cudaStream_t stream = held_stream();
  cuMemSetAccess((Address)memory, 2 * MIB, &access, 1);
  use(stream, here, MIB, 8);
  OK(cudaSetDevice(0));
  OK(cudaFree(memory));
  OK(cudaDeviceSynchronize());
  CHECK(!overlap(memory, MIB, pooled(MIB), MIB));
  CHECK(simcuda_pending(stream) > 0);
}

/* Granules are mapped for all devices that can reach them, so their work may touch it without anything being enabled. */
static void granules(void) {
  OK(cudaSetDevice(0));
  char *memory = pooled(2 * MIB);
  OK(cudaFree(pooled(LARGE)));
  OK(cudaSetDevice(1));
  pooled(MIB);
  cudaStream_t stream = held_stream();
  use(stream, memory, MIB, 8);
  CHECK(simcuda_pending(stream) > 0);
  OK(cudaSetDevice(0));
  OK(cudaFree(memory));
  OK(cudaDeviceSynchronize());
  CHECK(!overlap(memory, 2 * MIB, pooled(2 * MIB), 2 * MIB));
  CHECK(simcuda_pending(stream) > 0);
  pooled(LARGE);
  IS(simcuda_pending(stream), 0);
  no_misuse();
}

static const Case CASES[] = {
    {"unrelated", unrelated, LIMIT},
    {"unrelated_many", unrelated_many, NULL},
    {"unrelated_many_without_probes", unrelated_many, WITHOUT_PROBES},
    {"unrelated_barrier", unrelated_barrier, "BFC_PRELOAD_FREE=sync"},
    {"unrelated_trim", unrelated_trim, NULL},
    {"unrelated_async", unrelated_barrier, "BFC_PRELOAD_ASYNC=1"},
    {"unrelated_context", unrelated_context, LIMIT},
    {"own_synchronization", own_synchronization, NULL},
    {"collective", collective, LIMIT},
    {"peers_collective", peers_collective, NULL},
    {"peers_collective_without_probes", peers_collective, WITHOUT_PROBES},
    {"peers_reuse", peers_reuse, NULL},
    {"users_end", users_end, NULL},
    {"one_way", one_way, LIMIT},
    {"copies", copies, LIMIT},
    {"batches", batches, LIMIT},
    {"attributes", attributes, LIMIT},
    {"nodes", nodes, LIMIT},
    {"node_changes", node_changes, LIMIT},
    {"written_values", written_values, LIMIT},
    {"rectangles_filled", rectangles_filled, LIMIT},
    {"later_copies", later_copies, LIMIT},
    {"mapped", mapped, LIMIT},
    {"granules", granules, LIMIT " BFC_BACKEND=cuda_vmm"},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
