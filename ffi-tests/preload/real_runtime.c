/* NVIDIA's own runtime on a driver that is not NVIDIA's: it looks everything up, and then refuses to begin. That is its
 * good right; what matters here is what it asked for, and that it answers as it does without the interposer.
 * `real_runtime PATH`, or with LINKED_STATICALLY the archive. */
#define _GNU_SOURCE
#include "preload.h"

#ifdef LINKED_STATICALLY
int cudaGetDeviceCount(int *count);
int cudaMalloc(void **memory, size_t bytes);
const char *cudaGetErrorName(int error);

static void *find(const char *path, const char *name) {
  (void)path;
  if (strcmp(name, "cudaMalloc") == 0) return (void *)cudaMalloc;
  return strcmp(name, "cudaGetErrorName") == 0 ? (void *)cudaGetErrorName : (void *)cudaGetDeviceCount;
}
#else
static void *find(const char *path, const char *name) {
  CHECK(path != NULL);
  void *const runtime = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (runtime == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(runtime != NULL);
  void *const function = dlsym(runtime, name);
  CHECK(function != NULL);
  return function;
}
#endif

int main(int argc, char **argv) {
  const char *const path = argc == 2 ? argv[1] : NULL;
  alarm(HANG_SECONDS);
  int (*const count)(int *) = (int (*)(int *))find(path, "cudaGetDeviceCount");
  int (*const allocate)(void **, size_t) = (int (*)(void **, size_t))find(path, "cudaMalloc");
  const char *(*const name)(int) = (const char *(*)(int))find(path, "cudaGetErrorName");
  int devices = -1;
  void *memory = NULL;
  const int counted = count(&devices);
  printf("cudaGetDeviceCount: %s, %d; ", name(counted), devices);
  printf("cudaMalloc: %s\n", name(allocate(&memory, 1000)));
  return 0;
}
