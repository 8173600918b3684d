/* Three kernels, written by hand for the driver's own compiler: they fill, they wait, and they compare. The simulated
 * driver compiles nothing: it knows the three by their names and parameters (ffi-tests/simcuda/src/modules.rs).
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "gpu.h"
#include "kernels.h"

static handle_t fill_kernel, delay_kernel, expect_kernel;
static address_t wrong;

void load_kernels(void) {
  handle_t module = NULL;
  CU(cuModuleLoadData(&module, PTX));
  CU(cuModuleGetFunction(&fill_kernel, module, "fill"));
  CU(cuModuleGetFunction(&delay_kernel, module, "delay"));
  CU(cuModuleGetFunction(&expect_kernel, module, "expect"));
  CU(cuMemAlloc_v2(&wrong, 256));
  CU(cuMemsetD8_v2(wrong, 0, 256));
}

void fill(handle_t stream, address_t at, size_t words, uint32_t value) {
  uint32_t count = (uint32_t)words;
  void *arguments[] = {&at, &count, &value};
  CU(cuLaunchKernel(fill_kernel, 64, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

void delay(handle_t stream, uint64_t nanoseconds) {
  void *arguments[] = {&nanoseconds};
  CU(cuLaunchKernel(delay_kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

void expect(handle_t stream, address_t at, size_t words, uint32_t value) {
  uint32_t count = (uint32_t)words;
  void *arguments[] = {&at, &count, &value, &wrong};
  CU(cuLaunchKernel(expect_kernel, 64, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

uint32_t wrong_words(void) {
  uint32_t count = 0;
  CU(cuCtxSynchronize());
  CU(cuMemcpyDtoH_v2(&count, wrong, sizeof(count)));
  return count;
}
