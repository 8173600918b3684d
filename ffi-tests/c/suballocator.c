/* Sub-allocators that break their contract: the library believes nothing they say, names what they did, and
 * stays sound. The good ones come last: more than asked, less than asked, and someone else's memory.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

enum { DEVICE = 500, OTHER = 501, MIB = 1 << 20, KIB = 1 << 10 };

#define NOTHING ((size_t)4712)

/* Memory that regions are cut from, upward. */
static _Alignas(4096) char memory[16 * MIB];

/* What the next call of the sub-allocator does, and what was asked of it. */
typedef struct behaviour {
  char *next;            /* the next region's address, before `skew` */
  size_t skew;           /* added to the address */
  size_t fixed_received; /* what it says it gave; 0: what was asked and `surplus`; NOTHING: 0 */
  size_t surplus;
  int refuse; /* NULL */
  int silent; /* leaves *received alone */
  int stays;  /* the next region is at the same address again */
  int calls, frees;
  size_t asked, alignment;
  void *freed;
  size_t freed_bytes;
  size_t outstanding;   /* bytes given and not got back */
  void (*inside)(void); /* called from both functions */
} behaviour;

static behaviour now;

static void *give(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  char *region;
  size_t given;
  CHECK(user_data == &now && received != NULL && *received == bytes);
  CHECK(bytes != 0 && bytes % 256 == 0);
  CHECK(alignment >= 256 && (alignment & (alignment - 1)) == 0);
  now.calls++;
  now.asked = bytes;
  now.alignment = alignment;
  if (now.inside) now.inside();
  if (now.refuse) {
    *received = 4711; /* means nothing beside NULL */
    return NULL;
  }
  region = now.next + now.skew;
  given = now.fixed_received ? now.fixed_received : bytes + now.surplus;
  if (given == NOTHING) given = 0;
  if (!now.silent) *received = given;
  if (!now.stays) {
    now.next += (bytes + now.surplus + 4095) / 4096 * 4096;
    CHECK(now.next <= memory + sizeof(memory));
  }
  now.outstanding += given;
  return region;
}

static void take(void *user_data, void *ptr, size_t bytes) {
  CHECK(user_data == &now && ptr != NULL);
  now.frees++;
  now.freed = ptr;
  now.freed_bytes = bytes;
  now.outstanding -= bytes;
  if (now.inside) now.inside();
}

static void create(uint64_t limit, uint32_t flags, uint32_t coalescing) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = BFC_OPTIONS_INIT;
  memset(&now, 0, sizeof(now));
  now.next = memory;
  suballocator.user_data = &now;
  suballocator.supports_coalescing = coalescing;
  options.flags = flags;
  options.memory_limit = limit;
  options.initial_region_bytes = 64 * KIB;
  use_functions(&options, &suballocator, give, take);
  CHECK_OK(bfc_create(DEVICE, &options));
  /* It was copied. */
  memset(&suballocator, 0xff, sizeof(suballocator));
  memset(&options, 0xff, sizeof(options));
  CHECK(now.calls == 0); /* no region before the first allocation */
}

static void destroy(void) {
  CHECK_OK(bfc_check(DEVICE));
  CHECK_OK(bfc_destroy(DEVICE));
  CHECK(now.outstanding == 0);
}

/* A live allocation that must survive what comes; the pool then needs another region. */
static char *fill_first_region(void) {
  char *const live = allocate(DEVICE, 64 * KIB);
  memset(live, 'L', 64 * KIB);
  return live;
}

static void survived(char *live) {
  CHECK(is_filled(live, 64 * KIB, 'L'));
  /* The pool goes on once the sub-allocator behaves. */
  now.skew = now.fixed_received = now.surplus = 0;
  now.refuse = now.silent = now.stays = 0;
  CHECK_OK(bfc_free(DEVICE, allocate(DEVICE, 64 * KIB)));
  CHECK_OK(bfc_free(DEVICE, live));
  destroy();
}

static void refused_as_failed(size_t bytes, const char *words) {
  const bfc_stats_t before = stats_of(DEVICE);
  void *ptr = &now;
  CHECK_REFUSED_ON(DEVICE, bfc_alloc(DEVICE, bytes, &ptr), BFC_ERROR_BACKEND_FAILED, words);
  CHECK(ptr == NULL);
  CHECK(stats_of(DEVICE).num_failures == before.num_failures + 1);
  CHECK(stats_of(DEVICE).pool_bytes == before.pool_bytes && stats_of(DEVICE).num_regions == before.num_regions);
}

static void returns_null(void) {
  char *live;
  void *ptr = &now;
  create(8 * MIB, BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION, 0);
  now.refuse = 1;
  CHECK_REFUSED_ON(DEVICE, bfc_alloc(DEVICE, 1, &ptr), BFC_ERROR_OUT_OF_MEMORY,
                   "no memory for 1 B (rounded up to 256)");
  CHECK(ptr == NULL && now.calls > 1 && now.calls < 1000);
  CHECK(now.asked >= 256 && stats_of(DEVICE).pool_bytes == 0);
  now.refuse = 0;
  live = fill_first_region();
  now.refuse = 1;
  now.calls = 0;
  CHECK_REFUSED_ON(DEVICE, bfc_alloc(DEVICE, 4 * MIB, &ptr), BFC_ERROR_OUT_OF_MEMORY, "no memory for 4.00 MiB");
  CHECK(now.calls >= 1 && now.calls < 1000 && now.asked >= 4 * MIB);
  survived(live);
}

static void gives_too_little(void) {
  static const size_t little[] = {NOTHING, 1, 255, 256, 4096, 64 * KIB - 1};
  char *live;
  size_t at;
  create(8 * MIB, BFC_ALLOW_GROWTH, 0);
  live = fill_first_region();
  for (at = 0; at < sizeof(little) / sizeof(little[0]); at++) {
    now.fixed_received = little[at];
    refused_as_failed(64 * KIB, "are required");
    /* It has back what it gave, as it gave it. */
    CHECK(now.frees == (int)at + 1 && now.freed_bytes == (at == 0 ? 0 : little[at]) && now.outstanding == 64 * KIB);
  }
  survived(live);
}

static void gives_misaligned_regions(void) {
  static const size_t skews[] = {1, 8, 64, 128, 255};
  char *live;
  size_t at;
  create(8 * MIB, BFC_ALLOW_GROWTH, 0);
  live = fill_first_region();
  now.stays = 1;
  for (at = 0; at < sizeof(skews) / sizeof(skews[0]); at++) {
    now.skew = skews[at];
    refused_as_failed(64 * KIB, "multiple of 256");
    CHECK(now.frees == (int)at + 1 && now.freed == now.next + skews[at] && now.outstanding == 64 * KIB);
  }
  survived(live);
}

static void gives_regions_that_overlap(void) {
  static const ptrdiff_t from[] = {0, 256, 4096, 64 * KIB - 256};
  char *live;
  size_t at;
  create(8 * MIB, BFC_ALLOW_GROWTH, 0);
  now.next = memory + 1 * MIB;
  live = fill_first_region();
  now.stays = 1;
  for (at = 0; at < sizeof(from) / sizeof(from[0]); at++) {
    now.next = live + from[at];
    refused_as_failed(64 * KIB, "overlap");
    now.next = live - 64 * KIB + 256 + from[at];
    refused_as_failed(64 * KIB, "overlap");
  }
  /* Around it, and its exact copy. */
  now.next = live - 4096;
  now.fixed_received = 128 * KIB;
  refused_as_failed(64 * KIB, "overlap");
  now.next = live;
  now.fixed_received = 64 * KIB;
  refused_as_failed(64 * KIB, "overlap");
  /* Giving any of these back would free what is in use. */
  CHECK(now.frees == 0);
  now.outstanding = 64 * KIB;
  now.next = memory + 4 * MIB;
  survived(live);
}

static void gives_regions_behind_the_address_space(void) {
  static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 255, SIZE_MAX - 4096};
  char *live;
  size_t at;
  create(8 * MIB, BFC_ALLOW_GROWTH, 0);
  live = fill_first_region();
  now.stays = 1;
  for (at = 0; at < sizeof(sizes) / sizeof(sizes[0]); at++) {
    now.fixed_received = sizes[at];
    refused_as_failed(64 * KIB, "address space");
  }
  now.outstanding = 64 * KIB;
  survived(live);
}

/* What cannot be true, but cannot be seen to be false either: whatever the answer, the books stay sound. */
static void gives_more_than_any_machine_has(void) {
  int shift;
  for (shift = 40; shift < 64; shift++) {
    char *live;
    void *ptr = &now;
    bfc_status_t status;
    create(8 * MIB, BFC_ALLOW_GROWTH, 0);
    live = fill_first_region();
    now.fixed_received = (size_t)1 << shift;
    status = bfc_alloc(DEVICE, 64 * KIB, &ptr);
    CHECK((ptr != NULL) == (status == BFC_OK));
    CHECK_OK(bfc_check(DEVICE));
    if (status == BFC_OK) {
      void *huge = NULL;
      CHECK((char *)ptr == memory + 64 * KIB);
      CHECK(stats_of(DEVICE).pool_bytes == 64 * KIB + now.fixed_received);
      /* Sizes at the edges of what a chunk can have. */
      status = bfc_alloc(DEVICE, now.fixed_received / 2, &huge);
      CHECK(status == BFC_OK || status == BFC_ERROR_OUT_OF_MEMORY);
      CHECK_OK(bfc_check(DEVICE));
      CHECK_OK(bfc_free(DEVICE, huge));
      CHECK_OK(bfc_free(DEVICE, ptr));
    }
    CHECK(is_filled(live, 64 * KIB, 'L'));
    CHECK_OK(bfc_free(DEVICE, live));
    destroy();
  }
}

/* More than was asked is used, and the limit's arithmetic does not wrap. */
static void gives_more_than_the_limit(void) {
  char *live, *more;
  void *ptr = &now;
  create(128 * KIB, BFC_ALLOW_GROWTH, 0);
  now.surplus = 4 * MIB + 100; /* the odd bytes are not used, but given back */
  live = fill_first_region();
  CHECK(stats_of(DEVICE).pool_bytes == 64 * KIB + 4 * MIB + 100);
  more = allocate(DEVICE, 4 * MIB);
  CHECK(now.calls == 1);
  memset(more, 'M', 4 * MIB);
  CHECK_REFUSED_ON(DEVICE, bfc_alloc(DEVICE, 64 * KIB, &ptr), BFC_ERROR_OUT_OF_MEMORY, "no memory");
  CHECK(now.calls == 1); /* nothing is left of the limit */
  CHECK(is_filled(live, 64 * KIB, 'L') && is_filled(more, 4 * MIB, 'M'));
  CHECK_OK(bfc_free(DEVICE, more));
  CHECK_OK(bfc_free(DEVICE, live));
  destroy();
  CHECK(now.freed == memory && now.freed_bytes == 64 * KIB + 4 * MIB + 100);
}

static void says_nothing_about_the_size(void) {
  create(8 * MIB, BFC_ALLOW_GROWTH, 0);
  now.silent = 1;
  CHECK_OK(bfc_free(DEVICE, allocate(DEVICE, 1000)));
  CHECK(stats_of(DEVICE).pool_bytes == 64 * KIB);
  destroy();
}

/* A large alignment that the sub-allocator ignores is found inside a larger region. */
static void ignores_the_alignment(void) {
  void *ptr = NULL;
  create(8 * MIB, BFC_ALLOW_GROWTH, 0);
  now.next = memory + 4096;
  CHECK_OK(bfc_alloc_aligned(DEVICE, 48 * KIB, 64 * KIB, &ptr));
  CHECK(now.alignment == 64 * KIB && (uintptr_t)ptr % (64 * KIB) == 0);
  CHECK((char *)ptr >= memory && (char *)ptr < memory + sizeof(memory));
  CHECK_OK(bfc_free(DEVICE, ptr));
  destroy();
}

/* With supports_coalescing neighbours become one region, which is given back as one. */
static void coalescing_regions(void) {
  char *first, *second;
  create(8 * MIB, BFC_ALLOW_GROWTH, 1);
  first = allocate(DEVICE, 64 * KIB);
  second = allocate(DEVICE, 128 * KIB);
  CHECK(second == first + 64 * KIB && stats_of(DEVICE).num_regions == 1);
  CHECK_OK(bfc_free(DEVICE, first));
  CHECK_OK(bfc_free(DEVICE, second));
  CHECK(stats_of(DEVICE).num_chunks == 1);
  CHECK(allocate(DEVICE, 192 * KIB) == first);
  CHECK_OK(bfc_free(DEVICE, first));
  destroy();
  CHECK(now.frees == 1 && now.freed == memory && now.freed_bytes == 192 * KIB);
}

/* Each call on the same device is BUSY; nothing is written but the out-parameters. */
static void every_call_is_busy(void) {
  bfc_request_t request = BFC_REQUEST_INIT;
  bfc_options_t again = BFC_OPTIONS_INIT;
  bfc_stats_t stats = BFC_STATS_INIT;
  void *ptr = &stats, *region = &stats;
  size_t bytes = 7, more = 7;
  uint64_t count = 7;
  int64_t id = 7;
  int32_t device = -7;
  char text[8];
#define BUSY(call) CHECK_REFUSED(call, BFC_ERROR_BUSY, "callback")
  request.bytes = 1;
  again.backend = BFC_BACKEND_HOST;
  BUSY(bfc_create(DEVICE, &again));
  BUSY(bfc_destroy(DEVICE));
  BUSY(bfc_destroy_forced(DEVICE));
  BUSY(bfc_alloc(DEVICE, 1, &ptr));
  CHECK(ptr == NULL);
  BUSY(bfc_alloc(DEVICE, 0, &ptr));
  BUSY(bfc_alloc_aligned(DEVICE, 1, 512, &ptr));
  BUSY(bfc_alloc_ex(DEVICE, &request, &ptr));
  BUSY(bfc_alloc_freed_before(DEVICE, 1, 1, &ptr));
  BUSY(bfc_free(DEVICE, memory));
  BUSY(bfc_alloc_async(DEVICE, 1, NULL, &ptr));
  BUSY(bfc_free_async(DEVICE, memory, NULL));
  BUSY(bfc_record_stream(DEVICE, memory, NULL));
  BUSY(bfc_forget_stream(DEVICE, NULL));
  BUSY(bfc_stream_synchronized(DEVICE, NULL));
  BUSY(bfc_timestamp(DEVICE, &count));
  CHECK(count == 0);
  BUSY(bfc_set_safe_frontier(DEVICE, 1));
  BUSY(bfc_requested_size(DEVICE, memory, &bytes));
  CHECK(bytes == 0);
  BUSY(bfc_allocated_size(DEVICE, memory, &bytes));
  BUSY(bfc_allocation_id(DEVICE, memory, &id));
  BUSY(bfc_address_range(DEVICE, memory, &ptr, &bytes, &region, &more));
  CHECK(region == NULL && more == 0);
  BUSY(bfc_trim(DEVICE, 0, &count));
  BUSY(bfc_stats(DEVICE, &stats));
  BUSY(bfc_reset_stats(DEVICE));
  BUSY(bfc_check(DEVICE));
  BUSY(bfc_occupancy(DEVICE, text, sizeof(text), &bytes));
  BUSY(bfc_memory_map(DEVICE, text, sizeof(text), &bytes));
  BUSY(bfc_report(DEVICE, text, sizeof(text), &bytes));
  BUSY(bfc_set_memory_limit(DEVICE, 0));
  BUSY(bfc_set_region_callback(DEVICE, NULL, NULL));
  BUSY(bfc_device_lost(DEVICE));
  BUSY(bfc_pool_begin(DEVICE, 1, NULL));
  BUSY(bfc_pool_end(DEVICE, 1, NULL));
  BUSY(bfc_pool_release(DEVICE, 1));
  CHECK_OK(bfc_free(DEVICE, NULL));
  /* Of another device nothing is busy. */
  CHECK_OK(bfc_free(OTHER, allocate(OTHER, 100)));
  CHECK_OK(bfc_check(OTHER));
  CHECK(bfc_owner(memory, &device) != BFC_OK || device == DEVICE);
  CHECK_OK(bfc_scope_begin("inside", 1));
  CHECK_OK(bfc_scope_end());
}

static void re_enters_the_library(void) {
  bfc_options_t options = host_options(MIB);
  char *live;
  void *ptr = &now;
  uint64_t released = 0;
  CHECK_OK(bfc_create(OTHER, &options));
  create(256 * KIB, BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION, 0);
  now.inside = every_call_is_busy;
  live = fill_first_region();
  CHECK(now.calls == 1);
  /* Also where it refuses, where it breaks its contract, and where it takes a region back. */
  now.refuse = 1;
  CHECK_REFUSED_ON(DEVICE, bfc_alloc(DEVICE, 64 * KIB, &ptr), BFC_ERROR_OUT_OF_MEMORY, "no memory");
  now.refuse = 0;
  now.skew = 1;
  refused_as_failed(64 * KIB, "multiple of 256");
  now.skew = 0;
  CHECK_OK(bfc_free(DEVICE, allocate(DEVICE, 64 * KIB)));
  CHECK_OK(bfc_trim(DEVICE, 0, &released));
  CHECK(released != 0 && now.frees == 2);
  CHECK(is_filled(live, 64 * KIB, 'L'));
  CHECK_OK(bfc_free(DEVICE, live));
  CHECK_OK(bfc_check(DEVICE));
  CHECK_OK(bfc_destroy(DEVICE));
  CHECK(now.frees == 3 && now.outstanding == 0);
  CHECK_OK(bfc_destroy(OTHER));
}

/* A device inside a device: the inner one's regions come from the outer one's allocations. */
static void *give_from_other(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  void *ptr = NULL;
  (void)user_data, (void)received;
  return bfc_alloc_aligned(OTHER, bytes, alignment, &ptr) == BFC_OK ? ptr : NULL;
}

static void take_to_other(void *user_data, void *ptr, size_t bytes) {
  (void)user_data, (void)bytes;
  CHECK_OK(bfc_free(OTHER, ptr));
}

static void one_device_over_another(void) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = host_options(4 * MIB);
  char *ptr;
  void *none = &now;
  CHECK_OK(bfc_create(OTHER, &options));
  options.memory_limit = 64 * MIB;
  use_functions(&options, &suballocator, give_from_other, take_to_other);
  CHECK_OK(bfc_create(DEVICE, &options));
  ptr = allocate(DEVICE, MIB);
  memset(ptr, 1, MIB);
  CHECK(stats_of(OTHER).bytes_in_use >= MIB);
  /* The outer pool's end is the inner pool's end. */
  CHECK_REFUSED_ON(DEVICE, bfc_alloc(DEVICE, 8 * MIB, &none), BFC_ERROR_OUT_OF_MEMORY, "no memory for 8.00 MiB");
  CHECK_REFUSED_ON(OTHER, bfc_destroy(OTHER), BFC_ERROR_BUSY, "live");
  CHECK_OK(bfc_free(DEVICE, ptr));
  CHECK_OK(bfc_destroy(DEVICE));
  CHECK(stats_of(OTHER).bytes_in_use == 0);
  CHECK_OK(bfc_destroy(OTHER));
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(returns_null),
      CASE(gives_too_little),
      CASE(gives_misaligned_regions),
      CASE(gives_regions_that_overlap),
      CASE(gives_regions_behind_the_address_space),
      CASE(gives_more_than_any_machine_has),
      CASE(gives_more_than_the_limit),
      CASE(says_nothing_about_the_size),
      CASE(ignores_the_alignment),
      CASE(coalescing_regions),
      CASE(re_enters_the_library),
      CASE(one_device_over_another),
  };
  return RUN_CASE(cases, argc, argv);
}
