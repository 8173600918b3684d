/* A libcuda.so.1 of a few functions, which by cuGetProcAddress gives other addresses than it exports, has the 32-bit
 * functions of old, a cuMemAlloc of a CUDA that is still to come, and minds no NULL. No driver is known to do so. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int cuInit(unsigned flags) { return flags != 0; }
int cuDriverGetVersion(int *version) {
  *version = 14000;
  return 0;
}
int cuMemAlloc(unsigned *address, unsigned bytes) {
  *address = bytes;
  return 32;
}
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  *address = bytes;
  return 64;
}
static int inner_alloc(uint64_t *address, size_t bytes) { return cuMemAlloc_v2(address, bytes); }
static int later_alloc(uint64_t *address, size_t bytes, uint64_t more) {
  *address = bytes + more;
  return 128;
}

int cuGetProcAddress_v2(const char *name, void **place, int version, uint64_t flags, int *status) {
  (void)flags;
  if (place == NULL) return 0;
  *place = NULL;
  if (name == NULL) {
    *place = (void *)inner_alloc;
    return 0;
  }
  if (strcmp(name, "cuMemAlloc") == 0)
    *place = version >= 13060 ? (void *)later_alloc : version >= 3020 ? (void *)inner_alloc : (void *)cuMemAlloc;
  if (status) *status = *place == NULL;
  return 0;
}
