/* Hostile arguments that are no pointers to chunks: out-pointers, ordinals, sizes, alignments, life cycle.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

#include <limits.h>

enum { HOST = 256, MIB = 1 << 20 };

static char *live;

/* A pool of 16 MiB with one live allocation, whose contents every refusal must leave alone. */
static void begin(void) {
  bfc_options_t options = host_options(16 * MIB);
  CHECK_OK(bfc_create(HOST, &options));
  live = allocate(HOST, 1000);
  memset(live, 'L', 1000);
}

static void end(void) {
  CHECK(is_filled(live, 1000, 'L'));
  CHECK_OK(bfc_free(HOST, live));
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy(HOST));
}

static void null_out_pointers(void) {
  bfc_request_t request = BFC_REQUEST_INIT;
  void *chunk = &request, *region = &request;
  size_t chunk_bytes = 7, region_bytes = 7, length = 7;
  char text[8];
  request.bytes = 1;
  begin();
#define NULL_OUT(call) CHECK_REFUSED_ON(HOST, call, BFC_ERROR_INVALID_ARGUMENT, "NULL")
  NULL_OUT(bfc_alloc(HOST, 1, NULL));
  NULL_OUT(bfc_alloc(HOST, 0, NULL));
  NULL_OUT(bfc_alloc_aligned(HOST, 1, 512, NULL));
  NULL_OUT(bfc_alloc_ex(HOST, &request, NULL));
  NULL_OUT(bfc_alloc_ex(HOST, NULL, &chunk));
  CHECK(chunk == NULL);
  NULL_OUT(bfc_alloc_async(HOST, 1, NULL, NULL));
  NULL_OUT(bfc_alloc_freed_before(HOST, 1, 1, NULL));
  NULL_OUT(bfc_timestamp(HOST, NULL));
  NULL_OUT(bfc_requested_size(HOST, live, NULL));
  NULL_OUT(bfc_allocated_size(HOST, live, NULL));
  NULL_OUT(bfc_allocation_id(HOST, live, NULL));
  NULL_OUT(bfc_owner(live, NULL));
  NULL_OUT(bfc_trim(HOST, 0, NULL));
  NULL_OUT(bfc_stats(HOST, NULL));
  /* Those that are not NULL are written all the same. */
  NULL_OUT(bfc_address_range(HOST, live, NULL, &chunk_bytes, &region, &region_bytes));
  CHECK(chunk_bytes == 0 && region == NULL && region_bytes == 0);
  NULL_OUT(bfc_address_range(HOST, live, &chunk, NULL, &region, &region_bytes));
  NULL_OUT(bfc_address_range(HOST, live, &chunk, &chunk_bytes, NULL, &region_bytes));
  NULL_OUT(bfc_address_range(HOST, live, &chunk, &chunk_bytes, &region, NULL));
  NULL_OUT(bfc_occupancy(HOST, text, sizeof(text), NULL));
  NULL_OUT(bfc_memory_map(HOST, text, sizeof(text), NULL));
  NULL_OUT(bfc_report(HOST, text, sizeof(text), NULL));
  NULL_OUT(bfc_metrics(text, sizeof(text), NULL));
  NULL_OUT(bfc_metrics(NULL, 1, &length));
  NULL_OUT(bfc_resolve_options(HOST, NULL, text, sizeof(text), NULL));
  NULL_OUT(bfc_resolve_options(HOST, NULL, NULL, 1, &length));
  NULL_OUT(bfc_occupancy(HOST, NULL, 1, &length));
  CHECK(length == 0);
  NULL_OUT(bfc_report(HOST, NULL, 1, &length));
  NULL_OUT(bfc_memory_map(HOST, NULL, SIZE_MAX, &length));
  NULL_OUT(bfc_scope_begin(NULL, 1));
  CHECK(bfc_last_error(NULL, 100) > 0);
  end();
}

static void ordinals_out_of_range(void) {
  static const int32_t ordinals[] = {-1, 1024, 1025, 65536, INT32_MAX, INT32_MIN};
  size_t at;
  begin();
  for (at = 0; at < sizeof(ordinals) / sizeof(ordinals[0]); at++) {
    const int32_t device = ordinals[at];
    bfc_options_t options = host_options(MIB);
    bfc_stats_t stats = BFC_STATS_INIT;
    void *ptr = &options;
    size_t bytes = 7;
#define OUT_OF_RANGE(call) CHECK_REFUSED_ON(HOST, call, BFC_ERROR_INVALID_ARGUMENT, "ordinals are 0 to 1023")
    OUT_OF_RANGE(bfc_create(device, &options));
    OUT_OF_RANGE(bfc_create(device, NULL));
    OUT_OF_RANGE(bfc_destroy(device));
    OUT_OF_RANGE(bfc_destroy_forced(device));
    OUT_OF_RANGE(bfc_alloc(device, 1, &ptr));
    CHECK(ptr == NULL);
    OUT_OF_RANGE(bfc_alloc(device, 0, &ptr));
    OUT_OF_RANGE(bfc_free(device, live));
    OUT_OF_RANGE(bfc_free(device, NULL));
    OUT_OF_RANGE(bfc_requested_size(device, live, &bytes));
    CHECK(bytes == 0);
    OUT_OF_RANGE(bfc_stats(device, &stats));
    OUT_OF_RANGE(bfc_check(device));
    OUT_OF_RANGE(bfc_report(device, NULL, 0, &bytes));
  }
  end();
}

static void ordinals_at_the_edges(void) {
  static const int32_t ordinals[] = {0, 255, 257, 258, 1023};
  size_t at;
  for (at = 0; at < sizeof(ordinals) / sizeof(ordinals[0]); at++) {
    const int32_t device = ordinals[at];
    bfc_options_t options = host_options(MIB);
    void *ptr = &options;
    int32_t owner = -1;
    CHECK_REFUSED(bfc_alloc(device, 1, &ptr), BFC_ERROR_NO_ALLOCATOR, "create one first");
    CHECK(ptr == NULL);
    /* A backend that is not CUDA may sit on any of them. */
    CHECK_OK(bfc_create(device, &options));
    ptr = allocate(device, 1);
    CHECK_OK(bfc_owner(ptr, &owner));
    CHECK(owner == device);
    CHECK_OK(bfc_free(device, ptr));
    CHECK_OK(bfc_destroy(device));
    CHECK_REFUSED(bfc_stats(device, &(bfc_stats_t)BFC_STATS_INIT), BFC_ERROR_NO_ALLOCATOR, "create one first");
  }
}

static void created_twice(void) {
  bfc_options_t options = host_options(MIB);
  begin();
  CHECK_REFUSED_ON(HOST, bfc_create(HOST, &options), BFC_ERROR_ALREADY_EXISTS, "share it");
  CHECK_REFUSED_ON(HOST, bfc_create(HOST, NULL), BFC_ERROR_ALREADY_EXISTS, "share it");
  CHECK(stats_of(HOST).bytes_limit == 16 * MIB);
  end();
}

/* What is there can be shared, whatever the caller would have created; only what means nothing comes first. */
static void created_twice_with_other_options(void) {
  static const uint32_t backends[] = {BFC_BACKEND_AUTO, BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM, BFC_BACKEND_HOST_VMM};
  bfc_options_t options = host_options(MIB);
  size_t at;
  CHECK_OK(bfc_create(7, &options));
  CHECK_REFUSED_ON(7, bfc_create(7, NULL), BFC_ERROR_ALREADY_EXISTS, "share it");
  for (at = 0; at < sizeof(backends) / sizeof(backends[0]); at++) {
    options.backend = backends[at];
    CHECK_REFUSED_ON(7, bfc_create(7, &options), BFC_ERROR_ALREADY_EXISTS, "share it");
  }
  options.flags = UINT32_MAX;
  CHECK_REFUSED_ON(7, bfc_create(7, &options), BFC_ERROR_INVALID_ARGUMENT, "flags");
  CHECK_OK(bfc_destroy(7));
}

static void destroyed_while_chunks_live(void) {
  bfc_options_t options = host_options(MIB);
  begin();
  CHECK_REFUSED_ON(HOST, bfc_destroy(HOST), BFC_ERROR_BUSY, "1 allocation is live");
  CHECK(is_filled(live, 1000, 'L'));
  /* It goes on as if nothing had been asked. */
  CHECK_OK(bfc_free(HOST, allocate(HOST, 5000)));
  CHECK_OK(bfc_destroy_forced(HOST));
  CHECK_REFUSED(bfc_free(HOST, live), BFC_ERROR_NO_ALLOCATOR, "create one first");
  CHECK_OK(bfc_create(HOST, &options));
  CHECK_REFUSED_ON(HOST, bfc_free(HOST, live), BFC_ERROR_INVALID_POINTER, "0x");
  CHECK_OK(bfc_destroy(HOST));
  CHECK_REFUSED(bfc_destroy(HOST), BFC_ERROR_NO_ALLOCATOR, "create one first");
  CHECK_REFUSED(bfc_destroy_forced(HOST), BFC_ERROR_NO_ALLOCATOR, "create one first");
}

static void size_zero(void) {
  bfc_request_t request = BFC_REQUEST_INIT;
  bfc_stats_t before, after;
  void *ptr = &request;
  begin();
  before = stats_of(HOST);
  CHECK_OK(bfc_alloc(HOST, 0, &ptr));
  CHECK(ptr == NULL);
  ptr = &request;
  CHECK_OK(bfc_alloc_aligned(HOST, 0, 4096, &ptr));
  CHECK(ptr == NULL);
  ptr = &request;
  CHECK_OK(bfc_alloc_ex(HOST, &request, &ptr));
  CHECK(ptr == NULL);
  CHECK_OK(bfc_free(HOST, NULL));
  /* Neither an allocation nor a free. */
  after = stats_of(HOST);
  CHECK(memcmp(&before, &after, sizeof(before)) == 0);
  end();
}

static void size_near_the_largest_number(void) {
  size_t less;
  uint64_t failures = 0;
  begin();
  for (less = 0; less <= 256; less++) {
    void *ptr = &ptr;
    CHECK_REFUSED_ON(HOST, bfc_alloc(HOST, SIZE_MAX - less, &ptr), BFC_ERROR_OUT_OF_MEMORY, "bytes");
    CHECK(ptr == NULL);
    ptr = &ptr;
    CHECK_REFUSED_ON(HOST, bfc_alloc_aligned(HOST, SIZE_MAX - less, 4096, &ptr), BFC_ERROR_OUT_OF_MEMORY, "bytes");
    CHECK(ptr == NULL);
    failures += 2;
    CHECK(stats_of(HOST).num_failures == failures);
  }
  for (less = 62; less > 24; less--) {
    void *ptr = &ptr;
    CHECK_REFUSED_ON(HOST, bfc_alloc(HOST, (size_t)1 << less, &ptr), BFC_ERROR_OUT_OF_MEMORY, "bytes");
    CHECK(ptr == NULL);
  }
  CHECK(stats_of(HOST).pool_bytes <= 16 * MIB);
  end();
}

static void bad_alignments(void) {
  static const size_t alignments[] = {3, 5, 24, 255, 257, 4097, SIZE_MAX, SIZE_MAX - 255, ((size_t)1 << 63) + 1};
  size_t at;
  void *ptr = &at;
  begin();
  CHECK_REFUSED_ON(HOST, bfc_alloc_aligned(HOST, 1, 0, &ptr), BFC_ERROR_INVALID_ARGUMENT, "alignment 0");
  CHECK(ptr == NULL);
  for (at = 0; at < sizeof(alignments) / sizeof(alignments[0]); at++) {
    bfc_request_t request = BFC_REQUEST_INIT;
    ptr = &at;
    CHECK_REFUSED_ON(HOST, bfc_alloc_aligned(HOST, 1, alignments[at], &ptr), BFC_ERROR_INVALID_ARGUMENT,
                     "power of two");
    CHECK(ptr == NULL);
    ptr = &at;
    request.bytes = 1;
    request.alignment = alignments[at];
    CHECK_REFUSED_ON(HOST, bfc_alloc_ex(HOST, &request, &ptr), BFC_ERROR_INVALID_ARGUMENT, "power of two");
    CHECK(ptr == NULL);
  }
  CHECK(stats_of(HOST).num_allocs == 1);
  end();
}

static void alignments_larger_than_the_pool(void) {
  int shift;
  begin();
  for (shift = 0; shift < 64; shift++) {
    const size_t alignment = (size_t)1 << shift;
    void *ptr = &ptr;
    const bfc_status_t status = bfc_alloc_aligned(HOST, 1, alignment, &ptr);
    if (status == BFC_OK) {
      CHECK(ptr != NULL && (uintptr_t)ptr % alignment == 0);
      CHECK_OK(bfc_free(HOST, ptr));
    } else {
      CHECK_STATUS(status, BFC_ERROR_OUT_OF_MEMORY);
      CHECK(ptr == NULL);
    }
    /* Up to a page there must be a place in 16 MiB; above the limit it would be luck and is refused. */
    if (shift <= 12) CHECK_STATUS(status, BFC_OK);
    if (alignment > 16 * MIB) {
      CHECK_REFUSED_ON(HOST, bfc_alloc_aligned(HOST, 1, alignment, &ptr), BFC_ERROR_OUT_OF_MEMORY, "alignment");
    }
    CHECK_OK(bfc_check(HOST));
  }
  end();
}

/* A region at an address that is a multiple of everything: whether a request is served must not depend on
 * such luck. Nobody touches the memory, so there need not be any. */
static void *give_round_address(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  (void)user_data, (void)alignment, (void)bytes, (void)received;
  return (void *)((uintptr_t)1 << 46);
}

static void take_it_back(void *user_data, void *ptr, size_t bytes) { (void)user_data, (void)ptr, (void)bytes; }

static void alignments_that_luck_would_serve(void) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = BFC_OPTIONS_INIT;
  int shift;
  options.memory_limit = MIB;
  use_functions(&options, &suballocator, give_round_address, take_it_back);
  CHECK_OK(bfc_create(HOST, &options));
  CHECK_OK(bfc_free(HOST, allocate(HOST, 1)));
  for (shift = 8; shift < 64; shift++) {
    void *ptr = &ptr;
    if (shift <= 20) {
      CHECK_OK(bfc_alloc_aligned(HOST, 1, (size_t)1 << shift, &ptr));
      CHECK_OK(bfc_free(HOST, ptr));
    } else {
      CHECK_REFUSED_ON(HOST, bfc_alloc_aligned(HOST, 1, (size_t)1 << shift, &ptr), BFC_ERROR_OUT_OF_MEMORY,
                       "alignment");
      CHECK(ptr == NULL);
    }
  }
  CHECK_OK(bfc_destroy(HOST));
}

static void without_timestamps(void) {
  bfc_request_t request = BFC_REQUEST_INIT;
  uint64_t count = 7;
  void *ptr = &count;
  begin();
  request.bytes = 1;
  request.freed_before = 1;
#define WITHOUT(call) CHECK_REFUSED_ON(HOST, call, BFC_ERROR_UNSUPPORTED, "BFC_TIMESTAMPS")
  WITHOUT(bfc_alloc_ex(HOST, &request, &ptr));
  CHECK(ptr == NULL);
  ptr = &count;
  WITHOUT(bfc_alloc_freed_before(HOST, 1, 1, &ptr));
  CHECK(ptr == NULL);
  WITHOUT(bfc_alloc_freed_before(HOST, 1, 0, &ptr));
  CHECK_REFUSED(bfc_alloc_freed_before(HOST, 1, 1, &ptr), BFC_ERROR_UNSUPPORTED,
                "bfc_alloc_freed_before needs BFC_TIMESTAMPS");
  WITHOUT(bfc_timestamp(HOST, &count));
  CHECK(count == 0);
  WITHOUT(bfc_set_safe_frontier(HOST, 1));
  end();
}

static void unknown_flags_of_a_request(void) {
  int bit;
  begin();
  const uint32_t known = BFC_REQUEST_ON_STREAM | BFC_REQUEST_NO_GROWTH | BFC_REQUEST_SIZE_512 |
                         BFC_REQUEST_SHORT_LIVED | BFC_REQUEST_ATTEMPT;
  for (bit = 0; bit < 32; bit++) {
    bfc_request_t request = BFC_REQUEST_INIT;
    void *ptr = &bit;
    if ((known >> bit & 1u) != 0) continue;
    request.bytes = 1;
    request.flags = 1u << bit;
    CHECK_REFUSED_ON(HOST, bfc_alloc_ex(HOST, &request, &ptr), BFC_ERROR_INVALID_ARGUMENT, "flags");
    CHECK(ptr == NULL);
    request.flags = 0;
    request.reserved = 1u << bit;
    CHECK_REFUSED_ON(HOST, bfc_alloc_ex(HOST, &request, &ptr), BFC_ERROR_INVALID_ARGUMENT, "reserved");
  }
  end();
}

/* In the order of streams, which are any tokens on the host. */
static void streams(void) {
  bfc_request_t request = BFC_REQUEST_INIT;
  void *const first = &request, *const second = &request.bytes;
  void *ptr = NULL, *other = NULL, *none = NULL;
  int32_t inside;
  begin();
  CHECK_REFUSED_ON(HOST, bfc_alloc_async(HOST, 1, first, NULL), BFC_ERROR_INVALID_ARGUMENT, "NULL");
  CHECK_OK(bfc_alloc_async(HOST, 0, first, &none));
  CHECK(none == NULL);
  CHECK_OK(bfc_free_async(HOST, NULL, first));
  request.bytes = 1;
  request.flags = BFC_REQUEST_ON_STREAM;
  request.stream = first;
  CHECK_OK(bfc_alloc_ex(HOST, &request, &ptr));
  CHECK_OK(bfc_record_stream(HOST, ptr, second));
  CHECK_OK(bfc_free_async(HOST, ptr, first));
  CHECK_REFUSED_ON(HOST, bfc_free_async(HOST, ptr, first), BFC_ERROR_DOUBLE_FREE, "free already");
  CHECK_REFUSED_ON(HOST, bfc_free(HOST, ptr), BFC_ERROR_DOUBLE_FREE, "free already");
  CHECK_REFUSED_ON(HOST, bfc_record_stream(HOST, ptr, second), BFC_ERROR_INVALID_POINTER, "live");
  CHECK_REFUSED_ON(HOST, bfc_free_async(HOST, &inside, first), BFC_ERROR_INVALID_POINTER, "region");
  CHECK_REFUSED_ON(HOST, bfc_record_stream(HOST, NULL, first), BFC_ERROR_INVALID_POINTER, "live");
  CHECK_REFUSED_ON(HOST, bfc_free_async(HOST, (char *)live + 1, first), BFC_ERROR_INVALID_POINTER, "inside");
  /* It waits for the second stream, also on the first. */
  CHECK_OK(bfc_alloc_async(HOST, 1, first, &other));
  CHECK(other != ptr);
  CHECK_OK(bfc_free_async(HOST, other, first));
  CHECK_OK(bfc_stream_synchronized(HOST, second));
  CHECK_OK(bfc_alloc_async(HOST, 1, first, &other));
  CHECK(other == ptr);
  CHECK_OK(bfc_free_async(HOST, other, first));
  CHECK_OK(bfc_forget_stream(HOST, first));
  CHECK_OK(bfc_forget_stream(HOST, first));
  CHECK_OK(bfc_forget_stream(HOST, &inside));
  CHECK_OK(bfc_stream_synchronized(HOST, &inside));
  end();
}

/* Streams and stamps are two answers to one question. */
static void streams_with_timestamps(void) {
  enum { STAMPED = 300 };
  bfc_options_t options = host_options(1 << 20);
  bfc_request_t request = BFC_REQUEST_INIT;
  void *ptr, *lives;
  options.flags |= BFC_TIMESTAMPS;
  CHECK_OK(bfc_create(STAMPED, &options));
  lives = allocate(STAMPED, 1);
  request.bytes = 1;
  request.flags = BFC_REQUEST_ON_STREAM;
#define EXCLUDED(call) CHECK_REFUSED_ON(STAMPED, call, BFC_ERROR_UNSUPPORTED, "BFC_TIMESTAMPS")
  ptr = &request;
  EXCLUDED(bfc_alloc_ex(STAMPED, &request, &ptr));
  CHECK(ptr == NULL);
  ptr = &request;
  EXCLUDED(bfc_alloc_async(STAMPED, 1, NULL, &ptr));
  CHECK(ptr == NULL);
  EXCLUDED(bfc_free_async(STAMPED, lives, NULL));
  EXCLUDED(bfc_record_stream(STAMPED, lives, NULL));
  EXCLUDED(bfc_forget_stream(STAMPED, NULL));
  EXCLUDED(bfc_stream_synchronized(STAMPED, NULL));
  CHECK_OK(bfc_free(STAMPED, lives));
  CHECK_OK(bfc_destroy(STAMPED));
}

static void scopes_too_deep_and_too_long(void) {
  char name[4096];
  uint64_t depth = 0;
  size_t length = 0;
  char *report, *ptr;
  begin();
  memset(name, 'n', sizeof(name) - 1);
  name[sizeof(name) - 1] = '\0';
  /* Long names are cut. */
  CHECK_OK(bfc_scope_begin(name, UINT64_MAX));
  ptr = allocate(HOST, 1);
  CHECK_OK(bfc_report(HOST, NULL, 0, &length));
  report = (char *)malloc(length + 1);
  CHECK(report != NULL);
  CHECK_OK(bfc_report(HOST, report, length + 1, &length));
  CHECK(strstr(report, "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn") != NULL && length < 4096 + 4096);
  free(report);
  CHECK_OK(bfc_free(HOST, ptr));
  CHECK_OK(bfc_scope_end());
  /* They nest, but not endlessly. */
  while (depth < 1000 && bfc_scope_begin("deep", depth) == BFC_OK) depth++;
  CHECK(depth >= 8 && depth < 1000);
  CHECK_REFUSED_ON(HOST, bfc_scope_begin("deep", depth), BFC_ERROR_INVALID_ARGUMENT, "bfc_scope_end");
  while (depth-- > 0) CHECK_OK(bfc_scope_end());
  CHECK_REFUSED_ON(HOST, bfc_scope_end(), BFC_ERROR_INVALID_ARGUMENT, "bfc_scope_begin");
  CHECK_REFUSED_ON(HOST, bfc_scope_begin("\xff\xfe", 1), BFC_ERROR_INVALID_ARGUMENT, "UTF-8");
  CHECK_OK(bfc_scope_begin("", 0));
  CHECK_OK(bfc_scope_end());
  end();
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(null_out_pointers),
      CASE(ordinals_out_of_range),
      CASE(ordinals_at_the_edges),
      CASE(created_twice),
      CASE(created_twice_with_other_options),
      CASE(destroyed_while_chunks_live),
      CASE(size_zero),
      CASE(size_near_the_largest_number),
      CASE(bad_alignments),
      CASE(alignments_larger_than_the_pool),
      CASE(alignments_that_luck_would_serve),
      CASE(without_timestamps),
      CASE(unknown_flags_of_a_request),
      CASE(streams),
      CASE(streams_with_timestamps),
      CASE(scopes_too_deep_and_too_long),
  };
  return RUN_CASE(cases, argc, argv);
}
