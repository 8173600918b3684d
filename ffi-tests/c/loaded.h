/* For programs that load the library, or a plugin, at run time and are not linked to it: check.h calls it, and is
 * not for them. A check that fails says where and ends the process with status 1.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_TESTS_LOADED_H
#define BFC_TESTS_LOADED_H

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What a program does before the words are written may be said before this is included. */
#ifndef BEFORE_WORDS
#define BEFORE_WORDS() ((void)0)
#endif

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      BEFORE_WORDS();                                                          \
      fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                \
    }                                                                          \
  } while (0)

static void *load(const char *file) {
  void *const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(library != NULL);
  return library;
}

/* Stores a function at `function`, a pointer to a pointer to one. C has no conversion from void * to that; POSIX
 * has a way around. */
static void find(void *library, const char *name, void *function) {
  void *const symbol = dlsym(library, name);
  CHECK(symbol != NULL);
  memcpy(function, &symbol, sizeof(symbol));
}

#endif
