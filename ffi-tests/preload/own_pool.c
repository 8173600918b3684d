/* A program that creates libbfc's pool of the device before anything else does: cudaMalloc is served from it, and cudaFree
 * knows that. Its memory never waits, so cudaFree itself does. */
#define _GNU_SOURCE
#include "preload.h"

#include <bfc.h>
#include <pthread.h>

#include "cudart/cudart.h"

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
  return 0;
}
