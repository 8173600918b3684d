/* Waiting for memory: with a timeout a request waits for another thread's free, without one it fails at
 * once, and destruction wakes who waits. After the test of TensorFlow's AllocatorRetry.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { HOST = 256, MIB = 1 << 20, CONSUMERS = 3, ROUNDS = 100 };

static int64_t now_ms(void) {
  struct timespec now;
  CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void sleep_ms(long ms) {
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* Room for `capacity` chunks of a mebibyte. */
static void begin(uint64_t capacity, uint32_t timeout_ms) {
  bfc_options_t options = host_options(capacity * MIB);
  options.flags = 0;
  options.retry_timeout_ms = timeout_ms;
  CHECK_OK(bfc_create(HOST, &options));
}

static void end(void) {
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy(HOST));
}

static atomic_int failures;

static void *consume(void *unused) {
  int round;
  (void)unused;
  for (round = 0; round < ROUNDS; round++) {
    void *ptr = NULL;
    const bfc_status_t status = bfc_alloc(HOST, MIB, &ptr);
    if (status == BFC_OK) {
      memset(ptr, round, 4096);
      sleep_ms(1);
      CHECK(is_filled((char *)ptr, 4096, (char)round));
      CHECK_OK(bfc_free(HOST, ptr));
    } else {
      CHECK_STATUS(status, BFC_ERROR_OUT_OF_MEMORY);
      CHECK(ptr == NULL);
      atomic_fetch_add(&failures, 1);
    }
  }
  return NULL;
}

static void run_consumers(void) {
  pthread_t threads[CONSUMERS];
  int at;
  for (at = 0; at < CONSUMERS; at++) CHECK(pthread_create(&threads[at], NULL, consume, NULL) == 0);
  for (at = 0; at < CONSUMERS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
  CHECK(stats_of(HOST).num_failures == (uint64_t)failures);
}

/* Two chunks for three consumers, who each hold one for a millisecond: a second is plenty. */
static void nobody_fails_who_waits(void) {
  begin(2, 1000);
  run_consumers();
  CHECK(failures == 0);
  end();
}

static void somebody_fails_who_does_not(void) {
  int attempt;
  begin(2, 0);
  for (attempt = 0; attempt < 100 && failures == 0; attempt++) run_consumers();
  CHECK(failures > 0);
  end();
}

static void the_timeout_is_kept(void) {
  int64_t took;
  void *none = NULL;
  begin(1, 200);
  allocate(HOST, MIB);
  took = now_ms();
  CHECK_REFUSED_ON(HOST, bfc_alloc(HOST, MIB, &none), BFC_ERROR_OUT_OF_MEMORY, "no memory");
  took = now_ms() - took;
  CHECK(took >= 199 && took < 60000);
  CHECK(stats_of(HOST).num_failures == 1); /* one request, however often it was tried */
  CHECK_OK(bfc_destroy_forced(HOST));
}

/* What waiting would not mend fails at once. */
static void hopeless_requests_do_not_wait(void) {
  const int64_t start = now_ms();
  void *none = NULL;
  begin(1, 600000);
  CHECK_REFUSED_ON(HOST, bfc_alloc(HOST, SIZE_MAX, &none), BFC_ERROR_OUT_OF_MEMORY, "bytes");
  CHECK_REFUSED_ON(HOST, bfc_alloc_aligned(HOST, 1, 3, &none), BFC_ERROR_INVALID_ARGUMENT, "power of two");
  CHECK(now_ms() - start < 60000);
  end();
}

/* One chunk goes back and forth: a wakeup that got lost would cost the whole ten minutes. */
static void *wait_for_the_other(void *unused) {
  int round;
  (void)unused;
  for (round = 0; round < 20000; round++) { CHECK_OK(bfc_free(HOST, allocate(HOST, MIB))); }
  return NULL;
}

static void no_wakeup_is_lost(void) {
  pthread_t threads[CONSUMERS];
  int at;
  begin(1, 600000);
  for (at = 0; at < CONSUMERS; at++) CHECK(pthread_create(&threads[at], NULL, wait_for_the_other, NULL) == 0);
  for (at = 0; at < CONSUMERS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
  end();
}

static void *wait_forever(void *status) {
  void *ptr = &ptr;
  char words[256];
  *(bfc_status_t *)status = bfc_alloc(HOST, MIB, &ptr);
  CHECK(ptr == NULL);
  CHECK(bfc_last_error(words, sizeof(words)) > 0);
  return NULL;
}

static void destruction_wakes_who_waits(void) {
  pthread_t threads[CONSUMERS];
  bfc_status_t statuses[CONSUMERS];
  int64_t start;
  int at;
  begin(1, 600000);
  allocate(HOST, MIB);
  for (at = 0; at < CONSUMERS; at++) CHECK(pthread_create(&threads[at], NULL, wait_forever, &statuses[at]) == 0);
  /* Long enough that they wait; if one does not yet, it finds nothing created, and the test proves less. */
  sleep_ms(300);
  CHECK_REFUSED_ON(HOST, bfc_destroy(HOST), BFC_ERROR_BUSY, "live");
  start = now_ms();
  CHECK_OK(bfc_destroy_forced(HOST));
  for (at = 0; at < CONSUMERS; at++) {
    CHECK(pthread_join(threads[at], NULL) == 0);
    CHECK_STATUS(statuses[at], BFC_ERROR_SHUTTING_DOWN);
  }
  CHECK(now_ms() - start < 60000);
  /* The place is free again. */
  begin(1, 0);
  CHECK_OK(bfc_free(HOST, allocate(HOST, MIB)));
  end();
}

/* A safe frontier that rises can be what a request waits for. */
static void *raise_the_frontier(void *unused) {
  (void)unused;
  sleep_ms(100);
  CHECK_OK(bfc_set_safe_frontier(HOST, 2));
  return NULL;
}

static void the_frontier_wakes_who_waits(void) {
  bfc_options_t options = host_options(MIB);
  pthread_t thread;
  char *ptr;
  options.flags = BFC_TIMESTAMPS | BFC_QUARANTINE;
  options.retry_timeout_ms = 600000;
  CHECK_OK(bfc_create(HOST, &options));
  ptr = allocate(HOST, MIB);
  CHECK_OK(bfc_free(HOST, ptr));
  CHECK(pthread_create(&thread, NULL, raise_the_frontier, NULL) == 0);
  CHECK(allocate(HOST, MIB) == ptr);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_OK(bfc_free(HOST, ptr));
  end();
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(nobody_fails_who_waits),        CASE(somebody_fails_who_does_not), CASE(the_timeout_is_kept),
      CASE(hopeless_requests_do_not_wait), CASE(no_wakeup_is_lost),           CASE(destruction_wakes_who_waits),
      CASE(the_frontier_wakes_who_waits),
  };
  return RUN_CASE(cases, argc, argv);
}
