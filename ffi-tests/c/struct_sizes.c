/* Structs of other versions: each size that a header had is accepted, others are refused, and no byte beyond the
 * size is read or written. BFC_OPTIONS_RECOMMENDED is what a pool without options has.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "guarded.h"

enum { HOST = 256, MIB = 1 << 20 };

#define REFUSED(options, words) \
  (CHECK_REFUSED(bfc_create(HOST, options), BFC_ERROR_INVALID_ARGUMENT, words), nothing_was_created())

static void nothing_was_created(void) {
  bfc_stats_t stats = BFC_STATS_INIT;
  CHECK_STATUS(bfc_stats(HOST, &stats), BFC_ERROR_NO_ALLOCATOR);
}

/* Creates, uses and destroys. */
static void accepted(const bfc_options_t *options) {
  CHECK_OK(bfc_create(HOST, options));
  CHECK_OK(bfc_free(HOST, allocate(HOST, 1)));
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy(HOST));
}

/* Ends of fields: an older caller knows the fields up to there. No caller has any other size. */
static int ends_a_field(size_t size, const size_t *ends, size_t count) {
  size_t at;
  for (at = 0; at < count; at++) {
    if (ends[at] == size) return 1;
  }
  return 0;
}

static void smaller_struct_sizes(void) {
  /* The fields of today; struct_size alone, 8 bytes, is a version too: everything by default. */
  static const size_t ends[] = {8, 12, 16, 24, 32, 40, 48, 52, 56, 64, 72, 76, 80, 88};
  const bfc_options_t whole = host_options(MIB);
  size_t size;
  for (size = 8; size <= sizeof(whole); size++) {
    const bfc_options_t *options = (const bfc_options_t *)guarded(&whole, sizeof(whole), size);
    if (ends_a_field(size, ends, sizeof(ends) / sizeof(ends[0]))) {
      CHECK_OK(bfc_create(HOST, options));
      /* The limit counts from the first size that contains it. */
      CHECK((stats_of(HOST).bytes_limit == MIB) == (size >= 24));
      CHECK_OK(bfc_destroy(HOST));
    } else {
      REFUSED(options, "struct_size of bfc_options_t");
    }
  }
}

static void struct_sizes_of_no_version(void) {
  static const size_t sizes[] = {0, 1, 4, 7, SIZE_MAX, SIZE_MAX - 7, (size_t)1 << 40, 73, 79, 81, 87, 89, 95, 1 << 20};
  size_t at;
  for (at = 0; at < sizeof(sizes) / sizeof(sizes[0]); at++) {
    bfc_options_t options = host_options(MIB);
    options.struct_size = sizes[at];
    REFUSED(&options, "struct_size of bfc_options_t");
  }
}

static void larger_struct_sizes(void) {
  const bfc_options_t whole = host_options(MIB);
  size_t more;
  for (more = 8; more <= 512; more += 8) {
    const size_t size = sizeof(whole) + more;
    char *const bytes = (char *)guarded(&whole, sizeof(whole), size);
    size_t at;
    accepted((const bfc_options_t *)(void *)bytes);
    /* A field that this library does not know, and that says something. */
    for (at = sizeof(whole); at < size; at += more > 16 ? 97 : 1) {
      bytes[at] = 1;
      REFUSED((const bfc_options_t *)(void *)bytes, "does not know");
      bytes[at] = 0;
    }
    bytes[size - 1] = 1;
    REFUSED((const bfc_options_t *)(void *)bytes, "does not know");
  }
}

/* The settings, as text. */
static char *resolved(const bfc_options_t *options, char *buffer, size_t capacity) {
  size_t length;
  CHECK_OK(bfc_resolve_options(HOST, options, buffer, capacity, &length));
  CHECK(length < capacity);
  return buffer;
}

static void recommended_options(void) {
  bfc_options_t options = BFC_OPTIONS_RECOMMENDED;
  char of_null[4096], of_recommended[4096], of_zeros[4096];
  const bfc_options_t zeros = BFC_OPTIONS_INIT;
  resolved(NULL, of_null, sizeof(of_null));
  CHECK(strcmp(of_null, resolved(&options, of_recommended, sizeof(of_recommended))) == 0);
  CHECK(strcmp(of_null, resolved(&zeros, of_zeros, sizeof(of_zeros))) != 0);
  CHECK(setenv("BFC_GROWTH", "tensorflow", 1) == 0);
  resolved(NULL, of_null, sizeof(of_null));
  CHECK(strstr(of_null, "\"growth_policy\":\"tensorflow\"") != NULL);
  CHECK(strcmp(of_null, resolved(&options, of_recommended, sizeof(of_recommended))) == 0);
  CHECK(unsetenv("BFC_GROWTH") == 0);
  options.memory_limit = 64 * MIB;
  accepted(&options);
  CHECK_OK(bfc_create(HOST, &options));
  allocate(HOST, 1);
  CHECK(stats_of(HOST).bytes_limit == 64 * MIB && stats_of(HOST).pool_bytes == 2 * MIB);
  CHECK_OK(bfc_destroy_forced(HOST));
}

static void *no_memory(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  (void)user_data, (void)alignment, (void)bytes, (void)received;
  return NULL;
}

static void take_back(void *user_data, void *ptr, size_t bytes) { (void)user_data, (void)ptr, (void)bytes; }

static bfc_suballocator_t functions(void) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  suballocator.alloc = no_memory;
  suballocator.free = take_back;
  return suballocator;
}

static void suballocator_struct_sizes(void) {
  static const size_t ends[] = {32, 36, 40};
  const bfc_suballocator_t whole = functions();
  bfc_options_t options = host_options(MIB);
  size_t size;
  options.backend = BFC_BACKEND_CUSTOM;
  for (size = 8; size <= sizeof(whole); size++) {
    options.suballocator = (const bfc_suballocator_t *)guarded(&whole, sizeof(whole), size);
    if (ends_a_field(size, ends, 3)) {
      CHECK_OK(bfc_create(HOST, &options));
      CHECK_OK(bfc_destroy(HOST));
    } else {
      /* Without both functions, or no version at all. */
      REFUSED(&options, "bfc_suballocator_t");
    }
  }
  {
    char *const bytes = (char *)guarded(&whole, sizeof(whole), sizeof(whole) + 8);
    options.suballocator = (const bfc_suballocator_t *)(void *)bytes;
    CHECK_OK(bfc_create(HOST, &options));
    CHECK_OK(bfc_destroy(HOST));
    bytes[sizeof(whole) + 7] = 1;
    REFUSED(&options, "does not know");
  }
}

static void request_struct_sizes(void) {
  static const size_t ends[] = {8, 16, 24, 32, 40, 44, 48};
  bfc_request_t whole = BFC_REQUEST_INIT;
  bfc_options_t options = host_options(MIB);
  size_t size;
  void *ptr = &whole;
  whole.bytes = 1000;
  whole.alignment = 4096;
  CHECK_OK(bfc_create(HOST, &options));
  for (size = 0; size <= sizeof(whole); size++) {
    bfc_request_t *request;
    if (size < 8) {
      whole.struct_size = size;
      CHECK_REFUSED_ON(HOST, bfc_alloc_ex(HOST, &whole, &ptr), BFC_ERROR_INVALID_ARGUMENT, "struct_size");
      CHECK(ptr == NULL);
      continue;
    }
    request = (bfc_request_t *)guarded(&whole, sizeof(whole), size);
    ptr = &whole;
    if (ends_a_field(size, ends, sizeof(ends) / sizeof(ends[0]))) {
      CHECK_OK(bfc_alloc_ex(HOST, request, &ptr));
      CHECK((ptr != NULL) == (size >= 16)); /* 0 bytes where that field is missing */
      CHECK(size < 24 || (uintptr_t)ptr % 4096 == 0);
      CHECK_OK(bfc_free(HOST, ptr));
    } else {
      CHECK_REFUSED_ON(HOST, bfc_alloc_ex(HOST, request, &ptr), BFC_ERROR_INVALID_ARGUMENT, "struct_size");
      CHECK(ptr == NULL);
    }
  }
  {
    char *const bytes = (char *)guarded(&whole, sizeof(whole), sizeof(whole) + 16);
    CHECK_OK(bfc_alloc_ex(HOST, (bfc_request_t *)(void *)bytes, &ptr));
    CHECK_OK(bfc_free(HOST, ptr));
    bytes[sizeof(whole) + 15] = 1;
    CHECK_REFUSED_ON(HOST, bfc_alloc_ex(HOST, (bfc_request_t *)(void *)bytes, &ptr), BFC_ERROR_INVALID_ARGUMENT,
                     "does not know");
    CHECK(ptr == NULL);
  }
  CHECK_OK(bfc_destroy(HOST));
}

/* Only as many bytes are written as the caller's version has; what the library does not know becomes 0. */
static void stats_struct_sizes(void) {
  char old[sizeof(bfc_stats_t) + 64];
  bfc_options_t options = host_options(MIB);
  const bfc_stats_t *const fields = (const bfc_stats_t *)(const void *)old;
  size_t size;
  CHECK_OK(bfc_create(HOST, &options));
  allocate(HOST, 1000);
  memset(old, 7, sizeof(old));
  for (size = 8; size <= sizeof(old); size++) {
    bfc_stats_t *const stats = (bfc_stats_t *)guarded(old, sizeof(old), size);
    if (size % 8 == 0) {
      CHECK_OK(bfc_stats(HOST, stats));
      CHECK(stats->struct_size == size);
      if (size >= 48) CHECK(stats->num_allocs == 1 && stats->bytes_in_use == 1024);
      if (size > sizeof(*stats)) { CHECK(is_filled((const char *)stats + sizeof(*stats), size - sizeof(*stats), 0)); }
    } else {
      CHECK_REFUSED_ON(HOST, bfc_stats(HOST, stats), BFC_ERROR_INVALID_ARGUMENT, "struct_size of bfc_stats_t");
    }
  }
  CHECK(fields->num_allocs != 1);
  CHECK_OK(bfc_destroy_forced(HOST));
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(smaller_struct_sizes), CASE(struct_sizes_of_no_version), CASE(larger_struct_sizes),
      CASE(recommended_options),  CASE(suballocator_struct_sizes),  CASE(request_struct_sizes),
      CASE(stats_struct_sizes),
  };
  return RUN_CASE(cases, argc, argv);
}
