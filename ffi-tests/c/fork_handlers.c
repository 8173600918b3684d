/* What the library's fork handlers meet: threads in calls where nothing was ever created, allocators that come
 * and go while a fork is under way, and the program's own handlers. The child can use every device that is not
 * the parent's, and nothing hangs in either.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "child.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

enum { HOST = 256, CUSTOM = 900, NEVER_CREATED = 5, MIB = 1 << 20, WORKERS = 2 };

static void wait_for(sem_t *semaphore) {
  while (sem_wait(semaphore) != 0) CHECK(errno == EINTR);
}

static void post(sem_t *semaphore) { CHECK(sem_post(semaphore) == 0); }

/* The next call of the backend, or the next message about a region given back, stops where a test wants it. */
static atomic_int stops;
static sem_t inside, go_on;

static void stop_here(void) {
  int left = atomic_load(&stops);
  while (left > 0 && !atomic_compare_exchange_weak(&stops, &left, left - 1)) continue;
  if (left <= 0) return;
  post(&inside);
  wait_for(&go_on);
}

static void prepare_to_stop(int calls) {
  CHECK(sem_init(&inside, 0, 0) == 0 && sem_init(&go_on, 0, 0) == 0);
  atomic_store(&stops, calls);
}

static void *give(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  void *ptr = NULL;
  (void)user_data, (void)received;
  stop_here();
  return posix_memalign(&ptr, alignment, bytes) == 0 ? ptr : NULL;
}

static void take(void *user_data, void *ptr, size_t bytes) {
  (void)user_data, (void)bytes;
  free(ptr);
}

static void create(int32_t device) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = host_options(16 * MIB);
  if (device == CUSTOM) { use_functions(&options, &suballocator, give, take); }
  CHECK_OK(bfc_create(device, &options));
}

static void use(int32_t device) {
  char *const ptr = allocate(device, 1000);
  memset(ptr, 'u', 1000);
  CHECK_OK(bfc_free(device, ptr));
  CHECK_OK(bfc_check(device));
}

static void live_once(int32_t device) {
  create(device);
  use(device);
  CHECK_OK(bfc_destroy(device));
}

/* The memory is the parent's, and never given to the child. */
static void is_lost(int32_t device) {
  void *ptr = &ptr;
  CHECK_REFUSED(bfc_alloc(device, 1, &ptr), BFC_ERROR_SHUTTING_DOWN, "fork");
  CHECK(ptr == NULL);
  CHECK_REFUSED(bfc_create(device, NULL), BFC_ERROR_SHUTTING_DOWN, "fork");
  CHECK_REFUSED(bfc_destroy_forced(device), BFC_ERROR_SHUTTING_DOWN, "fork");
}

static atomic_int stop;

/* Forks again and again while threads make calls; each child begins with the device of these calls. */
static void fork_during(void *(*calls)(void *), void (*child)(void)) {
  pthread_t threads[WORKERS];
  const time_t start = time(NULL);
  int at;
  for (at = 0; at < WORKERS; at++) CHECK(pthread_create(&threads[at], NULL, calls, NULL) == 0);
  for (at = 0; at < 100 && time(NULL) - start < 10; at++) in_a_child(child);
  atomic_store(&stop, 1);
  for (at = 0; at < WORKERS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
}

/* The callers pause from time to time: in valgrind, where one thread runs at a time, no other thread would get a turn.
 * */
static void rest_sometimes(unsigned round) {
  if (round % 30000 == 0) usleep(100);
}

static void *call_where_nothing_is(void *unused) {
  unsigned round;
  (void)unused;
  for (round = 1; !atomic_load(&stop); round++) {
    void *ptr = NULL;
    rest_sometimes(round);
    CHECK_OK(bfc_free(NEVER_CREATED, NULL));
    CHECK_STATUS(bfc_alloc(NEVER_CREATED, 1, &ptr), BFC_ERROR_NO_ALLOCATOR);
  }
  return NULL;
}

static void create_where_nothing_was(void) { live_once(NEVER_CREATED); }

static void before_any_creation(void) { fork_during(call_where_nothing_is, create_where_nothing_was); }

static void of_one_that_was_never_created(void) {
  create(HOST);
  fork_during(call_where_nothing_is, create_where_nothing_was);
  use(HOST);
  CHECK_OK(bfc_destroy(HOST));
}

static void listen(void *user_data, int32_t level, const char *message) {
  (void)user_data, (void)level;
  if (strstr(message, "back") != NULL) stop_here();
}

static void *set_callbacks(void *unused) {
  unsigned round;
  (void)unused;
  for (round = 1; !atomic_load(&stop); round++) {
    rest_sometimes(round);
    CHECK_OK(bfc_set_log_callback(listen, NULL));
  }
  return NULL;
}

static void set_a_callback_too(void) {
  CHECK_OK(bfc_set_log_callback(listen, NULL));
  live_once(NEVER_CREATED);
}

static void while_callbacks_are_set(void) {
  setenv("BFC_LOG", "info", 1);
  fork_during(set_callbacks, set_a_callback_too);
}

/* A handler that was registered before the library's, and so runs after that one has locked all allocators. */
static void (*behind_the_library)(void);

static void run_behind_the_library(void) {
  if (behind_the_library != NULL) behind_the_library();
}

static void register_before_the_library(void) { pthread_atfork(run_behind_the_library, NULL, NULL); }

/* Called before any library is initialised. */
__attribute__((section(".preinit_array"),
               used)) static void (*at_the_very_beginning)(void) = register_before_the_library;

/* Two threads wait for the fork to begin, create and allocate; one stays in the backend meanwhile. */
static sem_t fork_begins;

static void *create_during_the_fork(void *unused) {
  (void)unused;
  wait_for(&fork_begins);
  create(CUSTOM);
  return NULL;
}

static void *allocate_during_the_fork(void *ptr) {
  bfc_status_t status = BFC_ERROR_NO_ALLOCATOR;
  wait_for(&fork_begins);
  while ((status = bfc_alloc(CUSTOM, 1000, (void **)ptr)) == BFC_ERROR_NO_ALLOCATOR) sched_yield();
  CHECK_OK(status);
  return NULL;
}

static void begin_the_fork(void) {
  if (atomic_load(&stops) == 0) return;
  post(&fork_begins);
  post(&fork_begins);
  wait_for(&inside);
}

static void come_into_use_during_the_fork(void (*child)(void)) {
  pthread_t threads[2];
  void *ptr = NULL;
  prepare_to_stop(1);
  CHECK(sem_init(&fork_begins, 0, 0) == 0);
  CHECK(pthread_create(&threads[0], NULL, create_during_the_fork, NULL) == 0);
  CHECK(pthread_create(&threads[1], NULL, allocate_during_the_fork, &ptr) == 0);
  in_a_child(child);
  post(&go_on);
  CHECK(pthread_join(threads[0], NULL) == 0);
  CHECK(pthread_join(threads[1], NULL) == 0);
  CHECK_OK(bfc_free(CUSTOM, ptr));
  CHECK_OK(bfc_check(CUSTOM));
  CHECK_OK(bfc_destroy(CUSTOM));
}

/* To the child it was not there yet; of the parent's calls nothing is left. */
static void was_never_there(void) {
  void *ptr = &ptr;
  CHECK_REFUSED(bfc_alloc(CUSTOM, 1000, &ptr), BFC_ERROR_NO_ALLOCATOR, "no allocator was created");
  CHECK(ptr == NULL);
  live_once(CUSTOM);
  live_once(CUSTOM);
  use(HOST);
  CHECK_OK(bfc_destroy(HOST));
}

static void one_comes_behind_the_locks(void) {
  create(HOST);
  behind_the_library = begin_the_fork;
  come_into_use_during_the_fork(was_never_there);
  use(HOST);
  CHECK_OK(bfc_destroy(HOST));
}

/* The very first creation of the process. */
static void custom_is_lost(void) { is_lost(CUSTOM); }

static void the_first_one_comes(void) {
  CHECK(pthread_atfork(begin_the_fork, NULL, NULL) == 0);
  come_into_use_during_the_fork(custom_is_lost);
}

/* Allocators that other threads are just destroying: no thread of the child will ever end that. */
static void *destroy(void *device) {
  CHECK_OK(bfc_destroy((int32_t)(intptr_t)device));
  return NULL;
}

static void nobody_destroys_here(void) {
  void *ptr = &ptr;
  CHECK_REFUSED(bfc_alloc(HOST, 1, &ptr), BFC_ERROR_NO_ALLOCATOR, "no allocator was created");
  CHECK(ptr == NULL);
  live_once(HOST);
  is_lost(CUSTOM);
}

static void while_others_destroy(void) {
  static const int32_t devices[2] = {HOST, CUSTOM};
  pthread_t threads[2];
  int at;
  setenv("BFC_LOG", "info", 1);
  CHECK_OK(bfc_set_log_callback(listen, NULL));
  for (at = 0; at < 2; at++) {
    create(devices[at]);
    use(devices[at]);
  }
  prepare_to_stop(2);
  for (at = 0; at < 2; at++) { CHECK(pthread_create(&threads[at], NULL, destroy, (void *)(intptr_t)devices[at]) == 0); }
  for (at = 0; at < 2; at++) wait_for(&inside);
  in_a_child(nobody_destroys_here);
  for (at = 0; at < 2; at++) post(&go_on);
  for (at = 0; at < 2; at++) CHECK(pthread_join(threads[at], NULL) == 0);
  for (at = 0; at < 2; at++) live_once(devices[at]);
}

/* A destruction that waits for this thread's call has ended nothing yet, and without its thread it never will. */
static pthread_t destroyer;
static pid_t child_of_callback = -1;

static void *destroy_forced(void *unused) {
  (void)unused;
  CHECK_OK(bfc_destroy_forced(HOST));
  return NULL;
}

static void fork_while_it_waits(void *user_data, int32_t level, const char *message) {
  (void)user_data, (void)level;
  if (child_of_callback != -1 || strstr(message, "gave a region") == NULL) return;
  CHECK(pthread_create(&destroyer, NULL, destroy_forced, NULL) == 0);
  usleep(200000); /* until it waits; if it comes later the test proves less */
  child_of_callback = fork();
  CHECK(child_of_callback >= 0);
  if (child_of_callback == 0) alarm(CHILD_SECONDS);
}

static void while_one_waits_to_destroy(void) {
  uint64_t released;
  bfc_status_t status;
  setenv("BFC_LOG", "info", 1);
  CHECK_OK(bfc_set_log_callback(fork_while_it_waits, NULL));
  create(HOST);
  use(HOST);
  status = bfc_trim(HOST, 0, &released);
  if (child_of_callback == 0) {
    CHECK_OK(status);
    use(HOST);
    CHECK_OK(bfc_destroy(HOST));
    live_once(HOST);
    _exit(CHILD_IS_WELL);
  }
  CHECK(status == BFC_OK || status == BFC_ERROR_SHUTTING_DOWN);
  child_ends_well(child_of_callback);
  CHECK(pthread_join(destroyer, NULL) == 0);
  live_once(HOST);
}

/* The program's handlers may call the library, as they may call malloc. */
static int handlers_run;

static void use_both(void) {
  use(HOST);
  use(CUSTOM);
  handlers_run++;
}

static void use_in_the_child(void) {
  use(HOST);
  is_lost(CUSTOM);
  handlers_run++;
}

static void both_handlers_ran(void) { CHECK(handlers_run == 2); }

static void handlers_that_call(void) {
  CHECK(pthread_atfork(use_both, use_both, use_in_the_child) == 0);
  create(HOST);
  create(CUSTOM);
  in_a_child(both_handlers_ran);
  CHECK(handlers_run == 2);
  CHECK_OK(bfc_destroy(HOST));
  CHECK_OK(bfc_destroy(CUSTOM));
}

/* What pthread_atfork calls in glibc. This one comes before the C library's for all that the process has loaded. */
typedef int register_handlers(void (*)(void), void (*)(void), void (*)(void), void *);
register_handlers __register_atfork;
static atomic_int registrations;

int __register_atfork(void (*prepare)(void), void (*in_parent)(void), void (*in_child)(void), void *library) {
  void *const symbol = dlsym(RTLD_NEXT, "__register_atfork");
  register_handlers *next = NULL;
  CHECK(symbol != NULL);
  memcpy(&next, &symbol, sizeof(next));
  atomic_fetch_add(&registrations, 1);
  return next(prepare, in_parent, in_child, library);
}

/* An allocator that registers handlers for each of its heaps uses up the memory for them, and each fork calls them all
 * (zackees/mimalloc-pprof#270). */
static void they_are_registered_once(void) {
  const int before = atomic_load(&registrations);
  CHECK(before >= 2); /* this program's at its very beginning, and the library's */
  for (int round = 0; round < 100; round++) {
    live_once(HOST);
    live_once(CUSTOM);
  }
  CHECK(atomic_load(&registrations) == before);
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(before_any_creation),        CASE(of_one_that_was_never_created),
      CASE(while_callbacks_are_set),    CASE(one_comes_behind_the_locks),
      CASE(the_first_one_comes),        CASE(while_others_destroy),
      CASE(while_one_waits_to_destroy), CASE(handlers_that_call),
      CASE(they_are_registered_once),
  };
  return RUN_CASE(cases, argc, argv);
}
