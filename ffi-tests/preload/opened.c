/* A program that opens its libraries itself: `opened runtime|driver PATH local|global|deep served|unserved`. */
#define _GNU_SOURCE
#include "preload.h"

#include "cudart/cudart.h"
#include "driver.h"

#include <stdlib.h>

static void *found(void *library, const char *name) {
  void *const function = dlsym(library, name);
  if (function == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(function != NULL);
  return function;
}

static void *of_runtime(void *library) {
  cudaError_t (*const allocate)(void **, size_t) = (cudaError_t (*)(void **, size_t))found(library, "cudaMalloc");
  cudaError_t (*const give_back)(void *) = (cudaError_t (*)(void *))found(library, "cudaFree");
  void *first = NULL, *second = NULL;
  SAME(allocate(&first, 1000), cudaSuccess);
  SAME(allocate(&second, 1000), cudaSuccess);
  SAME(give_back(second), cudaSuccess);
  return first;
}

static void *of_driver(void *library) {
  int (*const init)(unsigned) = (int (*)(unsigned))found(library, "cuInit");
  int (*const retain)(CUcontext *, int) = (int (*)(CUcontext *, int))found(library, "cuDevicePrimaryCtxRetain");
  int (*const set)(CUcontext) = (int (*)(CUcontext))found(library, "cuCtxSetCurrent");
  int (*const allocate)(CUdeviceptr *, size_t) = (int (*)(CUdeviceptr *, size_t))found(library, "cuMemAlloc_v2");
  int (*const give_back)(CUdeviceptr) = (int (*)(CUdeviceptr))found(library, "cuMemFree_v2");
  CUcontext context = NULL;
  CUdeviceptr first = 0, second = 0;
  SAME(init(0), SUCCESS);
  SAME(retain(&context, 0), SUCCESS);
  SAME(set(context), SUCCESS);
  SAME(allocate(&first, 1000), SUCCESS);
  SAME(allocate(&second, 1000), SUCCESS);
  SAME(give_back(second), SUCCESS);
  return (void *)first;
}

int main(int argc, char **argv) {
  alarm(HANG_SECONDS);
  CHECK(argc == 5);
  int how = RTLD_NOW;
  if (strcmp(argv[3], "global") == 0) how |= RTLD_GLOBAL;
  if (strcmp(argv[3], "deep") == 0) how |= RTLD_DEEPBIND;
  void *const library = dlopen(argv[2], how);
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(library != NULL);
  void *const memory = strcmp(argv[1], "runtime") == 0 ? of_runtime(library) : of_driver(library);
  const int served = strcmp(argv[4], "served") == 0;
  SAME(pool_of(memory), served ? 0 : -1);
  SAME(driver_calls("cuMemAlloc"), served ? 1 : 2);
  SAME(driver_calls("cuMemFree"), served ? 0 : 1);
  return 0;
}
