/* Threads that are cancelled while they use the library: as in malloc, a thread ends at its own next
 * cancellation point and never inside, where the unwinding would end the process.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { HOST = 256, MIB = 1 << 20, CONTENTION_MS = 200 };

static int64_t now_ms(void) {
  struct timespec now;
  CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Joins a thread that was cancelled. */
static void join_cancelled(pthread_t thread) {
  void *result = NULL;
  CHECK(pthread_join(thread, &result) == 0);
  CHECK(result == PTHREAD_CANCELED);
}

/* The cancellation is pending when the thread calls the library, and takes effect only after the calls. */
static atomic_int is_pending, returned;

static void begin_pending(void) {
  int old;
  CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old) == 0);
  while (!atomic_load(&is_pending)) usleep(1000);
  CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old) == 0);
}

static void *end_pending(void) {
  atomic_fetch_add(&returned, 1);
  pthread_testcancel();
  return NULL;
}

static void cancel_while(void *(*calls)(void *)) {
  pthread_t thread;
  atomic_store(&is_pending, 0);
  CHECK(pthread_create(&thread, NULL, calls, NULL) == 0);
  CHECK(pthread_cancel(thread) == 0);
  atomic_store(&is_pending, 1);
  join_cancelled(thread);
}

/* The host's memory is asked for, files are read, and messages are written. */
static void *create_and_use(void *unused) {
  void *none = NULL;
  uint64_t released;
  (void)unused;
  begin_pending();
  CHECK_OK(bfc_create(HOST, NULL));
  CHECK_OK(bfc_scope_begin("cancelled", 1));
  CHECK_OK(bfc_free(HOST, allocate(HOST, 3 * MIB)));
  CHECK_OK(bfc_scope_end());
  CHECK_STATUS(bfc_alloc(HOST, SIZE_MAX / 2, &none), BFC_ERROR_OUT_OF_MEMORY);
  CHECK_OK(bfc_trim(HOST, 0, &released));
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy(HOST));
  return end_pending();
}

static void from_creation_to_destruction(void) {
  setenv("BFC_LOG", "debug", 1);
  setenv("BFC_REPORT_ON_FAILURE", "1", 1);
  setenv("BFC_GARBAGE_COLLECTION", "no boolean", 1); /* which is warned of */
  cancel_while(create_and_use);
  CHECK(returned == 1);
}

/* Another thread keeps the lock for long, again and again, so that one who wants it has to sleep. It
 * rests between, for nothing makes the lock a fair one. */
static atomic_int stop;

static void *hold_the_lock(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) {
    CHECK_OK(bfc_check(HOST));
    usleep(1000);
  }
  return NULL;
}

static void *contend(void *unused) {
  const int64_t start = now_ms();
  (void)unused;
  begin_pending();
  while (now_ms() - start < CONTENTION_MS) CHECK_OK(bfc_free(HOST, allocate(HOST, 1000)));
  return end_pending();
}

static void where_the_lock_is_contended(void) {
  bfc_options_t options = host_options(64 * MIB);
  pthread_t holder;
  int at;
  CHECK_OK(bfc_create(HOST, &options));
  for (at = 0; at < 40000; at++) allocate(HOST, 256);
  CHECK(pthread_create(&holder, NULL, hold_the_lock, NULL) == 0);
  for (at = 0; at < 3; at++) cancel_while(contend);
  CHECK(returned == 3);
  atomic_store(&stop, 1);
  CHECK(pthread_join(holder, NULL) == 0);
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy_forced(HOST));
}

/* It waits on, gets the memory and can give it back. */
static void *wait_for_memory(void *unused) {
  (void)unused;
  begin_pending();
  CHECK_OK(bfc_free(HOST, allocate(HOST, MIB)));
  return end_pending();
}

static void *free_later(void *ptr) {
  usleep(200000); /* long enough that the other one waits; if it does not yet, the test proves less */
  CHECK(returned == 0);
  CHECK_OK(bfc_free(HOST, ptr));
  return NULL;
}

static void while_it_waits_for_memory(void) {
  bfc_options_t options = host_options(MIB);
  pthread_t other;
  options.retry_timeout_ms = 600000;
  CHECK_OK(bfc_create(HOST, &options));
  CHECK(pthread_create(&other, NULL, free_later, allocate(HOST, MIB)) == 0);
  cancel_while(wait_for_memory);
  CHECK(returned == 1);
  CHECK(pthread_join(other, NULL) == 0);
  CHECK(stats_of(HOST).bytes_in_use == 0);
  CHECK_OK(bfc_destroy(HOST));
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(from_creation_to_destruction),
      CASE(where_the_lock_is_contended),
      CASE(while_it_waits_for_memory),
  };
  return RUN_CASE(cases, argc, argv);
}
