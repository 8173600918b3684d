/* cudaGetDriverEntryPoint: with three arguments in CUDA 11, four in 12, and ByVersion since 12.5. */
#define _GNU_SOURCE
#include "preload.h"

#include "cudart/cudart.h"
#include "driver.h"

static void *found(const char *name) {
  void *function = NULL;
#if CUDART_MAJOR == 11
  SAME(cudaGetDriverEntryPoint(name, &function, 0), cudaSuccess);
#else
  enum cudaDriverEntryPointQueryResult how = cudaDriverEntryPointSymbolNotFound;
  void *by_version = NULL;
  SAME(cudaGetDriverEntryPoint(name, &function, 0, &how), cudaSuccess);
  SAME(how, cudaDriverEntryPointSuccess);
  SAME(cudaGetDriverEntryPointByVersion(name, &by_version, 12000, 0, &how), cudaSuccess);
  SAME(how, cudaDriverEntryPointSuccess);
  CHECK(by_version == function);
  SAME(cudaGetDriverEntryPoint(name, &function, 0, NULL), cudaSuccess);
#endif
  CHECK(function != NULL);
  return function;
}

int main(void) {
  void *first = NULL;
  CUdeviceptr second = 0;
  alarm(HANG_SECONDS);
  SAME(cudaMalloc(&first, 1000), cudaSuccess);
  int (*const allocate)(CUdeviceptr *, size_t) = (int (*)(CUdeviceptr *, size_t))found("cuMemAlloc");
  int (*const give_back)(CUdeviceptr) = (int (*)(CUdeviceptr))found("cuMemFree");
  SAME(allocate(&second, 1000), SUCCESS);
  SAME(pool_of(first), 0);
  SAME(pool_of((void *)second), 0);
  /* What one way has given goes back by the other. */
  SAME(give_back((CUdeviceptr)first), SUCCESS);
  SAME(cudaFree((void *)second), cudaSuccess);
  SAME(driver_calls("cuMemAlloc"), 1);
  SAME(driver_calls("cuMemFree"), 0);
  return 0;
}
