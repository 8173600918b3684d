/* The time of an allocation and its free: CUDA's own allocators and libbfc's, in one process. Prints a JSON object for
 * each figure.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <time.h>

enum { RELEASE_THRESHOLD = 4, DEVICE_MEMORY = 1, PINNED = 1, READ_WRITE = 3, NON_BLOCKING = 1 };
enum { ROUNDS = 5, LEAST_PAIRS = 3, BATCH = 64 };

/* Some 75 figures of 5 rounds each take about 8 seconds. */
static const double ROUND_NANOSECONDS = 20e6;
/* The clock is read between runs of pairs that take about this long, so that reading it costs nothing noticeable. */
static const double STRIDE_NANOSECONDS = 0.5e6;
static const uint64_t LARGEST_BATCH = 4096 * (uint64_t)MIB;

static handle_t streams[2];
/* NULL and 0 where the device does not support them. */
static handle_t pool;
static size_t granule;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* The allocators. */

static address_t plain_get(size_t bytes, handle_t stream) {
  address_t at;
  (void)stream;
  CU(cuMemAlloc_v2(&at, bytes));
  return at;
}

static void plain_put(address_t at, size_t bytes, handle_t stream) {
  (void)bytes, (void)stream;
  CU(cuMemFree_v2(at));
}

static address_t ordered_get(size_t bytes, handle_t stream) {
  address_t at;
  CU(cuMemAllocAsync(&at, bytes, stream));
  return at;
}

static void ordered_put(address_t at, size_t bytes, handle_t stream) {
  (void)bytes;
  CU(cuMemFreeAsync(at, stream));
}

static size_t whole(size_t bytes) { return (bytes + granule - 1) / granule * granule; }

static address_t mapped_get(size_t bytes, handle_t stream) {
  const physical what = {PINNED, 0, {DEVICE_MEMORY, 0}, NULL, {0}};
  const access_t access = {{DEVICE_MEMORY, 0}, READ_WRITE};
  unsigned long long memory;
  address_t at;
  (void)stream;
  CU(cuMemAddressReserve(&at, whole(bytes), 0, 0, 0));
  CU(cuMemCreate(&memory, whole(bytes), &what, 0));
  CU(cuMemMap(at, whole(bytes), 0, memory, 0));
  CU(cuMemSetAccess(at, whole(bytes), &access, 1));
  CU(cuMemRelease(memory)); /* It stays until it is unmapped. */
  return at;
}

static void mapped_put(address_t at, size_t bytes, handle_t stream) {
  (void)stream;
  CU(cuMemUnmap(at, whole(bytes)));
  CU(cuMemAddressFree(at, whole(bytes)));
}

static address_t ours_get(size_t bytes, handle_t stream) {
  (void)stream;
  return get(bytes);
}

static void ours_put(address_t at, size_t bytes, handle_t stream) {
  (void)bytes, (void)stream;
  OK(bfc_free(DEVICE, (void *)at));
}

static void ours_ordered_put(address_t at, size_t bytes, handle_t stream) {
  (void)bytes;
  OK(bfc_free_async(DEVICE, (void *)at, stream));
}

typedef struct allocator {
  const char *name;
  address_t (*get)(size_t bytes, handle_t stream);
  void (*put)(address_t at, size_t bytes, handle_t stream);
  uint32_t backend; /* NONE: one of the driver's allocators */
  int has_batches;
  int is_ordered;
} allocator;

enum { NONE = UINT8_MAX, DRIVER_ONLY = 2 };

static const allocator ALLOCATORS[] = {
    {"cuMemAlloc", plain_get, plain_put, NONE, 1, 0},
    {"cuMemAllocAsync", ordered_get, ordered_put, NONE, 1, 1},
    {"cuMemCreate", mapped_get, mapped_put, NONE, 0, 0},
    {"bfc_alloc on cuda", ours_get, ours_put, BFC_BACKEND_CUDA, 1, 0},
    {"bfc_alloc_async on cuda", get_on, ours_ordered_put, BFC_BACKEND_CUDA, 1, 1},
    {"bfc_alloc on cuda_vmm", ours_get, ours_put, BFC_BACKEND_CUDA_VMM, 1, 0},
    {"bfc_alloc_async on cuda_vmm", get_on, ours_ordered_put, BFC_BACKEND_CUDA_VMM, 1, 1},
};

/* The patterns. Each returns how many pairs it made. */

static int pair(const allocator *by, size_t bytes) {
  by->put(by->get(bytes, streams[0]), bytes, streams[0]);
  return 1;
}

/* The streams are idle. An allocator may use the same memory for both, or keep some for each. */
static int two_streams(const allocator *by, size_t bytes) {
  by->put(by->get(bytes, streams[0]), bytes, streams[0]);
  by->put(by->get(bytes, streams[1]), bytes, streams[1]);
  return 2;
}

static int batch(const allocator *by, size_t bytes) {
  address_t all[BATCH];
  int at;
  for (at = 0; at < BATCH; at++) all[at] = by->get(bytes, streams[0]);
  for (at = 0; at < BATCH; at++) by->put(all[at], bytes, streams[0]);
  return BATCH;
}

/* The measurement. */

static double round_of(const allocator *by, int (*pattern)(const allocator *, size_t), size_t bytes) {
  const double start = now();
  double last = start, time;
  int pairs = 0, stride = 1, at;
  do {
    for (at = 0; at < stride; at++) pairs += pattern(by, bytes);
    time = now();
    if (time - last < STRIDE_NANOSECONDS) stride *= 2;
    last = time;
  } while (pairs < LEAST_PAIRS || time - start < ROUND_NANOSECONDS);
  CU(cuCtxSynchronize());
  return (now() - start) / pairs;
}

static void print_string(const char *text) {
  putchar('"');
  for (; *text != '\0'; text++) {
    if (*text == '"' || *text == '\\') putchar('\\');
    putchar((unsigned char)*text < ' ' ? ' ' : *text);
  }
  putchar('"');
}

static void print_figure(const allocator *by, size_t bytes, const char *name, double nanoseconds, const char *why) {
  printf("{\"allocator\": \"%s\", \"bytes\": %zu, \"pattern\": \"%s\", \"nanoseconds\": ", by->name, bytes, name);
  if (why == NULL) {
    printf("%.1f}\n", nanoseconds);
  } else {
    printf("null, \"why\": ");
    print_string(why);
    printf("}\n");
  }
  fflush(stdout);
}

/* Returns why the driver does not have an allocator, or NULL. */
static const char *absent(const allocator *by) {
  if (by->get == ordered_get && pool == NULL) return "the device does not support memory pools";
  if (by->get == mapped_get && granule == 0) return "the device does not support virtual memory management";
  return NULL;
}

/* Measures one pattern, with an allocator of its own if it is libbfc's, which may reserve `live` bytes. */
static void measure(const allocator *by, size_t bytes, const char *name, int (*pattern)(const allocator *, size_t),
                    uint64_t live) {
  const char *missing = absent(by);
  double least = 1e300;
  int round;
  if (missing != NULL) {
    print_figure(by, bytes, name, 0, missing);
    return;
  }
  if (by->backend != NONE) {
    const bfc_status_t status = try_create(by->backend, live);
    if (status == BFC_ERROR_BACKEND_UNAVAILABLE) {
      char why[512] = "";
      bfc_last_error(why, sizeof(why));
      print_figure(by, bytes, name, 0, why);
      return;
    }
    OK(status);
  }
  pattern(by, bytes); /* The pool grows before it is measured. */
  for (round = 0; round < ROUNDS; round++) {
    const double each = round_of(by, pattern, bytes);
    if (each < least) least = each;
  }
  if (by->backend != NONE) OK(bfc_destroy(DEVICE));
  else if (pool != NULL) CU(cuMemPoolTrimTo(pool, 0));
  print_figure(by, bytes, name, least, NULL);
}

static void measure_all(const allocator *by, size_t bytes) {
  const uint64_t room = 64 * (uint64_t)MIB;
  measure(by, bytes, "pair", pair, 2 * (uint64_t)bytes + room);
  /* Within this limit there is one chunk of a granule or more, so both streams have to use the same memory. */
  if (by->is_ordered) measure(by, bytes, "two streams", two_streams, bytes < 2 * MIB ? 2 * MIB : bytes);
  if (by->has_batches && BATCH * (uint64_t)bytes <= LARGEST_BATCH) {
    measure(by, bytes, "batch", batch, (BATCH + 2) * (uint64_t)bytes + room);
  }
}

int costs(void) {
  static const size_t SIZES[] = {4 * KIB, 256 * KIB, 2 * MIB, 64 * MIB, 512 * (size_t)MIB};
  const physical what = {PINNED, 0, {DEVICE_MEMORY, 0}, NULL, {0}};
  /* Under the interposer libbfc itself is not to be measured a second time. */
  const size_t count = getenv("BFC_GPU_ONLY_DRIVER") != NULL ? DRIVER_ONLY : sizeof(ALLOCATORS) / sizeof(*ALLOCATORS);
  uint64_t threshold = UINT64_MAX;
  size_t at, size, free_bytes, total;
  CU(cuMemGetInfo_v2(&free_bytes, &total));
  CU(cuStreamCreate(&streams[0], NON_BLOCKING));
  CU(cuStreamCreate(&streams[1], NON_BLOCKING));
  if (cuda.cuMemGetAllocationGranularity(&granule, &what, 0) != 0) granule = 0;
  if (cuda.cuDeviceGetDefaultMemPool(&pool, 0) != 0) pool = NULL;
  if (pool != NULL) CU(cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &threshold));
  for (size = 0; size < sizeof(SIZES) / sizeof(*SIZES); size++) {
    for (at = 0; at < count; at++) {
      if (SIZES[size] > free_bytes / 4) print_figure(&ALLOCATORS[at], SIZES[size], "pair", 0, "too little free memory");
      else measure_all(&ALLOCATORS[at], SIZES[size]);
    }
  }
  return 0;
}
