/* The library at the end of a process and of a thread, also as the first call: nothing of it may be gone
 * already, and nothing may wait for a thread that is no more.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>

enum { HOST = 256, MIB = 1 << 20 };

static int handlers_run;

static void use_everything(void) {
  bfc_options_t options = host_options(4 * MIB);
  char text[4096], *ptr;
  size_t length = 0;
  uint64_t released = 0;
  void *none = NULL;
  CHECK_STATUS(bfc_destroy(HOST), BFC_ERROR_NO_ALLOCATOR);
  CHECK(bfc_last_error(text, sizeof(text)) > 0);
  CHECK_OK(bfc_create(HOST, &options));
  CHECK_OK(bfc_scope_begin("at exit", 1));
  ptr = allocate(HOST, 1000);
  CHECK_OK(bfc_scope_end());
  memset(ptr, 1, 1000);
  CHECK_REFUSED_ON(HOST, bfc_alloc(HOST, 8 * MIB, &none), BFC_ERROR_OUT_OF_MEMORY, "no memory");
  CHECK_OK(bfc_report(HOST, text, sizeof(text), &length));
  CHECK(strstr(text, "at exit") != NULL);
  CHECK_OK(bfc_memory_map(HOST, text, sizeof(text), &length));
  CHECK(stats_of(HOST).num_allocs == 1);
  CHECK_OK(bfc_free(HOST, ptr));
  CHECK_OK(bfc_trim(HOST, 0, &released));
  CHECK_OK(bfc_destroy(HOST));
  handlers_run++;
}

/* Runs in a child, which must end by exit() with status 7 from its last handler, so that a handler that never
 * ran is seen. */
static void in_a_child(void (*run)(void)) {
  int status = -1;
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(HANG_SECONDS); /* alarms are not inherited */
    run();
    exit(1);
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void leave_well(void) {
  CHECK(handlers_run > 0);
  fflush(NULL);
  _exit(7);
}

static void first_call_at_exit_child(void) {
  CHECK(atexit(leave_well) == 0);
  CHECK(atexit(use_everything) == 0);
  exit(0);
}

static void first_call_at_exit(void) { in_a_child(first_call_at_exit_child); }

/* Handlers run in reverse order: this one after anything that the library may have registered meanwhile. */
static void call_before_and_at_exit_child(void) {
  CHECK(atexit(leave_well) == 0);
  CHECK(atexit(use_everything) == 0);
  use_everything();
  handlers_run = 0;
  exit(0);
}

static void call_before_and_at_exit(void) { in_a_child(call_before_and_at_exit_child); }

/* An allocator that was not destroyed exists until the very end. */
static char *left;

static void free_what_was_left(void) {
  CHECK(is_filled(left, 1000, 'l'));
  CHECK_OK(bfc_free(HOST, left));
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy(HOST));
  handlers_run++;
}

static void freed_at_exit_child(void) {
  bfc_options_t options = host_options(4 * MIB);
  CHECK(atexit(leave_well) == 0);
  CHECK(atexit(free_what_was_left) == 0);
  CHECK_OK(bfc_create(HOST, &options));
  left = allocate(HOST, 1000);
  memset(left, 'l', 1000);
  exit(0);
}

static void freed_at_exit(void) { in_a_child(freed_at_exit_child); }

/* The destructor of thread-specific data runs when the thread's own variables may be gone. */
static pthread_key_t key;

static void at_thread_exit(void *value) {
  char words[64];
  static int rounds;
  CHECK(value == &key);
  use_everything();
  CHECK(bfc_last_error(words, sizeof(words)) > 0);
  /* Once more after everything else, because destructors may ask. */
  if (rounds++ == 0) CHECK(pthread_setspecific(key, &key) == 0);
}

static void *end_a_thread(void *call_first) {
  if (call_first != NULL) use_everything();
  CHECK(pthread_setspecific(key, &key) == 0);
  return NULL;
}

static void thread_exit(void) {
  pthread_t thread;
  CHECK(pthread_key_create(&key, at_thread_exit) == 0);
  CHECK(pthread_create(&thread, NULL, end_a_thread, NULL) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(pthread_create(&thread, NULL, end_a_thread, &key) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(handlers_run == 4);
}

/* The process ends while others allocate. */
static void *allocate_forever(void *unused) {
  while (unused == NULL) {
    void *ptr = NULL;
    const bfc_status_t status = bfc_alloc(HOST, 10000, &ptr);
    CHECK(status == BFC_OK || status == BFC_ERROR_OUT_OF_MEMORY || status == BFC_ERROR_NO_ALLOCATOR ||
          status == BFC_ERROR_SHUTTING_DOWN);
    bfc_free(HOST, ptr);
  }
  return NULL;
}

static void exit_while_others_allocate_child(void) {
  bfc_options_t options = host_options(4 * MIB);
  int at;
  CHECK(atexit(leave_well) == 0);
  CHECK_OK(bfc_create(HOST, &options));
  for (at = 0; at < 4; at++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocate_forever, NULL) == 0);
  }
  usleep(20000);
  handlers_run = 1;
  exit(0);
}

static void exit_while_others_allocate(void) {
  int round;
  for (round = 0; round < 20; round++) in_a_child(exit_while_others_allocate_child);
}

/* What a thread failed at and the scopes that it is in are there in every handler, also in one that was
 * registered before them, and also those of a thread that runs on. */
static sem_t other_failed, other_may_look, other_looked;

static void words_are_those_of(const char *device) {
  char words[256];
  CHECK(bfc_last_error(words, sizeof(words)) > 0);
  CHECK(strstr(words, device) != NULL);
}

static void fail_in_a_scope(const char *operation, int32_t device) {
  CHECK_OK(bfc_scope_begin(operation, 1));
  CHECK_STATUS(bfc_destroy(device), BFC_ERROR_NO_ALLOCATOR);
}

static void wait_for(sem_t *semaphore) {
  while (sem_wait(semaphore) != 0) continue;
}

static void *fail_and_run_on(void *unused) {
  fail_in_a_scope("of the other", 301);
  CHECK(sem_post(&other_failed) == 0);
  wait_for(&other_may_look);
  words_are_those_of("301");
  CHECK_OK(bfc_scope_end());
  CHECK(sem_post(&other_looked) == 0);
  pause();
  return unused;
}

static void look_at_what_was_said(void) {
  bfc_options_t options = host_options(4 * MIB);
  char text[4096], *ptr;
  size_t length = 0;
  words_are_those_of("300");
  CHECK(sem_post(&other_may_look) == 0);
  wait_for(&other_looked);
  CHECK_OK(bfc_create(HOST, &options));
  ptr = allocate(HOST, 1000);
  CHECK_OK(bfc_report(HOST, text, sizeof(text), &length));
  CHECK(strstr(text, "of the first") != NULL);
  CHECK_OK(bfc_free(HOST, ptr));
  CHECK_OK(bfc_destroy(HOST));
  CHECK_OK(bfc_scope_end());
  CHECK_STATUS(bfc_scope_end(), BFC_ERROR_INVALID_ARGUMENT);
  handlers_run++;
}

static void what_was_said_before_child(void) {
  pthread_t thread;
  CHECK(sem_init(&other_failed, 0, 0) == 0 && sem_init(&other_may_look, 0, 0) == 0 &&
        sem_init(&other_looked, 0, 0) == 0);
  CHECK(atexit(leave_well) == 0);
  CHECK(atexit(look_at_what_was_said) == 0);
  fail_in_a_scope("of the first", 300);
  CHECK(pthread_create(&thread, NULL, fail_and_run_on, NULL) == 0);
  wait_for(&other_failed);
  exit(0);
}

static void what_was_said_before(void) { in_a_child(what_was_said_before_child); }

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(first_call_at_exit), CASE(call_before_and_at_exit),    CASE(freed_at_exit),
      CASE(thread_exit),        CASE(exit_while_others_allocate), CASE(what_was_said_before),
  };
  return RUN_CASE(cases, argc, argv);
}
