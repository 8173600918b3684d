/* A program that uses CUDA before it has begun: in a constructor, and from threads that a constructor starts. With
 * BEFORE_EVERYBODY before any library's constructor has run, the interposer's among them. (A program that opens a
 * library then has no environment afterwards, with or without the interposer, so nothing can be written to the check
 * file.) */
#define _GNU_SOURCE
#include "preload.h"

#include "cudart/cudart.h"

#include <pthread.h>
#include <stdlib.h>

static void *first;
static pthread_t threads[4];

static void begin(void) {
  alarm(HANG_SECONDS);
  SAME(cudaMalloc(&first, 1000), cudaSuccess);
}

#ifdef BEFORE_EVERYBODY
__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = begin;
#endif

static void *allocates(void *argument) {
  for (int round = 0; round < 2000; round++) {
    void *memory = NULL;
    SAME(cudaMalloc(&memory, 1000), cudaSuccess);
    check_pooled(memory);
    SAME(cudaFree(memory), cudaSuccess);
  }
  return argument;
}

__attribute__((constructor(101))) static void early(void) {
  if (first == NULL) begin();
  for (int at = 0; at < 4; at++) SAME(pthread_create(&threads[at], NULL, allocates, NULL), 0);
  allocates(NULL);
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "preloaded") == 0) CHECK(is_preloaded());
  allocates(NULL);
  for (int at = 0; at < 4; at++) SAME(pthread_join(threads[at], NULL), 0);
  check_pooled(first);
  SAME(cudaFree(first), cudaSuccess);
  printf("well\n");
  return 0;
}
