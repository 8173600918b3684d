/* What dlsym and cuGetProcAddress give, name by name and version by version. The argument is a library that is no driver
 * and has a function by the name of one of the driver's. */
#define _GNU_SOURCE
#include "preload.h"

#include "driver.h"

typedef int (*four_t)(const char *, void **, int, uint64_t);
typedef int (*five_t)(const char *, void **, int, uint64_t, int *);

/* The name of the interposer's function that this is, or NULL if it is another library's. */
static const char *ours(void *function) {
  Dl_info info;
  if (!dladdr(function, &info) || strstr(info.dli_fname, "libbfc_preload.so") == NULL) return NULL;
  return info.dli_sname;
}

#define IS_OURS(function, symbol)                                                                                    \
  do {                                                                                                               \
    const char *name_ = ours(function);                                                                              \
    if (name_ == NULL || strcmp(name_, symbol) != 0) {                                                               \
      fprintf(stderr, "%s:%d: %s is %s and not our %s\n", __FILE__, __LINE__, #function, name_ ? name_ : "not ours", \
              symbol);                                                                                               \
      _exit(1);                                                                                                      \
    }                                                                                                                \
  } while (0)

static four_t four;
static five_t five;

/* By either way. */
static void *given(const char *name, int version, uint64_t flags) {
  void *by_four = NULL, *by_five = NULL;
  int status = -1;
  SAME(four(name, &by_four, version, flags), SUCCESS);
  SAME(five(name, &by_five, version, flags, &status), SUCCESS);
  SAME(status, FOUND);
  CHECK(by_four == by_five);
  return by_four;
}

static void by_handle(void *driver, const char *other_library) {
  IS_OURS(dlsym(driver, "cuMemAlloc_v2"), "cuMemAlloc_v2");
  IS_OURS(dlsym(driver, "cuMemAllocAsync_ptsz"), "cuMemAllocAsync_ptsz");
  IS_OURS(dlsym(driver, "cuGetProcAddress"), "cuGetProcAddress");
  IS_OURS(dlsym(driver, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
  CHECK(dlsym(driver, "cuInit") != NULL && ours(dlsym(driver, "cuInit")) == NULL);
  /* What the driver lacks is not there, though a name may begin alike; dlerror has words. */
  CHECK(dlsym(driver, "cuMemAlloc") == NULL && dlerror() != NULL);
  CHECK(dlsym(driver, "cuMemAlloc_v3") == NULL);
  /* Another library that is asked for the name does not give ours, for it is not the driver. */
  void *const none = dlopen("libm.so.6", RTLD_NOW);
  CHECK(none != NULL && dlsym(none, "cuMemAlloc_v2") == NULL && dlsym(none, "cos") != NULL);
  void *const other = dlopen(other_library, RTLD_NOW);
  CHECK(other != NULL);
  CHECK(dlsym(other, "cuMemAlloc_v2") != NULL && ours(dlsym(other, "cuMemAlloc_v2")) == NULL);
}

static void by_version(void) {
  IS_OURS(given("cuMemAlloc", 3020, 0), "cuMemAlloc_v2");
  IS_OURS(given("cuMemAlloc", 13000, LEGACY_STREAM), "cuMemAlloc_v2");
  IS_OURS(given("cuMemFree", 12000, 0), "cuMemFree_v2");
  IS_OURS(given("cuMemGetInfo", 12000, 0), "cuMemGetInfo_v2");
  IS_OURS(given("cuDevicePrimaryCtxRelease", 7000, 0), "cuDevicePrimaryCtxRelease");
  IS_OURS(given("cuDevicePrimaryCtxRelease", 11000, 0), "cuDevicePrimaryCtxRelease_v2");
  IS_OURS(given("cuStreamBeginCapture", 10000, 0), "cuStreamBeginCapture");
  IS_OURS(given("cuStreamBeginCapture", 10010, 0), "cuStreamBeginCapture_v2");
  IS_OURS(given("cuStreamBeginCaptureToGraph", 12030, 0), "cuStreamBeginCaptureToGraph");
  IS_OURS(given("cuStreamBeginRecaptureToGraph", 13030, 0), "cuStreamBeginRecaptureToGraph");
  IS_OURS(given("cuStreamBeginRecaptureToGraph", 13050, PER_THREAD_STREAM), "cuStreamBeginRecaptureToGraph_ptsz");
  IS_OURS(given("cuStreamBeginCaptureToCig", 13010, 0), "cuStreamBeginCaptureToCig");
  IS_OURS(given("cuStreamEndCaptureToCig", 13010, PER_THREAD_STREAM), "cuStreamEndCaptureToCig_ptsz");
  /* The driver's own function, which it exports, is ours whatever version is named. */
  IS_OURS(given("cuMemAlloc", 13060, 0), "cuMemAlloc_v2");
  IS_OURS(given("cuStreamDestroy", 12000, 0), "cuStreamDestroy_v2");
  IS_OURS(given("cuCtxSynchronize", 12000, 0), "cuCtxSynchronize");
  CHECK(ours(given("cuInit", 12000, 0)) == NULL);
  /* Of the per-thread default stream, where there is such a function. */
  IS_OURS(given("cuMemAllocAsync", 12000, 0), "cuMemAllocAsync");
  IS_OURS(given("cuMemAllocAsync", 12000, LEGACY_STREAM), "cuMemAllocAsync");
  IS_OURS(given("cuMemAllocAsync", 12000, PER_THREAD_STREAM), "cuMemAllocAsync_ptsz");
  IS_OURS(given("cuMemFreeAsync", 12000, PER_THREAD_STREAM), "cuMemFreeAsync_ptsz");
  IS_OURS(given("cuStreamEndCapture", 12000, PER_THREAD_STREAM), "cuStreamEndCapture_ptsz");
  IS_OURS(given("cuMemAlloc", 12000, PER_THREAD_STREAM), "cuMemAlloc_v2");
}

/* It is asked for itself, as the runtimes do: the version says how many arguments it has. */
static void by_itself(void) {
  void *place = NULL;
  IS_OURS(given("cuGetProcAddress", 11030, 0), "cuGetProcAddress");
  IS_OURS(given("cuGetProcAddress", 12000, 0), "cuGetProcAddress_v2");
  IS_OURS(given("cuGetProcAddress", 13000, PER_THREAD_STREAM), "cuGetProcAddress_v2");
  const four_t inner = (four_t)given("cuGetProcAddress", 11030, 0);
  SAME(inner("cuMemAlloc", &place, 11030, 0), SUCCESS);
  IS_OURS(place, "cuMemAlloc_v2");
}

/* What is not found is answered as the driver answers it, and NULL where it tolerates NULL. */
static void not_found(void) {
  int status = -1;
  void *place = &place;
  SAME(five("cuMemAlloc", &place, 2000, 0, &status), SUCCESS);
  CHECK(place == NULL);
  SAME(status, VERSION_NOT_SUFFICIENT);
  place = &place;
  SAME(five("cuMemAllocNever", &place, 12000, 0, &status), SUCCESS);
  CHECK(place == NULL);
  SAME(status, SYMBOL_NOT_FOUND);
  SAME(four("cuMemAllocNever", &place, 12000, 0), NOT_FOUND);
  SAME(four("cuMemAlloc", &place, 2000, 0), NOT_FOUND);
  /* So the runtimes begin: an empty name, and no place for the status. */
  place = &place;
  SAME(five("", &place, 12000, 0, NULL), SUCCESS);
  CHECK(place == NULL);
  SAME(five("cuMemAlloc", &place, 12000, 0, NULL), SUCCESS);
  IS_OURS(place, "cuMemAlloc_v2");
  SAME(five(NULL, &place, 12000, 0, &status), INVALID_VALUE);
  SAME(five("cuMemAlloc", NULL, 12000, 0, &status), INVALID_VALUE);
  SAME(four(NULL, &place, 12000, 0), INVALID_VALUE);
  SAME(four("cuMemAlloc", NULL, 12000, 0), INVALID_VALUE);
}

/* Without a handle: not there before the driver is (programs ask so whether there is one), and the same each time. */
static void *without_handle(void) { return dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"); }

int main(int argc, char **argv) {
  alarm(HANG_SECONDS);
  CHECK(argc == 2);
  CHECK(without_handle() == NULL);
  const char *const words = dlerror();
  CHECK(words != NULL && strstr(words, "cu") != NULL);
  CHECK(dlsym(RTLD_DEFAULT, "malloc") != NULL);
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  CHECK(driver != NULL);
  for (int round = 0; round < 10; round++) {
    IS_OURS(without_handle(), "cuMemAlloc_v2");
    /* Behind the program come ours and then the driver's. */
    IS_OURS(dlsym(RTLD_NEXT, "cuMemAlloc_v2"), "cuMemAlloc_v2");
  }
  four = (four_t)dlsym(driver, "cuGetProcAddress");
  five = (five_t)dlsym(driver, "cuGetProcAddress_v2");
  by_handle(driver, argv[1]);
  by_version();
  by_itself();
  not_found();
  SAME(driver_calls("cuMemAlloc"), 0);
  return 0;
}
