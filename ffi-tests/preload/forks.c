/* Processes that fork, exec and spawn before and after they use CUDA. With or without the interposer they end alike. */
#define _GNU_SOURCE
#include "preload.h"

#include "cudart/cudart.h"
#include "driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>

static char *self;

/* Ends well, and soon. */
static void check_child(pid_t child) {
  int status = -1;
  CHECK(child > 0);
  CHECK(waitpid(child, &status, 0) == child);
  if (status != 0) fprintf(stderr, "the child's status is %#x\n", (unsigned)status);
  SAME(status, 0);
}

static void *allocated(void) {
  void *memory = NULL;
  SAME(cudaMalloc(&memory, 1000), cudaSuccess);
  check_pooled(memory);
  return memory;
}

/* The same from the driver itself: a runtime may not come so far. */
static void child_of_a_user_of_the_driver(CUdeviceptr of_parent) {
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  CHECK(driver != NULL);
  int (*const allocate)(CUdeviceptr *, size_t) = (int (*)(CUdeviceptr *, size_t))dlsym(driver, "cuMemAlloc_v2");
  int (*const give_back)(CUdeviceptr) = (int (*)(CUdeviceptr))dlsym(driver, "cuMemFree_v2");
  int (*const info)(size_t *, size_t *) = (int (*)(size_t *, size_t *))dlsym(driver, "cuMemGetInfo_v2");
  int (*const range)(CUdeviceptr *, size_t *, CUdeviceptr) =
      (int (*)(CUdeviceptr *, size_t *, CUdeviceptr))dlsym(driver, "cuMemGetAddressRange_v2");
  CUdeviceptr address = 77;
  size_t bytes = 0;
  SAME(allocate(&address, 1000), NOT_INITIALIZED);
  SAME(address, 77);
  SAME(give_back(of_parent), NOT_INITIALIZED);
  SAME(info(&bytes, &bytes), NOT_INITIALIZED);
  SAME(range(&address, &bytes, of_parent), NOT_INITIALIZED);
}

/* What the driver says in a child of a process that has used it. */
static void child_of_a_user(void *of_parent) {
  void *memory = (void *)&of_parent;
  size_t available = 0, total = 0;
  alarm(30);
  child_of_a_user_of_the_driver((CUdeviceptr)of_parent);
  SAME(cudaMalloc(&memory, 1000), cudaErrorInitializationError);
  CHECK(memory == (void *)&of_parent);
  SAME(cudaFree(of_parent), cudaErrorInitializationError);
  SAME(cudaMemGetInfo(&available, &total), cudaErrorInitializationError);
  SAME(cudaDeviceSynchronize(), cudaErrorInitializationError);
}

/* A child that uses CUDA first has it to itself, and so has its parent afterwards. */
static void before_any_use(void) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    SAME(cudaFree(allocated()), cudaSuccess);
    exit(0);
  }
  check_child(child);
  SAME(cudaFree(allocated()), cudaSuccess);
}

static void after_use(void) {
  void *const memory = allocated();
  for (int round = 0; round < 20; round++) {
    const pid_t child = fork();
    if (child == 0) {
      child_of_a_user(memory);
      /* One with everything that runs at an end, one without. */
      if (round % 2) exit(0);
      _exit(0);
    }
    check_child(child);
    SAME(cudaFree(allocated()), cudaSuccess);
  }
  SAME(cudaFree(memory), cudaSuccess);
}

static int stop;

static void *allocates(void *argument) {
  while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
    void *blocks[8];
    for (int at = 0; at < 8; at++) SAME(cudaMalloc(&blocks[at], 1000u << at), cudaSuccess);
    for (int at = 0; at < 8; at++) SAME(cudaFree(blocks[at]), cudaSuccess);
  }
  return argument;
}

/* Whatever other threads hold at the time. A forked child asks only the pool: the simulated driver has locks of its own,
 * of which it lets go in a child, but its memory is in the midst of something. */
static void amid_threads(void) {
  pthread_t threads[3];
  void *const memory = allocated();
  for (int at = 0; at < 3; at++) SAME(pthread_create(&threads[at], NULL, allocates, NULL), 0);
  for (int round = 0; round < 100; round++) {
    const pid_t child = fork();
    if (child == 0) {
      child_of_a_user(memory);
      _exit(0);
    }
    check_child(child);
  }
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  for (int at = 0; at < 3; at++) SAME(pthread_join(threads[at], NULL), 0);
  SAME(cudaFree(memory), cudaSuccess);
}

/* A new program begins anew, in a child, and in the place of the process itself. */
static void replaced(void) {
  allocated();
  const pid_t child = fork();
  if (child == 0) execl(self, self, "before_any_use", (char *)NULL);
  check_child(child);
  char command[4096];
  snprintf(command, sizeof command, "'%s' after_use", self);
  SAME(system(command), 0);
  execl(self, self, "after_use", (char *)NULL);
  CHECK(!"exec came back");
}

static const struct {
  const char *name;
  void (*run)(void);
} cases[] = {{"before_any_use", before_any_use},
             {"after_use", after_use},
             {"amid_threads", amid_threads},
             {"replaced", replaced}};

int main(int argc, char **argv) {
  alarm(HANG_SECONDS);
  self = argv[0];
  for (size_t at = 0; argc == 2 && at < sizeof cases / sizeof cases[0]; at++) {
    if (strcmp(argv[1], cases[at].name) == 0) {
      cases[at].run();
      printf("well\n");
      return 0;
    }
  }
  return 2;
}
