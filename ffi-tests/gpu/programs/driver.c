/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "gpu.h"

#include <dlfcn.h>

driver cuda;

const char *error_name(int code) {
  const char *name = NULL;
  if (cuda.cuGetErrorName == NULL || cuda.cuGetErrorName(code, &name) != 0 || name == NULL) return "unknown";
  return name;
}

const char *open_driver(void) {
  static char words[256];
  int count = 0, code;
  /* A kernel that is loaded at its first launch may wait for the device, and must not be loaded in a capture. */
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return "no libcuda.so.1: there is no NVIDIA driver on this machine";
#define DRIVER_LOAD(name, arguments)            \
  *(void **)&cuda.name = dlsym(library, #name); \
  if (cuda.name == NULL) return "libcuda.so.1 is too old: no " #name;
  DRIVER_FUNCTIONS(DRIVER_LOAD)
#undef DRIVER_LOAD
  cuda.simulated = dlsym(library, "simcuda_reset") != NULL;
  code = cuda.cuInit(0);
  if (code == 0) code = cuda.cuDeviceGetCount(&count);
  if (code != 0) {
    snprintf(words, sizeof(words), "the NVIDIA driver says %s (%d)", error_name(code), code);
    return words;
  }
  if (count == 0) return "the NVIDIA driver shows no device";
  CU(cuDriverGetVersion(&cuda.version));
  return NULL;
}

void find_function(const char *name, void **function) {
  *function = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
  if (*function == NULL) skip("this driver is too old for the test");
}

void enter_device(void) {
  handle_t context = NULL;
  CU(cuDevicePrimaryCtxRetain(&context, 0));
  CU(cuCtxSetCurrent(context));
}
