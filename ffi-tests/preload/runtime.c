/* An ordinary program, linked to a runtime, shared or static: it allocates and frees, and is unaware of the interposer
 * except to
 * look where its memory came from. */
#define _GNU_SOURCE
#include "preload.h"

#include "cudart/cudart.h"

enum { COUNT = 100 };

int main(void) {
  void *blocks[COUNT];
  int version = 0;
  alarm(HANG_SECONDS);
  SAME(cudaRuntimeGetVersion(&version), cudaSuccess);
  SAME(version / 1000, CUDART_MAJOR);
  for (int at = 0; at < COUNT; at++) {
    SAME(cudaMalloc(&blocks[at], 1000 + at), cudaSuccess);
    SAME(pool_of(blocks[at]), 0);
    SAME((uintptr_t)blocks[at] % 512, 0);
  }
  /* All of them lie in one region of 2 MiB. */
  SAME(driver_calls("cuMemAlloc"), 1);
  for (int at = 0; at < COUNT; at++) SAME(cudaFree(blocks[at]), cudaSuccess);
  SAME(driver_calls("cuMemFree"), 0);
  return 0;
}
