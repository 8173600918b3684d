/* Checks for the test programs, in C11 and C++17. The first one that fails says where and ends the process
 * with status 1, from any thread; a program that gets to its end is a test that passed.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_TESTS_CHECK_H
#define BFC_TESTS_CHECK_H

#include <bfc.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* No test takes that many seconds; one that hangs is killed by the alarm, also in a forked child. */
#define HANG_SECONDS 120

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) check_failed(__FILE__, __LINE__, #condition, "is false"); \
  } while (0)

/* The call returns that status. */
#define CHECK_STATUS(call, expected) check_status(__FILE__, __LINE__, #call, (call), (expected))
#define CHECK_OK(call) CHECK_STATUS(call, BFC_OK)

/* The call fails with that status, and says a reason in which `words` occur. */
#define CHECK_REFUSED(call, expected, words) \
  (check_forget_last_error(), check_refused(__FILE__, __LINE__, #call, (call), (expected), (words)))

/* The same, and afterwards the device's allocator is sound. */
#define CHECK_REFUSED_ON(device, call, expected, words) \
  (CHECK_REFUSED(call, expected, words), CHECK_OK(bfc_check(device)))

/* Unused in some programs, and then no warning. */
#if defined(__GNUC__)
#define CHECK_UNUSED __attribute__((unused))
#else
#define CHECK_UNUSED
#endif

CHECK_UNUSED static void check_failed(const char *file, int line, const char *what, const char *how) {
  char words[512];
  bfc_last_error(words, sizeof(words));
  fprintf(stderr, "%s:%d: %s %s (last error: \"%s\")\n", file, line, what, how, words);
  fflush(NULL);
  _exit(1);
}

CHECK_UNUSED static bfc_status_t check_status(const char *file, int line, const char *call, bfc_status_t got,
                                              bfc_status_t expected) {
  if (got != expected) {
    char how[128];
    snprintf(how, sizeof(how), "is %d (%s), not %d (%s)", got, bfc_status_string(got), expected,
             bfc_status_string(expected));
    check_failed(file, line, call, how);
  }
  return got;
}

/* A success leaves the last error, so that an old one could be taken for that of the call in question. */
CHECK_UNUSED static void check_forget_last_error(void) { bfc_destroy(-4711); }

CHECK_UNUSED static void check_refused(const char *file, int line, const char *call, bfc_status_t got,
                                       bfc_status_t expected, const char *words) {
  char reason[1100];
  size_t length;
  check_status(file, line, call, got, expected);
  length = bfc_last_error(reason, sizeof(reason));
  if (length == 0 || strlen(reason) != length || strstr(reason, "device -4711") != NULL) {
    check_failed(file, line, call, "failed without a reason");
  }
  if (strstr(reason, words) == NULL) check_failed(file, line, call, "failed for a reason with other words");
}

/* Options for host memory with growth and a limit. */
CHECK_UNUSED static bfc_options_t host_options(uint64_t limit) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.backend = BFC_BACKEND_HOST;
  options.flags = BFC_ALLOW_GROWTH;
  options.memory_limit = limit;
  return options;
}

/* Has the regions come from two functions. Both structs stay where they are until the call that copies them. */
CHECK_UNUSED static void use_functions(bfc_options_t *options, bfc_suballocator_t *functions, bfc_region_alloc_t alloc,
                                       bfc_region_free_t free_region) {
  functions->alloc = alloc;
  functions->free = free_region;
  options->backend = BFC_BACKEND_CUSTOM;
  options->suballocator = functions;
}

CHECK_UNUSED static bfc_stats_t stats_of(int32_t device) {
  bfc_stats_t stats = BFC_STATS_INIT;
  CHECK_OK(bfc_stats(device, &stats));
  return stats;
}

CHECK_UNUSED static char *allocate(int32_t device, size_t bytes) {
  void *ptr = NULL;
  CHECK_OK(bfc_alloc(device, bytes, &ptr));
  CHECK(ptr != NULL && (uintptr_t)ptr % 256 == 0);
  return (char *)ptr;
}

/* Filled with a byte, and still so. */
CHECK_UNUSED static int is_filled(const char *bytes, size_t count, char with) {
  size_t at;
  for (at = 0; at < count; at++) {
    if (bytes[at] != with) return 0;
  }
  return 1;
}

/* The settings of the user who runs the tests are not those of the tests. */
CHECK_UNUSED static void forget_environment(void) {
  char **variable = environ;
  while (*variable != NULL) {
    char name[64];
    const size_t length = strcspn(*variable, "=");
    if (strncmp(*variable, "BFC_", 4) == 0 && length < sizeof(name)) {
      memcpy(name, *variable, length);
      name[length] = '\0';
      unsetenv(name);
      variable = environ;
    } else {
      variable++;
    }
  }
}

/* The program is a table of cases, each a test of its own: `program NAME` runs one. `program --only NAMES`
 * fails unless these are all, so that none is left out of CMakeLists.txt. */
typedef struct test_case {
  const char *name;
  void (*run)(void);
} test_case;

CHECK_UNUSED static int run_case(const test_case *cases, size_t count, int argc, char **argv) {
  size_t at;
  forget_environment();
  alarm(HANG_SECONDS);
  if (argc >= 2 && strcmp(argv[1], "--only") == 0) {
    for (at = 0; at < count; at++) {
      int found = 0, arg;
      for (arg = 2; arg < argc; arg++) found |= strcmp(argv[arg], cases[at].name) == 0;
      if (!found) check_failed(__FILE__, __LINE__, cases[at].name, "is in the program but not in CMakeLists.txt");
    }
    return 0;
  }
  for (at = 0; argc == 2 && at < count; at++) {
    if (strcmp(argv[1], cases[at].name) == 0) {
      cases[at].run();
      return 0;
    }
  }
  fprintf(stderr, "usage: %s CASE, with one of:", argv[0]);
  for (at = 0; at < count; at++) fprintf(stderr, " %s", cases[at].name);
  fprintf(stderr, "\n");
  return 2;
}

#define RUN_CASE(cases, argc, argv) run_case(cases, sizeof(cases) / sizeof((cases)[0]), argc, argv)

#endif
