/* A disk that has room for so many times as FULL_DISK_AFTER says, and for half of a record of counters if FULL_DISK_CUTS is
 * set; with FULL_DISK_SIGNALS a signal comes while the file is to grow: preloaded with the interposer.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

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

/* The interposer writes with system calls by number. */
long syscall(long number, ...) {
  static long (*real)(long, ...);
  va_list list;
  long given[6];
  va_start(list, number);
  for (int place = 0; place < 6; place++) given[place] = va_arg(list, long);
  va_end(list);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "syscall");
  if (number == SYS_write && given[2] == 8192 && getenv("FULL_DISK_CUTS")) given[2] /= 2;
  return real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
