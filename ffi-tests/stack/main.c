/* Each function of libbfc needs at most 4 KiB of stack, whatever it meets. Beside the library this program is given the list
 * of its exported functions, each of which has to be measured:
 *
 *     stack ffi-tests/symbols.txt
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "calls.h"
#include "painted.h"

#include "../c/check.h"

#include <limits.h>
#include <pthread.h>
#include <sys/wait.h>

#define DRIVER_ORDINAL 0
#define HOST_ORDINAL 5
/* Driver calls, each of which fails once: more than creation and the first allocations make. */
#define FAILED_CALLS 60
#define OUT_OF_MEMORY 2
#define UNKNOWN_ERROR 999

/* A function that needs more than MOST_BYTES, and how much it may need. */
static const struct {
  const char *function;
  long bytes;
} exceptions[] = {{NULL, 0}};

static const struct pool_kind *current;

static void work(void) { exercise(current); }

/* ---- The measurement itself --------------------------------------------------------------------------------- */

static __attribute__((noinline)) int uses_stack(volatile char *unused) {
  volatile char bytes[6000];
  (void)unused;
  bytes[0] = 1;
  return bytes[0];
}

static void measure_known_depths(void) {
  volatile char one = 0;
  int (*fenced)(volatile char *) = (int (*)(volatile char *))(uintptr_t)fence((void *)(uintptr_t)uses_stack);
  CHECK(DEEP(uses_stack(&one)) == 1);
  CHECK(DEEP(fenced(&one)) == 1);
}

/* ---- Children --------------------------------------------------------------------------------------------------- */

static pthread_barrier_t all_use_it;

static void *use_it(void *unused) {
  (void)unused;
  bfc_destroy(-4711);
  CHECK_OK(bfc_scope_begin("of another thread", 0));
  pthread_barrier_wait(&all_use_it);
  pause();
  return NULL;
}

static void start_threads(int count) {
  pthread_t thread;
  int at;
  CHECK(pthread_barrier_init(&all_use_it, NULL, (unsigned)count + 1) == 0);
  for (at = 0; at < count; at++) CHECK(pthread_create(&thread, NULL, use_it, NULL) == 0);
  pthread_barrier_wait(&all_use_it);
}

/* In a process of its own, which has not called the library yet. */
static void run(const char *scenario, size_t bytes, const struct pool_kind *kind, void (*what)(void)) {
  int status = -1;
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    size_t at;
    alarm(HANG_SECONDS);
    current = kind;
    for (at = 0; kind != NULL && at < 3 && kind->variables[at] != NULL; at++) {
      CHECK(putenv((char *)(uintptr_t)kind->variables[at]) == 0);
    }
    if (kind != NULL && kind->threads != 0) start_threads(kind->threads);
    on_painted_stack(scenario, bytes, what);
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child);
  if (status != 0) {
    fprintf(stderr, "%s ended with status %#x\n", scenario, (unsigned)status);
    _exit(1);
  }
}

#define LOG "BFC_LOG=debug"
#define REPORT "BFC_REPORT_ON_FAILURE=1"
#define GUARD "BFC_DEBUG=guard"

/* Needs the slow way of parsing a number. */
#define LONG_FRACTION "0.000244140625000000000000000000000000000000000000000000000000000000000001"

static const struct pool_kind kinds[] = {
    {"host", BFC_BACKEND_HOST, HOST_ORDINAL, 0, 0, 0, 0, {0}, 0, 0},
    {"host, log callback", BFC_BACKEND_HOST, HOST_ORDINAL, 0, 0, 0, 1, {LOG, REPORT}, 0, 0},
    {"host, log", BFC_BACKEND_HOST, HOST_ORDINAL, 0, 0, 0, 0, {LOG, REPORT}, 0, 0},
    {"host, environment",
     BFC_BACKEND_AUTO,
     HOST_ORDINAL,
     0,
     0,
     0,
     0,
     {"BFC_FRAGMENTATION_FRACTION=" LONG_FRACTION, "BFC_BACKEND=host", LOG},
     0,
     0},
    {"host, malformed environment",
     BFC_BACKEND_AUTO,
     HOST_ORDINAL,
     0,
     0,
     0,
     0,
     {"BFC_FRAGMENTATION_FRACTION=" LONG_FRACTION "x", "BFC_BACKEND=host", LOG},
     0,
     0},
    {"no driver", BFC_BACKEND_CUDA, DRIVER_ORDINAL, 0, 0, 0, 0, {LOG}, 1, 0},
    {"host, guard", BFC_BACKEND_HOST, HOST_ORDINAL, 0, 0, 0, 0, {GUARD, LOG}, 0, 0},
    {"host, many threads", BFC_BACKEND_HOST, HOST_ORDINAL, 0, 0, 0, 0, {LOG}, 0, 40},
    {"host_vmm", BFC_BACKEND_HOST_VMM, HOST_ORDINAL, 0, 0, 0, 0, {0}, 0, 0},
    {"host_vmm, log", BFC_BACKEND_HOST_VMM, HOST_ORDINAL, 0, 0, 0, 1, {LOG, REPORT}, 0, 0},
    {"host_vmm, guard", BFC_BACKEND_HOST_VMM, HOST_ORDINAL, 0, 0, 0, 1, {GUARD, LOG}, 0, 0},
    {"custom", BFC_BACKEND_CUSTOM, HOST_ORDINAL, 0, 0, 0, 0, {0}, 0, 0},
    {"custom, log", BFC_BACKEND_CUSTOM, HOST_ORDINAL, 0, 0, 0, 1, {LOG, REPORT}, 0, 0},
    {"cuda", BFC_BACKEND_CUDA, DRIVER_ORDINAL, 1, 0, 0, 0, {0}, 0, 0},
    {"cuda, log", BFC_BACKEND_CUDA, DRIVER_ORDINAL, 1, 0, 0, 1, {LOG, REPORT}, 0, 0},
    {"cuda, guard", BFC_BACKEND_CUDA, DRIVER_ORDINAL, 1, 0, 0, 1, {GUARD, LOG}, 0, 0},
    {"cuda_vmm", BFC_BACKEND_CUDA_VMM, DRIVER_ORDINAL, 1, 0, 0, 0, {0}, 0, 0},
    {"cuda_vmm, log", BFC_BACKEND_CUDA_VMM, DRIVER_ORDINAL, 1, 0, 0, 1, {LOG, REPORT}, 0, 0},
    {"cuda_vmm, guard", BFC_BACKEND_CUDA_VMM, DRIVER_ORDINAL, 1, 0, 0, 1, {GUARD, LOG}, 0, 0},
};

/* Each call of the driver fails once. */
static void with_failing_driver(uint32_t backend, const char *name) {
  uint64_t nth;
  for (nth = 1; nth <= FAILED_CALLS; nth++) {
    char scenario[40];
    const int code = nth % 2 == 0 ? OUT_OF_MEMORY : UNKNOWN_ERROR;
    const struct pool_kind kind = {name, backend, DRIVER_ORDINAL, 1, nth, code, 1, {LOG, REPORT}, 1, 0};
    snprintf(scenario, sizeof(scenario), "%s, call %d fails", name, (int)nth);
    run(scenario, 256 * 1024, &kind, work);
  }
}

/* ---- Results ------------------------------------------------------------------------------------------------------- */

static long most_of(const char *function) {
  size_t at;
  for (at = 0; exceptions[at].function != NULL; at++) {
    if (strcmp(exceptions[at].function, function) == 0) return exceptions[at].bytes;
  }
  return MOST_BYTES;
}

/* The deepest call of a function; NULL if it was not measured. */
static const measurement *deepest(const char *function) {
  const measurement *list, *found = NULL;
  size_t count, at;
  list = measurements(&count);
  for (at = 0; at < count; at++) {
    if (strcmp(list[at].function, function) != 0) continue;
    if (found == NULL || list[at].depth > found->depth) found = &list[at];
  }
  return found;
}

int main(int argc, char **argv) {
  char line[200];
  int wrong = 0, functions = 0;
  size_t at;
  FILE *symbols;
  CHECK(argc == 2);
  forget_environment();
  measurements_begin();
  run("known depths", 256 * 1024, NULL, measure_known_depths);
  CHECK(deepest("uses_stack")->depth >= 6000 && deepest("uses_stack")->depth < 6400);
  CHECK(deepest("fenced")->depth < 400);

  for (at = 0; at < sizeof(kinds) / sizeof(kinds[0]); at++) run(kinds[at].name, 256 * 1024, &kinds[at], work);
  with_failing_driver(BFC_BACKEND_CUDA, "cuda");
  with_failing_driver(BFC_BACKEND_CUDA_VMM, "cuda_vmm");

  symbols = fopen(argv[1], "r");
  CHECK(symbols != NULL);
  while (fgets(line, sizeof(line), symbols) != NULL) {
    const measurement *most;
    line[strcspn(line, "# \n")] = '\0';
    if (line[0] == '\0') continue;
    functions++;
    most = deepest(line);
    if (most == NULL) {
      printf("%s was not measured\n", line);
      wrong++;
    } else {
      const int fits = most->depth <= most_of(line);
      printf("%6ld %s %s (%s)\n", most->depth, fits ? "ok  " : "DEEP", most->call, most->scenario);
      if (!fits) wrong++;
    }
  }
  CHECK(functions > 0);
  /* With what the C library lets a thread have at least. */
  for (at = 0; at < sizeof(kinds) / sizeof(kinds[0]); at++) {
    char scenario[60];
    snprintf(scenario, sizeof(scenario), "smallest stack: %s", kinds[at].name);
    if (wrong == 0) run(scenario, PTHREAD_STACK_MIN, &kinds[at], work);
  }
  if (wrong != 0)
    fprintf(stderr, "%d functions need more than %d bytes of stack, or were not measured\n", wrong, MOST_BYTES);
  return wrong != 0;
}
