/* Runs out of memory again and again and goes on without what it was refused. Blocks of many sizes stay for a while; the largest
 * are workspaces, which are freed at once. Work on a stream may still use what is freed. Prints how many requests failed.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "preload.h"

#include "cudart/cudart.h"

#include <stdlib.h>

#define MIB ((size_t)1 << 20)

enum { BLOCKS = 40, ROUNDS = 800 };

static uint32_t state = 7;

static uint32_t below(uint32_t end) {
  state = state * 1664525u + 1013904223u;
  return (uint32_t)(((uint64_t)state * end) >> 32);
}

static cudaStream_t stream;

/* Memory that work uses, or NULL. */
static void *used(size_t bytes) {
  void *memory = NULL;
  const cudaError_t code = cudaMalloc(&memory, bytes);
  if (code == cudaErrorMemoryAllocation) return NULL;
  SAME(code, cudaSuccess);
  SAME(cudaMemsetAsync(memory, 1, bytes, stream), cudaSuccess);
  return memory;
}

int main(void) {
  void *blocks[BLOCKS] = {0};
  int failed = 0;
  alarm(HANG_SECONDS);
  SAME(cudaStreamCreate(&stream), cudaSuccess);
  for (int round = 0; round < ROUNDS; round++) {
    void **const block = &blocks[below(BLOCKS)];
    if (*block) SAME(cudaFree(*block), cudaSuccess);
    *block = used(512 * (1 + below(2400)));
    CHECK(*block);
    if (round % 4 == 0) {
      void *const workspace = used(8 * MIB + 512 * below(48000));
      failed += workspace == NULL;
      SAME(cudaFree(workspace), cudaSuccess);
    }
    if (round % 50 == 49) SAME(cudaStreamSynchronize(stream), cudaSuccess);
  }
  printf("%d\n", failed);
  return 0;
}
