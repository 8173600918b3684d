/* Captures that the driver alone would leave valid stay valid under the interposer, whatever is allocated meanwhile and
 * whether or not it succeeds. Nothing is synchronized and nothing given back to the driver while a stream is captured. */
#include "held.h"

#include <pthread.h>
#include <time.h>

enum { MODES = 3 };

#define LIMIT "BFC_MEMORY_LIMIT=1000M"

static cudaStream_t plain_stream(void) {
  cudaStream_t stream = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

/* Memory that the pool holds, that is unused and whose work is done: what a collection gives back first. */
static void leave_idle(size_t bytes) {
  OK(cudaFree(pooled(bytes)));
  OK(cudaDeviceSynchronize());
}

/* Sets this thread's mode; gives the one before. */
static enum cudaStreamCaptureMode exchange(enum cudaStreamCaptureMode mode) {
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  return mode;
}

/* The capture ends well, and its graph has what was captured. */
static void ends_well(cudaStream_t stream) {
  cudaGraph_t graph = NULL;
  enum cudaStreamCaptureStatus status = 0;
  OK(cudaStreamIsCapturing(stream, &status));
  IS(status, cudaStreamCaptureStatusActive);
  OK(cudaStreamEndCapture(stream, &graph));
  CHECK(graph != NULL);
  OK(cudaGraphDestroy(graph));
}

/* What PyTorch does in test_graph_capture_oom of its test/test_cuda.py: within a capture of mode global, an allocation with
 * the thread's mode relaxed that no device has memory for, then a question how much there is. The graph is sound. */
static void graph_capture_oom(void) {
  cudaStream_t stream = plain_stream();
  char *target = pooled(2 * MIB);
  leave_idle(20 * MIB);
  void *memory = NULL;
  size_t free = 0, total = 0;
  OK(cudaDeviceSynchronize());
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaMemsetAsync(target, 1, 2 * MIB, stream));
  enum cudaStreamCaptureMode before = exchange(cudaStreamCaptureModeRelaxed);
  IS(cudaMalloc(&memory, (size_t)1 << 42), OUT_OF_MEMORY);
  exchange(before);
  CHECK(memory == NULL);
  IS(cudaGetLastError(), OUT_OF_MEMORY);
  OK(cudaMemGetInfo(&free, &total));
  ends_well(stream);
  no_misuse();
}

/* A request that there is no room for, but by giving something back. Granules make room where they are, and with
 * BFC_PRELOAD_ASYNC=1 the driver itself is asked. */
static void has_no_room(size_t bytes) {
  const uint64_t synchronized = synchronizations(), freed = simcuda_calls("cuMemFree");
  void *memory = NULL;
  const int code = cudaMalloc(&memory, bytes);
  IS(synchronizations(), synchronized);
  IS(simcuda_calls("cuMemFree"), freed);
  if (code == 0 && (getenv("BFC_BACKEND") || getenv("BFC_PRELOAD_ASYNC"))) return;
  IS(code, OUT_OF_MEMORY);
  cudaGetLastError();
}

/* A full pool with an idle region that is too small: a larger request fails, or comes from the driver, and gives nothing
 * back. After the capture it is served. */
static void full_pool(void) {
  for (int mode = 0; mode < MODES; mode++) {
    cudaStream_t stream = plain_stream();
    leave_idle(400 * MIB);
    OK(cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)mode));
    enum cudaStreamCaptureMode before = exchange(cudaStreamCaptureModeRelaxed);
    has_no_room(700 * MIB);
    exchange(before);
    ends_well(stream);
    OK(cudaFree(pooled(300 * MIB)));
    OK(cudaDeviceReset());
  }
  no_misuse();
}

/* The same where the device itself is full: the driver is asked in vain, and the pool is not trimmed for it. */
static void full_device(void) {
  Address address = 0;
  size_t pitch = 0;
  uint64_t handle = 0;
  const MemoryKind kind = MEMORY_OF(0);
  const size_t bytes = 1500 * MIB;
  for (int mode = 0; mode < MODES; mode++) {
    cudaStream_t stream = plain_stream();
    leave_idle(1000 * MIB);
    OK(cuMemAllocManaged(&address, 2000 * MIB, 1));
    OK(cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)mode));
    enum cudaStreamCaptureMode before = exchange(cudaStreamCaptureModeRelaxed);
    const uint64_t synchronized = synchronizations(), freed = simcuda_calls("cuMemFree");
    IS(cuMemAllocPitch_v2(&address, &pitch, bytes / 1000, 1000, 4), OUT_OF_MEMORY);
    IS(cuMemAllocManaged(&address, bytes, 1), OUT_OF_MEMORY);
    IS(cuMemCreate(&handle, bytes, &kind, 0), OUT_OF_MEMORY);
    IS(cuMemAllocAsync(&address, bytes, NULL), OUT_OF_MEMORY);
    IS(synchronizations(), synchronized);
    IS(simcuda_calls("cuMemFree"), freed);
    has_no_room(bytes);
    exchange(before);
    ends_well(stream);
    if (!getenv("BFC_BACKEND")) OK(cuMemAllocManaged(&address, bytes, 1));
    OK(cudaDeviceReset());
  }
  no_misuse();
}

/* The first allocation of the process, and of each device, within a capture: the pool begins to exist. */
static void first_allocation(void) {
  cudaStream_t stream = plain_stream();
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  enum cudaStreamCaptureMode before = exchange(cudaStreamCaptureModeRelaxed);
  pooled(MIB);
  OK(cudaSetDevice(1));
  char *memory = pooled(MIB);
  OK(cudaFree(memory));
  OK(cudaSetDevice(0));
  exchange(before);
  ends_well(stream);
  no_misuse();
}

/* Frees, many of them, and requests that they make room for. */
static void frees(void) {
  enum { COUNT = 1100 };
  for (int mode = 0; mode < MODES; mode++) {
    cudaStream_t stream = plain_stream();
    char *memory[COUNT];
    for (int each = 0; each < COUNT; each++) memory[each] = pooled(100 * KIB);
    OK(cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)mode));
    const uint64_t synchronized = synchronizations();
    for (int each = 0; each < COUNT; each++) OK(cudaFree(memory[each]));
    for (int each = 0; each < COUNT; each++) memory[each] = pooled(100 * KIB);
    IS(synchronizations(), synchronized);
    ends_well(stream);
    OK(cudaDeviceReset());
  }
  no_misuse();
}

/* With BFC_PRELOAD_ASYNC=1 what is freed may be handed out at once, so cudaFree waits for the device: in a capture the free is
 * put off. To the program the memory is free. */
static void put_off(void) {
  for (int mode = 0; mode < MODES; mode++) {
    cudaStream_t stream = plain_stream(), held = held_stream();
    char *memory = pooled(MIB), *other = pooled(MIB);
    use(held, memory, MIB, 1);
    OK(cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)mode));
    enum cudaStreamCaptureMode before = exchange(cudaStreamCaptureModeRelaxed);
    OK(cudaFree(memory));
    IS(cudaFree(memory), INVALID_VALUE);
    IS(cudaFree(memory + 512), INVALID_VALUE);
    char *more = allocated(MIB);
    CHECK(!overlap(memory, MIB, more, MIB));
    use_at_once(more, MIB, 2);
    IS(simcuda_pending(held), 2);
    exchange(before);
    ends_well(stream);
    OK(cudaFree(other));
    IS(simcuda_pending(held), 0);
    IS(cudaFree(memory), INVALID_VALUE);
    CHECK(pooled(2 * MIB) == memory);
    no_misuse();
    OK(cudaDeviceReset());
    at_once = NULL;
  }
}

/* Two threads: the other one allocates, in a process that is short of memory, while this one captures. */
static int is_over;
static uint64_t failures;

static void *churn(void *argument) {
  uint64_t random = (uint64_t)(uintptr_t)argument;
  char *live[8] = {NULL};
  exchange(cudaStreamCaptureModeRelaxed);
  while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const int place = (int)(random >> 61);
    void *memory = NULL;
    if (live[place]) {
      OK(cudaFree(live[place]));
      live[place] = NULL;
    } else if (cudaMalloc(&memory, ((random >> 40) % 300 + 1) * MIB) == 0) {
      live[place] = memory;
    } else {
      __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
    }
  }
  for (int place = 0; place < 8; place++) OK(cudaFree(live[place]));
  return NULL;
}

static void threads(void) {
  pthread_t all[2];
  cudaStream_t stream = plain_stream();
  char *target = pooled(MIB);
  for (intptr_t each = 0; each < 2; each++) OK(pthread_create(&all[each], NULL, churn, (void *)(each + 1)));
  for (int each = 0; each < 600; each++) {
    OK(cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)(each % MODES)));
    for (int node = 0; node < each % 7; node++) OK(cudaMemsetAsync(target, node, MIB, stream));
    if (each % 5 == 0) usleep(200);
    ends_well(stream);
    if (each % 3 == 0) usleep(100);
  }
  __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
  for (int each = 0; each < 2; each++) OK(pthread_join(all[each], NULL));
  OK(cudaFree(target));
  no_misuse();
}

/* Another thread waits for two contexts, one after the other, when a capture begins in the second one. */
static void *allocate(void *argument) {
  void *memory = NULL;
  const size_t bytes = (size_t)(uintptr_t)argument;
  exchange(cudaStreamCaptureModeRelaxed);
  const int code = cudaMalloc(&memory, bytes);
  CHECK(code == 0 || code == OUT_OF_MEMORY);
  return NULL;
}

static void sleep_ms(long ms) {
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* Until a function was called once more than before. */
static void await_call(const char *function, uint64_t before) {
  for (int each = 0; each < 10000 && simcuda_calls(function) == before; each++) sleep_ms(1);
  CHECK(simcuda_calls(function) > before);
}

static void second_context(void) {
  pthread_t thread;
  Handle context = NULL;
  OK(cudaSetDevice(1));
  /* Work that is not done when it is asked after, so that it is waited for. */
  cudaStream_t stream = plain_stream(), held = held_stream();
  use(held, pooled(MIB), MIB, 1);
  OK(cuCtxGetCurrent(&context));
  OK(cudaSetDevice(0));
  pooled(MIB);
  /* So work of device 1 may touch what is of device 0. */
  Handle first = NULL;
  OK(cuCtxGetCurrent(&first));
  OK(cuCtxSetCurrent(context));
  OK(cuCtxEnablePeerAccess(first, 0));
  OK(cuCtxSetCurrent(first));
  OK(cudaFree(pooled(700 * MIB)));
  simcuda_delay("cuCtxSynchronize", 300000000);
  const uint64_t before = simcuda_calls("cuCtxSynchronize");
  OK(pthread_create(&thread, NULL, allocate, (void *)(700 * MIB)));
  await_call("cuCtxSynchronize", before);
  OK(cudaSetDevice(1));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  OK(pthread_join(thread, NULL));
  simcuda_clear_faults();
  ends_well(stream);
  no_misuse();
}

/* Another thread is about to synchronize, or to ask whether a context's work is done, and the scheduler puts it aside for a tenth of a second: the simulation looks for
 * captures after the delay. */
static void late_entry(void) {
  pthread_t thread;
  cudaStream_t stream = plain_stream();
  OK(cudaFree(pooled(700 * MIB)));
  const char *entered = getenv("SIMCUDA_DRIVER_VERSION") ? "cuCtxSynchronize" : "cuCtxRecordEvent";
  simcuda_delay(entered, 100000000);
  const uint64_t before = simcuda_calls(entered);
  OK(pthread_create(&thread, NULL, allocate, (void *)(700 * MIB)));
  await_call(entered, before);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  OK(pthread_join(thread, NULL));
  simcuda_clear_faults();
  ends_well(stream);
  no_misuse();
}

/* Another thread is giving regions back, one by one, when a capture begins. */
static void midst_of_a_collection(void) {
  enum { COUNT = 4 };
  pthread_t thread;
  cudaStream_t stream = plain_stream();
  char *memory[COUNT];
  for (int each = 0; each < COUNT; each++) memory[each] = pooled((200 + (size_t)each) * MIB);
  for (int each = 0; each < COUNT; each++) OK(cudaFree(memory[each]));
  OK(cudaDeviceSynchronize());
  const uint64_t before = simcuda_calls("cuMemFree");
  simcuda_delay("cuMemFree", 50000000);
  OK(pthread_create(&thread, NULL, allocate, (void *)(900 * MIB)));
  await_call("cuMemFree", before);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  OK(pthread_join(thread, NULL));
  simcuda_clear_faults();
  ends_well(stream);
  no_misuse();
}

/* A synchronization that goes on for long does not hold a capture up for as long: the work that it waits for may be the
 * graph's. */
static void *step_later(void *stream) {
  sleep_ms(3000);
  simcuda_release(stream);
  return NULL;
}

static void long_synchronization(void) {
  pthread_t thread, stepper;
  struct timespec before, after;
  cudaStream_t stream = plain_stream(), held = held_stream();
  OK(simcuda_set(SIMCUDA_SYNCHRONIZE_WAITS, 1));
  char *memory = pooled(700 * MIB);
  use(held, memory, MIB, 1);
  OK(cudaFree(memory));
  const uint64_t calls = simcuda_calls("cuCtxSynchronize");
  OK(pthread_create(&thread, NULL, allocate, (void *)(700 * MIB)));
  OK(pthread_create(&stepper, NULL, step_later, held));
  await_call("cuCtxSynchronize", calls);
  OK(clock_gettime(CLOCK_MONOTONIC, &before));
  for (int each = 0; each < 3; each++) {
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ends_well(stream);
  }
  OK(clock_gettime(CLOCK_MONOTONIC, &after));
  CHECK(simcuda_pending(held) > 0);
  CHECK(after.tv_sec - before.tv_sec < 3);
  OK(pthread_join(stepper, NULL));
  OK(pthread_join(thread, NULL));
  no_misuse();
}

/* A trim of the library's own within a capture gives nothing back, and says so. */
static void own_trim(void) {
  int (*trim)(int32_t, uint64_t, uint64_t *) = NULL;
  uint64_t released = 7;
  cudaStream_t stream = plain_stream();
  leave_idle(400 * MIB);
  *(void **)&trim = dlsym(RTLD_DEFAULT, "bfc_trim");
  CHECK(trim != NULL);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK(trim(0, 0, &released) != 0);
  IS(released, 0);
  ends_well(stream);
  OK(trim(0, 0, &released));
  CHECK(released >= 400 * MIB);
  no_misuse();
}

/* What the pool can serve it serves, also a small request for which only a large chunk is left, and the driver is not called. */
static void small_beside_large(void) {
  cudaStream_t stream = plain_stream();
  leave_idle(900 * MIB);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  pooled(512);
  ends_well(stream);
  no_misuse();
}

static const Case CASES[] = {
    {"graph_capture_oom", graph_capture_oom, NULL},
    {"graph_capture_oom_granules", graph_capture_oom, "BFC_BACKEND=cuda_vmm"},
    {"graph_capture_oom_async", graph_capture_oom, "BFC_PRELOAD_ASYNC=1"},
    {"graph_capture_oom_limit", graph_capture_oom, LIMIT},
    {"full_pool", full_pool, LIMIT},
    {"full_pool_granules", full_pool, LIMIT " BFC_BACKEND=cuda_vmm"},
    {"full_pool_async", full_pool, LIMIT " BFC_PRELOAD_ASYNC=1"},
    {"full_pool_barrier", full_pool, LIMIT " BFC_PRELOAD_FREE=sync"},
    {"full_device", full_device, NULL},
    {"full_device_granules", full_device, "BFC_BACKEND=cuda_vmm"},
    {"full_device_async", full_device, "BFC_PRELOAD_ASYNC=1"},
    {"first_allocation", first_allocation, NULL},
    {"first_allocation_granules", first_allocation, "BFC_BACKEND=cuda_vmm"},
    {"frees", frees, NULL},
    {"frees_barrier", frees, "BFC_PRELOAD_FREE=sync"},
    {"threads", threads, LIMIT},
    {"threads_granules", threads, LIMIT " BFC_BACKEND=cuda_vmm"},
    {"threads_async", threads, LIMIT " BFC_PRELOAD_ASYNC=1"},
    {"put_off", put_off, "BFC_PRELOAD_ASYNC=1"},
    {"second_context", second_context, LIMIT},
    {"late_entry", late_entry, LIMIT},
    {"late_synchronization", late_entry, LIMIT " " WITHOUT_PROBES},
    {"midst_of_a_collection", midst_of_a_collection, LIMIT},
    {"long_synchronization", long_synchronization, LIMIT},
    {"own_trim", own_trim, NULL},
    {"small_beside_large", small_beside_large, LIMIT},
    {"small_beside_large_async", small_beside_large, LIMIT " BFC_PRELOAD_ASYNC=1"},
    {"small_beside_large_unlimited", small_beside_large, NULL},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
