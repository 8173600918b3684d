/* Hostile options and requests: struct sizes of other versions and of no version, unknown flags, fractions
 * that are none, tiny limits, a custom backend without functions.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "guarded.h"

#include <math.h>

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

static void unknown_flags(void) {
  int bit;
  for (bit = 0; bit < 32; bit++) {
    bfc_options_t options = host_options(MIB);
    options.flags = 1u << bit;
    if (bit < 4 || options.flags == BFC_TWO_ENDS) {
      accepted(&options);
    } else if (options.flags != BFC_QUARANTINE) {
      REFUSED(&options, "flags");
    }
  }
  {
    bfc_options_t options = host_options(MIB);
    options.flags = BFC_QUARANTINE;
    REFUSED(&options, "BFC_TIMESTAMPS");
    options.flags = UINT32_MAX;
    REFUSED(&options, "flags");
  }
}

static void unknown_backends(void) {
  static const uint32_t backends[] = {7, 8, 255, 1u << 16, UINT32_MAX};
  size_t at;
  for (at = 0; at < sizeof(backends) / sizeof(backends[0]); at++) {
    bfc_options_t options = host_options(MIB);
    options.backend = backends[at];
    REFUSED(&options, "backend");
  }
}

static void reserved_fields(void) {
  bfc_options_t options = host_options(MIB);
  options.reserved = 1;
  REFUSED(&options, "reserved");
  options.reserved = 0;
  options.reserved2 = 1;
  REFUSED(&options, "reserved");
}

static void unknown_growth_policies(void) {
  static const uint32_t policies[] = {4, 255, 1u << 16, UINT32_MAX};
  bfc_options_t options = host_options(MIB);
  size_t at;
  for (at = 0; at < sizeof(policies) / sizeof(policies[0]); at++) {
    options.growth_policy = policies[at];
    REFUSED(&options, "growth_policy");
  }
  for (options.growth_policy = 0; options.growth_policy <= BFC_GROWTH_PREFER_NEED; options.growth_policy++)
    accepted(&options);
}

static void bad_fractions(void) {
  const double fractions[] = {(double)NAN,      -(double)NAN,     -0.5, -1e-300, 1.0000001, 2.0, 1e300,
                              (double)INFINITY, -(double)INFINITY};
  size_t at;
  for (at = 0; at < sizeof(fractions) / sizeof(fractions[0]); at++) {
    bfc_options_t options = host_options(0);
    options.memory_fraction = fractions[at];
    REFUSED(&options, "memory_fraction");
    options.memory_limit = MIB;
    REFUSED(&options, "memory_fraction");
    options.memory_fraction = 0;
    options.fragmentation_fraction = fractions[at];
    REFUSED(&options, "fragmentation_fraction");
  }
}

static void good_fractions(void) {
  const double fractions[] = {0.0, -0.0, 1e-12, 0.001, 0.5, 1.0};
  size_t at;
  for (at = 0; at < sizeof(fractions) / sizeof(fractions[0]); at++) {
    bfc_options_t options = host_options(MIB);
    options.memory_fraction = fractions[at];
    options.fragmentation_fraction = fractions[at];
    accepted(&options);
  }
  {
    bfc_options_t options = host_options(0);
    uint64_t total;
    CHECK_OK(bfc_create(HOST, &options));
    total = stats_of(HOST).bytes_limit;
    CHECK_OK(bfc_destroy(HOST));
    options.memory_fraction = 0.5;
    CHECK_OK(bfc_create(HOST, &options));
    CHECK(stats_of(HOST).bytes_limit <= total / 2 && stats_of(HOST).bytes_limit + 1 >= total / 2);
    CHECK_OK(bfc_destroy(HOST));
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

static void tiny_limits(void) {
  uint64_t limit;
  for (limit = 1; limit <= 513; limit++) {
    uint32_t flags;
    for (flags = 0; flags < 4; flags++) {
      bfc_options_t options = host_options(limit);
      void *ptr = &options;
      options.flags = flags;
      CHECK_OK(bfc_create(HOST, &options));
      CHECK(stats_of(HOST).bytes_limit == limit);
      if (limit < 256) {
        CHECK_REFUSED_ON(HOST, bfc_alloc(HOST, 1, &ptr), BFC_ERROR_OUT_OF_MEMORY,
                         "no memory for 1 B (rounded up to 256)");
        CHECK(ptr == NULL && stats_of(HOST).pool_bytes == 0);
      } else {
        CHECK_OK(bfc_alloc(HOST, 1, &ptr));
        CHECK(ptr != NULL && stats_of(HOST).pool_bytes <= limit);
        memset(ptr, 1, 256);
        CHECK_OK(bfc_free(HOST, ptr));
      }
      CHECK_REFUSED_ON(HOST, bfc_alloc(HOST, 514, &ptr), BFC_ERROR_OUT_OF_MEMORY,
                       "no memory for 514 B (rounded up to 768)");
      CHECK_OK(bfc_destroy(HOST));
    }
  }
}

static void huge_limits(void) {
  bfc_options_t options = host_options(UINT64_MAX);
  options.initial_region_bytes = UINT64_MAX;
  options.retry_timeout_ms = 0;
  CHECK_OK(bfc_create(HOST, &options));
  /* The backend refuses until the region is small enough for it. */
  CHECK_OK(bfc_free(HOST, allocate(HOST, 1)));
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy(HOST));
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

static void custom_backend_without_functions(void) {
  bfc_suballocator_t suballocator = functions();
  bfc_options_t options = host_options(MIB);
  options.backend = BFC_BACKEND_CUSTOM;
  REFUSED(&options, "suballocator");
  options.suballocator = &suballocator;
  suballocator.alloc = NULL;
  REFUSED(&options, "NULL");
  suballocator = functions();
  suballocator.free = NULL;
  REFUSED(&options, "NULL");
  suballocator = functions();
  suballocator.reserved = 1;
  REFUSED(&options, "reserved");
  /* Functions for a backend that has its own. */
  suballocator = functions();
  options.backend = BFC_BACKEND_HOST;
  REFUSED(&options, "BFC_BACKEND_CUSTOM");
  /* Its total is unknown, so a share of it is nothing, and so is all of it. */
  options.backend = BFC_BACKEND_CUSTOM;
  options.memory_limit = 0;
  options.memory_fraction = 0.5;
  REFUSED(&options, "memory_limit");
  options.memory_fraction = 0;
  options.flags = 0;
  REFUSED(&options, "memory_limit");
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

static void names(void) {
  bfc_options_t options = host_options(MIB);
  char *const longest = (char *)malloc(1 << 20), *map;
  size_t length = 0;
  CHECK(longest != NULL);
  memset(longest, 'n', (1 << 20) - 1);
  longest[(1 << 20) - 1] = '\0';
  options.name = "\xc3\x28 is no UTF-8";
  REFUSED(&options, "UTF-8");
  options.name = "";
  accepted(&options);
  options.name = longest;
  CHECK_OK(bfc_create(HOST, &options));
  free(longest); /* it was copied */
  CHECK_OK(bfc_memory_map(HOST, NULL, 0, &length));
  map = (char *)malloc(length + 1);
  CHECK(map != NULL);
  CHECK_OK(bfc_memory_map(HOST, map, length + 1, &length));
  CHECK(strstr(map, "nnnnnnnnnn") != NULL);
  free(map);
  CHECK_OK(bfc_destroy(HOST));
}

static void devices_without_a_driver(void) {
  int32_t device;
  for (device = 0; device < 1024; device += 51) {
    uint32_t backend;
    for (backend = BFC_BACKEND_AUTO; backend <= BFC_BACKEND_HOST_VMM; backend++) {
      bfc_options_t options = host_options(MIB);
      bfc_status_t status;
      if (backend == BFC_BACKEND_CUSTOM || backend == BFC_BACKEND_HOST) continue;
      options.backend = backend;
      status = bfc_create(device, &options);
      if (status == BFC_OK) {
        /* Never silently the host for a device. */
        char map[256];
        size_t length = 0;
        CHECK_OK(bfc_memory_map(device, map, sizeof(map), &length));
        CHECK(strstr(map, "\"backend\":\"host\"") == NULL);
        CHECK_OK(bfc_destroy(device));
      } else if (backend == BFC_BACKEND_AUTO && device > 257) {
        CHECK_REFUSED(bfc_create(device, &options), BFC_ERROR_INVALID_ARGUMENT, "name a backend");
      } else if ((backend == BFC_BACKEND_CUDA || backend == BFC_BACKEND_CUDA_VMM) && device > 255) {
        CHECK_REFUSED(bfc_create(device, &options), BFC_ERROR_INVALID_ARGUMENT, "0 to 255");
      } else {
        CHECK_REFUSED(bfc_create(device, &options), BFC_ERROR_BACKEND_UNAVAILABLE, "BFC_BACKEND_HOST");
      }
    }
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
      CASE(smaller_struct_sizes),
      CASE(struct_sizes_of_no_version),
      CASE(larger_struct_sizes),
      CASE(unknown_flags),
      CASE(unknown_backends),
      CASE(reserved_fields),
      CASE(unknown_growth_policies),
      CASE(bad_fractions),
      CASE(good_fractions),
      CASE(recommended_options),
      CASE(tiny_limits),
      CASE(huge_limits),
      CASE(custom_backend_without_functions),
      CASE(suballocator_struct_sizes),
      CASE(names),
      CASE(devices_without_a_driver),
      CASE(request_struct_sizes),
      CASE(stats_struct_sizes),
  };
  return RUN_CASE(cases, argc, argv);
}
