/* The kernels of kernels.ptx, which lies in the folder above this program: they fill, wait and compare.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <libgen.h>
#include <limits.h>
#include <unistd.h>

static handle_t fill_kernel, delay_kernel, expect_kernel;
static address_t wrong;

/* The text of kernels.ptx, with its terminating zero. */
static const char *read_ptx(void) {
  static char text[16 * KIB];
  char program[PATH_MAX] = "", path[PATH_MAX + 32];
  CHECK(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
  snprintf(path, sizeof(path), "%s/../kernels.ptx", dirname(program));
  FILE *const file = fopen(path, "r");
  if (file == NULL) failed(__FILE__, __LINE__, path, "cannot be opened");
  const size_t length = fread(text, 1, sizeof(text), file);
  CHECK(length > 0 && length < sizeof(text));
  fclose(file);
  return text;
}

void load_kernels(void) {
  handle_t module = NULL;
  CU(cuModuleLoadData(&module, read_ptx()));
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
