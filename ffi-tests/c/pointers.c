/* Pointers that are not the start of a live chunk: each is refused by its name, nothing changes, and the
 * contents of what lives stay.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

enum { HOST = 256, OTHER = 300, MIB = 1 << 20 };

/* Three neighbours of 4096 bytes in use, of which tests free the middle one. */
static char *before, *middle, *after;

static void begin(void) {
  bfc_options_t options = host_options(16 * MIB);
  CHECK_OK(bfc_create(HOST, &options));
  before = allocate(HOST, 4096);
  middle = allocate(HOST, 4000);
  after = allocate(HOST, 4096);
  CHECK(middle == before + 4096 && after == middle + 4096);
  memset(before, 'b', 4096);
  memset(middle, 'm', 4000);
  memset(after, 'a', 4096);
}

static void end(void) {
  CHECK(is_filled(before, 4096, 'b') && is_filled(after, 4096, 'a'));
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy_forced(HOST));
}

/* No call takes the pointer for a live chunk, and all leave the statistics alone. */
static void is_refused(void *ptr, bfc_status_t by_free) {
  const bfc_stats_t then = stats_of(HOST);
  bfc_stats_t now;
  size_t bytes = 7;
  int64_t id = 7;
  CHECK_REFUSED_ON(HOST, bfc_free(HOST, ptr), by_free, "0x");
  CHECK_REFUSED_ON(HOST, bfc_requested_size(HOST, ptr, &bytes), BFC_ERROR_INVALID_POINTER, "0x");
  CHECK(bytes == 0);
  bytes = 7;
  CHECK_REFUSED_ON(HOST, bfc_allocated_size(HOST, ptr, &bytes), BFC_ERROR_INVALID_POINTER, "0x");
  CHECK(bytes == 0);
  CHECK_REFUSED_ON(HOST, bfc_allocation_id(HOST, ptr, &id), BFC_ERROR_INVALID_POINTER, "0x");
  CHECK(id == 0);
  now = stats_of(HOST);
  CHECK(memcmp(&then, &now, sizeof(then)) == 0);
}

static void has_no_range(const void *ptr) {
  void *chunk = &chunk, *region = &region;
  size_t chunk_bytes = 7, region_bytes = 7;
  CHECK_REFUSED_ON(HOST, bfc_address_range(HOST, ptr, &chunk, &chunk_bytes, &region, &region_bytes),
                   BFC_ERROR_INVALID_POINTER, "0x");
  CHECK(chunk == NULL && region == NULL && chunk_bytes == 0 && region_bytes == 0);
}

static void has_no_owner(const void *ptr) {
  int32_t device = 7;
  CHECK_REFUSED_ON(HOST, bfc_owner(ptr, &device), BFC_ERROR_INVALID_POINTER, "0x");
  CHECK(device == 0);
}

static void interior(void) {
  static const size_t offsets[] = {1, 2, 8, 128, 255, 256, 257, 512, 2048, 3999, 4000, 4095};
  size_t at;
  begin();
  for (at = 0; at < sizeof(offsets) / sizeof(offsets[0]); at++) {
    char *const inside = middle + offsets[at];
    void *chunk = NULL, *region = NULL;
    size_t chunk_bytes = 0, region_bytes = 0;
    int32_t device = -1;
    is_refused(inside, BFC_ERROR_INVALID_POINTER);
    /* Two questions are answered for interior pointers too. */
    CHECK_OK(bfc_address_range(HOST, inside, &chunk, &chunk_bytes, &region, &region_bytes));
    CHECK(chunk == (void *)middle && chunk_bytes == 4096 && region == (void *)before && region_bytes >= 3 * 4096);
    CHECK_OK(bfc_owner(inside, &device));
    CHECK(device == HOST);
  }
  CHECK(is_filled(middle, 4000, 'm'));
  CHECK_OK(bfc_free(HOST, middle));
  end();
}

static void foreign(void) {
  char on_the_stack = 0;
  static char in_the_data[1024];
  char *const on_the_heap = (char *)malloc(1024);
  void *region = NULL, *chunk = NULL;
  size_t region_bytes = 0, chunk_bytes = 0, at;
  begin();
  CHECK(on_the_heap != NULL);
  CHECK_OK(bfc_address_range(HOST, middle, &chunk, &chunk_bytes, &region, &region_bytes));
  {
    void *const pointers[] = {
        &on_the_stack,
        in_the_data,
        on_the_heap,
        (void *)(uintptr_t)1,
        (void *)(uintptr_t)256,
        (void *)UINTPTR_MAX,
        (void *)(UINTPTR_MAX - 255),
        (void *)((uintptr_t)1 << 63),
        (void *)((uintptr_t)region - 1),
        (void *)((uintptr_t)region - 256),
        (void *)((uintptr_t)region + region_bytes),
        (void *)((uintptr_t)region + region_bytes + 255),
        (void *)(uintptr_t)&bfc_free,
    };
    for (at = 0; at < sizeof(pointers) / sizeof(pointers[0]); at++) {
      is_refused(pointers[at], BFC_ERROR_INVALID_POINTER);
      has_no_range(pointers[at]);
      has_no_owner(pointers[at]);
    }
  }
  free(on_the_heap);
  CHECK(is_filled(middle, 4000, 'm'));
  end();
}

static void null(void) {
  size_t bytes = 7;
  begin();
  CHECK_OK(bfc_free(HOST, NULL));
  CHECK_REFUSED_ON(HOST, bfc_requested_size(HOST, NULL, &bytes), BFC_ERROR_INVALID_POINTER, "0x0");
  CHECK(bytes == 0);
  has_no_range(NULL);
  has_no_owner(NULL);
  end();
}

static void freed_already(void) {
  begin();
  CHECK_OK(bfc_free(HOST, middle));
  is_refused(middle, BFC_ERROR_DOUBLE_FREE);
  is_refused(middle, BFC_ERROR_DOUBLE_FREE);
  has_no_range(middle);
  has_no_range(middle + 300);
  /* It is the right size again, and may be freed again. */
  CHECK(allocate(HOST, 4096) == middle);
  CHECK_OK(bfc_free(HOST, middle));
  is_refused(middle, BFC_ERROR_DOUBLE_FREE);
  end();
}

/* Where a chunk was merged into another no chunk begins any more. */
static void freed_and_merged(void) {
  char *last;
  begin();
  last = allocate(HOST, 256);
  CHECK_OK(bfc_free(HOST, last));
  CHECK_OK(bfc_free(HOST, middle));
  CHECK_OK(bfc_free(HOST, before));
  is_refused(before, BFC_ERROR_DOUBLE_FREE);
  is_refused(middle, BFC_ERROR_INVALID_POINTER);
  CHECK_REFUSED_ON(HOST, bfc_free(HOST, middle), BFC_ERROR_INVALID_POINTER, "was it freed already");
  is_refused(last, BFC_ERROR_DOUBLE_FREE); /* the free rest of the region begins there */
  CHECK(is_filled(after, 4096, 'a'));
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy_forced(HOST));
}

/* A region that was given back: its addresses belong to no allocator. */
static void stale_after_trim(void) {
  uint64_t released = 0;
  char *big;
  begin();
  big = allocate(HOST, 8 * MIB);
  CHECK_OK(bfc_free(HOST, big));
  CHECK_OK(bfc_trim(HOST, 0, &released));
  CHECK(released >= 8 * MIB);
  is_refused(big, BFC_ERROR_INVALID_POINTER);
  is_refused(big + 4096, BFC_ERROR_INVALID_POINTER);
  has_no_owner(big);
  has_no_range(big);
  end();
}

static void stale_after_destroy(void) {
  bfc_options_t options = host_options(16 * MIB);
  size_t bytes = 7;
  char *old;
  begin();
  old = middle;
  end();
  CHECK_REFUSED(bfc_free(HOST, old), BFC_ERROR_NO_ALLOCATOR, "create one first");
  CHECK_REFUSED(bfc_requested_size(HOST, old, &bytes), BFC_ERROR_NO_ALLOCATOR, "create one first");
  CHECK(bytes == 0);
  CHECK_OK(bfc_create(HOST, &options));
  is_refused(old, BFC_ERROR_INVALID_POINTER);
  has_no_owner(old);
  CHECK_OK(bfc_destroy(HOST));
}

static void of_another_device(void) {
  bfc_options_t options = host_options(16 * MIB);
  char *foreigner;
  int32_t device = -1;
  begin();
  CHECK_OK(bfc_create(OTHER, &options));
  foreigner = allocate(OTHER, 4096);
  memset(foreigner, 'f', 4096);
  is_refused(foreigner, BFC_ERROR_INVALID_POINTER);
  has_no_range(foreigner);
  CHECK_OK(bfc_owner(foreigner, &device));
  CHECK(device == OTHER);
  /* The words tell whose it is, also to one who asks where nothing was created. */
  CHECK_REFUSED_ON(OTHER, bfc_free(OTHER, middle), BFC_ERROR_INVALID_POINTER, "belongs to device 256");
  CHECK_REFUSED_ON(HOST, bfc_free(HOST, foreigner), BFC_ERROR_INVALID_POINTER, "belongs to device 300");
  CHECK_REFUSED_ON(HOST, bfc_free(1023, foreigner), BFC_ERROR_NO_ALLOCATOR, "belongs to device 300");
  CHECK(is_filled(foreigner, 4096, 'f'));
  CHECK_OK(bfc_free(OTHER, foreigner));
  CHECK_OK(bfc_destroy(OTHER));
  CHECK_OK(bfc_owner(middle, &device));
  CHECK(device == HOST);
  end();
}

/* With timestamps a freed chunk keeps its start for a while. */
static void freed_with_a_stamp(void) {
  bfc_options_t options = host_options(16 * MIB);
  uint64_t stamp = 0;
  options.flags |= BFC_TIMESTAMPS | BFC_QUARANTINE;
  CHECK_OK(bfc_create(HOST, &options));
  before = allocate(HOST, 4096);
  middle = allocate(HOST, 4096);
  after = allocate(HOST, 4096);
  memset(before, 'b', 4096);
  memset(after, 'a', 4096);
  CHECK_OK(bfc_free(HOST, middle));
  is_refused(middle, BFC_ERROR_DOUBLE_FREE);
  CHECK_OK(bfc_timestamp(HOST, &stamp));
  CHECK(stamp == 1);
  /* In quarantine: the same size gets another place, until the frontier has passed. */
  CHECK(allocate(HOST, 4096) != middle);
  CHECK_OK(bfc_set_safe_frontier(HOST, stamp + 1));
  CHECK(allocate(HOST, 4096) == middle);
  end();
}

/* The owner is told also to its own callbacks. */
static char *held;
static int asked;

static void ask_for_the_owner(void) {
  int32_t device = -1;
  if (held == NULL) return;
  CHECK_OK(bfc_owner(held, &device));
  CHECK(device == OTHER);
  CHECK_OK(bfc_owner(held + 4000, &device));
  CHECK(device == OTHER);
  CHECK_OK(bfc_owner(middle, &device));
  CHECK(device == HOST);
  has_no_owner(&device);
  asked++;
}

static void *give(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  void *ptr = NULL;
  (void)user_data, (void)received;
  ask_for_the_owner();
  return posix_memalign(&ptr, alignment, bytes) == 0 ? ptr : NULL;
}

static void take(void *user_data, void *ptr, size_t bytes) {
  (void)user_data, (void)bytes;
  ask_for_the_owner();
  free(ptr);
}

static void owner_from_a_callback(void) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = host_options(16 * MIB);
  uint64_t released;
  use_functions(&options, &suballocator, give, take);
  begin();
  CHECK_OK(bfc_create(OTHER, &options));
  held = allocate(OTHER, MIB);
  CHECK_OK(bfc_free(OTHER, allocate(OTHER, 8 * MIB)));
  CHECK(asked == 1);
  CHECK_OK(bfc_trim(OTHER, 0, &released));
  CHECK(asked == 2);
  CHECK_OK(bfc_free(OTHER, held));
  held = NULL;
  CHECK_OK(bfc_destroy(OTHER));
  end();
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(interior),
      CASE(foreign),
      CASE(null),
      CASE(freed_already),
      CASE(freed_and_merged),
      CASE(stale_after_trim),
      CASE(stale_after_destroy),
      CASE(of_another_device),
      CASE(freed_with_a_stamp),
      CASE(owner_from_a_callback),
  };
  return RUN_CASE(cases, argc, argv);
}
