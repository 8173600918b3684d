/* A library that was loaded by dlopen, and a thread that meets it for the first time when there is no host
 * memory left: the C library obtains `thread_local` memory of such a library from malloc, and ends the process
 * if there is none. Here every call is served or fails, and the failure has words.
 *
 *     new_thread LIBRARY
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "host_memory.h"

#define BEFORE_WORDS() host_memory_disarm()
#include "../c/loaded.h"

#include <bfc.h>

#include <pthread.h>

/* More than the library has room for without asking. */
enum { HOST = 256, THREADS = 40 };

static bfc_status_t (*create)(int32_t, const bfc_options_t *);
static bfc_status_t (*alloc)(int32_t, size_t, void **);
static bfc_status_t (*give_back)(int32_t, void *);
static bfc_status_t (*scope_begin)(const char *, uint64_t);
static size_t (*last_error)(char *, size_t);

static pthread_barrier_t all_alive;
static int had_words, had_scope;

static void *meet(void *unused) {
  char words[256];
  void *ptr = unused;
  bfc_status_t scope;
  host_memory_refuse(1, ALL_FROM_THERE);
  host_memory_arm();
  CHECK(alloc(HOST, 100, &ptr) == BFC_OK && give_back(HOST, ptr) == BFC_OK);
  CHECK(give_back(HOST, ptr) == BFC_ERROR_DOUBLE_FREE);
  had_words += last_error(words, sizeof(words)) > 0 && strstr(words, "free already") != NULL;
  scope = scope_begin("step", 1);
  CHECK(scope == BFC_OK || scope == BFC_ERROR_OUT_OF_MEMORY);
  had_scope += scope == BFC_OK;
  CHECK(alloc(HOST, 100, &ptr) == BFC_OK && give_back(HOST, ptr) == BFC_OK);
  CHECK(alloc(HOST, (size_t)-1, &ptr) == BFC_ERROR_OUT_OF_MEMORY);
  host_memory_disarm();
  return NULL;
}

/* One after another, and not while threads are made, for there is one switch for the memory of all; then they
 * stay until all have met it. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void *run(void *unused) {
  pthread_mutex_lock(&turn);
  meet(unused);
  pthread_mutex_unlock(&turn);
  pthread_barrier_wait(&all_alive);
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[THREADS];
  bfc_options_t options = BFC_OPTIONS_INIT;
  int at, round;
  void *library, *ptr = NULL;
  CHECK(argc == 2);
  alarm(120);
  library = load(argv[1]);
  find(library, "bfc_create", &create);
  find(library, "bfc_alloc", &alloc);
  find(library, "bfc_free", &give_back);
  find(library, "bfc_scope_begin", &scope_begin);
  find(library, "bfc_last_error", &last_error);
  options.backend = BFC_BACKEND_HOST;
  options.memory_limit = 1 << 20;
  CHECK(create(HOST, &options) == BFC_OK && alloc(HOST, 1, &ptr) == BFC_OK);
  /* The pool has its memory, that for the name included: it is the threads' that is looked at. */
  CHECK(scope_begin("step", 0) == BFC_OK && alloc(HOST, 100, &ptr) == BFC_OK && give_back(HOST, ptr) == BFC_OK);
  CHECK(pthread_barrier_init(&all_alive, NULL, THREADS) == 0);
  /* Twice: what a thread that ended had is there for another. */
  for (round = 0; round < 2; round++) {
    had_words = had_scope = 0;
    pthread_mutex_lock(&turn);
    for (at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, run, NULL) == 0);
    pthread_mutex_unlock(&turn);
    for (at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
    /* Sixteen at least, the main thread among them, and not all: else the memory was not refused. */
    CHECK(had_words >= 15 && had_words < THREADS);
    CHECK(had_scope >= 15 && had_scope < THREADS);
  }
  return 0;
}
