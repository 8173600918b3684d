/* The words for failures: one set for each thread, cut where they do not fit, left alone by successes.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

#include <limits.h>
#include <pthread.h>

enum { HOST = 256, MIB = 1 << 20, THREADS = 16 };

static void status_strings(void) {
  static const bfc_status_t unknown[] = {-1, 13, 14, 1000, INT_MAX, INT_MIN};
  bfc_status_t status, other;
  size_t at;
  for (status = BFC_OK; status <= BFC_ERROR_INTERNAL; status++) {
    const char *const text = bfc_status_string(status);
    CHECK(text != NULL && strlen(text) > 3);
    CHECK(bfc_status_string(status) == text); /* static: always the same */
    for (other = BFC_OK; other < status; other++) CHECK(strcmp(text, bfc_status_string(other)) != 0);
  }
  for (at = 0; at < sizeof(unknown) / sizeof(unknown[0]); at++) {
    CHECK(bfc_status_string(unknown[at]) != NULL && bfc_status_string(unknown[at])[0] != '\0');
  }
}

static pthread_barrier_t everyone_failed;

static void *fail_in_a_thread(void *number) {
  const int32_t device = (int32_t)(intptr_t)number;
  char words[256], expected[64];
  CHECK(bfc_last_error(words, sizeof(words)) == 0 && words[0] == '\0');
  CHECK_STATUS(bfc_destroy(-device), BFC_ERROR_INVALID_ARGUMENT);
  pthread_barrier_wait(&everyone_failed);
  CHECK(bfc_last_error(words, sizeof(words)) == strlen(words));
  snprintf(expected, sizeof(expected), "device -%d:", device);
  CHECK(strstr(words, expected) == words);
  return NULL;
}

static void each_thread_has_its_own(void) {
  pthread_t threads[THREADS];
  char words[256];
  intptr_t at;
  CHECK_STATUS(bfc_destroy(-99), BFC_ERROR_INVALID_ARGUMENT);
  CHECK(pthread_barrier_init(&everyone_failed, NULL, THREADS) == 0);
  for (at = 0; at < THREADS; at++) {
    CHECK(pthread_create(&threads[at], NULL, fail_in_a_thread, (void *)(at + 1)) == 0);
  }
  for (at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL) == 0);
  bfc_last_error(words, sizeof(words));
  CHECK(strstr(words, "device -99:") == words);
  CHECK(pthread_barrier_destroy(&everyone_failed) == 0);
}

static void a_success_leaves_it(void) {
  bfc_options_t options = host_options(MIB);
  char before[256], after[256];
  CHECK_STATUS(bfc_destroy(HOST), BFC_ERROR_NO_ALLOCATOR);
  bfc_last_error(before, sizeof(before));
  CHECK_OK(bfc_create(HOST, &options));
  CHECK_OK(bfc_free(HOST, allocate(HOST, 1)));
  CHECK_OK(bfc_destroy(HOST));
  bfc_last_error(after, sizeof(after));
  CHECK(before[0] != '\0' && strcmp(before, after) == 0);
}

/* Also one that looks at devices where there is nothing any more. */
static void the_owner_leaves_it(void) {
  bfc_options_t options = host_options(MIB);
  char before[256], after[256], *ptr;
  int32_t device;
  for (device = 3; device < 8; device++) CHECK_OK(bfc_create(device, &options));
  for (device = 3; device < 7; device++) CHECK_OK(bfc_destroy(device));
  ptr = allocate(7, 1000);
  CHECK_STATUS(bfc_free(7, ptr + 1), BFC_ERROR_INVALID_POINTER);
  CHECK(bfc_last_error(before, sizeof(before)) > 0);
  CHECK_OK(bfc_owner(ptr, &device));
  CHECK(device == 7);
  bfc_last_error(after, sizeof(after));
  CHECK(strcmp(before, after) == 0);
  CHECK_OK(bfc_free(7, ptr));
  CHECK_OK(bfc_destroy(7));
}

/* Where nothing was created the words name the device, whatever was called. */
static void nothing_created_names_the_device(void) {
  bfc_stats_t stats = BFC_STATS_INIT;
  void *ptr = NULL;
  size_t length;
  uint64_t count;
#define NAMES_THE_DEVICE(call) CHECK_REFUSED(call, BFC_ERROR_NO_ALLOCATOR, "device 321")
  NAMES_THE_DEVICE(bfc_alloc(321, 1, &ptr));
  NAMES_THE_DEVICE(bfc_alloc_aligned(321, 1, 512, &ptr));
  NAMES_THE_DEVICE(bfc_alloc_freed_before(321, 1, 1, &ptr));
  NAMES_THE_DEVICE(bfc_free(321, &ptr));
  NAMES_THE_DEVICE(bfc_requested_size(321, &ptr, &length));
  NAMES_THE_DEVICE(bfc_trim(321, 0, &count));
  NAMES_THE_DEVICE(bfc_set_memory_limit(321, 1));
  NAMES_THE_DEVICE(bfc_timestamp(321, &count));
  NAMES_THE_DEVICE(bfc_stats(321, &stats));
  NAMES_THE_DEVICE(bfc_report(321, NULL, 0, &length));
  NAMES_THE_DEVICE(bfc_check(321));
  NAMES_THE_DEVICE(bfc_destroy(321));
  NAMES_THE_DEVICE(bfc_destroy_forced(321));
}

static void cut_where_it_does_not_fit(void) {
  char whole[1100], buffer[1100];
  size_t length, capacity;
  CHECK_STATUS(bfc_destroy(-1), BFC_ERROR_INVALID_ARGUMENT);
  length = bfc_last_error(whole, sizeof(whole));
  CHECK(length > 10 && length < 1024 && strlen(whole) == length);
  CHECK(bfc_last_error(NULL, 0) == length && bfc_last_error(NULL, 100) == length);
  for (capacity = 0; capacity <= length + 2; capacity++) {
    const size_t fits = capacity == 0 ? 0 : capacity - 1 < length ? capacity - 1 : length;
    memset(buffer, '#', sizeof(buffer));
    CHECK(bfc_last_error(buffer, capacity) == length);
    CHECK(memcmp(buffer, whole, fits) == 0);
    if (capacity != 0) CHECK(buffer[fits] == '\0');
    CHECK(is_filled(buffer + capacity, sizeof(buffer) - capacity, '#'));
  }
}

/* The pool's name is in the words, and a name may have any length. */
static void long_words_are_cut(void) {
  static char name[1 << 16];
  char words[2048];
  bfc_options_t options = host_options(MIB);
  memset(name, 'n', sizeof(name) - 1);
  options.name = name;
  CHECK_OK(bfc_create(HOST, &options));
  allocate(HOST, 1);
  CHECK_STATUS(bfc_destroy(HOST), BFC_ERROR_BUSY);
  CHECK(bfc_last_error(words, sizeof(words)) == strlen(words));
  CHECK(strlen(words) > 100 && strlen(words) < sizeof(words) - 1);
  CHECK_OK(bfc_destroy_forced(HOST));
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(status_strings),      CASE(each_thread_has_its_own),          CASE(a_success_leaves_it),
      CASE(the_owner_leaves_it), CASE(nothing_created_names_the_device), CASE(cut_where_it_does_not_fit),
      CASE(long_words_are_cut),
  };
  return RUN_CASE(cases, argc, argv);
}
