/* Copies of structs that end where the readable memory ends: reading or writing one byte more than
 * struct_size says is a segmentation fault.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_TESTS_GUARDED_H
#define BFC_TESTS_GUARDED_H

#include "check.h"

#include <sys/mman.h>

enum { GUARD_PAGE = 4096 };

/* The first `size` bytes of `from`, zeros where it has fewer (`known`), and struct_size set to `size`. Sizes
 * that are no multiple of 8 leave up to 7 bytes before the guard, so that the struct is aligned. */
CHECK_UNUSED static void *guarded(const void *from, size_t known, size_t size) {
  const size_t room = (size + 7) / 8 * 8;
  const size_t pages = (room + GUARD_PAGE - 1) / GUARD_PAGE + 1;
  char *base = (char *)mmap(NULL, (pages + 1) * GUARD_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *place;
  CHECK(base != (char *)MAP_FAILED);
  CHECK(mprotect(base + pages * GUARD_PAGE, GUARD_PAGE, PROT_NONE) == 0);
  place = base + pages * GUARD_PAGE - room;
  memcpy(place, from, size < known ? size : known);
  /* struct_size itself is always there: no library can do without. */
  if (size >= sizeof(size_t)) memcpy(place, &size, sizeof(size));
  return place;
}

#endif
