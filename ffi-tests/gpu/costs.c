/* What CUDA's own allocators cost beside ours, in one process: nanoseconds a pair of an allocation and its free, the
 * least of several rounds.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <sys/utsname.h>
#include <time.h>

enum { ROUNDS = 7, RELEASE_THRESHOLD = 4, DEVICE_MEMORY = 1, PINNED = 1, READ_WRITE = 3 };

static handle_t stream;
static size_t granule;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void plain(size_t bytes) {
  address_t at;
  CU(cuMemAlloc_v2(&at, bytes));
  CU(cuMemFree_v2(at));
}

static void ordered(size_t bytes) {
  address_t at;
  CU(cuMemAllocAsync(&at, bytes, stream));
  CU(cuMemFreeAsync(at, stream));
}

static void mapped(size_t bytes) {
  const size_t whole = (bytes + granule - 1) / granule * granule;
  const physical what = {PINNED, 0, {DEVICE_MEMORY, 0}, NULL, {0}};
  const access_t access = {{DEVICE_MEMORY, 0}, READ_WRITE};
  unsigned long long memory;
  address_t at;
  CU(cuMemAddressReserve(&at, whole, 0, 0, 0));
  CU(cuMemCreate(&memory, whole, &what, 0));
  CU(cuMemMap(at, whole, 0, memory, 0));
  CU(cuMemSetAccess(at, whole, &access, 1));
  CU(cuMemUnmap(at, whole));
  CU(cuMemRelease(memory));
  CU(cuMemAddressFree(at, whole));
}

static void ours(size_t bytes) {
  void *at;
  OK(bfc_alloc(DEVICE, bytes, &at));
  OK(bfc_free(DEVICE, at));
}

static void ours_ordered(size_t bytes) {
  void *at;
  OK(bfc_alloc_async(DEVICE, bytes, stream, &at));
  OK(bfc_free_async(DEVICE, at, stream));
}

static double cost(void (*pair)(size_t), size_t bytes, int pairs) {
  double least = 1e300;
  int round, at;
  pair(bytes); /* what grows grows now */
  for (round = 0; round < ROUNDS; round++) {
    const double start = now();
    for (at = 0; at < pairs; at++) pair(bytes);
    CU(cuCtxSynchronize());
    const double each = (now() - start) / pairs;
    if (each < least) least = each;
  }
  return least;
}

/* An allocator of its own for each figure: on one stream, and on none. Less than 0 where there is no such backend. */
static double cost_of_ours(uint32_t backend, void (*pair)(size_t), size_t bytes) {
  const bfc_status_t status = try_create(backend, 2 * (uint64_t)bytes + 64 * MIB);
  double least;
  if (status == BFC_ERROR_BACKEND_UNAVAILABLE) return -1;
  OK(status);
  least = cost(pair, bytes, 100000);
  OK(bfc_destroy(DEVICE));
  return least;
}

static void print_ours(uint32_t backend, size_t bytes) {
  void (*const pairs[])(size_t) = {ours, ours_ordered};
  int at;
  for (at = 0; at < 2; at++) {
    const double least = cost_of_ours(backend, pairs[at], bytes);
    if (least < 0) printf(" %14s", "-");
    else printf(" %14.1f", least);
  }
}

int costs(void) {
  static const size_t SIZES[] = {4 * KIB, 256 * KIB, 2 * MIB, 64 * MIB, 512 * (size_t)MIB};
  const physical what = {PINNED, 0, {DEVICE_MEMORY, 0}, NULL, {0}};
  uint64_t threshold = UINT64_MAX;
  char name[128] = "";
  struct utsname machine;
  handle_t pool;
  size_t at, free_bytes, total;
  CHECK(open_driver() == NULL);
  enter_device();
  CU(cuDeviceGetName(name, sizeof(name), 0));
  CU(cuMemGetInfo_v2(&free_bytes, &total));
  CU(cuStreamCreate(&stream, 1));
  CU(cuMemGetAllocationGranularity(&granule, &what, 0));
  CU(cuDeviceGetDefaultMemPool(&pool, 0));
  CU(cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &threshold));
  CHECK(uname(&machine) == 0);
  printf("machine %s, device %s (%zu MiB), driver %d%s\n", machine.nodename, name, total / MIB, cuda.version,
         cuda.simulated ? "; A SIMULATION: these figures say nothing of CUDA" : "");
  printf("nanoseconds a pair, the least of %d rounds\n", ROUNDS);
  printf("%12s %14s %14s %14s %14s %14s %14s %14s\n", "", "", "", "", "CUDA", "CUDA", "CUDA_VMM", "CUDA_VMM");
  printf("%12s %14s %14s %14s %14s %14s %14s %14s\n", "bytes", "cuMemAlloc", "..AllocAsync", "cuMemMap", "bfc_alloc",
         "bfc_..async", "bfc_alloc", "bfc_..async");
  for (at = 0; at < sizeof(SIZES) / sizeof(*SIZES); at++) {
    const size_t bytes = SIZES[at];
    if (bytes > free_bytes / 4) continue;
    const double cuda_plain = cost(plain, bytes, 50), cuda_ordered = cost(ordered, bytes, 500);
    const double cuda_mapped = cost(mapped, bytes, 50);
    printf("%12zu %14.0f %14.0f %14.0f", bytes, cuda_plain, cuda_ordered, cuda_mapped);
    print_ours(BFC_BACKEND_CUDA, bytes);
    print_ours(BFC_BACKEND_CUDA_VMM, bytes);
    printf("\n");
    fflush(stdout);
  }
  return 0;
}
