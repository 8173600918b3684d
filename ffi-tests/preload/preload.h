/* For programs that run with libbfc_preload.so on the simulated driver (crates/simcuda). They are ordinary CUDA
 * programs, and look at what became of them through libbfc's own functions, which are in the process with the
 * interposer, and the simulation's.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_TESTS_PRELOAD_H
#define BFC_TESTS_PRELOAD_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE before anything is included: RTLD_DEFAULT and RTLD_NEXT"
#endif

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* No program takes that many seconds; one that hangs is killed by the alarm. */
#define HANG_SECONDS 120

#define UNUSED __attribute__((unused))

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                \
    }                                                                          \
  } while (0)

/* Two whole numbers, which are shown if they differ. */
#define SAME(actual, expected)                                                                               \
  do {                                                                                                       \
    const long long actual_ = (long long)(actual), expected_ = (long long)(expected);                        \
    if (actual_ != expected_) {                                                                              \
      fprintf(stderr, "%s:%d: %s is %lld, not %s (%lld)\n", __FILE__, __LINE__, #actual, actual_, #expected, \
              expected_);                                                                                    \
      _exit(1);                                                                                              \
    }                                                                                                        \
  } while (0)

/* A function of the simulated driver, for steering it: simcuda.h has their types. Not before the program has loaded
 * the driver. */
UNUSED static void *simcuda(const char *name) {
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  CHECK(driver != NULL);
  void *const function = dlsym(driver, name);
  CHECK(function != NULL);
  return function;
}

/* How often the driver itself was called by that name, with or without a version; NULL: all of it. */
UNUSED static uint64_t driver_calls(const char *name) {
  return ((uint64_t (*)(const char *))simcuda("simcuda_calls"))(name);
}

/* The device whose pool the memory is from, or -1. Without the interposer there is no pool. */
UNUSED static int pool_of(const void *memory) {
  int (*const owner)(const void *, int32_t *) = (int (*)(const void *, int32_t *))dlsym(RTLD_DEFAULT, "bfc_owner");
  int32_t device = -1;
  if (owner == NULL || owner(memory, &device) != 0) return -1;
  return device;
}

/* Whether the interposer is there: some programs run without it too, and have to end alike. */
UNUSED static int is_preloaded(void) { return dlsym(RTLD_DEFAULT, "bfc_owner") != NULL; }

/* That the memory is from the pool of device 0 exactly if there is one. */
UNUSED static void check_pooled(const void *memory) { SAME(pool_of(memory), is_preloaded() ? 0 : -1); }

#endif
