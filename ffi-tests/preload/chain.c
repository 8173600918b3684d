/* Another interposer, as there are: it counts the program's allocations and passes them on to what RTLD_NEXT finds.
 * With EXPORTS_DLSYM its `dlsym` returns its function, as it has to for programs with a runtime. With
 * GOES_STRAIGHT it passes them on to the driver itself, found by the C library's own dlsym, as HAMi-core does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static int calls;

int chain_calls(void) { return calls; }

#if defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#else
#define FIRST_VERSION "GLIBC_2.17"
#endif

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  /* At each call, and not only at the first: HAMi-core's issue 279. */
#ifdef GOES_STRAIGHT
  void *(*const of_libc)(void *, const char *) =
      (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", FIRST_VERSION);
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  int (*const next)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))of_libc(driver, "cuMemAlloc_v2");
#else
  int (*const next)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
#endif
  if (next == NULL || next == cuMemAlloc_v2) return 999;
  calls++;
  return next(address, bytes);
}

#ifdef EXPORTS_DLSYM
void *dlsym(void *handle, const char *name) {
  void *(*const next)(void *, const char *) =
      (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", FIRST_VERSION);
  if (next == NULL) return NULL;
  void *const found = next(handle, name);
  if (handle == RTLD_NEXT || found == NULL || strcmp(name, "cuMemAlloc_v2") != 0) return found;
  return (void *)cuMemAlloc_v2;
}
#endif
