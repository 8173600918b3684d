/* A stand-in for libcuda.so.1 that returns numbers which identify the called function. Compiler options select its age:
 *   VERSION        the result of cuDriverGetVersion
 *   GET_FOUR       exports cuGetProcAddress with four arguments, as since CUDA 11.3
 *   GET_FIVE       exports cuGetProcAddress_v2 too, as since CUDA 12
 *   NO_INIT        is no driver at all */
#include <stddef.h>
#include <string.h>

enum { BY_SYMBOL = 1, BY_FOUR = 4, BY_FIVE = 5, OTHER_VERSION = 9, NOT_FOUND = 500 };

#ifndef NO_INIT
int cuInit(unsigned flags) { return (int)flags * BY_SYMBOL; }
#endif

int cuDriverGetVersion(int *version) {
  *version = VERSION;
  return 0;
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
  *address = bytes;
  return BY_SYMBOL;
}

/* Exported, and not known to the functions below. */
int cuMemFree_v2(unsigned long long address) {
  (void)address;
  return BY_SYMBOL;
}

#if defined GET_FOUR || defined GET_FIVE
static int by_four(unsigned long long *address, size_t bytes) {
  *address = bytes;
  return BY_FOUR;
}

static int other_version(void) { return OTHER_VERSION; }

int cuGetProcAddress(const char *name, void **found, int version, unsigned long long flags) {
  (void)flags;
  *found = NULL;
  if (strcmp(name, "cuMemAlloc") != 0) return NOT_FOUND;
  *found = version == 3020 ? (void *)by_four : (void *)other_version;
  return 0;
}
#endif

#ifdef GET_FIVE
static int by_five(unsigned long long *address, size_t bytes) {
  *address = bytes;
  return BY_FIVE;
}

/* For an unknown function it returns no address and success. The status shows that it was not found. */
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags, int *status) {
  (void)flags;
  *found = NULL;
  *status = 1;
  if (strcmp(name, "cuMemAlloc") == 0) {
    *found = version == 3020 ? (void *)by_five : (void *)other_version;
    *status = 0;
  }
  return 0;
}
#endif
