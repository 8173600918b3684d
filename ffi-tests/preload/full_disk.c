/* A disk that has room as many times as FULL_DISK_AFTER says, and for half of a record of counters if FULL_DISK_CUTS is
 * set. With FULL_DISK_SIGNALS a signal comes while the file is to grow. Preloaded with the interposer.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "by_number.h"

int posix_fallocate(int file, off_t offset, off_t length) {
  static int left = -1;
  int (*real)(int, off_t, off_t);
  if (left < 0) left = atoi(getenv("FULL_DISK_AFTER"));
  if (length == 0) return EINVAL;
  if (left == 0 && getenv("FULL_DISK_SIGNALS")) raise(SIGUSR1);
  if (left == 0) return ENOSPC;
  left--;
  *(void **)&real = dlsym(RTLD_NEXT, "posix_fallocate");
  return real(file, offset, length);
}

long syscall(long number, ...) {
  long given[SYSCALL_ARGUMENTS];
  READ_SYSCALL_ARGUMENTS(given, number);
  if (number == SYS_write && given[2] == 8192 && getenv("FULL_DISK_CUTS")) given[2] /= 2;
  return real_syscall(number, given);
}
