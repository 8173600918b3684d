/* A program that creates libbfc's pool of the device before anything else does: cudaMalloc is served from it, and cudaFree
 * knows that. Its memory never waits, so cudaFree itself does. */
#define _GNU_SOURCE
#include "preload.h"

#include <bfc.h>
#include <pthread.h>

#include "cudart/cudart.h"

static void *driver_function(const char *name) {
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver != NULL);
  void *const function = dlsym(driver, name);
  CHECK(function != NULL);
  return function;
}

static void *cycle(void *unused) {
  (void)unused;
  for (int i = 0; i < 200; i++) {
    void *memory = NULL;
    SAME(cudaMalloc(&memory, 1000), cudaSuccess);
    SAME(pool_of(memory), 0);
    SAME(cudaFree(memory), cudaSuccess);
    SAME(pool_of(memory), 0);
  }
  return NULL;
}

/* A pool of the program's own where pinned memory would be: it is not known to be of such memory, so it serves no other
 * requests, and cudaFreeHost frees nothing of it. */
static void own_pinned_pool(void) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  bfc_stats_t stats = BFC_STATS_INIT;
  void *memory = NULL, *own = NULL;
  options.backend = BFC_BACKEND_HOST;
  options.flags = BFC_ALLOW_GROWTH;
  SAME(bfc_create(257, &options), BFC_OK);
  SAME(bfc_alloc(257, 1000, &own), BFC_OK);
  SAME(cudaMallocHost(&memory, 1000), cudaSuccess);
  SAME(pool_of(memory), -1);
  SAME(cudaFreeHost(memory), cudaSuccess);
  SAME(cudaFreeHost(own), cudaErrorInvalidValue);
  SAME(bfc_stats(257, &stats), BFC_OK);
  SAME(stats.num_allocs, 1);
  SAME(stats.num_frees, 0);
  SAME(bfc_free(257, own), BFC_OK);
  SAME(bfc_destroy(257), BFC_OK);
}

/* It lives as long as the program wants: also beyond the program's last hold on the context, which it holds itself. */
static void outlives_the_last_hold(void) {
  int (*const retain)(void **, int) = (int (*)(void **, int))driver_function("cuDevicePrimaryCtxRetain");
  int (*const release)(int) = (int (*)(int))driver_function("cuDevicePrimaryCtxRelease_v2");
  int (*const allocate)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))driver_function("cuMemAlloc_v2");
  int (*const set_current)(void *) = (int (*)(void *))driver_function("cuCtxSetCurrent");
  bfc_options_t options = BFC_OPTIONS_INIT;
  bfc_stats_t stats = BFC_STATS_INIT;
  void *primary = NULL, *own = NULL;
  uint64_t address = 0;
  options.backend = BFC_BACKEND_CUDA;
  options.flags = BFC_ALLOW_GROWTH;
  SAME(bfc_create(1, &options), BFC_OK);
  SAME(bfc_alloc(1, 1000, &own), BFC_OK);
  SAME(retain(&primary, 1), 0);
  SAME(set_current(primary), 0);
  SAME(allocate(&address, 1000), 0);
  SAME(pool_of((void *)address), 1);
  SAME(release(1), 0);
  SAME(bfc_stats(1, &stats), BFC_OK);
  SAME(stats.num_allocs, 2);
  SAME(bfc_free(1, own), BFC_OK);
  SAME(bfc_destroy_forced(1), BFC_OK);
}

int main(void) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  bfc_stats_t stats = BFC_STATS_INIT;
  pthread_t threads[4];
  alarm(HANG_SECONDS);
  SAME(cudaSetDevice(0), cudaSuccess);
  options.backend = BFC_BACKEND_CUDA;
  options.flags = BFC_ALLOW_GROWTH;
  SAME(bfc_create(0, &options), BFC_OK);
  for (int i = 0; i < 4; i++) SAME(pthread_create(&threads[i], NULL, cycle, NULL), 0);
  for (int i = 0; i < 4; i++) SAME(pthread_join(threads[i], NULL), 0);
  SAME(bfc_stats(0, &stats), BFC_OK);
  SAME(stats.num_allocs, 800);
  SAME(stats.num_frees, 800);
  SAME(driver_calls("cuMemFree"), 0);
  SAME(driver_calls("cuCtxSynchronize"), 800);
  own_pinned_pool();
  outlives_the_last_hold();
  return 0;
}
