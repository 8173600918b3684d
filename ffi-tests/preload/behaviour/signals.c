/* A signal handler that interrupts the interposer where it holds a lock, and calls it again: it is served, by the pool or by
 * the driver, and does not wait for its own thread.
 *
 * The moment is one in which the interposer, or libbfc below it, calls a function of the C library, in whose place it finds
 * this program's.
 */
#include "test.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

#include "../by_number.h"

extern char **environ;

/* The file, or the variable, that is asked for at the moment of the signal. */
static const char *awaited;
/* `handled_there` is how often it was handled before the interposer went on. */
static int handled, handled_there, yields, yields_of_handler;

static void on_signal(int number) {
  const int before = yields;
  void *memory = NULL;
  (void)number;
  handled++;
  OK(cuMemAlloc_v2((Address *)&memory, 3000));
  CHECK(memory != NULL);
  OK(cuMemFree_v2((Address)memory));
  yields_of_handler += yields - before;
}

static void interrupt_at(const char *what) {
  if (awaited == NULL || strcmp(what, awaited) != 0) return;
  awaited = NULL;
  raise(SIGUSR1);
  handled_there = handled;
}

/* Files are opened by number. */
long syscall(long number, ...) {
  long given[SYSCALL_ARGUMENTS];
  READ_SYSCALL_ARGUMENTS(given, number);
  if (number == SYS_openat) interrupt_at((const char *)given[1]);
  return real_syscall(number, given);
}

int sched_yield(void) {
  yields++;
  return (int)syscall(SYS_sched_yield);
}

char *getenv(const char *name) {
  const size_t length = strlen(name);
  interrupt_at(name);
  for (char **at = environ; at != NULL && *at != NULL; at++) {
    if (strncmp(*at, name, length) == 0 && (*at)[length] == '=') return *at + length + 1;
  }
  return NULL;
}

static void begin(void) {
  CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
  OK(cudaSetDevice(0));
  OK(cudaFree(NULL));
}

static void end(void) {
  IS(handled, 1);
  IS(yields_of_handler, 0);
  OK(cudaFree(pooled(2000)));
  no_misuse();
}

/* The device's pool is being created. */
static void creation(void) {
  begin();
  awaited = "BFC_FRAGMENTATION_FRACTION";
  pooled(1000);
  end();
}

/* The file of the report or the trace is being created. */
static void with_file(void) {
  char path[100];
  snprintf(path, sizeof path, "/tmp/libbfc-signals-%d", (int)getpid());
  unlink(path);
  begin();
  awaited = path;
  pooled(1000);
  CHECK(access(path, F_OK) == 0);
  unlink(path);
  end();
}

static void with_report(void) {
  with_file();
  IS(handled_there, 1);
}

/* The signal waits for the recorder: otherwise the handler could wait for an allocator whose thread is in a handler too,
 * which waits for the recorder. */
static void with_trace(void) {
  with_file();
  IS(handled_there, 0);
}

static const Case CASES[] = {
    {"creation", creation, NULL},
    {"report", with_report, "BFC_PRELOAD_REPORT=/tmp/libbfc-signals-%p"},
    {"trace", with_trace, "BFC_PRELOAD_TRACE=/tmp/libbfc-signals-%p"},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
