/* Three kernels, written by hand for the driver's own compiler: they fill, they wait, and they compare. */
/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "gpu.h"
#include "kernels.h"

static handle_t fill_kernel, delay_kernel, expect_kernel;
static address_t wrong;
static int kernels;

int load_kernels(void) {
  handle_t module = NULL;
  const int code = cuda.cuModuleLoadData(&module, PTX);
  if (code == NOT_SUPPORTED && cuda.simulated) return 0;
  if (code != 0) failed(__FILE__, __LINE__, "cuModuleLoadData", error_name(code));
  CU(cuModuleGetFunction(&fill_kernel, module, "fill"));
  CU(cuModuleGetFunction(&delay_kernel, module, "delay"));
  CU(cuModuleGetFunction(&expect_kernel, module, "expect"));
  CU(cuMemAlloc_v2(&wrong, 256));
  CU(cuMemsetD8_v2(wrong, 0, 256));
  kernels = 1;
  return 1;
}

void fill(handle_t stream, address_t at, size_t words, uint32_t value) {
  uint32_t count = (uint32_t)words;
  void *arguments[] = {&at, &count, &value};
  if (!kernels) {
    CU(cuMemsetD32Async(at, value, words, stream));
    return;
  }
  CU(cuLaunchKernel(fill_kernel, 64, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

void delay(handle_t stream, uint64_t nanoseconds) {
  void *arguments[] = {&nanoseconds};
  if (kernels) CU(cuLaunchKernel(delay_kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

void expect(handle_t stream, address_t at, size_t words, uint32_t value) {
  uint32_t count = (uint32_t)words;
  void *arguments[] = {&at, &count, &value, &wrong};
  if (kernels) CU(cuLaunchKernel(expect_kernel, 64, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

uint32_t wrong_words(void) {
  uint32_t count = 0;
  CU(cuCtxSynchronize());
  if (kernels) CU(cuMemcpyDtoH_v2(&count, wrong, sizeof(count)));
  return count;
}

void without_kernels(void) {
  if (!kernels) skip("the simulated driver has no kernels: the calls were made, and nothing could race");
}
