/* What every backend has to do, on device memory.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "gpu.h"

bfc_status_t try_create(uint32_t backend, uint64_t limit) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.backend = backend;
  options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
  options.memory_limit = limit;
  return bfc_create(DEVICE, &options);
}

void create(uint32_t backend, uint64_t limit) {
  const bfc_status_t status = try_create(backend, limit);
  if (status == BFC_ERROR_BACKEND_UNAVAILABLE) {
    static char words[400];
    bfc_last_error(words, sizeof(words));
    skip(words);
  }
  OK(status);
}

bfc_stats_t stats(void) {
  bfc_stats_t stats = BFC_STATS_INIT;
  OK(bfc_stats(DEVICE, &stats));
  return stats;
}

address_t get(size_t bytes) {
  void *ptr = NULL;
  OK(bfc_alloc(DEVICE, bytes, &ptr));
  return (address_t)ptr;
}

address_t get_on(size_t bytes, handle_t stream) {
  void *ptr = NULL;
  OK(bfc_alloc_async(DEVICE, bytes, stream, &ptr));
  return (address_t)ptr;
}

static int holds(address_t at, size_t bytes, unsigned char value) {
  unsigned char *copy = malloc(bytes);
  size_t place;
  int same = copy != NULL;
  CU(cuMemcpyDtoH_v2(copy, at, bytes));
  for (place = 0; same && place < bytes; place++) same = copy[place] == value;
  free(copy);
  return same;
}

enum { CHUNKS = 64 };

typedef struct chunk {
  address_t at;
  size_t bytes;
} chunk;

static uint64_t seed = 88172645463325252u;

static uint64_t random_below(uint64_t limit) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed % limit;
}

/* Random sizes come and go; each chunk is filled, and is what it was when it goes. */
static void churn(chunk *chunks) {
  int round, at, other;
  for (round = 0; round < 600; round++) {
    at = (int)random_below(CHUNKS);
    if (chunks[at].at != 0) {
      CHECK(holds(chunks[at].at, chunks[at].bytes, (unsigned char)at));
      OK(bfc_free(DEVICE, (void *)chunks[at].at));
      chunks[at].at = 0;
      continue;
    }
    chunks[at].bytes = 1 + random_below(random_below(8) == 0 ? 8 * MIB : 100 * KIB);
    chunks[at].at = get(chunks[at].bytes);
    CHECK(chunks[at].at % 256 == 0);
    for (other = 0; other < CHUNKS; other++) {
      const chunk *o = &chunks[other];
      CHECK(other == at || o->at == 0 || o->at + o->bytes <= chunks[at].at ||
            chunks[at].at + chunks[at].bytes <= o->at);
    }
    CU(cuMemsetD8_v2(chunks[at].at, (unsigned char)at, chunks[at].bytes));
  }
  OK(bfc_check(DEVICE));
}

static void basics(uint32_t backend) {
  static chunk chunks[CHUNKS];
  handle_t before = NULL, after = NULL;
  uint64_t released = 0;
  void *none = NULL;
  address_t first, large;
  size_t free_before, free_after, total;
  int at;
  CU(cuCtxGetCurrent(&before));
  CU(cuMemGetInfo_v2(&free_before, &total));
  create(backend, 512 * (uint64_t)MIB);
  first = get(1000);
  IS(bfc_free(DEVICE, (void *)(first + 256)), BFC_ERROR_INVALID_POINTER);
  IS(bfc_free(DEVICE, &first), BFC_ERROR_INVALID_POINTER);
  OK(bfc_free(DEVICE, (void *)first));
  IS(bfc_free(DEVICE, (void *)first), BFC_ERROR_DOUBLE_FREE);
  churn(chunks);
  CHECK(stats().pool_bytes <= 512 * (uint64_t)MIB);
  IS(bfc_alloc(DEVICE, 600 * (size_t)MIB, &none), BFC_ERROR_OUT_OF_MEMORY);
  CHECK(none == NULL);
  for (at = 0; at < CHUNKS; at++) {
    if (chunks[at].at == 0) continue;
    CHECK(holds(chunks[at].at, chunks[at].bytes, (unsigned char)at));
    OK(bfc_free(DEVICE, (void *)chunks[at].at));
  }
  large = get(300 * (size_t)MIB);
  CU(cuMemsetD8_v2(large, 7, 300 * (size_t)MIB));
  OK(bfc_free(DEVICE, (void *)large));
  OK(bfc_trim(DEVICE, 0, &released));
  CHECK(released >= 300 * (uint64_t)MIB && stats().pool_bytes == 0);
  OK(bfc_check(DEVICE));
  CU(cuCtxGetCurrent(&after));
  CHECK(before == after);
  OK(bfc_destroy(DEVICE));
  CU(cuMemGetInfo_v2(&free_after, &total));
  printf("  free on the device before %zu and after %zu bytes\n", free_before, free_after);
}

void basics_cuda(void) { basics(BFC_BACKEND_CUDA); }
void basics_vmm(void) { basics(BFC_BACKEND_CUDA_VMM); }

/* The limit is reached, every other chunk is free, and a request for most of what is free is served: granules move,
 * and nothing that is live does. */
void moving_vmm(void) {
  enum { ROUNDS = 8 };
  address_t chunks[32], large;
  int at, round;
  create(BFC_BACKEND_CUDA_VMM, 256 * (uint64_t)MIB);
  for (round = 0; round < ROUNDS; round++) {
    for (at = 0; at < 32; at++) {
      chunks[at] = get(8 * (size_t)MIB);
      CU(cuMemsetD8_v2(chunks[at], (unsigned char)at, 8 * (size_t)MIB));
    }
    for (at = round % 2; at < 32; at += 2) OK(bfc_free(DEVICE, (void *)chunks[at]));
    large = get(120 * (size_t)MIB);
    CU(cuMemsetD8_v2(large, 99, 120 * (size_t)MIB));
    for (at = 1 - round % 2; at < 32; at += 2) {
      CHECK(holds(chunks[at], 8 * (size_t)MIB, (unsigned char)at));
      OK(bfc_free(DEVICE, (void *)chunks[at]));
    }
    CHECK(holds(large, 120 * (size_t)MIB, 99));
    CHECK(stats().pool_bytes <= 256 * (uint64_t)MIB);
    OK(bfc_free(DEVICE, (void *)large));
    OK(bfc_check(DEVICE));
  }
  OK(bfc_destroy(DEVICE));
}

/* Whether what was mapped at an address before a reset is there still. */
static void tell_of_granule(address_t at) {
  int (*retain)(unsigned long long *, void *) = NULL;
  int (*release)(unsigned long long) = NULL;
  unsigned long long handle = 0;
  size_t free_bytes, total;
  find_function("cuMemRetainAllocationHandle", (void **)&retain);
  find_function("cuMemRelease", (void **)&release);
  const int code = retain(&handle, (void *)at);
  printf("  after a reset a granule is %s (%d)\n", code == 0 ? "mapped still" : "not mapped any more", code);
  if (code == 0) CHECK(release(handle) == 0);
  CU(cuMemGetInfo_v2(&free_bytes, &total));
  printf("  free on the device after a reset %zu bytes\n", free_bytes);
}

/* cuDevicePrimaryCtxReset: what the driver's manual leaves open about it is printed here. */
static void reset_with(uint32_t backend) {
  int (*reset_primary)(int) = NULL;
  int (*state)(int, unsigned *, int *) = NULL;
  int (*number)(handle_t, unsigned long long *) = NULL;
  unsigned long long id[2] = {0, 0};
  unsigned flags;
  int active = -1;
  handle_t context = NULL;
  address_t old, new;
  find_function("cuDevicePrimaryCtxReset_v2", (void **)&reset_primary);
  find_function("cuDevicePrimaryCtxGetState", (void **)&state);
  find_function("cuCtxGetId", (void **)&number);
  create(backend, 64 * (uint64_t)MIB);
  old = get(MIB);
  CHECK(number(NULL, &id[0]) == 0);
  CHECK(reset_primary(0) == 0);
  CHECK(state(0, &flags, &active) == 0);
  OK(bfc_device_lost(DEVICE));
  IS(bfc_free(DEVICE, (void *)old), BFC_ERROR_INVALID_POINTER);
  CHECK(stats().bytes_in_use == 0);
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
  CHECK(number(NULL, &id[1]) == 0);
  printf("  after a reset the context is %sactive; retained again its number is %s\n", active ? "" : "not ",
         id[0] == id[1] ? "the same" : "another");
  if (backend == BFC_BACKEND_CUDA_VMM) tell_of_granule(old);
  new = get(MIB);
  CU(cuMemsetD8_v2(new, 7, MIB));
  CHECK(holds(new, MIB, 7));
  OK(bfc_free(DEVICE, (void *)new));
  OK(bfc_destroy(DEVICE));
}

void reset_cuda(void) { reset_with(BFC_BACKEND_CUDA); }
void reset_vmm(void) { reset_with(BFC_BACKEND_CUDA_VMM); }
