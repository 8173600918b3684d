/* Lookups on strange_driver.c. */
#define _GNU_SOURCE
#include "preload.h"

#include "driver.h"

static int is_ours(void *function) {
  Dl_info info;
  CHECK(function != NULL && dladdr(function, &info));
  return strstr(info.dli_fname, "libbfc_preload.so") != NULL;
}

int main(void) {
  alarm(HANG_SECONDS);
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver != NULL);
  int (*const find)(const char *, void **, int, uint64_t, int *) =
      (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
  CHECK(is_ours((void *)find));
  void *function = NULL;
  /* By what its documentation says, where the address is a stranger's. */
  SAME(find("cuMemAlloc", &function, 12000, 0, NULL), SUCCESS);
  CHECK(is_ours(function));
  SAME(find("cuMemAlloc", &function, 3020, 0, NULL), SUCCESS);
  CHECK(is_ours(function));
  /* The 32-bit function has other arguments, and those of a later one are unknown. */
  SAME(find("cuMemAlloc", &function, 2000, 0, NULL), SUCCESS);
  CHECK(!is_ours(function));
  unsigned narrow = 0;
  SAME(((int (*)(unsigned *, unsigned))function)(&narrow, 7), 32);
  /* Up to the headers that the hooks were compared with (cuda_sys::NEWEST_HEADERS), and not for a version later. */
  SAME(find("cuMemAlloc", &function, 13050, 0, NULL), SUCCESS);
  CHECK(is_ours(function));
  SAME(find("cuMemAlloc", &function, 13060, 0, NULL), SUCCESS);
  CHECK(!is_ours(function));
  uint64_t wide = 0;
  SAME(((int (*)(uint64_t *, size_t, uint64_t))function)(&wide, 7, 1), 128);
  SAME(find("cuMemAlloc", &function, 14000, 0, NULL), SUCCESS);
  CHECK(!is_ours(function));
  CHECK(is_ours(dlsym(driver, "cuMemAlloc_v2")));
  CHECK(dlsym(driver, "cuMemAlloc") != NULL && !is_ours(dlsym(driver, "cuMemAlloc")));
  /* What it does with NULL is its own affair. */
  SAME(find(NULL, &function, 12000, 0, NULL), SUCCESS);
  CHECK(!is_ours(function));
  SAME(find("cuMemAlloc", NULL, 12000, 0, NULL), SUCCESS);
  /* What this driver lacks we do not have either. */
  CHECK(dlsym(driver, "cuMemFree_v2") == NULL);
  CHECK(dlsym(driver, "cuGetProcAddress") == NULL);
  return 0;
}
