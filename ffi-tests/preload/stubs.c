/* A program that has stubs by the names of the driver's functions, and exports them: each finds the driver's at its first
 * call (so do TensorFlow's). And a variable by such a name, with the function's address in it (so cuew has them). */
#define _GNU_SOURCE
#include "preload.h"

#include <stddef.h>

typedef uint64_t CUdeviceptr;
typedef int (*free_t)(CUdeviceptr);

free_t cuMemFree_v2;
static int depth;

static void *of_driver(const char *name) {
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver != NULL);
  void *const function = dlsym(driver, name);
  CHECK(function != NULL);
  return function;
}

int cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  int (*const next)(CUdeviceptr *, size_t) = (int (*)(CUdeviceptr *, size_t))of_driver("cuMemAlloc_v2");
  /* Ourselves: it would never end. */
  SAME(depth, 0);
  depth++;
  const int code = next(address, bytes);
  depth--;
  return code;
}

int main(void) {
  void *context = NULL;
  CUdeviceptr address = 0;
  alarm(HANG_SECONDS);
  SAME(((int (*)(unsigned))of_driver("cuInit"))(0), 0);
  SAME(((int (*)(void **, int))of_driver("cuDevicePrimaryCtxRetain"))(&context, 0), 0);
  SAME(((int (*)(void *))of_driver("cuCtxSetCurrent"))(context), 0);
  cuMemFree_v2 = (free_t)of_driver("cuMemFree_v2");
  CHECK((void *)cuMemFree_v2 != (void *)&cuMemFree_v2);
  SAME(cuMemAlloc_v2(&address, 1000), 0);
  SAME(pool_of((void *)address), 0);
  SAME(cuMemFree_v2(address), 0);
  SAME(driver_calls("cuMemFree"), 0);
  return 0;
}
