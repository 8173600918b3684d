/* A program that is linked to libcuda.so.1 itself. */
#define _GNU_SOURCE
#include "preload.h"

#include "driver.h"

int main(void) {
  CUcontext context = NULL;
  CUdeviceptr address = 0;
  alarm(HANG_SECONDS);
  /* The interposer calls nothing of the driver before the program does. */
  SAME(driver_calls(NULL), 0);
  SAME(cuInit(0), SUCCESS);
  SAME(cuDevicePrimaryCtxRetain(&context, 1), SUCCESS);
  SAME(cuCtxSetCurrent(context), SUCCESS);
  SAME(driver_calls("cuMemAlloc"), 0);
  for (int round = 0; round < 100; round++) {
    SAME(cuMemAlloc_v2(&address, 5000), SUCCESS);
    SAME(pool_of((void *)address), 1);
    SAME(cuMemFree_v2(address), SUCCESS);
  }
  SAME(driver_calls("cuMemAlloc"), 1);
  SAME(driver_calls("cuMemFree"), 0);
  return 0;
}
