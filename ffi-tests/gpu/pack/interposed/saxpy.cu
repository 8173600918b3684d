/* An ordinary CUDA program, independent of libbfc: on several streams it computes y = a*x + y on buffers of many
 * sizes, frees them while the kernels still run, as cudaFree allows, and compares what comes back on the host.
 *
 *   saxpy          prints what it did and "ok"
 *   saxpy race     the same with a pool of its own that hands freed buffers out without waiting, instead of cudaFree:
 *                  it has to find wrong values, which shows that the first one could
 *
 * nvcc compiles it for a GPU, with the static runtime. As C, with -x c, it is a program for the simulated driver
 * (crates/simcuda): there its kernels are functions of the host, and its streams are held until the program waits.
 *
 * All values are whole numbers that a float holds exactly, so that nothing hangs on the order of roundings.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifdef __CUDACC__
#include <cuda_runtime.h>
#define ON_BOTH static __host__ __device__
#define ON_DEVICE static __device__
#else
#define _GNU_SOURCE
#include "cudart/cudart.h"
#include "simcuda.h"
#include <dlfcn.h>
#define ON_BOTH static
#define ON_DEVICE static
#endif

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  STREAMS = 4,
  IN_FLIGHT = 4, /* on each stream */
  STEPS = 1500,
  KEPT = 16,              /* results that live on while others come and go */
  MOST = 1 << 20,         /* floats of a buffer: 4 MiB */
  WAIT_MICROSECONDS = 150 /* of the device, before x is read: time for other work to overwrite it */
};

#define CUDA(call)                                                                            \
  do {                                                                                        \
    const cudaError_t code_ = (call);                                                         \
    if (code_ != cudaSuccess) {                                                               \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(code_)); \
      exit(2);                                                                                \
    }                                                                                         \
  } while (0)

/* What a kernel is told. */
struct job {
  float *x, *y;
  size_t count;
  uint32_t seed;
  float a;
};

/* ---- What is computed, for each element ---- */

ON_BOTH float x_of(uint32_t seed, size_t at) { return (float)((seed + 31 * at) % 1021); }
ON_BOTH float y_of(uint32_t seed, size_t at) { return (float)((seed + 17 * at) % 509); }

ON_DEVICE void fill_x_one(const struct job *job, size_t at) { job->x[at] = x_of(job->seed, at); }
ON_DEVICE void fill_y_one(const struct job *job, size_t at) { job->y[at] = y_of(job->seed, at); }
ON_DEVICE void saxpy_one(const struct job *job, size_t at) { job->y[at] = job->a * job->x[at] + job->y[at]; }

/* ---- Kernels ---- */

#ifdef __CUDACC__
#define KERNEL(name)                                                                                                 \
  __global__ void name(struct job job) {                                                                             \
    const size_t all = (size_t)gridDim.x * blockDim.x;                                                               \
    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < job.count; at += all) name##_one(&job, at); \
  }

__global__ void wait_a_while(uint64_t nanoseconds) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - begin < nanoseconds);
}

#define LAUNCH(kernel, stream, job)        \
  do {                                     \
    kernel<<<64, 256, 0, (stream)>>>(job); \
    CUDA(cudaGetLastError());              \
  } while (0)

static void wait_on(cudaStream_t stream) {
  wait_a_while<<<1, 1, 0, stream>>>((uint64_t)WAIT_MICROSECONDS * 1000);
  CUDA(cudaGetLastError());
}

static void open_stream(cudaStream_t *stream) { CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking)); }

#else
#define KERNEL(name)                                                \
  static void name(void *argument) {                                \
    struct job *const job = (struct job *)argument;                 \
    for (size_t at = 0; at < job->count; at++) name##_one(job, at); \
    free(job);                                                      \
  }

static void *simulation(const char *name) {
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void *const function = driver == NULL ? NULL : dlsym(driver, name);
  if (function == NULL) {
    fprintf(stderr, "this is not the simulated driver: it has no %s\n", name);
    exit(2);
  }
  return function;
}

static void launch(void (*kernel)(void *), cudaStream_t stream, const struct job *job) {
  static int (*queue)(void *, void (*)(void *), void *);
  struct job *const copy = (struct job *)malloc(sizeof(*copy));
  if (queue == NULL) queue = (int (*)(void *, void (*)(void *), void *))simulation("simcuda_launch");
  if (copy == NULL) exit(2);
  *copy = *job;
  CUDA((cudaError_t)queue(stream, kernel, copy));
}

#define LAUNCH(kernel, stream, job) launch(kernel, stream, &(job))

/* A held stream does nothing before the program waits for it: that is long enough. */
static void wait_on(cudaStream_t stream) { (void)stream; }

static void open_stream(cudaStream_t *stream) {
  const unsigned non_blocking = 1;
  CUDA(cudaStreamCreateWithFlags(stream, non_blocking));
  CUDA((cudaError_t)((int (*)(void *))simulation("simcuda_hold"))(*stream));
}
#endif

KERNEL(fill_x)
KERNEL(fill_y)
KERNEL(saxpy)

/* ---- Memory ---- */

static int is_race;
static unsigned long allocations, again;

/* Whether this address was given before; that is never counted too often, only too rarely. */
static int was_seen(const void *address) {
  enum { SLOTS = 1 << 13 };
  static const void *seen[SLOTS];
  size_t slot = ((uintptr_t)address >> 9) * 2654435761u % SLOTS;
  for (int probe = 0; probe < 64; probe++, slot = (slot + 1) % SLOTS) {
    if (seen[slot] == address) return 1;
    if (seen[slot] == NULL) {
      seen[slot] = address;
      return 0;
    }
  }
  return 0;
}

/* The pool of `race`: the buffer that was freed last comes first. All are of the largest size. */
static float *freed[4 * KEPT];
static int freed_count;

static float *get(size_t count) {
  void *memory = NULL;
  if (is_race && freed_count > 0) return freed[--freed_count];
  CUDA(cudaMalloc(&memory, (is_race ? (size_t)MOST : count) * sizeof(float)));
  allocations++;
  again += was_seen(memory);
  return (float *)memory;
}

static void give(float *memory) {
  if (is_race) freed[freed_count++] = memory;
  else CUDA(cudaFree(memory));
}

/* ---- Steps ---- */

/* Something that was queued, and whose result is not looked at yet. */
struct step {
  struct job job;
  float *host; /* where the result goes: pinned, of the largest size */
  int is_there;
};

static cudaStream_t streams[STREAMS];
static struct step steps[STREAMS][IN_FLIGHT];
static uint32_t random_state = 20240601;
static unsigned long wrong_values, wrong_steps;
static uint64_t checksum;

static uint32_t random_number(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return random_state >> 8;
}

/* As many small ones as large ones. */
static size_t random_count(void) {
  const size_t below = (size_t)1 << (random_number() % 20);
  return below + random_number() % below;
}

static void compare(const struct job *job, const float *host) {
  unsigned long wrong = 0;
  for (size_t at = 0; at < job->count; at++) {
    const float expected = job->a * x_of(job->seed, at) + y_of(job->seed, at);
    wrong += host[at] != expected;
    checksum = (checksum ^ (uint64_t)(int64_t)host[at]) * 1099511628211u;
  }
  wrong_values += wrong;
  wrong_steps += wrong > 0;
}

/* Waits for a stream, and looks at all that it has computed. */
static void settle(int stream) {
  CUDA(cudaStreamSynchronize(streams[stream]));
  for (int at = 0; at < IN_FLIGHT; at++) {
    struct step *const step = &steps[stream][at];
    if (step->is_there) compare(&step->job, step->host);
    step->is_there = 0;
  }
}

/* A result that stays in the device's memory, and is looked at again before it is freed. */
static struct kept {
  struct job job;
  int stream;
} kept[KEPT];

static void let_go(struct kept *old) {
  struct step *const step = &steps[old->stream][0];
  if (old->job.y == NULL) return;
  settle(old->stream);
  CUDA(cudaMemcpyAsync(step->host, old->job.y, old->job.count * sizeof(float), cudaMemcpyDeviceToHost,
                       streams[old->stream]));
  CUDA(cudaStreamSynchronize(streams[old->stream]));
  compare(&old->job, step->host);
  give(old->job.y);
  old->job.y = NULL;
}

static void begin(int number) {
  const int stream = number % STREAMS;
  struct step *const step = &steps[stream][number / STREAMS % IN_FLIGHT];
  struct kept *const place = number % 3 == 0 ? &kept[random_number() % KEPT] : NULL;
  struct job job;
  if (place != NULL) let_go(place);
  if (step->is_there) settle(stream);
  job.count = random_count();
  job.seed = random_number();
  job.a = (float)(1 + random_number() % 7);
  job.x = get(job.count);
  job.y = get(job.count);
  LAUNCH(fill_x, streams[stream], job);
  LAUNCH(fill_y, streams[stream], job);
  wait_on(streams[stream]);
  LAUNCH(saxpy, streams[stream], job);
  CUDA(cudaMemcpyAsync(step->host, job.y, job.count * sizeof(float), cudaMemcpyDeviceToHost, streams[stream]));
  step->job = job;
  step->is_there = 1;
  /* The device is hardly at the beginning. */
  give(job.x);
  if (place != NULL) place->job = job, place->stream = stream;
  else give(job.y);
}

int main(int argc, char **argv) {
  is_race = argc > 1 && strcmp(argv[1], "race") == 0;
  CUDA(cudaSetDevice(0));
  for (int stream = 0; stream < STREAMS; stream++) {
    open_stream(&streams[stream]);
    for (int at = 0; at < IN_FLIGHT; at++) {
      void *host = NULL;
      CUDA(cudaMallocHost(&host, MOST * sizeof(float)));
      steps[stream][at].host = (float *)host;
    }
  }
  for (int number = 0; number < STEPS; number++) begin(number);
  for (int at = 0; at < KEPT; at++) let_go(&kept[at]);
  for (int stream = 0; stream < STREAMS; stream++) settle(stream);
  if (wrong_values > 0) {
    printf("failed: %lu wrong values in %lu of %d steps\n", wrong_values, wrong_steps, STEPS);
    return 1;
  }
  if (!is_race && again == 0) {
    printf("failed: no freed buffer was used again\n");
    return 1;
  }
  fprintf(stderr, "%lu of %lu addresses were given before\n", again, allocations);
  printf("allocations: %lu\nchecksum: %016llx\nok\n", allocations, (unsigned long long)checksum);
  return 0;
}
