/* The C library's `syscall`, in whose place a program has its own: the interposer makes system calls by number.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BY_NUMBER_H
#define BY_NUMBER_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>

enum { SYSCALL_ARGUMENTS = 6 };

/* Reads the arguments after `number`, the last named one. */
#define READ_SYSCALL_ARGUMENTS(given, number)                                                    \
  do {                                                                                           \
    va_list list;                                                                                \
    va_start(list, number);                                                                      \
    for (int place = 0; place < SYSCALL_ARGUMENTS; place++) (given)[place] = va_arg(list, long); \
    va_end(list);                                                                                \
  } while (0)

static long real_syscall(long number, const long *given) {
  static long (*real)(long, ...);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "syscall");
  return real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

#endif
