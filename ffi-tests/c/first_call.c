/* Every entry point as the very first call of a process, with nothing created: `first_call NAME`.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

#include <bfc_adapters.h>

static const int32_t device = 256;
static int somewhere;

/* On the first call nothing failed before, so the words can only be this call's. */
static void refused(bfc_status_t got, bfc_status_t expected, const char *words) {
  char reason[1100];
  CHECK_STATUS(got, expected);
  CHECK(bfc_last_error(reason, sizeof(reason)) == strlen(reason));
  CHECK(strstr(reason, words) != NULL);
}

static void no_allocator(bfc_status_t got) { refused(got, BFC_ERROR_NO_ALLOCATOR, "create one first"); }

static void *const garbage = &somewhere;

static void create_default(void) {
  CHECK_OK(bfc_create(device, NULL));
  CHECK_OK(bfc_free(device, allocate(device, 1)));
  CHECK_OK(bfc_destroy(device));
}

static void create_with_options(void) {
  bfc_options_t options = host_options(1 << 20);
  CHECK_OK(bfc_create(device, &options));
  CHECK(stats_of(device).bytes_limit == 1 << 20);
  CHECK_OK(bfc_destroy(device));
}

static void destroy(void) { no_allocator(bfc_destroy(device)); }
static void destroy_forced(void) { no_allocator(bfc_destroy_forced(device)); }

/* Out-parameters are written on every path: each begins as something else. */
static void alloc(void) {
  void *ptr = garbage;
  no_allocator(bfc_alloc(device, 1, &ptr));
  CHECK(ptr == NULL);
}

static void alloc_aligned(void) {
  void *ptr = garbage;
  no_allocator(bfc_alloc_aligned(device, 1, 256, &ptr));
  CHECK(ptr == NULL);
}

static void alloc_ex(void) {
  bfc_request_t request = BFC_REQUEST_INIT;
  void *ptr = garbage;
  request.bytes = 1;
  no_allocator(bfc_alloc_ex(device, &request, &ptr));
  CHECK(ptr == NULL);
}

static void free_null(void) { CHECK_OK(bfc_free(device, NULL)); }
static void free_garbage(void) { no_allocator(bfc_free(device, &somewhere)); }

static void alloc_async(void) {
  void *ptr = garbage;
  no_allocator(bfc_alloc_async(device, 1, NULL, &ptr));
  CHECK(ptr == NULL);
}

static void free_async(void) { no_allocator(bfc_free_async(device, &somewhere, NULL)); }
static void record_stream(void) { no_allocator(bfc_record_stream(device, &somewhere, NULL)); }
static void forget_stream(void) { no_allocator(bfc_forget_stream(device, NULL)); }
static void stream_synchronized(void) { no_allocator(bfc_stream_synchronized(device, NULL)); }
static void pool_begin(void) { no_allocator(bfc_pool_begin(device, 1, NULL)); }
static void pool_end(void) { no_allocator(bfc_pool_end(device, 1, NULL)); }
static void pool_release(void) { no_allocator(bfc_pool_release(device, 1)); }
static void set_idle_callback(void) { no_allocator(bfc_set_idle_callback(device, NULL, NULL)); }
static void set_region_callback(void) { no_allocator(bfc_set_region_callback(device, NULL, NULL)); }
static void device_lost(void) { no_allocator(bfc_device_lost(device)); }

static void timestamp(void) {
  uint64_t count = 7;
  no_allocator(bfc_timestamp(device, &count));
  CHECK(count == 0);
}

static void set_safe_frontier(void) { no_allocator(bfc_set_safe_frontier(device, 1)); }

static void alloc_freed_before(void) {
  void *ptr = garbage;
  no_allocator(bfc_alloc_freed_before(device, 1, 1, &ptr));
  CHECK(ptr == NULL);
}

static void requested_size(void) {
  size_t bytes = 7;
  no_allocator(bfc_requested_size(device, &somewhere, &bytes));
  CHECK(bytes == 0);
}

static void allocated_size(void) {
  size_t bytes = 7;
  no_allocator(bfc_allocated_size(device, &somewhere, &bytes));
  CHECK(bytes == 0);
}

static void allocation_id(void) {
  int64_t id = 7;
  no_allocator(bfc_allocation_id(device, &somewhere, &id));
  CHECK(id == 0);
}

static void address_range(void) {
  void *chunk = garbage, *region = garbage;
  size_t chunk_bytes = 7, region_bytes = 7;
  no_allocator(bfc_address_range(device, &somewhere, &chunk, &chunk_bytes, &region, &region_bytes));
  CHECK(chunk == NULL && region == NULL && chunk_bytes == 0 && region_bytes == 0);
}

static void owner(void) {
  int32_t found = 7;
  refused(bfc_owner(&somewhere, &found), BFC_ERROR_INVALID_POINTER, "0x");
  CHECK(found == 0);
}

static void trim(void) {
  uint64_t released = 7;
  no_allocator(bfc_trim(device, 0, &released));
  CHECK(released == 0);
}

static void set_memory_limit(void) { no_allocator(bfc_set_memory_limit(device, 1 << 20)); }

static void stats(void) {
  bfc_stats_t result = BFC_STATS_INIT;
  result.num_allocs = 7;
  no_allocator(bfc_stats(device, &result));
  CHECK(result.num_allocs == 0 && result.struct_size == sizeof(result));
}

static void reset_stats(void) { no_allocator(bfc_reset_stats(device)); }
static void check(void) { no_allocator(bfc_check(device)); }

static void text(bfc_status_t (*write)(int32_t, char *, size_t, size_t *)) {
  char buffer[4] = "abc";
  size_t length = 7;
  no_allocator(write(device, buffer, sizeof(buffer), &length));
  CHECK(length == 0 && buffer[0] == '\0');
}

static void occupancy(void) { text(bfc_occupancy); }
static void memory_map(void) { text(bfc_memory_map); }
static void report(void) { text(bfc_report); }

static void metrics(void) {
  char buffer[8192];
  size_t length = 0;
  CHECK_OK(bfc_metrics(buffer, sizeof(buffer), &length));
  CHECK(length > 1000 && length < sizeof(buffer) && strcmp(buffer + length - 6, "# EOF\n") == 0);
  CHECK(strchr(buffer, '{') == NULL); /* no samples */
}

static void resolve_options(void) {
  char buffer[32];
  size_t length = 0;
  CHECK_OK(bfc_resolve_options(device, NULL, buffer, sizeof(buffer), &length));
  CHECK(length > sizeof(buffer) && strncmp(buffer, "{\"schema\":1,", 12) == 0);
}

static void scope_begin(void) {
  CHECK_OK(bfc_scope_begin("operation", 1));
  CHECK_OK(bfc_scope_end());
}

static void scope_end(void) { refused(bfc_scope_end(), BFC_ERROR_INVALID_ARGUMENT, "bfc_scope_begin"); }

static void history_start(void) {
  CHECK_OK(bfc_history_start(NULL, 1));
  CHECK_OK(bfc_history_stop());
}

static void history_start_with_stacks(void) {
  CHECK_OK(bfc_history_start_with_stacks(NULL, 1, BFC_STACKS_NATIVE));
  CHECK_OK(bfc_history_stop());
}

static void history_stop(void) { refused(bfc_history_stop(), BFC_ERROR_INVALID_ARGUMENT, "no history"); }

static void history_save(void) { refused(bfc_history_save("unused"), BFC_ERROR_INVALID_ARGUMENT, "no history"); }

static void history_mark(void) { refused(bfc_history_mark("unused"), BFC_ERROR_INVALID_ARGUMENT, "no history"); }

static void set_log_callback(void) { CHECK_OK(bfc_set_log_callback(NULL, NULL)); }
static void status_string(void) { CHECK(strlen(bfc_status_string(BFC_ERROR_BUSY)) > 3); }

static void last_error(void) {
  char buffer[8] = "abc";
  CHECK(bfc_last_error(buffer, sizeof(buffer)) == 0 && buffer[0] == '\0');
  CHECK(bfc_last_error(NULL, 0) == 0);
}

static void version(void) { CHECK(strchr(bfc_version(), '.') != NULL); }

/* The adapters. A request to them creates an allocator from the environment. Here that is one without a device. */
static void on_the_host(void) { CHECK(setenv("BFC_BACKEND", "host", 1) == 0); }

static void served_on(int32_t ordinal, void *ptr) {
  CHECK(ptr != NULL);
  CHECK(stats_of(ordinal).num_allocs == 1);
  CHECK_OK(bfc_free(ordinal, ptr));
  CHECK_OK(bfc_destroy(ordinal));
}

static void served(void *ptr) { served_on(0, ptr); }

static void said(const char *words) {
  char reason[1100];
  CHECK(bfc_last_error(reason, sizeof(reason)) == strlen(reason));
  CHECK(strstr(reason, words) != NULL);
}

static void torch_alloc(void) {
  on_the_host();
  served(bfc_torch_alloc(1000, 0, NULL));
}

static void torch_free(void) {
  bfc_torch_free(garbage, 1000, 0, NULL);
  said("device 0");
}

static void torch_init(void) { bfc_torch_init(1); }
static void torch_reset(void) { bfc_torch_reset(); }

static void torch_memory_fraction(void) {
  on_the_host();
  bfc_torch_memory_fraction(0.5, 0);
  CHECK_OK(bfc_destroy(0));
}

static void torch_base_alloc(void) {
  size_t size = 7;
  CHECK(bfc_torch_base_alloc(garbage, &size) == NULL && size == 0);
  CHECK(bfc_torch_base_alloc(garbage, NULL) == NULL);
  said("0x");
}

static void torch_record_stream(void) {
  bfc_torch_record_stream(garbage, NULL);
  said("0x");
}

static void torch_begin_allocate_to_pool(void) {
  on_the_host();
  bfc_torch_begin_allocate_to_pool(0, 1, 2, NULL);
  served(bfc_torch_alloc(1000, 0, NULL));
  bfc_torch_end_allocate_to_pool(0, 1, 2);
  bfc_torch_release_pool(0, 1, 2);
}

static void torch_end_allocate_to_pool(void) {
  bfc_torch_end_allocate_to_pool(0, 1, 2);
  said("(1, 2)");
}

static void torch_release_pool(void) {
  bfc_torch_release_pool(0, 1, 2);
  said("(1, 2)");
}

static void cupy_malloc(void) {
  on_the_host();
  served(bfc_cupy_malloc(garbage, 1000, 0));
}

static void cupy_free(void) {
  bfc_cupy_free(garbage, garbage, 0);
  said("device 0");
}

static void cached_alloc(void) {
  void *ptr = garbage;
  no_allocator(bfc_cached_alloc(256, 1000, &ptr));
  CHECK(ptr == NULL);
}

static void cached_free(void) { refused(bfc_cached_free(256, garbage), BFC_ERROR_NO_ALLOCATOR, "device 256"); }

static void numpy_malloc(void) { served_on(256, bfc_numpy_malloc(garbage, 1000)); }

static void numpy_calloc(void) { served_on(256, bfc_numpy_calloc(garbage, 10, 100)); }

static void numpy_realloc(void) {
  CHECK(bfc_numpy_realloc(garbage, garbage, 1000) == NULL);
  said("device 256");
}

static void numpy_free(void) {
  bfc_numpy_free(garbage, garbage, 1000);
  said("device 256");
}

static void ort_alloc(void) {
  on_the_host();
  served(bfc_ort_alloc(1000));
}

static void ort_alloc_on_stream(void) {
  on_the_host();
  served(bfc_ort_alloc_on_stream(0, 1000, NULL));
}

static void ort_free(void) {
  bfc_ort_free(garbage);
  said("0x");
}

static void ort_empty_cache(void) { bfc_ort_empty_cache(); }

static void handler_alloc(void) {
  void *ptr = garbage;
  on_the_host();
  CHECK_OK(bfc_handler_alloc(garbage, &ptr, 1000, NULL));
  served(ptr);
}

static void handler_free(void) {
  refused(bfc_handler_free(garbage, garbage, 1000, NULL), BFC_ERROR_INVALID_POINTER, "0x");
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(create_default),
      CASE(create_with_options),
      CASE(destroy),
      CASE(destroy_forced),
      CASE(alloc),
      CASE(alloc_aligned),
      CASE(alloc_ex),
      CASE(free_null),
      CASE(free_garbage),
      CASE(alloc_async),
      CASE(free_async),
      CASE(record_stream),
      CASE(forget_stream),
      CASE(stream_synchronized),
      CASE(timestamp),
      CASE(set_safe_frontier),
      CASE(alloc_freed_before),
      CASE(requested_size),
      CASE(allocated_size),
      CASE(allocation_id),
      CASE(address_range),
      CASE(owner),
      CASE(trim),
      CASE(stats),
      CASE(reset_stats),
      CASE(check),
      CASE(occupancy),
      CASE(memory_map),
      CASE(metrics),
      CASE(resolve_options),
      CASE(set_memory_limit),
      CASE(report),
      CASE(scope_begin),
      CASE(scope_end),
      CASE(history_start),
      CASE(history_start_with_stacks),
      CASE(history_stop),
      CASE(history_save),
      CASE(history_mark),
      CASE(set_log_callback),
      CASE(status_string),
      CASE(last_error),
      CASE(version),
      CASE(pool_begin),
      CASE(pool_end),
      CASE(pool_release),
      CASE(set_region_callback),
      CASE(set_idle_callback),
      CASE(device_lost),
      CASE(torch_alloc),
      CASE(torch_free),
      CASE(torch_init),
      CASE(torch_reset),
      CASE(torch_memory_fraction),
      CASE(torch_base_alloc),
      CASE(torch_record_stream),
      CASE(torch_begin_allocate_to_pool),
      CASE(torch_end_allocate_to_pool),
      CASE(torch_release_pool),
      CASE(cupy_malloc),
      CASE(cupy_free),
      CASE(cached_alloc),
      CASE(cached_free),
      CASE(numpy_malloc),
      CASE(numpy_calloc),
      CASE(numpy_realloc),
      CASE(numpy_free),
      CASE(ort_alloc),
      CASE(ort_free),
      CASE(ort_alloc_on_stream),
      CASE(ort_empty_cache),
      CASE(handler_alloc),
      CASE(handler_free),
  };
  return RUN_CASE(cases, argc, argv);
}
