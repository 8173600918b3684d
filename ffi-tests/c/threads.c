/* Sixteen threads in one allocator while another creates and destroys it, and races for one thing that only
 * one can get. Time, not counts, ends each test, so that they also end in valgrind.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

enum { HOST = 256, CUSTOM = 700, MIB = 1 << 20, KIB = 1 << 10, THREADS = 16, HELD = 8, RACES = 200 };

static int64_t now_ms(void) {
  struct timespec now;
  CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static uint32_t next_random(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

/* Regions from a few fixed places: never two at one place, all given back in the end. */
enum { PLACES = 64, PLACE_BYTES = 256 * KIB };
static _Alignas(4096) char places[PLACES][PLACE_BYTES];
static atomic_int taken[PLACES];
static atomic_int outstanding;

static void *give(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  int at;
  CHECK(user_data == taken && alignment >= 256 && alignment <= 4096);
  if (bytes > PLACE_BYTES) return NULL;
  for (at = 0; at < PLACES; at++) {
    if (atomic_exchange(&taken[at], 1) == 0) {
      atomic_fetch_add(&outstanding, 1);
      *received = bytes;
      return places[at];
    }
  }
  return NULL;
}

static void take(void *user_data, void *ptr, size_t bytes) {
  const ptrdiff_t at = ((char *)ptr - places[0]) / PLACE_BYTES;
  CHECK(user_data == taken && at >= 0 && at < PLACES && ptr == places[at] && bytes <= PLACE_BYTES);
  CHECK(atomic_exchange(&taken[at], 0) == 1);
  atomic_fetch_sub(&outstanding, 1);
}

static bfc_status_t create(int32_t device) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = host_options(8 * MIB);
  options.flags |= BFC_GARBAGE_COLLECTION;
  options.initial_region_bytes = 64 * KIB;
  if (device == CUSTOM) {
    suballocator.user_data = taken;
    use_functions(&options, &suballocator, give, take);
  }
  return bfc_create(device, &options);
}

static int32_t device;
static int forced;
static atomic_int stop, rest;
static atomic_long served, lives;

/* With a polite destroyer live chunks keep the allocator, so that every pointer is good until it is freed.
 * With a forced one pointers go stale at any moment; where another allocator then has the address, the free
 * of a stale pointer may even hit a live chunk, so contents are not looked at. */
static void give_back(char *ptr) {
  const bfc_status_t status = bfc_free(device, ptr);
  if (!forced || ptr == NULL) CHECK_OK(status); /* NULL is always fine */
  CHECK(status == BFC_OK || status == BFC_ERROR_NO_ALLOCATOR || status == BFC_ERROR_SHUTTING_DOWN ||
        status == BFC_ERROR_INVALID_POINTER || status == BFC_ERROR_DOUBLE_FREE);
}

static void asked(bfc_status_t status) {
  CHECK(status == BFC_OK || status == BFC_ERROR_NO_ALLOCATOR || status == BFC_ERROR_SHUTTING_DOWN);
}

static void ask_something(uint32_t which, void *ptr) {
  static _Thread_local char text[4096];
  bfc_stats_t stats = BFC_STATS_INIT;
  size_t bytes = 0;
  uint64_t released = 0;
  int32_t owner = -1;
  void *chunk, *region;
  bfc_status_t status;
  switch (which % 8) {
    case 0: asked(bfc_stats(device, &stats)); break;
    case 1: asked(bfc_trim(device, MIB, &released)); break;
    case 2: asked(bfc_report(device, text, sizeof(text), &bytes)); break;
    case 3: asked(bfc_memory_map(device, text, sizeof(text), &bytes)); break;
    case 4: asked(bfc_check(device)); break;
    case 5: asked(bfc_occupancy(device, text, sizeof(text), &bytes)); break;
    case 6:
      status = bfc_owner(ptr, &owner);
      CHECK(status == BFC_ERROR_INVALID_POINTER || (status == BFC_OK && owner == device));
      break;
    default:
      status = bfc_address_range(device, ptr, &chunk, &bytes, &region, &bytes);
      if (status != BFC_ERROR_INVALID_POINTER) asked(status);
  }
}

static void *work(void *number) {
  uint32_t random = (uint32_t)(intptr_t)number + 1;
  char *held[HELD] = {NULL};
  size_t sizes[HELD] = {0};
  const char mark = (char)(intptr_t)number;
  size_t at;
  while (!atomic_load(&stop)) {
    if (atomic_load(&rest)) {
      /* Nothing is held for longer than a moment, so that a polite destroyer finds nothing live some time. */
      for (at = 0; at < HELD; at++) {
        give_back(held[at]);
        held[at] = NULL;
      }
      sched_yield();
    }
    at = next_random(&random) % HELD;
    if (held[at] != NULL) {
      if (!forced) CHECK(is_filled(held[at], sizes[at] < 64 ? sizes[at] : 64, mark));
      give_back(held[at]);
      held[at] = NULL;
    } else {
      void *ptr = &ptr;
      const size_t size = 1 + next_random(&random) % (next_random(&random) % 8 ? 4 * KIB : 96 * KIB);
      const bfc_status_t status = next_random(&random) % 8
                                      ? bfc_alloc(device, size, &ptr)
                                      : bfc_alloc_aligned(device, size, (size_t)1 << next_random(&random) % 13, &ptr);
      if (status != BFC_ERROR_OUT_OF_MEMORY) asked(status);
      CHECK((status == BFC_OK) == (ptr != NULL));
      if (status == BFC_OK) {
        if (!forced) memset(ptr, mark, size < 64 ? size : 64);
        held[at] = (char *)ptr;
        sizes[at] = size;
        atomic_fetch_add(&served, 1);
      }
    }
    if (next_random(&random) % 64 == 0) ask_something(next_random(&random), &random);
  }
  for (at = 0; at < HELD; at++) give_back(held[at]);
  return NULL;
}

static void *create_and_destroy(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) {
    const struct timespec pause = {0, 200000};
    bfc_status_t status = create(device);
    CHECK(status == BFC_OK || status == BFC_ERROR_ALREADY_EXISTS || status == BFC_ERROR_SHUTTING_DOWN);
    nanosleep(&pause, NULL);
    atomic_store(&rest, 1);
    for (;;) {
      status = forced ? bfc_destroy_forced(device) : bfc_destroy(device);
      if (status != BFC_ERROR_BUSY || forced || atomic_load(&stop)) break;
      /* A thread that asks repeatedly holds the lock nearly all the time. In valgrind, where threads take turns, the
         others would find it locked in each turn, and could not give back what keeps it busy. */
      nanosleep(&pause, NULL);
    }
    atomic_store(&rest, 0);
    CHECK(status == BFC_OK || (status == BFC_ERROR_BUSY && !forced));
    if (status == BFC_OK) atomic_fetch_add(&lives, 1);
  }
  return NULL;
}

static void churn(int32_t which, int by_force) {
  pthread_t threads[THREADS + 1];
  const int64_t start = now_ms();
  intptr_t at;
  bfc_status_t status;
  device = which;
  forced = by_force;
  CHECK(pthread_create(&threads[THREADS], NULL, create_and_destroy, NULL) == 0);
  for (at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, work, (void *)at) == 0);
  /* A second, and until something happened at all. */
  while (now_ms() - start < 1000 || (now_ms() - start < 60000 && (served < 100 || lives < 3))) {
    const struct timespec pause = {0, 10000000};
    nanosleep(&pause, NULL);
  }
  atomic_store(&stop, 1);
  for (at = 0; at <= THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
  CHECK(served >= 100 && lives >= 3);
  printf("%ld allocations in %ld lives\n", served, lives);
  status = bfc_check(device);
  CHECK(status == BFC_OK || status == BFC_ERROR_NO_ALLOCATOR);
  status = bfc_destroy_forced(device);
  CHECK(status == BFC_OK || status == BFC_ERROR_NO_ALLOCATOR);
  CHECK(outstanding == 0);
  CHECK_OK(create(device));
  CHECK_OK(bfc_free(device, allocate(device, 1)));
  CHECK_OK(bfc_destroy(device));
}

static void churn_host(void) { churn(HOST, 0); }
static void churn_host_forced(void) { churn(HOST, 1); }
static void churn_custom(void) { churn(CUSTOM, 0); }
static void churn_custom_forced(void) { churn(CUSTOM, 1); }

/* Races for one thing: all at once, one gets it, the others are told why not. */
static pthread_barrier_t start_line;
static atomic_int winners;
static void *contested;
static int racing;

enum { FREE, CREATE, DESTROY };

static void race_once(void) {
  if (racing == FREE) {
    const bfc_status_t status = bfc_free(HOST, contested);
    CHECK(status == BFC_OK || status == BFC_ERROR_DOUBLE_FREE);
    if (status == BFC_OK) atomic_fetch_add(&winners, 1);
  } else if (racing == CREATE) {
    const bfc_status_t status = create(HOST);
    CHECK(status == BFC_OK || status == BFC_ERROR_ALREADY_EXISTS);
    if (status == BFC_OK) atomic_fetch_add(&winners, 1);
  } else {
    const bfc_status_t status = bfc_destroy(HOST);
    CHECK(status == BFC_OK || status == BFC_ERROR_NO_ALLOCATOR || status == BFC_ERROR_SHUTTING_DOWN);
    if (status == BFC_OK) atomic_fetch_add(&winners, 1);
  }
}

static void *race(void *unused) {
  int round;
  (void)unused;
  for (round = 0; round < RACES; round++) {
    pthread_barrier_wait(&start_line);
    race_once();
    pthread_barrier_wait(&start_line);
  }
  return NULL;
}

/* `before` and `after` run while no other thread races. */
static void races(int what, void (*before)(void), void (*after)(void)) {
  pthread_t threads[THREADS];
  int at, round;
  racing = what;
  CHECK(pthread_barrier_init(&start_line, NULL, THREADS + 1) == 0);
  for (at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, race, NULL) == 0);
  for (round = 0; round < RACES; round++) {
    winners = 0;
    before();
    pthread_barrier_wait(&start_line);
    pthread_barrier_wait(&start_line);
    CHECK(winners == 1);
    after();
  }
  for (at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
}

static void nothing(void) {}
static void create_it(void) { CHECK_OK(create(HOST)); }
static void destroy_it(void) { CHECK_OK(bfc_destroy(HOST)); }
static void allocate_it(void) { contested = allocate(HOST, 1000); }
static void check_it(void) { CHECK_OK(bfc_check(HOST)); }

static void one_thread_frees(void) {
  create_it();
  /* Neighbours in use, so that the freed chunk keeps its start and every other free is a double one. */
  allocate(HOST, 1000);
  contested = allocate(HOST, 1000);
  allocate(HOST, 1000);
  CHECK_OK(bfc_free(HOST, contested));
  races(FREE, allocate_it, check_it);
  CHECK_OK(bfc_destroy_forced(HOST));
}

static void one_thread_creates(void) { races(CREATE, nothing, destroy_it); }
static void one_thread_destroys(void) { races(DESTROY, create_it, nothing); }

/* The thread that allocated is gone; its memory is not. */
static void *allocate_and_end(void *out) {
  char *const ptr = allocate(HOST, 1000);
  memset(ptr, 't', 1000);
  *(char **)out = ptr;
  CHECK_OK(bfc_scope_begin("left open", 1));
  return NULL;
}

static void memory_outlives_its_thread(void) {
  char *ptrs[100];
  int at;
  create_it();
  for (at = 0; at < 100; at++) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocate_and_end, &ptrs[at]) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
  }
  for (at = 0; at < 100; at++) {
    CHECK(is_filled(ptrs[at], 1000, 't'));
    CHECK_OK(bfc_free(HOST, ptrs[at]));
  }
  destroy_it();
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(churn_host),       CASE(churn_host_forced),  CASE(churn_custom),        CASE(churn_custom_forced),
      CASE(one_thread_frees), CASE(one_thread_creates), CASE(one_thread_destroys), CASE(memory_outlives_its_thread),
  };
  return RUN_CASE(cases, argc, argv);
}
