/* Calls that overlap with another thread's call of the backend: room that is on its way is waited for, a free
 * is never overlooked, and who needs nothing of all this does not wait.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

enum { DEVICE = 600, MIB = 1 << 20 };

static void wait_for(sem_t *semaphore) {
  while (sem_wait(semaphore) != 0) CHECK(errno == EINTR);
}

/* A function of the backend stops in its call number `stops_at`, until the test lets it go on. */
typedef struct gate {
  atomic_int stops_at;
  sem_t inside, open;
} gate;

static gate at_give, at_take;

static void prepare(gate *of, int stops_at) {
  CHECK(sem_init(&of->inside, 0, 0) == 0 && sem_init(&of->open, 0, 0) == 0);
  atomic_store(&of->stops_at, stops_at);
}

static void pass(gate *of) {
  if (atomic_fetch_sub(&of->stops_at, 1) != 1) return;
  CHECK(sem_post(&of->inside) == 0);
  wait_for(&of->open);
}

static void let_go_on(gate *of) { CHECK(sem_post(&of->open) == 0); }

/* How long a thread gets to arrive inside the library where it cannot say so. If it comes later, it finds
 * what it would have waited for, and the test proves less. */
static void let_arrive(void) { usleep(200000); }

static atomic_int refuses, asked;
/* Where it is set the backend is slow for this thread: another request is through before. */
static _Thread_local sem_t *slow;

static void *give(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  void *ptr = NULL;
  (void)user_data, (void)received;
  atomic_fetch_add(&asked, 1);
  pass(&at_give);
  if (slow != NULL) {
    struct timespec until;
    CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += 2;
    sem_timedwait(slow, &until);
  }
  if (atomic_load(&refuses)) {
    usleep(2000);
    return NULL;
  }
  return posix_memalign(&ptr, alignment, bytes) == 0 ? ptr : NULL;
}

static void take(void *user_data, void *ptr, size_t bytes) {
  (void)user_data, (void)bytes;
  pass(&at_take);
  free(ptr);
}

/* No gate stops a thread before the test prepares one. The rest of a large chunk is available to other requests. */
static void begin(uint64_t limit, uint32_t flags, uint32_t retry_ms) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.flags = BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS | flags;
  options.memory_limit = limit;
  options.initial_region_bytes = 2 * MIB;
  options.retry_timeout_ms = retry_ms;
  use_functions(&options, &suballocator, give, take);
  CHECK_OK(bfc_create(DEVICE, &options));
}

static void end(void) {
  CHECK_OK(bfc_check(DEVICE));
  CHECK(stats_of(DEVICE).bytes_in_use == 0);
  CHECK_OK(bfc_destroy(DEVICE));
}

/* Regions of 2, 4 and 2 MiB, which are the limit, and nothing in use. */
static void begin_with_free_regions(uint32_t flags) {
  char *pieces[3];
  int at;
  begin(8 * MIB, flags, 0);
  for (at = 0; at < 3; at++) pieces[at] = allocate(DEVICE, at == 1 ? 4 * MIB : 2 * MIB);
  for (at = 0; at < 3; at++) CHECK_OK(bfc_free(DEVICE, pieces[at]));
  CHECK(stats_of(DEVICE).num_regions == 3 && stats_of(DEVICE).pool_bytes == 8 * MIB);
}

/* A call in a thread of its own, and how it has to end. */
typedef struct call {
  bfc_status_t (*make)(struct call *self);
  bfc_status_t expected;
  size_t bytes;
  void *ptr;
  uint64_t released;
  sem_t *slow, *through;
  pthread_t thread;
} call;

static bfc_status_t request(call *self) { return bfc_alloc(DEVICE, self->bytes, &self->ptr); }
static bfc_status_t trim(call *self) { return bfc_trim(DEVICE, self->bytes, &self->released); }
static bfc_status_t destroy(call *self) {
  (void)self;
  return bfc_destroy_forced(DEVICE);
}

static void *run(void *of) {
  call *const self = (call *)of;
  slow = self->slow;
  CHECK_STATUS(self->make(self), self->expected);
  if (self->through != NULL) CHECK(sem_post(self->through) == 0);
  return NULL;
}

static void start(call *of) { CHECK(pthread_create(&of->thread, NULL, run, of) == 0); }
static void join(call *of) { CHECK(pthread_join(of->thread, NULL) == 0); }

/* A call that stops in the backend, the n-th time that it gets there. */
static void start_and_stop(call *of, gate *at, int nth) {
  prepare(at, nth);
  start(of);
  wait_for(&at->inside);
}

/* One that comes while another has stopped. */
static void start_meanwhile(call *of) {
  start(of);
  let_arrive();
}

static void free_what_it_got(const call *of) { CHECK_OK(bfc_free(DEVICE, of->ptr)); }

/* The first one stops where it gives regions back, the other comes, both end, and have what they wanted. */
static void meet_at_take(call *collector, int nth, call *asker) {
  begin_with_free_regions(BFC_GARBAGE_COLLECTION);
  start_and_stop(collector, &at_take, nth);
  start_meanwhile(asker);
  let_go_on(&at_take);
  join(collector);
  join(asker);
  free_what_it_got(collector);
  free_what_it_got(asker);
  end();
}

/* Regions that are being given back are neither in use nor free, and soon make room for others. */
static void trimmed_room_is_waited_for(void) {
  call trimmer = {.make = trim}, asker = {.make = request, .bytes = MIB};
  begin_with_free_regions(0);
  start_and_stop(&trimmer, &at_take, 1);
  start_meanwhile(&asker);
  let_go_on(&at_take);
  join(&asker);
  join(&trimmer);
  CHECK(trimmer.released == 8 * MIB);
  free_what_it_got(&asker);
  end();
}

static void collected_room_is_waited_for(void) {
  call collector = {.make = request, .bytes = 5 * MIB}, asker = {.make = request, .bytes = MIB};
  meet_at_take(&collector, 1, &asker);
}

/* Another request comes when there is room for a region again, but not yet for that of the thread which made
 * it. Were the other one's region obtained first, and slowly, there would be nothing for the collector. */
static void the_collector_gets_what_it_made_room_for(void) {
  sem_t collector_is_through;
  call collector = {.make = request, .bytes = 5 * MIB, .through = &collector_is_through};
  call asker = {.make = request, .bytes = MIB, .slow = &collector_is_through};
  CHECK(sem_init(&collector_is_through, 0, 0) == 0);
  meet_at_take(&collector, 3, &asker);
}

/* What is freed while the backend makes up its mind serves the request that the backend refuses. */
static void freed_while_the_backend_refuses(uint32_t retry_ms) {
  call asker = {.make = request, .bytes = MIB};
  char *live;
  begin(16 * MIB, 0, retry_ms);
  live = allocate(DEVICE, 2 * MIB);
  atomic_store(&refuses, 1);
  start_and_stop(&asker, &at_give, 1);
  CHECK_OK(bfc_free(DEVICE, live));
  let_go_on(&at_give);
  join(&asker);
  CHECK(asker.ptr == (void *)live && stats_of(DEVICE).num_failures == 0);
  free_what_it_got(&asker);
  end();
}

static void a_free_is_seen_behind_a_refusal(void) { freed_while_the_backend_refuses(0); }
/* Otherwise the request would sleep for ten minutes, because no other thread would wake it. */
static void a_free_is_seen_before_a_wait(void) { freed_while_the_backend_refuses(600000); }

/* Each trim counts what is left, not what the other one is just giving back. */
static void two_trims_keep_what_they_were_told(void) {
  call trimmer = {.make = trim, .bytes = 4 * MIB};
  uint64_t released = 7;
  begin_with_free_regions(0);
  start_and_stop(&trimmer, &at_take, 1);
  CHECK_OK(bfc_trim(DEVICE, 4 * MIB, &released));
  CHECK(released == 0);
  let_go_on(&at_take);
  join(&trimmer);
  CHECK(trimmer.released == 4 * MIB && stats_of(DEVICE).pool_bytes == 4 * MIB);
  CHECK_OK(bfc_trim(DEVICE, 0, &released));
  CHECK(released == 4 * MIB);
  end();
}

/* Whoever finds what it wants does not wait for the backend. */
static void others_go_on_meanwhile(void) {
  call asker = {.make = request, .bytes = 4 * MIB};
  uint64_t released;
  size_t length;
  char *live;
  begin(16 * MIB, 0, 0);
  live = allocate(DEVICE, MIB);
  start_and_stop(&asker, &at_give, 1);
  CHECK_OK(bfc_free(DEVICE, allocate(DEVICE, 1000)));
  CHECK_OK(bfc_free(DEVICE, live));
  CHECK(allocate(DEVICE, 2 * MIB) == live);
  CHECK_OK(bfc_report(DEVICE, NULL, 0, &length));
  CHECK_OK(bfc_trim(DEVICE, 0, &released));
  CHECK(released == 0);
  CHECK_OK(bfc_check(DEVICE));
  CHECK_OK(bfc_free(DEVICE, live));
  let_go_on(&at_give);
  join(&asker);
  free_what_it_got(&asker);
  end();
}

/* A request that waits for another request's region is served by memory that is freed before the region arrives. */
static void a_free_serves_who_waits_for_a_region(void) {
  call first = {.make = request, .bytes = 4 * MIB}, second = {.make = request, .bytes = MIB};
  char *live;
  begin(16 * MIB, 0, 0);
  live = allocate(DEVICE, 2 * MIB);
  start_and_stop(&first, &at_give, 1);
  start_meanwhile(&second);
  CHECK_OK(bfc_free(DEVICE, live));
  join(&second);
  CHECK(second.ptr == (void *)live);
  let_go_on(&at_give);
  join(&first);
  free_what_it_got(&first);
  free_what_it_got(&second);
  end();
}

/* The backend refuses two requests, each made while the other one's refusal is being logged. Nothing is freed, so
 * neither asks a second time because of the other. */
static void tell_slowly(void *user_data, int32_t level, const char *message) {
  (void)user_data, (void)level;
  if (strstr(message, "refused") != NULL) usleep(4000);
}

static void those_who_are_refused_give_up(void) {
  call askers[2] = {{.make = request, .bytes = MIB, .expected = BFC_ERROR_OUT_OF_MEMORY},
                    {.make = request, .bytes = MIB, .expected = BFC_ERROR_OUT_OF_MEMORY}};
  int at;
  alarm(60); /* they would go on forever */
  setenv("BFC_LOG", "debug", 1);
  CHECK_OK(bfc_set_log_callback(tell_slowly, NULL));
  begin(16 * MIB, 0, 0);
  atomic_store(&refuses, 1);
  atomic_store(&asked, 0);
  for (at = 0; at < 2; at++) start(&askers[at]);
  for (at = 0; at < 2; at++) join(&askers[at]);
  /* From 2 MiB down to 1 MiB in steps of a tenth, each. */
  CHECK(atomic_load(&asked) <= 2 * 8);
  CHECK(stats_of(DEVICE).num_failures == 2);
  end();
}

/* Others free and allocate all the time, and nothing of that helps: who is refused says so all the same. */
static atomic_int is_over;

static void *churn(void *unused) {
  (void)unused;
  while (!atomic_load(&is_over)) {
    CHECK_OK(bfc_free(DEVICE, allocate(DEVICE, 1000)));
    /* Where one thread runs at a time, as under valgrind, the other would hardly ever come. */
    sched_yield();
  }
  return NULL;
}

static void a_refusal_is_final_while_others_are_busy(void) {
  call asker = {.make = request, .bytes = 8 * MIB, .expected = BFC_ERROR_OUT_OF_MEMORY};
  pthread_t busy;
  char *live;
  alarm(60); /* it would go on forever */
  begin(64 * MIB, BFC_GARBAGE_COLLECTION, 0);
  live = allocate(DEVICE, MIB);
  atomic_store(&refuses, 1);
  atomic_store(&asked, 0);
  CHECK(pthread_create(&busy, NULL, churn, NULL) == 0);
  start(&asker);
  join(&asker);
  atomic_store(&is_over, 1);
  CHECK(pthread_join(busy, NULL) == 0);
  /* One series of ever smaller regions, from 8 MiB down to 8 MiB. */
  CHECK(atomic_load(&asked) == 1);
  CHECK_OK(bfc_free(DEVICE, live));
  end();
}

/* The end of the allocator wakes who waits for room, while the backend is still busy making it. */
static void destruction_wakes_who_waits_for_room(void) {
  call trimmer = {.make = trim, .expected = BFC_ERROR_SHUTTING_DOWN};
  call asker = {.make = request, .bytes = MIB, .expected = BFC_ERROR_SHUTTING_DOWN};
  call destroyer = {.make = destroy};
  begin_with_free_regions(0);
  start_and_stop(&trimmer, &at_take, 1);
  start_meanwhile(&asker);
  start(&destroyer);
  join(&asker);
  CHECK(asker.ptr == NULL);
  let_go_on(&at_take);
  join(&trimmer);
  join(&destroyer);
  begin(8 * MIB, 0, 0);
  end();
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(trimmed_room_is_waited_for),
      CASE(collected_room_is_waited_for),
      CASE(the_collector_gets_what_it_made_room_for),
      CASE(a_free_is_seen_behind_a_refusal),
      CASE(a_free_is_seen_before_a_wait),
      CASE(two_trims_keep_what_they_were_told),
      CASE(others_go_on_meanwhile),
      CASE(a_free_serves_who_waits_for_a_region),
      CASE(destruction_wakes_who_waits_for_room),
      CASE(those_who_are_refused_give_up),
      CASE(a_refusal_is_final_while_others_are_busy),
  };
  return RUN_CASE(cases, argc, argv);
}
