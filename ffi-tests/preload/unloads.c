/* A program that closes its runtime and opens it again: `unloads PATH_OF_RUNTIME`. */
#define _GNU_SOURCE
#include "preload.h"

int main(int argc, char **argv) {
  void *left[10];
  alarm(HANG_SECONDS);
  CHECK(argc == 2);
  for (int round = 0; round < 10; round++) {
    void *const runtime = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(runtime != NULL);
    int (*const allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(runtime, "cudaMalloc");
    int (*const give_back)(void *) = (int (*)(void *))dlsym(runtime, "cudaFree");
    CHECK(allocate != NULL && give_back != NULL);
    SAME(allocate(&left[round], 1000), 0);
    check_pooled(left[round]);
    /* What was allocated by way of a runtime that is gone. */
    if (round > 0) SAME(give_back(left[round - 1]), 0);
    /* The driver's handle of the program's own goes too, as often as the program had it. */
    void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(driver != NULL);
    SAME(dlclose(driver), 0);
    SAME(dlclose(runtime), 0);
    CHECK(dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == NULL);
  }
  printf("well\n");
  return 0;
}
