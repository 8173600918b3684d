/* The occupancy line, the memory map and the report: what they say, and what they do with small buffers.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

#include <sys/wait.h>

enum { HOST = 256, UNIT = 256 };

typedef bfc_status_t (*writer)(int32_t, char *, size_t, size_t *);

/* All of a report, to be freed. */
static char *all_of(writer write) {
  size_t length = 0, again = 0;
  char *text;
  CHECK_OK(write(HOST, NULL, 0, &length));
  text = (char *)malloc(length + 1);
  CHECK(text != NULL);
  CHECK_OK(write(HOST, text, length + 1, &again));
  CHECK(again == length && strlen(text) == length);
  return text;
}

/* One region of 100 units, so that a column is a unit. */
static void begin(const char *name) {
  bfc_options_t options = host_options(100 * UNIT);
  options.flags = 0;
  options.name = name;
  CHECK_OK(bfc_create(HOST, &options));
}

static void occupancy_is(const char *expected) {
  char line[101];
  size_t length = 0;
  CHECK_OK(bfc_occupancy(HOST, line, sizeof(line), &length));
  CHECK(length == 100 && strlen(line) == 100);
  if (strcmp(line, expected) != 0) check_failed(__FILE__, __LINE__, line, expected);
}

#define TEN(c) c c c c c c c c c c

static void occupancy(void) {
  char *first, *second;
  begin(NULL);
  occupancy_is(TEN(TEN("_"))); /* no region yet */
  first = allocate(HOST, 10 * UNIT);
  second = allocate(HOST, 10 * UNIT);
  allocate(HOST, 80 * UNIT);
  occupancy_is(TEN(TEN("*")));
  CHECK_OK(bfc_free(HOST, first));
  occupancy_is(TEN("_") TEN("*") TEN("********"));
  /* Six of ten units are no reason to split: the rest is slack. */
  CHECK(allocate(HOST, 6 * UNIT) == first);
  CHECK_OK(bfc_free(HOST, second));
  occupancy_is("******xxxx" TEN("_") TEN("********"));
  CHECK_OK(bfc_destroy_forced(HOST));
}

/* Every capacity gives the full length, a prefix, a NUL, and no byte more. (Two maps of one state are the
 * same text.) */
static void capacities_of(writer write) {
  char *const whole = all_of(write);
  const size_t length = strlen(whole);
  char *const buffer = (char *)malloc(length + 64);
  size_t capacity;
  CHECK(buffer != NULL && length > 20);
  for (capacity = 0; capacity <= length + 2; capacity++) {
    const size_t fits = capacity == 0 ? 0 : capacity - 1 < length ? capacity - 1 : length;
    size_t told = 7;
    memset(buffer, '#', length + 64);
    CHECK_OK(write(HOST, buffer, capacity, &told));
    CHECK(told == length && memcmp(buffer, whole, fits) == 0);
    if (capacity != 0) CHECK(buffer[fits] == '\0');
    CHECK(is_filled(buffer + capacity, length + 64 - capacity, '#'));
  }
  free(buffer);
  free(whole);
}

/* As the others, whether there is an allocator or not. */
static bfc_status_t resolve(int32_t device, char *buf, size_t capacity, size_t *length) {
  return bfc_resolve_options(device, NULL, buf, capacity, length);
}

static bfc_status_t metrics(int32_t device, char *buf, size_t capacity, size_t *length) {
  (void)device;
  return bfc_metrics(buf, capacity, length);
}

static void capacities(void) {
  begin("small");
  allocate(HOST, 1000);
  capacities_of(bfc_occupancy);
  capacities_of(bfc_memory_map);
  capacities_of(bfc_report);
  capacities_of(metrics);
  capacities_of(resolve);
  CHECK_OK(bfc_destroy_forced(HOST));
  capacities_of(resolve);
}

static void capacities_of_a_failing_call(void) {
  static const writer writers[] = {bfc_occupancy, bfc_memory_map, bfc_report};
  size_t at;
  for (at = 0; at < 3; at++) {
    char buffer[4] = "abc";
    size_t length = 7;
    CHECK_REFUSED(writers[at](HOST, buffer, sizeof(buffer), &length), BFC_ERROR_NO_ALLOCATOR, "create one first");
    CHECK(length == 0 && buffer[0] == '\0' && buffer[1] == 'b');
    CHECK_REFUSED(writers[at](HOST, NULL, 0, &length), BFC_ERROR_NO_ALLOCATOR, "create one first");
  }
}

/* Out-parameters are written on every path: no text of an earlier call remains. */
static void without_a_length(void) {
  static const writer writers[] = {bfc_occupancy, bfc_memory_map, bfc_report, resolve, metrics};
  size_t at;
  begin(NULL);
  for (at = 0; at < 5; at++) {
    char buffer[4] = "abc";
    CHECK_REFUSED_ON(HOST, writers[at](HOST, buffer, sizeof(buffer), NULL), BFC_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK(buffer[0] == '\0' && buffer[1] == 'b');
    CHECK_REFUSED_ON(HOST, writers[at](HOST, buffer + 1, 0, NULL), BFC_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK(buffer[1] == 'b');
    CHECK_REFUSED_ON(HOST, writers[at](HOST, NULL, 4, NULL), BFC_ERROR_INVALID_ARGUMENT, "NULL");
  }
  CHECK_OK(bfc_destroy(HOST));
}

/* A map with everything in it: several regions, slack, stamps, operations, and names that need escapes. */
static void memory_map(void) {
  static const char *const names[] = {"plain", "\"quoted\" \\ and \x01\t\n control",
                                      "gr\xc3\xbc\xc3\x9f \xf0\x9f\x90\x9b"};
  size_t at;
  for (at = 0; at < 3; at++) {
    bfc_options_t options = host_options(64u << 20);
    char *live[40], *map;
    FILE *validator;
    int status, chunk;
    options.flags |= BFC_TIMESTAMPS;
    options.name = names[at];
    CHECK_OK(bfc_create(HOST, &options));
    for (chunk = 0; chunk < 40; chunk++) {
      CHECK_OK(bfc_scope_begin(names[(at + 1) % 3], (uint64_t)chunk));
      live[chunk] = allocate(HOST, (size_t)(chunk * chunk * 1000 + 1));
      CHECK_OK(bfc_scope_end());
    }
    for (chunk = 0; chunk < 40; chunk += 3) CHECK_OK(bfc_free(HOST, live[chunk]));
    CHECK(stats_of(HOST).num_regions > 1);
    map = all_of(bfc_memory_map);
    CHECK(map[0] == '{' && map[strlen(map) - 1] == '}');
    /* A JSON parser that is not ours, and sums over what it read; without Python only the braces count. */
    if (BFC_TESTS_PYTHON[0] != '\0') {
      validator = popen(BFC_TESTS_PYTHON " " BFC_TESTS_DIR "/c/memory_map.py", "w");
      CHECK(validator != NULL);
      CHECK(fputs(map, validator) >= 0);
      status = pclose(validator);
      CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    free(map);
    CHECK_OK(bfc_destroy_forced(HOST));
  }
}

static void report(void) {
  char *text, *pieces[5];
  void *none = NULL;
  int at;
  begin("trainer");
  CHECK_OK(bfc_scope_begin("attention/softmax", 17));
  for (at = 0; at < 5; at++) pieces[at] = allocate(HOST, 20 * UNIT);
  CHECK_OK(bfc_scope_end());
  for (at = 0; at < 5; at += 2) CHECK_OK(bfc_free(HOST, pieces[at]));
  /* 60 units are free, in pieces of 20. */
  CHECK_REFUSED_ON(HOST, bfc_alloc(HOST, 30 * UNIT, &none), BFC_ERROR_OUT_OF_MEMORY, "fragmentation");
  CHECK_REFUSED_ON(HOST, bfc_alloc(HOST, 70 * UNIT, &none), BFC_ERROR_OUT_OF_MEMORY, "exhaustion");
  text = all_of(bfc_report);
  CHECK(strstr(text, "trainer") && strstr(text, "host") && strstr(text, "attention/softmax"));
  CHECK(strstr(text, "25600") && strstr(text, "2 failures") && strstr(text, "fragmentation 66.7%"));
  free(text);
  CHECK_OK(bfc_destroy_forced(HOST));
}

/* A piece that is large enough is no fragmentation: it was freed too late, or lies in the wrong place. */
static void last_error_says(const char *words) {
  char text[1100];
  bfc_last_error(text, sizeof(text));
  if (strstr(text, "fragmentation") != NULL || strstr(text, words) == NULL) {
    check_failed(__FILE__, __LINE__, words, "is not what was said");
  }
}

static void freed_too_late(void) {
  bfc_options_t options = host_options(100 * UNIT);
  void *none = NULL;
  char *first;
  options.flags = BFC_TIMESTAMPS;
  CHECK_OK(bfc_create(HOST, &options));
  first = allocate(HOST, 100 * UNIT);
  CHECK_OK(bfc_free(HOST, first));
  first = allocate(HOST, 100 * UNIT);
  CHECK_OK(bfc_free(HOST, first)); /* stamped 2 */
  CHECK_REFUSED_ON(HOST, bfc_alloc_freed_before(HOST, 30 * UNIT, 1, &none), BFC_ERROR_OUT_OF_MEMORY, "no memory");
  CHECK_STATUS(bfc_alloc_freed_before(HOST, 30 * UNIT, 1, &none), BFC_ERROR_OUT_OF_MEMORY);
  last_error_says("later stamp than the request accepts");
  CHECK_OK(bfc_alloc_freed_before(HOST, 30 * UNIT, 2, &none));
  CHECK_OK(bfc_destroy_forced(HOST));
}

/* One region whose start is a multiple of 8192 but whose only free units are not. */
static void *give_aligned(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  static _Alignas(8192) char memory[100 * UNIT];
  (void)user_data, (void)alignment, (void)received;
  return bytes <= sizeof(memory) ? memory : NULL;
}

static void take_back(void *user_data, void *ptr, size_t bytes) { (void)user_data, (void)ptr, (void)bytes; }

static void no_place_at_the_alignment(void) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = BFC_OPTIONS_INIT;
  void *none = NULL;
  char *piece;
  options.memory_limit = 100 * UNIT;
  use_functions(&options, &suballocator, give_aligned, take_back);
  CHECK_OK(bfc_create(HOST, &options));
  allocate(HOST, UNIT);
  piece = allocate(HOST, 31 * UNIT);
  allocate(HOST, 68 * UNIT);
  CHECK_OK(bfc_free(HOST, piece));
  CHECK_STATUS(bfc_alloc_aligned(HOST, 10 * UNIT, 8192, &none), BFC_ERROR_OUT_OF_MEMORY);
  last_error_says("alignment");
  CHECK_OK(bfc_alloc_aligned(HOST, 10 * UNIT, 512, &none));
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy_forced(HOST));
}

/* What is live when a destruction is refused is in the message. */
static void live_at_destruction(void) {
  char words[512];
  begin("trainer");
  CHECK_OK(bfc_scope_begin("weights", 0));
  allocate(HOST, 8 * UNIT);
  CHECK_OK(bfc_scope_end());
  CHECK_STATUS(bfc_destroy(HOST), BFC_ERROR_BUSY);
  bfc_last_error(words, sizeof(words));
  CHECK(strstr(words, "trainer: 1 allocation is live: 2.00 KiB in 1 of weights; free what is live") == words);
  CHECK_OK(bfc_destroy_forced(HOST));
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(occupancy),
      CASE(capacities),
      CASE(capacities_of_a_failing_call),
      CASE(without_a_length),
      CASE(memory_map),
      CASE(report),
      CASE(freed_too_late),
      CASE(no_place_at_the_alignment),
      CASE(live_at_destruction),
  };
  return RUN_CASE(cases, argc, argv);
}
