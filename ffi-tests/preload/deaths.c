/* Programs that die, or are replaced, in the midst of work: what the interposer knew of them must be in its files. Each
 * says `ready` once it has allocated what is expected of it. What that is: test_deaths.py.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "preload.h"

#include "bfc.h"
#include "cudart/cudart.h"
#include "driver.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static char *self;

static void *allocated(size_t bytes) {
  void *memory = NULL;
  SAME(cudaMalloc(&memory, bytes), cudaSuccess);
  return memory;
}

/* Three allocations and a free. */
static void work(void) {
  void *const first = allocated(1000);
  allocated(2000);
  SAME(cudaFree(first), cudaSuccess);
  allocated(3000);
}

static void say_ready(void) {
  printf("ready\n");
  fflush(stdout);
}

static void ends(void) { work(); }

static void removes_its_trace(void) {
  work();
  SAME(unlink(getenv("BFC_PRELOAD_TRACE")), 0);
}

/* Somebody has cut them off. */
static void goes_on_without_its_files(void) {
  work();
  SAME(truncate(getenv("BFC_PRELOAD_TRACE"), 0), 0);
  SAME(truncate(getenv("BFC_PRELOAD_REPORT"), 0), 0);
  for (int round = 0; round < 1000; round++) SAME(cudaFree(allocated(4000)), cudaSuccess);
}

/* The second thread is cancelled while the interposer writes, and ends at a point of its own. */
static void *cancelled(void *unused) {
  (void)unused;
  pthread_cancel(pthread_self());
  work();
  pthread_testcancel();
  abort();
}

static void is_cancelled(void) {
  pthread_t thread;
  void *result;
  SAME(pthread_create(&thread, NULL, cancelled, NULL), 0);
  SAME(pthread_join(thread, &result), 0);
  SAME(result == PTHREAD_CANCELED, 1);
}

static void *outlives_the_first(void *first) {
  SAME(pthread_join(*(pthread_t *)first, NULL), 0);
  work();
  exit(0);
}

/* The process goes on without its first thread, whose number is that of the process. */
static void loses_its_first_thread(void) {
  static pthread_t first, second;
  first = pthread_self();
  SAME(pthread_create(&second, NULL, outlives_the_first, &first), 0);
  pthread_exit(NULL);
}

static void aborts(void) {
  work();
  abort();
}

/* As many programs do at out of memory. */
static void aborts_out_of_memory(void) {
  void *memory = NULL;
  work();
  while (cudaMalloc(&memory, 64 * MIB) == cudaSuccess) continue;
  abort();
}

static void crashes(void) {
  work();
  *(volatile int *)8 = 1;
}

static void leaves_at_once(void) {
  work();
  _exit(7);
}

static void leaves_quickly(void) {
  work();
  quick_exit(8);
}

/* Until a signal comes. */
static void waits(void) {
  /* A script that starts the tests with & has them ignore it. */
  signal(SIGINT, SIG_DFL);
  work();
  say_ready();
  for (;;) pause();
}

static void kills_itself(void) {
  work();
  raise(SIGKILL);
}

/* The parent and the child have used nothing before, so each has all of it to itself. */
static void forks(void) {
  int status = -1;
  const pid_t child = fork();
  CHECK(child >= 0);
  work();
  if (child == 0) raise(SIGKILL);
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
}

static void goes_on_after(pid_t child) {
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  SAME(status, 0);
  SAME(cudaFree(allocated(4000)), cudaSuccess);
}

/* A child of a process that traces and counts must leave its files alone. */
static void forks_after_use(void) {
  work();
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    void *memory = NULL;
    CHECK(cudaMalloc(&memory, 1000) != cudaSuccess);
    exit(0);
  }
  goes_on_after(child);
}

/* And so must one for which the C library runs no fork handler. Whether it is served does not matter. */
static void clones_after_use(void) {
  work();
  const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
  CHECK(child >= 0);
  if (child == 0) {
    void *memory = NULL;
    if (cudaMalloc(&memory, 1000) == cudaSuccess) cudaFree(memory);
    exit(0);
  }
  goes_on_after(child);
}

/* Another program in the same process, twice. */
static void executes(void) {
  work();
  execl(self, self, "executes_again", (char *)NULL);
  CHECK(!"exec came back");
}

static void executes_again(void) {
  work();
  execl(self, self, "kills_itself", (char *)NULL);
  CHECK(!"exec came back");
}

/* A program that does not allocate. */
static void executes_other(void) {
  work();
  execlp("true", "true", (char *)NULL);
  CHECK(!"exec came back");
}

/* Every request fails, also the first. Says how many failures the pool has counted, if there is one. */
static void is_refused(void) {
  void *memory = NULL;
  bfc_stats_t counted = BFC_STATS_INIT;
  for (size_t times = 1; times <= 3; times++) {
    SAME(cudaMalloc(&memory, times * 100000 * MIB), cudaErrorMemoryAllocation);
    SAME(cudaMallocAsync(&memory, 50000 * MIB, NULL), cudaErrorMemoryAllocation);
  }
  /* The library is the interposer's: the program is not linked to it. */
  bfc_status_t (*const stats)(int32_t, bfc_stats_t *) = dlsym(RTLD_DEFAULT, "bfc_stats");
  if (stats(0, &counted) == BFC_OK) printf("%d failures\n", (int)counted.num_failures);
}

/* The device has room, the host has not. */
static void is_refused_pinned_memory(void) {
  void *memory = NULL;
  work();
  SAME(cudaMallocHost(&memory, (size_t)1 << 50), cudaErrorMemoryAllocation);
}

/* More lines than the file has room for. */
static void fills(void) {
  for (int round = 0; round < 100000; round++) SAME(cudaFree(allocated(1000)), cudaSuccess);
}

/* The simulated driver's own file is larger, and is there with the first allocation. There the trace has its first MiB; a
 * second would be more than the limit. */
static void fills_to_a_limit(void) {
  const struct rlimit limit = {1200 << 10, 1200 << 10};
  SAME(cudaFree(allocated(1000)), cudaSuccess);
  SAME(setrlimit(RLIMIT_FSIZE, &limit), 0);
  fills();
}

static void leaves(int number) {
  (void)number;
  exit(0);
}

static void *left;

static void cleans_up(void) { SAME(cudaFree(left), cudaSuccess); }

/* The signal comes while the interposer records: its handler, which runs the program's exit handlers, waits for that. */
static void exits_in_a_handler(void) {
  left = allocated(1000);
  CHECK(atexit(cleans_up) == 0);
  CHECK(signal(SIGUSR1, leaves) != SIG_ERR);
  fills();
  CHECK(!"no signal came");
}

enum { THREADS = 4 };

static pthread_barrier_t all_are_there;

static void *summed_up(void *argument) {
  pthread_barrier_wait(&all_are_there);
  for (int round = 0; round < 500; round++) SAME(cudaFree(allocated(1000)), cudaSuccess);
  return argument;
}

static void threads(void) {
  pthread_t all[THREADS];
  pthread_barrier_init(&all_are_there, NULL, THREADS);
  for (int at = 0; at < THREADS; at++) SAME(pthread_create(&all[at], NULL, summed_up, NULL), 0);
  for (int at = 0; at < THREADS; at++) SAME(pthread_join(all[at], NULL), 0);
  kills_itself();
}

static const struct {
  const char *name;
  void (*run)(void);
} cases[] = {{"ends", ends},
             {"removes_its_trace", removes_its_trace},
             {"goes_on_without_its_files", goes_on_without_its_files},
             {"is_cancelled", is_cancelled},
             {"loses_its_first_thread", loses_its_first_thread},
             {"aborts", aborts},
             {"aborts_out_of_memory", aborts_out_of_memory},
             {"crashes", crashes},
             {"leaves_at_once", leaves_at_once},
             {"leaves_quickly", leaves_quickly},
             {"waits", waits},
             {"kills_itself", kills_itself},
             {"forks", forks},
             {"forks_after_use", forks_after_use},
             {"clones_after_use", clones_after_use},
             {"executes", executes},
             {"executes_again", executes_again},
             {"executes_other", executes_other},
             {"is_refused", is_refused},
             {"is_refused_pinned_memory", is_refused_pinned_memory},
             {"fills", fills},
             {"fills_to_a_limit", fills_to_a_limit},
             {"exits_in_a_handler", exits_in_a_handler},
             {"threads", threads}};

int main(int argc, char **argv) {
  const struct rlimit none = {0, 0};
  alarm(HANG_SECONDS);
  setrlimit(RLIMIT_CORE, &none);
  self = argv[0];
  for (size_t at = 0; argc == 2 && at < sizeof cases / sizeof cases[0]; at++) {
    if (strcmp(argv[1], cases[at].name) != 0) continue;
    cases[at].run();
    return 0;
  }
  return 2;
}
