/* The meaning of cudaFree: what was freed is handed out again only after the work that was queued before the free is done.
 *
 * The streams here are held: their work is done when a test says so, or when the program waits for it. Otherwise all
 * queued work would be done at once, and no reuse could be too early. */
#include "held.h"

#include <pthread.h>

/* A pool with room for two of these: the third has to be the first, again. */
#define LARGE (400 * MIB)
#define LIMIT "BFC_MEMORY_LIMIT=1000M"

/* A chunk that queued work may touch is not handed out; what is asked for comes from elsewhere, without waiting. */
static void waits(void) {
  cudaStream_t stream = held_stream();
  char *first = pooled(MIB), *other;
  use(stream, first, MIB, 1);
  const uint64_t before = synchronizations();
  OK(cudaFree(first));
  for (int each = 0; each < 20; each++) {
    other = pooled(MIB);
    CHECK(!overlap(first, MIB, other, MIB));
    use_at_once(other, MIB, 100 + (uint64_t)each);
  }
  IS(synchronizations(), before);
  IS(simcuda_pending(stream), 2);
  simcuda_release_all();
  no_misuse();
}

/* The program's own synchronisation serves: after it the chunk is handed out without another synchronization. */
static void after_a_synchronization(void) {
  cudaStream_t stream = held_stream();
  char *first = pooled(MIB);
  use(stream, first, MIB, 1);
  OK(cudaFree(first));
  OK(cudaDeviceSynchronize());
  IS(simcuda_pending(stream), 0);
  const uint64_t before = synchronizations();
  char *again = pooled(MIB);
  CHECK(again == first);
  IS(synchronizations(), before);
  no_misuse();
}

/* A synchronisation before the free says nothing of work that was queued after it. */
static void before_the_free(void) {
  cudaStream_t stream = held_stream();
  char *first = pooled(MIB), *second = pooled(MIB);
  OK(cudaFree(second));
  OK(cudaDeviceSynchronize());
  use(stream, first, MIB, 1);
  OK(cudaFree(first));
  char *one = pooled(MIB), *two = pooled(MIB);
  CHECK(one == second && !overlap(first, MIB, two, MIB));
  use_at_once(one, MIB, 2);
  use_at_once(two, MIB, 3);
  simcuda_release_all();
  no_misuse();
}

/* A synchronisation that fails has waited for nothing. */
static void failed_synchronization(void) {
  cudaStream_t stream = held_stream();
  char *first = pooled(MIB);
  use(stream, first, MIB, 1);
  OK(cudaFree(first));
  OK(simcuda_fail("cuCtxSynchronize", 1, 46));
  IS(cudaDeviceSynchronize(), 46);
  char *other = pooled(MIB);
  CHECK(!overlap(first, MIB, other, MIB));
  use_at_once(other, MIB, 2);
  simcuda_release_all();
  no_misuse();
}

/* A wait for one stream is no wait for the others. */
static void one_stream(void) {
  cudaStream_t stream = held_stream(), other_stream = NULL;
  OK(cudaStreamCreate(&other_stream));
  char *first = pooled(MIB);
  use(stream, first, MIB, 1);
  OK(cudaFree(first));
  OK(cudaStreamSynchronize(other_stream));
  char *other = pooled(MIB);
  CHECK(!overlap(first, MIB, other, MIB));
  use_at_once(other, MIB, 2);
  simcuda_release_all();
  no_misuse();
}

/* Where there is no room for more, one synchronisation serves all that wait. */
static void one_serves_all(void) {
  enum { COUNT = 100 };
  cudaStream_t stream = held_stream();
  char *memory[COUNT];
  for (int each = 0; each < COUNT; each++) {
    memory[each] = pooled(8 * MIB);
    use(stream, memory[each], 4096, 1 + (uint64_t)each);
  }
  for (int each = 0; each < COUNT; each++) OK(cudaFree(memory[each]));
  const uint64_t before = synchronizations();
  IS(simcuda_pending(stream), 2 * COUNT);
  for (int each = 0; each < COUNT; each++) {
    memory[each] = pooled(8 * MIB);
    use_at_once(memory[each], 4096, 500 + (uint64_t)each);
  }
  IS(synchronizations(), before + 1);
  IS(simcuda_pending(stream), 0);
  no_misuse();
}

/* After this many frees the pool queries whether the work is done, although there is room, and again after some more.
 * */
static void many_frees(void) {
  cudaStream_t stream = held_stream();
  char *memory = pooled(1000);
  const uint64_t before = synchronizations();
  use(stream, memory, 1000, 1);
  OK(cudaFree(memory));
  for (int each = 1; each < 1024; each++) OK(cudaFree(pooled(1000)));
  IS(settlements(), before);
  for (int each = 0; each < 128; each++) OK(cudaFree(pooled(1000)));
  IS(simcuda_calls("cuCtxRecordEvent"), 1);
  IS(simcuda_calls("cuEventQuery"), 1);
  IS(synchronizations(), before);
  IS(simcuda_pending(stream), 2);
  OK(simcuda_release(stream));
  CHECK(pooled(1000) == memory);
  IS(simcuda_calls("cuEventQuery"), 3);
  for (int each = 0; each < 1023; each++) OK(cudaFree(pooled(1000)));
  IS(simcuda_calls("cuEventQuery"), 3);
  IS(synchronizations(), before);
  no_misuse();
}

/* It waits for the device where it cannot ask. */
static void many_frees_without_probes(void) {
  cudaStream_t stream = held_stream();
  char *memory = pooled(1000);
  const uint64_t before = synchronizations();
  use(stream, memory, 1000, 1);
  OK(cudaFree(memory));
  for (int each = 1; each < 1024; each++) OK(cudaFree(pooled(1000)));
  IS(synchronizations(), before);
  IS(simcuda_pending(stream), 2);
  pooled(1000);
  IS(synchronizations(), before + 1);
  IS(simcuda_pending(stream), 0);
  for (int each = 0; each < 1024; each++) OK(cudaFree(pooled(1000)));
  IS(synchronizations(), before + 1);
  pooled(1000);
  IS(synchronizations(), before + 2);
  no_misuse();
}

/* BFC_PRELOAD_FREE=sync: cudaFree is a barrier. */
static void barrier(void) {
  cudaStream_t stream = held_stream();
  char *memory = pooled(1000), *other = pooled(1000);
  use(stream, other, 1000, 1);
  OK(cudaFree(memory));
  IS(simcuda_pending(stream), 0);
  CHECK(pooled(1000) == memory);
  use(stream, other, 1000, 2);
  IS(cudaFree(memory + 512), INVALID_VALUE);
  IS(simcuda_pending(stream), 2);
  OK(cudaFree(other));
  IS(simcuda_pending(stream), 0);
  IS(cudaFree(other), INVALID_VALUE);
  OK(cudaFree(NULL));
  no_misuse();
}

/* What the driver gave is the driver's to free, and that waits. */
static void driver_s_own(void) {
  cudaStream_t stream = held_stream();
  char *large = allocated(4 * MIB);
  CHECK(!is_pooled(large));
  use(stream, large, MIB, 1);
  OK(cudaFree(large));
  IS(simcuda_pending(stream), 0);
  no_misuse();
}

/* Whatever is free or inside of something is never the driver's to free: at a region's beginning it would take the region,
 * with all that lies there. */
static void never_the_region(void) {
  char *first = pooled(1000), *second = pooled(1000), *third = pooled(1000);
  OK(cudaFree(first));
  IS(cudaFree(first), INVALID_VALUE);
  OK(cudaFree(second));
  OK(cudaDeviceSynchronize());
  IS(cudaFree(first), INVALID_VALUE);
  IS(cudaFree(second), INVALID_VALUE);
  char *both = pooled(2000);
  CHECK(both == first);
  IS(cudaFree(second), INVALID_VALUE);
  IS(cudaFree(first + 1), INVALID_VALUE);
  OK(cudaFree(both));
  OK(cudaDeviceSynchronize());
  IS(cudaFree(first), INVALID_VALUE);
  IS(cudaFree(first + 512), INVALID_VALUE);
  IS(cudaFreeAsync(first, NULL), INVALID_VALUE);
  IS(cudaFreeAsync(first + 512, NULL), INVALID_VALUE);
  IS(cudaFreeHost(first), INVALID_VALUE);
  IS(simcuda_calls("cuMemFree"), 0);
  IS(simcuda_calls("cuMemFreeAsync"), 0);
  use_at_once(third, 1000, 1);
  OK(cudaFree(third));
  no_misuse();
}

static uint64_t questions(void) {
  return settlements() + simcuda_calls("cuStreamQuery") + simcuda_calls("cuEventQuery") +
         simcuda_calls("cuEventSynchronize");
}

/* While a graph is captured nothing is waited for, and nothing is asked; what is freed goes on waiting, and the capture is
 * sound. Mode 0 is the strictest. */
static void capture(void) {
  for (int mode = 0; mode < 3; mode++) {
    cudaStream_t stream = held_stream(), captured = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t executable = NULL;
    char *target = pooled(MIB), *first = pooled(LARGE / 4), *memory[1100];
    use(stream, first, MIB, 1);
    OK(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(captured, (enum cudaStreamCaptureMode)mode));
    const uint64_t before = questions();
    OK(cudaMemsetAsync(target, 7, MIB, captured));
    OK(cudaFree(first));
    for (int each = 0; each < 1100; each++) memory[each] = pooled(4096);
    for (int each = 0; each < 1100; each++) OK(cudaFree(memory[each]));
    for (int each = 0; each < 5; each++) {
      char *large = pooled(LARGE / 4);
      CHECK(!overlap(first, LARGE / 4, large, LARGE / 4));
      use_at_once(large, MIB, 50);
      OK(cudaFree(large));
    }
    IS(questions(), before);
    IS(simcuda_pending(stream), 2);
    OK(cudaStreamEndCapture(captured, &graph));
    CHECK(graph != NULL);
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphLaunch(executable, captured));
    /* Now what was put off is done. */
    OK(simcuda_release(stream));
    pooled(4096);
    IS(questions(), before + 2);
    IS((unsigned char)target[MIB - 1], 7);
    OK(cudaGraphExecDestroy(executable));
    OK(cudaGraphDestroy(graph));
    no_misuse();
    OK(cudaDeviceReset());
    at_once = NULL;
  }
}

/* No room, and a capture: there is no memory, and the capture is sound. */
static void capture_without_room(void) {
  cudaStream_t captured = NULL;
  cudaGraph_t graph = NULL;
  void *memory = NULL;
  char *first = pooled(LARGE), *second = pooled(LARGE);
  OK(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
  OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
  OK(cudaFree(first));
  OK(cudaFree(second));
  IS(cudaMalloc(&memory, LARGE), OUT_OF_MEMORY);
  CHECK(memory == NULL);
  OK(cudaStreamEndCapture(captured, &graph));
  pooled(LARGE);
  OK(cudaGraphDestroy(graph));
}

/* A capture that another thread spoils, that is ended in vain, or whose stream is destroyed: afterwards all is as before. */
static void captures_end(void) {
  cudaStream_t stream = NULL, other = NULL;
  cudaGraph_t graph = NULL;
  char *memory = pooled(LARGE);
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK(cudaStreamEndCapture(other, &graph) != 0);
  OK(cudaFree(memory));
  const uint64_t before = questions();
  IS(cudaMalloc(&(void *){NULL}, LARGE), OUT_OF_MEMORY);
  IS(questions(), before);
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphDestroy(graph));
  memory = pooled(LARGE);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) != 0);
  OK(cudaFree(memory));
  IS(cudaDeviceSynchronize(), CAPTURE_UNSUPPORTED);
  CHECK(cudaStreamEndCapture(stream, &graph) != 0);
  memory = pooled(LARGE);
  OK(cudaFree(memory));
  memory = pooled(LARGE);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaFree(memory));
  OK(cudaStreamDestroy(stream));
  OK(cudaDeviceSynchronize());
  for (int each = 0; each < 3; each++) OK(cudaFree(pooled(LARGE)));
}

/* A graph is captured again while another stream is captured: its end is not the end of the other capture, whatever the
 * beginning was called. Nothing is synchronised in either, and both are sound. */
static void recapture(void) {
  cudaStream_t stream = NULL, other = NULL;
  cudaGraph_t graph = NULL, again = NULL, third = NULL;
  char *memory = pooled(LARGE);
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  OK(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
  OK(cudaStreamEndCapture(other, &graph));
  for (int round = 0; round < 2; round++) {
    const int failing = round == 1;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    IS(cuStreamBeginRecaptureToGraph(other, failing ? 3 : 2, graph, NULL, NULL), failing ? INVALID_VALUE : 0);
    OK(cudaFree(memory));
    const uint64_t before = questions();
    IS(cudaMalloc(&(void *){NULL}, LARGE), OUT_OF_MEMORY);
    if (!failing) {
      OK(cudaStreamEndCapture(other, &again));
      CHECK(again == graph);
    }
    /* The first capture is still under way. */
    IS(cudaMalloc(&(void *){NULL}, LARGE), OUT_OF_MEMORY);
    IS(questions(), before);
    OK(cudaStreamEndCapture(stream, &third));
    OK(cudaGraphDestroy(third));
    /* None is, so it is waited for. */
    memory = pooled(LARGE);
  }
  /* Alone. */
  OK(cuStreamBeginRecaptureToGraph(other, 2, graph, NULL, NULL));
  OK(cudaFree(memory));
  const uint64_t before = questions();
  IS(cudaMalloc(&(void *){NULL}, LARGE), OUT_OF_MEMORY);
  IS(questions(), before);
  OK(cudaStreamEndCapture(other, &again));
  memory = pooled(LARGE);
  OK(cudaGraphDestroy(graph));
  no_misuse();
}

/* Freed with the other device current: each device's chunks wait for the work of their own. */
static void two_devices(void) {
  char *memory[2];
  cudaStream_t stream[2];
  for (int device = 0; device < 2; device++) {
    OK(cudaSetDevice(device));
    stream[device] = held_stream();
    memory[device] = pooled(MIB);
    use(stream[device], memory[device], MIB, 1);
  }
  OK(cudaFree(memory[0]));
  OK(cudaFree(memory[1]));
  OK(cudaDeviceSynchronize());
  IS(simcuda_pending(stream[1]), 0);
  CHECK(pooled(MIB) == memory[1]);
  OK(cudaSetDevice(0));
  IS(simcuda_pending(stream[0]), 2);
  char *other = pooled(MIB);
  CHECK(!overlap(memory[0], MIB, other, MIB));
  use_at_once(other, MIB, 2);
  simcuda_release_all();
  no_misuse();
}

/* Work of device 1 on memory of device 0: device 0's synchronisation is not enough. */
static void peers(void) {
  Handle context = NULL;
  char *memory = pooled(MIB);
  OK(cuCtxGetCurrent(&context));
  OK(cudaSetDevice(1));
  pooled(1000);
  OK(cuCtxEnablePeerAccess(context, 0));
  cudaStream_t stream = held_stream();
  use(stream, memory, MIB, 1);
  OK(cudaSetDevice(0));
  OK(cudaFree(memory));
  OK(cudaDeviceSynchronize());
  IS(simcuda_pending(stream), 2);
  char *other = pooled(MIB);
  CHECK(!overlap(memory, MIB, other, MIB));
  use_at_once(other, MIB, 2);
  /* And where there is no room the pool waits for both. */
  char *first = pooled(LARGE), *second = pooled(LARGE);
  OK(cudaSetDevice(1));
  use(stream, first, MIB, 3);
  OK(cudaSetDevice(0));
  OK(cudaFree(first));
  char *third = pooled(LARGE);
  CHECK(overlap(first, LARGE, third, LARGE) && !overlap(second, LARGE, third, LARGE));
  IS(simcuda_pending(stream), 0);
  use_at_once(third, MIB, 4);
  no_misuse();
}

/* Again and again, while the held stream goes on step by step. */
static void other_streams(void) {
  cudaStream_t stream = held_stream();
  for (int each = 0; each < 300; each++) {
    char *memory = pooled(100 * KIB);
    use(stream, memory, 100 * KIB, 1 + (uint64_t)each);
    OK(cudaFree(memory));
    memory = pooled(100 * KIB);
    use_at_once(memory, 100 * KIB, 1000 + (uint64_t)each);
    OK(cudaFree(memory));
    simcuda_step(stream, 1);
  }
  simcuda_release_all();
  no_misuse();
}

/* The same by several threads, each with streams of its own; the limit is tight. */
static void *thread(void *argument) {
  uint64_t random = 77 + (uint64_t)(uintptr_t)argument;
  cudaStream_t stream = held_stream();
  char *live[8] = {NULL};
  for (int each = 0; each < 3000; each++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const int place = (int)(random >> 61);
    if (live[place]) {
      OK(cudaFree(live[place]));
      live[place] = NULL;
    } else {
      live[place] = pooled(64 * KIB);
      use((random >> 40) & 1 ? stream : NULL, live[place], 64 * KIB, random);
    }
    if (((random >> 45) & 7) == 0) simcuda_step(stream, 2);
  }
  simcuda_release(stream);
  for (int place = 0; place < 8; place++) OK(cudaFree(live[place]));
  OK(cudaStreamDestroy(stream));
  return NULL;
}

static void threads(void) {
  pthread_t all[4];
  for (intptr_t each = 0; each < 4; each++) OK(pthread_create(&all[each], NULL, thread, (void *)each));
  for (int each = 0; each < 4; each++) OK(pthread_join(all[each], NULL));
  OK(cudaDeviceSynchronize());
  no_misuse();
}

static const Case CASES[] = {
    {"waits", waits, NULL},
    {"after_a_synchronization", after_a_synchronization, NULL},
    {"before_the_free", before_the_free, NULL},
    {"failed_synchronization", failed_synchronization, NULL},
    {"one_stream", one_stream, NULL},
    {"one_serves_all", one_serves_all, LIMIT},
    {"many_frees", many_frees, NULL},
    {"many_frees_without_probes", many_frees_without_probes, WITHOUT_PROBES},
    {"barrier", barrier, "BFC_PRELOAD_FREE=sync"},
    {"driver_s_own", driver_s_own, "BFC_PRELOAD_MAX=1M"},
    {"never_the_region", never_the_region, NULL},
    {"never_the_region_async", never_the_region, "BFC_PRELOAD_ASYNC=1"},
    {"never_the_region_pinned", never_the_region, "BFC_PRELOAD_PINNED=1"},
    {"capture", capture, NULL},
    {"capture_without_room", capture_without_room, LIMIT},
    {"captures_end", captures_end, "BFC_MEMORY_LIMIT=500M"},
    {"recapture", recapture, "BFC_MEMORY_LIMIT=500M"},
    {"two_devices", two_devices, NULL},
    {"peers", peers, LIMIT},
    {"other_streams", other_streams, NULL},
    {"threads", threads, "BFC_MEMORY_LIMIT=4M"},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
