/* Processes that end in the midst of something: `ends CASE` does it once, `ends CASE ROUNDS` has that many processes do
 * it, and expects of each the same end. */
#define _GNU_SOURCE
#include "preload.h"

#include "cudart/cudart.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>

static void *allocated(size_t bytes) {
  void *memory = NULL;
  SAME(cudaMalloc(&memory, bytes), cudaSuccess);
  check_pooled(memory);
  return memory;
}

static void *allocates(void *argument) {
  unsigned at = (unsigned)(size_t)argument;
  for (;;) {
    void *memory = NULL;
    /* At the end the driver may be gone, and says so. */
    if (cudaMalloc(&memory, 1000 + at++ % 100000) != cudaSuccess) continue;
    cudaFree(memory);
  }
  return NULL;
}

static void begin_threads(void) {
  for (size_t at = 0; at < 4; at++) {
    pthread_t thread;
    SAME(pthread_create(&thread, NULL, allocates, (void *)(at * 1000)), 0);
  }
  usleep((useconds_t)(getpid() % 7) * 500);
}

static int amid_threads(void) {
  begin_threads();
  return 0;
}

static int exit_by_thread(void) {
  begin_threads();
  exit(0);
}

static void at_exit(void) { SAME(cudaFree(allocated(5000)), cudaSuccess); }

extern int __cxa_atexit(void (*function)(void *), void *argument, void *library);
extern void *__dso_handle;
static void *kept;

/* As the destructor of a static object of C++ is called. */
static void static_destructor(void *argument) {
  SAME(cudaFree(kept), cudaSuccess);
  SAME(cudaFree(allocated((size_t)argument)), cudaSuccess);
}

static int armed;

__attribute__((destructor)) static void library_destructor(void) {
  if (armed) SAME(cudaFree(allocated(7000)), cudaSuccess);
}

static int handlers(void) {
  armed = 1;
  /* Before CUDA is used at all, and afterwards: they are called in the opposite order. */
  SAME(atexit(at_exit), 0);
  kept = allocated(6000);
  SAME(__cxa_atexit(static_destructor, (void *)4000, &__dso_handle), 0);
  SAME(atexit(at_exit), 0);
  return 0;
}

static int aborts(void) {
  allocated(1000);
  abort();
}

static int crashes(void) {
  allocated(1000);
  *(volatile int *)8 = 1;
  return 0;
}

static int is_killed(void) {
  allocated(1000);
  begin_threads();
  raise(SIGKILL);
  return 0;
}

static int leaves_at_once(void) {
  allocated(1000);
  _exit(7);
}

static int leaves_quickly(void) {
  allocated(1000);
  quick_exit(8);
}

static const struct {
  const char *name;
  int (*run)(void);
  /* The signal, or the exit code. */
  int signal, code;
} cases[] = {{"amid_threads", amid_threads, 0, 0},
             {"exit_by_thread", exit_by_thread, 0, 0},
             {"handlers", handlers, 0, 0},
             {"aborts", aborts, SIGABRT, 0},
             {"crashes", crashes, SIGSEGV, 0},
             {"is_killed", is_killed, SIGKILL, 0},
             {"leaves_at_once", leaves_at_once, 0, 7},
             {"leaves_quickly", leaves_quickly, 0, 8}};

static void repeat(char *self, size_t which, int rounds) {
  for (int round = 0; round < rounds; round++) {
    int status = -1;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      execl(self, self, cases[which].name, (char *)NULL);
      _exit(99);
    }
    CHECK(waitpid(child, &status, 0) == child);
    if (cases[which].signal) {
      CHECK(WIFSIGNALED(status));
      SAME(WTERMSIG(status), cases[which].signal);
    } else {
      if (WIFSIGNALED(status)) fprintf(stderr, "round %d: signal %d\n", round, WTERMSIG(status));
      CHECK(WIFEXITED(status));
      SAME(WEXITSTATUS(status), cases[which].code);
    }
  }
}

int main(int argc, char **argv) {
  const struct rlimit none = {0, 0};
  alarm(HANG_SECONDS);
  setrlimit(RLIMIT_CORE, &none);
  for (size_t at = 0; argc >= 2 && at < sizeof cases / sizeof cases[0]; at++) {
    if (strcmp(argv[1], cases[at].name) != 0) continue;
    if (argc == 2) return cases[at].run();
    repeat(argv[0], at, atoi(argv[2]));
    printf("well\n");
    return 0;
  }
  return 2;
}
