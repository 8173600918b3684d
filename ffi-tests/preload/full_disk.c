/* A disk that has room for so many times as FULL_DISK_AFTER says: preloaded before the interposer.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>

int posix_fallocate(int file, off_t offset, off_t length) {
  static int left = -1;
  int (*real)(int, off_t, off_t);
  if (left < 0) left = atoi(getenv("FULL_DISK_AFTER"));
  if (left == 0) return ENOSPC;
  left--;
  *(void **)&real = dlsym(RTLD_NEXT, "posix_fallocate");
  return real(file, offset, length);
}
