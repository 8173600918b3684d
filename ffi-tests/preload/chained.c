/* A program under two interposers, ours and chain.c's: `chained SERVED SEEN`. It looks its functions up by dlsym, or
 * with LINKED has them linked. SERVED is 1 if the memory has to come from our pool, SEEN how many of the two
 * allocations the other one has to see. */
#define _GNU_SOURCE
#include "preload.h"

#include "driver.h"

#include <stdlib.h>

int main(int argc, char **argv) {
  alarm(HANG_SECONDS);
  CHECK(argc == 3);
#ifdef LINKED
  int (*const allocate)(CUdeviceptr *, size_t) = cuMemAlloc_v2;
  int (*const init)(unsigned) = cuInit;
  int (*const retain)(CUcontext *, int) = cuDevicePrimaryCtxRetain;
  int (*const set)(CUcontext) = cuCtxSetCurrent;
#else
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  CHECK(driver != NULL);
  int (*const allocate)(CUdeviceptr *, size_t) = (int (*)(CUdeviceptr *, size_t))dlsym(driver, "cuMemAlloc_v2");
  int (*const init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
  int (*const retain)(CUcontext *, int) = (int (*)(CUcontext *, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
  int (*const set)(CUcontext) = (int (*)(CUcontext))dlsym(driver, "cuCtxSetCurrent");
#endif
  int (*const seen)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "chain_calls");
  CHECK(seen != NULL);
  CUcontext context = NULL;
  CUdeviceptr first = 0, second = 0;
  SAME(init(0), SUCCESS);
  SAME(retain(&context, 0), SUCCESS);
  SAME(set(context), SUCCESS);
  SAME(allocate(&first, 1000), SUCCESS);
  SAME(allocate(&second, 1000), SUCCESS);
  SAME(pool_of((void *)second), atoi(argv[1]) ? 0 : -1);
  SAME(seen(), atoi(argv[2]));
  return 0;
}
