/* Functions that PyTorch 2.11 needs and the simulated libraries lack, as a library for LD_PRELOAD. It is linked with two of
 * them. The others are functions of the driver: it looks up all of those that it knows when it needs the first, as expandable
 * segments do. The tests call none of them.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#define RUNTIME "libcudart.so.13"

enum { NOT_SUPPORTED = 801 };

static int absent(void) { return NOT_SUPPORTED; }

int cudaGraphDebugDotPrint(void) { return NOT_SUPPORTED; }
char __cudaInitModule(void) { return 0; }

typedef int (*entry_point)(const char *, void **, unsigned, unsigned long long, int *);

int cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags,
                                     int *result) {
  const entry_point simulated = (entry_point)dlvsym(RTLD_NEXT, "cudaGetDriverEntryPointByVersion", RUNTIME);
  int (*const clear)(void) = (int (*)(void))dlvsym(RTLD_NEXT, "cudaGetLastError", RUNTIME);
  const int code = simulated(name, found, version, flags, result);
  if (*found != NULL) return code;
  clear();
  *found = (void *)absent;
  if (result != NULL) *result = 0;
  return 0;
}
