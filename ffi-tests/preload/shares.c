/* A program that is linked to libbfc too: there is one libbfc in the process, and its pools are the interposer's. */
#define _GNU_SOURCE
#include "preload.h"

#include <bfc.h>

#include "cudart/cudart.h"

static int look(const char *part) {
  char line[4096];
  char last[4096] = "";
  int count = 0;
  FILE *const maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  while (fgets(line, sizeof line, maps) != NULL) {
    const char *const path = strchr(line, '/');
    if (path == NULL || strstr(path, part) == NULL || strcmp(path, last) == 0) continue;
    strcpy(last, path);
    count++;
  }
  fclose(maps);
  return count;
}

int main(void) {
  void *memory = NULL, *own = NULL;
  int32_t device = -1;
  bfc_stats_t stats = BFC_STATS_INIT;
  alarm(HANG_SECONDS);
  SAME(cudaMalloc(&memory, 1000), cudaSuccess);
  SAME(look("/libbfc.so"), 1);
  SAME(bfc_owner(memory, &device), BFC_OK);
  SAME(device, 0);
  SAME(bfc_stats(0, &stats), BFC_OK);
  SAME(stats.num_allocs, 1);
  SAME(stats.bytes_requested, 1000);
  /* From the pool by its own name, and back by cudaFree. */
  SAME(bfc_alloc(0, 2000, &own), BFC_OK);
  SAME(cudaFree(own), cudaSuccess);
  SAME(bfc_free(0, memory), BFC_OK);
  SAME(bfc_stats(0, &stats), BFC_OK);
  SAME(stats.num_frees, 2);
  SAME(driver_calls("cuMemAlloc"), 1);
  /* It has timestamps. */
  SAME(bfc_alloc_async(0, 100, NULL, &own), BFC_ERROR_UNSUPPORTED);
  return 0;
}
