/* Precedes the driver in a process, as an interposer does, and counts its calls. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

enum { INTERPOSED = 77 };

static int entered;

int interposer_entered(void) { return entered; }

static int hook(void) {
  entered++;
  return INTERPOSED;
}

int cuInit(unsigned flags) { return (void)flags, hook(); }
int cuDriverGetVersion(int *version) { return *version = 1, hook(); }
int cuMemAlloc_v2(unsigned long long *address, size_t bytes) { return *address = bytes, hook(); }
int cuMemFree_v2(unsigned long long address) { return (void)address, hook(); }

int cuGetProcAddress(const char *name, void **found, int version, unsigned long long flags) {
  (void)name, (void)version, (void)flags;
  *found = (void *)hook;
  hook();
  return 0;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags, int *status) {
  *status = 0;
  return cuGetProcAddress(name, found, version, flags);
}

/* Without a version of its own it is found in place of the C library's, whichever version is requested. */
void *dlsym(void *handle, const char *name) {
  static void *(*real)(void *, const char *);
  if (real == NULL) {
    void *libc = dlopen("libc.so.6", RTLD_LAZY);
    const char *versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (int i = 0; i < 3 && real == NULL; i++)
      real = (void *(*)(void *, const char *))dlvsym(libc, "dlsym", versions[i]);
  }
  if (strncmp(name, "cu", 2) == 0) entered++;
  return real(handle, name);
}
