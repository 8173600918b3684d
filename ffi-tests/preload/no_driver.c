/* A program with a runtime, on a machine without a driver: it learns so from the runtime. */
#define _GNU_SOURCE
#include "preload.h"

#include "cudart/cudart.h"

int main(void) {
  void *memory = &memory;
  size_t available = 0, total = 0;
  int count = -1;
  alarm(HANG_SECONDS);
  CHECK(dlopen("libcuda.so.1", RTLD_NOW) == NULL);
  CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL && dlerror() != NULL);
  CHECK(dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2") == NULL);
  SAME(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  SAME(cudaMalloc(&memory, 1000), cudaErrorInsufficientDriver);
  CHECK(memory == (void *)&memory);
  SAME(cudaGetLastError(), cudaErrorInsufficientDriver);
  SAME(cudaMemGetInfo(&available, &total), cudaErrorInsufficientDriver);
  SAME(cudaFree(&memory), cudaErrorInsufficientDriver);
  /* Whoever has the names nevertheless (RTLD_NEXT finds them) is told that there is no driver, and nothing is written. */
  int (*const allocate)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
  uint64_t address = 77;
  if (is_preloaded()) {
    CHECK(allocate != NULL);
    SAME(allocate(&address, 1000), 3);
    SAME(address, 77);
  }
  CHECK(dlopen("libcuda.so.1", RTLD_NOW) == NULL);
  printf("well\n");
  return 0;
}
