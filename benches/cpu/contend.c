/* Measures on two cores what cores.py simulates on more: prints the costs of a call and of the lock in nanoseconds, and how long
 * a call and the gap before it take with one thread and with two, as JSON. `cores.py measure` compiles and runs it.
 *
 *   contend [PROGRAM...]
 *
 * A PROGRAM is a file of calls, a line each: nanoseconds before it, a slot, and the bytes to allocate there, or 0 to free them.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include <bfc.h>
#include <errno.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { HOST = 256, SLOTS = 64, GAPS = 4096, ROUNDS = 400, MOST_CALLS = 16384 };
static const double ROUND_NS = 2e6;

/* A call of a program. */
typedef struct {
  double gap;
  long slot;
  size_t bytes;
} call_t;

/* What a thread does, and what came of it. */
typedef struct {
  int core;
  uint64_t random;
  void *slots[MOST_CALLS];
  double gap; /* mean nanoseconds between two calls */
  long at;    /* the next call of the program */
  long calls;
  double begun, ended;
} worker_t;

static double steps_per_ns;
static double gaps[GAPS]; /* exponential, of mean 1 */
static pthread_barrier_t start;
static call_t program[MOST_CALLS];
static long calls_of_program;

static void fail(const char *what) {
  char message[1024];
  bfc_last_error(message, sizeof message);
  fprintf(stderr, "contend: %s failed: %s\n", what, *message ? message : strerror(errno));
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

/* Dependent steps: a clock that needs no call, and random numbers. */
static uint64_t think(uint64_t random, long steps) {
  do { random = random * 6364136223846793005u + 1442695040888963407u; } while (steps-- > 0);
  return random;
}

static void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity: two cores are needed, 0 and 1: it");
}

static long gap_steps(const worker_t *worker) {
  return (long)(gaps[worker->random >> 52] * worker->gap * steps_per_ns);
}

/* Frees what a random slot has and allocates 256 bytes to 64 KiB for it: two calls, with other chunks live around them. */
static void pair(worker_t *worker) {
  void **slot = &worker->slots[worker->random >> 58];
  if (bfc_free(HOST, *slot) != BFC_OK) fail("bfc_free");
  worker->random = think(worker->random, worker->gap > 0 ? gap_steps(worker) : 0);
  size_t bytes = (size_t)256 << (worker->random >> 40) % 9;
  if (bfc_alloc(HOST, bytes, slot) != BFC_OK) fail("bfc_alloc");
  worker->random = think(worker->random, worker->gap > 0 ? gap_steps(worker) : 0);
}

static void free_all(worker_t *worker) {
  for (int i = 0; i < MOST_CALLS; i++) {
    if (bfc_free(HOST, worker->slots[i]) != BFC_OK) fail("bfc_free");
    worker->slots[i] = NULL;
  }
}

/* Random calls, or all of the program from wherever it was; how many. */
static long some_calls(worker_t *worker) {
  for (int i = 0; i < 64 && !calls_of_program; i++) pair(worker);
  for (int i = 0; i < calls_of_program; i++) {
    const call_t *call = &program[worker->at];
    worker->at = worker->at + 1 < calls_of_program ? worker->at + 1 : 0;
    worker->random = think(worker->random, (long)(call->gap * steps_per_ns));
    void **slot = &worker->slots[call->slot];
    if (call->bytes == 0) {
      if (bfc_free(HOST, *slot) != BFC_OK) fail("bfc_free");
      *slot = NULL;
    } else if (bfc_alloc(HOST, call->bytes, slot) != BFC_OK) {
      fail("bfc_alloc");
    }
  }
  return calls_of_program ? calls_of_program : 128;
}

/* Calls for one round. */
static void *run(void *argument) {
  worker_t *worker = argument;
  pin(worker->core);
  for (int i = 0; i < 5; i++) some_calls(worker);
  pthread_barrier_wait(&start);
  worker->begun = now();
  worker->calls = 0;
  do {
    worker->calls += some_calls(worker);
    worker->ended = now();
  } while (worker->ended < worker->begun + ROUND_NS);
  free_all(worker);
  return NULL;
}

static void in_threads(void *(*function)(void *), worker_t *its, int count) {
  pthread_t threads[2];
  pthread_barrier_init(&start, NULL, (unsigned)count);
  for (int i = 0; i < count; i++) {
    if (pthread_create(&threads[i], NULL, function, &its[i]) != 0) fail("pthread_create");
  }
  for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&start);
}

static worker_t *workers(double gap) {
  static worker_t made[2];
  for (int core = 0; core < 2; core++) {
    /* Of a program each round has another phase between the threads. */
    static long phase;
    long at = calls_of_program ? (phase += 7919) % calls_of_program : 0;
    made[core] = (worker_t){.core = core, .random = think(17 + (uint64_t)core, 99), .gap = gap, .at = at};
  }
  return made;
}

/* From the first begin to the last end: threads that did not run at the same time must not look fast. */
static double nanoseconds(const worker_t *its, int threads) {
  const worker_t *last = &its[threads - 1];
  return fmax(its->ended, last->ended) - fmin(its->begun, last->begun);
}

/* Nanoseconds a call of each thread. The best round: other programs can only slow it. */
static double call_ns(int threads, double gap) {
  double best = INFINITY;
  for (int round = 0; round < ROUNDS; round++) {
    worker_t *two = workers(gap);
    in_threads(run, two, threads);
    best = fmin(best, nanoseconds(two, threads) * threads / (double)(two[0].calls + (threads > 1 ? two[1].calls : 0)));
  }
  return best;
}

/* Two threads in turn, with a pair of calls in each turn or without. */
enum { TURNS = 20000 };
static _Alignas(128) atomic_int turn;
static int has_calls;

static void *take_turns(void *argument) {
  worker_t *worker = argument;
  pin(worker->core);
  for (int i = 0; i < 10 * SLOTS; i++) pair(worker);
  pthread_barrier_wait(&start);
  worker->begun = now();
  for (int i = worker->core; i < TURNS; i += 2) {
    while (atomic_load_explicit(&turn, memory_order_acquire) != i) {}
    if (has_calls) pair(worker);
    atomic_store_explicit(&turn, i + 1, memory_order_release);
  }
  worker->ended = now();
  free_all(worker);
  return NULL;
}

static double turn_ns(int calls) {
  double best = INFINITY;
  for (int round = 0; round < ROUNDS; round++) {
    worker_t *two = workers(0);
    has_calls = calls;
    atomic_store(&turn, 0);
    in_threads(take_turns, two, 2);
    best = fmin(best, nanoseconds(two, 2) / TURNS);
  }
  return best;
}

/* How long the sleeps of our lock really take: the median of many. */
static int in_order(const void *a, const void *b) {
  double difference = *(const double *)a - *(const double *)b;
  return (difference > 0) - (difference < 0);
}

static double sleep_ns(void) {
  enum { SLEEPS = 501 };
  static double taken[SLEEPS];
  struct timespec timeout = {0, 50000};
  int word = 0;
  for (int i = 0; i < SLEEPS; i++) {
    double begun = now();
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &timeout, NULL, 0);
    taken[i] = now() - begun;
  }
  qsort(taken, SLEEPS, sizeof *taken, in_order);
  return taken[SLEEPS / 2];
}

/* Nanoseconds between two looks at the lock while a waiter spins, and of a yield with nothing else to run. */
static double look_ns(int yields) {
  double best = INFINITY;
  for (int round = 0; round < ROUNDS; round++) {
    double begun = now();
    for (int i = 0; i < 1000; i++) {
      if (yields) {
        sched_yield();
      } else {
#if defined __x86_64__
        __builtin_ia32_pause();
#elif defined __aarch64__
        __asm__ volatile("isb"); /* std::hint::spin_loop */
#endif
      }
      (void)atomic_load_explicit(&turn, memory_order_relaxed);
    }
    best = fmin(best, (now() - begun) / 1000);
  }
  return best;
}

static void read_program(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) fail(path);
  for (calls_of_program = 0; calls_of_program < MOST_CALLS; calls_of_program++) {
    call_t *call = &program[calls_of_program];
    if (fscanf(file, "%lf %ld %zu", &call->gap, &call->slot, &call->bytes) != 3) break;
    if (call->slot < 0 || call->slot >= MOST_CALLS) fail("a slot");
  }
  fclose(file);
  if (calls_of_program == 0) fail(path);
}

int main(int count, char **files) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.memory_limit = (size_t)4 << 30;
  if (bfc_create(HOST, &options) != BFC_OK) fail("bfc_create");
  for (int i = 0; i < GAPS; i++) gaps[i] = -log((i + 0.5) / GAPS);
  pin(0);
  steps_per_ns = 0;
  for (int round = 0; round < ROUNDS; round++) {
    double begun = now();
    volatile uint64_t kept = think((uint64_t)round, 1000000);
    (void)kept;
    steps_per_ns = fmax(steps_per_ns, 1e6 / (now() - begun));
  }
  double hold = call_ns(1, 0), line = turn_ns(0), handoff = turn_ns(1);
  printf("{\"hold\": %.1f, \"line\": %.1f, \"handoff\": %.1f, \"transfer\": %.1f", hold, line, handoff,
         handoff - line - 2 * hold);
  printf(", \"look\": %.1f, \"yield\": %.1f, \"sleep\": %.0f, \"two\": [", look_ns(0), look_ns(1), sleep_ns());
  const double means[] = {50, 100, 200, 400, 800, 1600, 5000};
  for (size_t i = 0; i < sizeof means / sizeof *means; i++) {
    printf("%s{\"one\": %.1f, \"both\": %.1f}", i ? ", " : "", call_ns(1, means[i]), call_ns(2, means[i]));
  }
  printf("], \"programs\": [");
  for (int i = 1; i < count; i++) {
    read_program(files[i]);
    printf("%s{\"one\": %.1f, \"both\": %.1f}", i > 1 ? ", " : "", call_ns(1, 0), call_ns(2, 0));
  }
  calls_of_program = 0;
  if (bfc_history_start(NULL, 1 << 16) != BFC_OK) fail("bfc_history_start");
  printf("], \"hold_history\": %.1f}\n", call_ns(1, 0));
  return 0;
}
