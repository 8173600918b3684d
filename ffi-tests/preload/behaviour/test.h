/* Checks for programs that run under the interposer and do not use libbfc themselves. The first one that fails says
 * where and
 * ends the process with status 1.
 *
 * A program is a table of cases, each a test of its own: `program NAME` runs one, and `program --list` says which there are,
 * each with the environment that it wants; the suite `preload` sets that and runs them one by one.
 */
#ifndef BFC_BEHAVIOUR_TEST_H
#define BFC_BEHAVIOUR_TEST_H

#include "../../../crates/simcuda/cudart/cudart.h"
#include "../../../crates/simcuda/simcuda.h"
#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) test_failed(__FILE__, __LINE__, "%s is false", #condition); \
  } while (0)

/* Two whole numbers are the same. */
#define IS(actual, expected)                                                                          \
  do {                                                                                                \
    const long long is_ = (long long)(actual), should_ = (long long)(expected);                       \
    if (is_ != should_)                                                                               \
      test_failed(__FILE__, __LINE__, "%s is %lld, not %s (%lld)", #actual, is_, #expected, should_); \
  } while (0)

#define OK(call) IS(call, 0)

enum { LOG_BYTES = 1 << 24 };

UNUSED static void test_failed(const char *file, int line, const char *what, ...) {
  va_list arguments;
  /* The last calls of the driver, oldest first. */
  char *log = malloc(LOG_BYTES);
  fprintf(stderr, "%s:%d: ", file, line);
  va_start(arguments, what);
  vfprintf(stderr, what, arguments);
  va_end(arguments);
  fprintf(stderr, "\n");
  if (log) {
    size_t length = simcuda_log(log, LOG_BYTES), lines = 0;
    if (length >= LOG_BYTES) length = LOG_BYTES - 1;
    while (length > 0 && lines < 20) lines += log[--length] == '\n';
    fprintf(stderr, "the driver's last calls:%s\n", log + length);
  }
  fflush(NULL);
  _exit(1);
}

/* Whether libbfc says that an address is of one of its pools. It is in this process by the interposer only. */
UNUSED static int is_pooled(const void *memory) {
  static int (*owner)(const void *, int32_t *);
  int32_t device = -1;
  if (!owner) *(void **)&owner = dlsym(RTLD_DEFAULT, "bfc_owner");
  if (!owner) test_failed(__FILE__, __LINE__, "libbfc is not in this process: is the interposer preloaded?");
  return owner(memory, &device) == 0;
}

UNUSED static char *allocated(size_t bytes) {
  void *memory = NULL;
  OK(cudaMalloc(&memory, bytes));
  CHECK(memory != NULL && (uintptr_t)memory % 512 == 0);
  return memory;
}

/* The same, from the pool. */
UNUSED static char *pooled(size_t bytes) {
  char *memory = allocated(bytes);
  CHECK(is_pooled(memory));
  return memory;
}

UNUSED static size_t free_bytes(void) {
  size_t free = 0, total = 0;
  OK(cudaMemGetInfo(&free, &total));
  return free;
}

UNUSED static int overlap(const char *one, size_t bytes, const char *other, size_t more) {
  return one < other + more && other < one + bytes;
}

/* How often the driver was told to wait for a context. */
UNUSED static uint64_t synchronizations(void) {
  return simcuda_calls("cuCtxSynchronize") + simcuda_calls("cuStreamSynchronize");
}

/* How often the driver was told to wait for a context, or asked whether its work is done. */
UNUSED static uint64_t settlements(void) { return synchronizations() + simcuda_calls("cuCtxRecordEvent"); }

/* A driver that cannot be asked whether a context's work is done (cuCtxRecordEvent). */
#define WITHOUT_PROBES "SIMCUDA_DRIVER_VERSION=12040"

/* Nothing was done that would be undefined with a real driver. */
UNUSED static void no_misuse(void) {
  char words[300] = "";
  if (simcuda_misuses() == 0 && simcuda_mismatches() == 0) return;
  simcuda_misuse(0, words, sizeof words);
  test_failed(__FILE__, __LINE__, "%llu misuses, %llu mismatches: %s", (unsigned long long)simcuda_misuses(),
              (unsigned long long)simcuda_mismatches(), words);
}

typedef struct Case {
  const char *name;
  void (*run)(void);
  /* VARIABLE=VALUE, with spaces between them. */
  const char *environment;
} Case;

/* No case takes that many seconds. */
enum { HANG_SECONDS = 120 };

UNUSED static int run_case(const Case *cases, size_t count, int argc, char **argv) {
  alarm(HANG_SECONDS);
  for (size_t at = 0; at < count && argc == 2; at++) {
    if (strcmp(argv[1], "--list") == 0) {
      printf("%s %s\n", cases[at].name, cases[at].environment ? cases[at].environment : "");
    } else if (strcmp(argv[1], cases[at].name) == 0) {
      cases[at].run();
      return 0;
    }
  }
  if (argc == 2 && strcmp(argv[1], "--list") == 0) return 0;
  fprintf(stderr, "usage: %s CASE | --list\n", argv[0]);
  return 2;
}

#define RUN_CASE(cases, argc, argv) run_case(cases, sizeof(cases) / sizeof((cases)[0]), argc, argv)

#endif
