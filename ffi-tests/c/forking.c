/* Forks while other threads allocate: a HOST pool works in the child as malloc does, every call on any other
 * is SHUTTING_DOWN there, and nothing ever hangs.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "child.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

enum { HOST = 256, CUSTOM = 900, COMES_AND_GOES = 901, MIB = 1 << 20, KIB = 1 << 10, WORKERS = 4 };

static void sleep_ms(long ms) {
  const struct timespec time = {0, ms * 1000000};
  nanosleep(&time, NULL);
}

/* Regions of a custom backend, from malloc: forks meet threads in the middle of that, too. */
static void *give(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  void *ptr = NULL;
  (void)user_data, (void)received;
  return posix_memalign(&ptr, alignment, bytes) == 0 ? ptr : NULL;
}

static void take(void *user_data, void *ptr, size_t bytes) {
  (void)user_data, (void)bytes;
  free(ptr);
}

static void create(int32_t device, uint32_t retry_ms) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = host_options(16 * MIB);
  options.flags |= BFC_GARBAGE_COLLECTION;
  options.initial_region_bytes = 64 * KIB;
  options.retry_timeout_ms = retry_ms;
  if (device != HOST) { use_functions(&options, &suballocator, give, take); }
  CHECK_OK(bfc_create(device, &options));
}

static atomic_int stop;

/* Allocates, frees, trims and asks, on a device that is always there. */
static void *work(void *number) {
  const int32_t device = (intptr_t)number % 2 ? HOST : CUSTOM;
  unsigned round = 0;
  while (!atomic_load(&stop)) {
    void *small = NULL, *large = NULL;
    bfc_status_t status = bfc_alloc(device, 100 + round % 5000, &small);
    uint64_t released;
    size_t length;
    CHECK(status == BFC_OK || status == BFC_ERROR_OUT_OF_MEMORY);
    status = bfc_alloc(device, round % 16 ? 20 * KIB : 2 * MIB, &large);
    CHECK(status == BFC_OK || status == BFC_ERROR_OUT_OF_MEMORY);
    if (small) memset(small, (char)(intptr_t)number, 100);
    CHECK_OK(bfc_free(device, large));
    if (round % 32 == 0) CHECK_OK(bfc_trim(device, 0, &released));
    if (round % 64 == 0) CHECK_OK(bfc_report(device, NULL, 0, &length));
    if (small) CHECK(is_filled((char *)small, 100, (char)(intptr_t)number));
    CHECK_OK(bfc_free(device, small));
    round++;
  }
  return NULL;
}

static void *come_and_go(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) {
    create(COMES_AND_GOES, 0);
    CHECK_OK(bfc_free(COMES_AND_GOES, allocate(COMES_AND_GOES, 1000)));
    CHECK_OK(bfc_destroy(COMES_AND_GOES));
  }
  return NULL;
}

static char *of_the_host, *of_the_custom;

static void host_works(void) {
  char *ptr;
  void *none = NULL;
  uint64_t released;
  int at;
  CHECK_OK(bfc_check(HOST));
  /* The child's own copy of what the parent wrote. */
  CHECK(is_filled(of_the_host, 1000, 'h'));
  memset(of_the_host, 'c', 1000);
  for (at = 0; at < 100; at++) {
    ptr = allocate(HOST, 3000);
    memset(ptr, 'n', 3000);
    CHECK_OK(bfc_free(HOST, ptr));
  }
  CHECK_REFUSED_ON(HOST, bfc_free(HOST, ptr), BFC_ERROR_DOUBLE_FREE, "0x");
  CHECK_REFUSED_ON(HOST, bfc_alloc(HOST, 32 * MIB, &none), BFC_ERROR_OUT_OF_MEMORY, "no memory");
  CHECK_OK(bfc_free(HOST, of_the_host));
  CHECK_OK(bfc_trim(HOST, 0, &released));
  CHECK_OK(bfc_check(HOST));
}

#define LOST(call) CHECK_REFUSED(call, BFC_ERROR_SHUTTING_DOWN, "fork")

static void is_lost(int32_t device, char *ptr) {
  bfc_request_t request = BFC_REQUEST_INIT;
  bfc_stats_t stats = BFC_STATS_INIT;
  void *chunk = &stats, *region;
  size_t bytes, more;
  uint64_t count;
  int64_t id;
  int32_t owner;
  char text[8];
  request.bytes = 1;
  LOST(bfc_alloc(device, 1, &chunk));
  CHECK(chunk == NULL);
  LOST(bfc_alloc(device, 0, &chunk));
  LOST(bfc_alloc_aligned(device, 1, 256, &chunk));
  LOST(bfc_alloc_ex(device, &request, &chunk));
  LOST(bfc_alloc_freed_before(device, 1, 1, &chunk));
  LOST(bfc_alloc_async(device, 1, NULL, &chunk));
  LOST(bfc_free(device, ptr));
  LOST(bfc_free_async(device, ptr, NULL));
  LOST(bfc_record_stream(device, ptr, NULL));
  LOST(bfc_forget_stream(device, NULL));
  LOST(bfc_stream_synchronized(device, NULL));
  LOST(bfc_pool_begin(device, 1, NULL));
  LOST(bfc_pool_end(device, 1, NULL));
  LOST(bfc_pool_release(device, 1));
  LOST(bfc_set_region_callback(device, NULL, NULL));
  LOST(bfc_device_lost(device));
  LOST(bfc_timestamp(device, &count));
  LOST(bfc_set_safe_frontier(device, 1));
  LOST(bfc_requested_size(device, ptr, &bytes));
  LOST(bfc_allocated_size(device, ptr, &bytes));
  LOST(bfc_allocation_id(device, ptr, &id));
  LOST(bfc_address_range(device, ptr, &chunk, &bytes, &region, &more));
  LOST(bfc_trim(device, 0, &count));
  LOST(bfc_set_memory_limit(device, 1 << 20));
  LOST(bfc_stats(device, &stats));
  LOST(bfc_reset_stats(device));
  LOST(bfc_check(device));
  LOST(bfc_occupancy(device, text, sizeof(text), &bytes));
  LOST(bfc_memory_map(device, text, sizeof(text), &bytes));
  LOST(bfc_report(device, text, sizeof(text), &bytes));
  LOST(bfc_destroy(device));
  LOST(bfc_destroy_forced(device));
  LOST(bfc_create(device, &(bfc_options_t){.struct_size = sizeof(bfc_options_t), .backend = BFC_BACKEND_HOST}));
  CHECK_STATUS(bfc_owner(ptr, &owner), BFC_ERROR_INVALID_POINTER);
}

static void child_of_many_threads(void) {
  host_works();
  is_lost(CUSTOM, of_the_custom);
  /* Others can be made, and the host's can be ended. */
  create(950, 0);
  CHECK_OK(bfc_free(950, allocate(950, 1000)));
  CHECK_OK(bfc_destroy(950));
  CHECK_OK(bfc_destroy_forced(HOST));
  create(HOST, 0);
  CHECK_OK(bfc_free(HOST, allocate(HOST, 1000)));
  CHECK_OK(bfc_destroy(HOST));
}

static void begin(void) {
  create(HOST, 0);
  create(CUSTOM, 0);
  of_the_host = allocate(HOST, 1000);
  of_the_custom = allocate(CUSTOM, 1000);
  memset(of_the_host, 'h', 1000);
  memset(of_the_custom, 'd', 1000);
}

/* In the parent nothing has happened. */
static void end(void) {
  CHECK(is_filled(of_the_host, 1000, 'h') && is_filled(of_the_custom, 1000, 'd'));
  CHECK_OK(bfc_free(HOST, of_the_host));
  CHECK_OK(bfc_free(CUSTOM, of_the_custom));
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_check(CUSTOM));
  CHECK_OK(bfc_destroy(HOST));
  CHECK_OK(bfc_destroy(CUSTOM));
}

static void one_thread(void) {
  begin();
  in_a_child(child_of_many_threads);
  end();
}

static void while_others_allocate(void) {
  pthread_t threads[WORKERS + 1];
  const time_t start = time(NULL);
  intptr_t at;
  int forks;
  begin();
  for (at = 0; at < WORKERS; at++) CHECK(pthread_create(&threads[at], NULL, work, (void *)at) == 0);
  CHECK(pthread_create(&threads[WORKERS], NULL, come_and_go, NULL) == 0);
  for (forks = 0; forks < 200 && time(NULL) - start < 20; forks++) in_a_child(child_of_many_threads);
  atomic_store(&stop, 1);
  for (at = 0; at <= WORKERS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
  end();
}

/* Two threads fork at once. */
static void *fork_too(void *unused) {
  int forks;
  (void)unused;
  for (forks = 0; forks < 30; forks++) in_a_child(child_of_many_threads);
  return NULL;
}

static void from_several_threads(void) {
  pthread_t threads[4];
  int at;
  begin();
  for (at = 0; at < 4; at++) CHECK(pthread_create(&threads[at], NULL, fork_too, NULL) == 0);
  for (at = 0; at < 4; at++) CHECK(pthread_join(threads[at], NULL) == 0);
  end();
}

/* A child's child: the host still works, and what is lost stays lost. */
static void grandchild(void) {
  CHECK_OK(bfc_check(HOST));
  CHECK(is_filled(of_the_host, 1000, 'g'));
  CHECK_OK(bfc_free(HOST, allocate(HOST, 1000)));
  is_lost(CUSTOM, of_the_custom);
}

static void child_that_forks(void) {
  is_lost(CUSTOM, of_the_custom);
  memset(of_the_host, 'g', 1000);
  in_a_child(grandchild);
  CHECK_OK(bfc_free(HOST, of_the_host));
  CHECK_OK(bfc_destroy(HOST));
}

static void twice(void) {
  begin();
  in_a_child(child_that_forks);
  end();
}

/* A thread of the parent that waits for memory does not exist in the child. */
static void *wait_for_memory(void *unused) {
  void *ptr = NULL;
  (void)unused;
  CHECK_STATUS(bfc_alloc(HOST, 16 * MIB, &ptr), BFC_ERROR_SHUTTING_DOWN);
  return NULL;
}

static void child_of_a_waiter(void) {
  CHECK_OK(bfc_free(HOST, of_the_host));
  CHECK_OK(bfc_free(HOST, allocate(HOST, 1000)));
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy(HOST)); /* waits for no other thread */
}

static void while_another_waits(void) {
  pthread_t thread;
  create(HOST, 600000);
  of_the_host = allocate(HOST, 1000);
  CHECK(pthread_create(&thread, NULL, wait_for_memory, NULL) == 0);
  sleep_ms(200);
  in_a_child(child_of_a_waiter);
  CHECK_OK(bfc_destroy_forced(HOST));
  CHECK(pthread_join(thread, NULL) == 0);
}

/* A fork in the middle of a call: the child goes on in the callback, and comes back out of it. */
static int fork_inside;
static pid_t forked = -1;

static void fork_here(void) {
  if (!fork_inside) return;
  fork_inside = 0;
  forked = fork();
  CHECK(forked >= 0);
  if (forked == 0) alarm(CHILD_SECONDS);
}

static void *give_and_fork(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  fork_here();
  return give(user_data, alignment, bytes, received);
}

static void in_a_sub_allocator(void) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = host_options(16 * MIB);
  void *ptr = &ptr;
  bfc_status_t answer;
  use_functions(&options, &suballocator, give_and_fork, take);
  CHECK_OK(bfc_create(CUSTOM, &options));
  fork_inside = 1;
  answer = bfc_alloc(CUSTOM, 1000, &ptr);
  if (forked == 0) {
    CHECK_STATUS(answer, BFC_ERROR_SHUTTING_DOWN);
    CHECK(ptr == NULL);
    is_lost(CUSTOM, NULL);
    _exit(CHILD_IS_WELL);
  }
  CHECK_OK(answer);
  child_ends_well(forked);
  CHECK_OK(bfc_free(CUSTOM, ptr));
  CHECK_OK(bfc_destroy(CUSTOM));
}

/* In the child no region is given back any more: they are the parent's. */
static int regions_taken;

static void take_and_fork(void *user_data, void *ptr, size_t bytes) {
  regions_taken++;
  fork_here();
  take(user_data, ptr, bytes);
}

static void where_regions_are_given_back(void) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = host_options(16 * MIB);
  char *pieces[2];
  uint64_t released = 7;
  bfc_status_t answer;
  use_functions(&options, &suballocator, give, take_and_fork);
  CHECK_OK(bfc_create(CUSTOM, &options));
  pieces[0] = allocate(CUSTOM, 2 * MIB);
  pieces[1] = allocate(CUSTOM, 4 * MIB);
  CHECK_OK(bfc_free(CUSTOM, pieces[0]));
  CHECK_OK(bfc_free(CUSTOM, pieces[1]));
  fork_inside = 1;
  answer = bfc_trim(CUSTOM, 0, &released);
  if (forked == 0) {
    CHECK_STATUS(answer, BFC_ERROR_SHUTTING_DOWN);
    CHECK(released == 0 && regions_taken == 1);
    is_lost(CUSTOM, NULL);
    _exit(CHILD_IS_WELL);
  }
  CHECK_OK(answer);
  CHECK(released == 6 * MIB && regions_taken == 2);
  child_ends_well(forked);
  CHECK_OK(bfc_destroy(CUSTOM));
}

static void listen(void *user_data, int32_t level, const char *message) {
  (void)user_data, (void)level, (void)message;
  fork_here();
}

/* The log tells of a region that was given back: the child comes back into a HOST pool's trim. */
static void in_a_log_callback(void) {
  uint64_t released = 0;
  setenv("BFC_LOG", "debug", 1);
  CHECK_OK(bfc_set_log_callback(listen, NULL));
  create(HOST, 0);
  CHECK_OK(bfc_free(HOST, allocate(HOST, MIB)));
  fork_inside = 1;
  CHECK_OK(bfc_trim(HOST, 0, &released));
  CHECK(forked != -1); /* it was told of */
  CHECK(released >= MIB);
  CHECK_OK(bfc_free(HOST, allocate(HOST, MIB)));
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy(HOST));
  if (forked == 0) _exit(CHILD_IS_WELL);
  child_ends_well(forked);
}

/* From here on the kernel kills the process at any system call but read, write and exit of one thread. */
static void forbid_system_calls(void) { CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0); }

static void pairs(bfc_stream_t stream, int count) {
  void *ptr;
  while (count-- > 0) {
    CHECK_OK(bfc_alloc(HOST, 1000, &ptr));
    CHECK_OK(bfc_free(HOST, ptr));
    CHECK_OK(bfc_alloc_async(HOST, 1000, stream, &ptr));
    CHECK_OK(bfc_free_async(HOST, ptr, stream));
  }
}

static void pairs_without_system_calls(bfc_stream_t stream) {
  pairs(stream, 1); /* what is obtained once, is */
  forbid_system_calls();
  pairs(stream, 100000);
  syscall(SYS_exit, CHILD_IS_WELL); /* exit_group is another */
}

static void on_no_stream(void) { pairs_without_system_calls(NULL); }

static void on_a_stream(void) { pairs_without_system_calls((bfc_stream_t)0x5000); }

static void on_the_threads_stream(void) { pairs_without_system_calls((bfc_stream_t)2); }

static void asks_the_kernel(void) {
  forbid_system_calls();
  sleep_ms(1);
}

/* That a process was forked is noticed without asking the kernel at each operation. */
static void without_system_calls(void) {
  const char *preloaded = getenv("LD_PRELOAD");
  int status;
  pid_t child;
  if (preloaded && strstr(preloaded, "vgpreload")) {
    printf("skipped: valgrind makes system calls of its own\n");
    return;
  }
  begin();
  in_a_child(on_no_stream);
  in_a_child(on_a_stream);
  in_a_child(on_the_threads_stream);
  /* Were they allowed, nothing above would say anything. */
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    asks_the_kernel();
    _exit(CHILD_IS_WELL);
  }
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
  end();
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(one_thread),
      CASE(while_others_allocate),
      CASE(from_several_threads),
      CASE(twice),
      CASE(while_another_waits),
      CASE(in_a_sub_allocator),
      CASE(where_regions_are_given_back),
      CASE(in_a_log_callback),
      CASE(without_system_calls),
  };
  return RUN_CASE(cases, argc, argv);
}
