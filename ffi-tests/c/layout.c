/* Names, values, layouts and signatures of the C ABI, written out a second time after the contract: code
 * that was compiled against an earlier header must go on working, so none of these may ever change.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

#include <stddef.h>

#define VALUE(name, value) _Static_assert((name) == (value), #name " has another value")
#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field " has moved")
#define SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " has another size")
/* A field has a type if a pointer to it has: sizes alone would not tell int64_t from double. */
#define FIELD(type, field, expected) \
  _Static_assert(_Generic(&((type *)0)->field, expected *: 1, default: 0), #type "." #field " has another type")

VALUE(BFC_OK, 0);
VALUE(BFC_ERROR_INVALID_ARGUMENT, 1);
VALUE(BFC_ERROR_NO_ALLOCATOR, 2);
VALUE(BFC_ERROR_ALREADY_EXISTS, 3);
VALUE(BFC_ERROR_OUT_OF_MEMORY, 4);
VALUE(BFC_ERROR_INVALID_POINTER, 5);
VALUE(BFC_ERROR_DOUBLE_FREE, 6);
VALUE(BFC_ERROR_BUSY, 7);
VALUE(BFC_ERROR_BACKEND_UNAVAILABLE, 8);
VALUE(BFC_ERROR_BACKEND_FAILED, 9);
VALUE(BFC_ERROR_UNSUPPORTED, 10);
VALUE(BFC_ERROR_SHUTTING_DOWN, 11);
VALUE(BFC_ERROR_INTERNAL, 12);

VALUE(BFC_BACKEND_AUTO, 0);
VALUE(BFC_BACKEND_HOST, 1);
VALUE(BFC_BACKEND_CUSTOM, 2);
VALUE(BFC_BACKEND_CUDA, 3);
VALUE(BFC_BACKEND_CUDA_VMM, 4);
VALUE(BFC_BACKEND_HOST_VMM, 5);

VALUE(BFC_ALLOW_GROWTH, 1u << 0);
VALUE(BFC_GARBAGE_COLLECTION, 1u << 1);
VALUE(BFC_TIMESTAMPS, 1u << 2);
VALUE(BFC_SPLIT_ALWAYS, 1u << 3);
VALUE(BFC_QUARANTINE, 1u << 4);
VALUE(BFC_TWO_ENDS, 1u << 5);
VALUE(BFC_REQUEST_ON_STREAM, 1u << 0);
VALUE(BFC_REQUEST_NO_GROWTH, 1u << 1);
VALUE(BFC_REQUEST_SIZE_512, 1u << 3);
VALUE(BFC_REQUEST_SHORT_LIVED, 1u << 4);
VALUE(BFC_REQUEST_ATTEMPT, 1u << 6);

VALUE(BFC_LOG_ERROR, 1);
VALUE(BFC_LOG_WARN, 2);
VALUE(BFC_LOG_INFO, 3);
VALUE(BFC_LOG_DEBUG, 4);

SIZE(bfc_status_t, 4);
_Static_assert((bfc_status_t)-1 < 0, "bfc_status_t is signed");
SIZE(bfc_stream_t, sizeof(void *));

#if UINTPTR_MAX == 0xffffffffffffffffu /* the only kind there is a library for */
AT(bfc_suballocator_t, struct_size, 0);
AT(bfc_suballocator_t, user_data, 8);
AT(bfc_suballocator_t, alloc, 16);
AT(bfc_suballocator_t, free, 24);
AT(bfc_suballocator_t, supports_coalescing, 32);
AT(bfc_suballocator_t, reserved, 36);
SIZE(bfc_suballocator_t, 40);

AT(bfc_options_t, struct_size, 0);
AT(bfc_options_t, backend, 8);
AT(bfc_options_t, flags, 12);
AT(bfc_options_t, memory_limit, 16);
AT(bfc_options_t, memory_fraction, 24);
AT(bfc_options_t, fragmentation_fraction, 32);
AT(bfc_options_t, initial_region_bytes, 40);
AT(bfc_options_t, retry_timeout_ms, 48);
AT(bfc_options_t, reserved, 52);
AT(bfc_options_t, name, 56);
AT(bfc_options_t, suballocator, 64);
AT(bfc_options_t, growth_policy, 72);
AT(bfc_options_t, reserved2, 76);
AT(bfc_options_t, plan, 80);
SIZE(bfc_options_t, 88);

AT(bfc_request_t, struct_size, 0);
AT(bfc_request_t, bytes, 8);
AT(bfc_request_t, alignment, 16);
AT(bfc_request_t, stream, 24);
AT(bfc_request_t, freed_before, 32);
AT(bfc_request_t, flags, 40);
AT(bfc_request_t, reserved, 44);
SIZE(bfc_request_t, 48);

AT(bfc_stats_t, struct_size, 0);
AT(bfc_stats_t, num_allocs, 8);
AT(bfc_stats_t, num_frees, 16);
AT(bfc_stats_t, num_failures, 24);
AT(bfc_stats_t, bytes_in_use, 32);
AT(bfc_stats_t, peak_bytes_in_use, 40);
AT(bfc_stats_t, bytes_requested, 48);
AT(bfc_stats_t, peak_bytes_requested, 56);
AT(bfc_stats_t, largest_alloc_size, 64);
AT(bfc_stats_t, bytes_limit, 72);
AT(bfc_stats_t, pool_bytes, 80);
AT(bfc_stats_t, peak_pool_bytes, 88);
AT(bfc_stats_t, largest_free_block_bytes, 96);
AT(bfc_stats_t, num_regions, 104);
AT(bfc_stats_t, num_chunks, 112);
AT(bfc_stats_t, num_free_chunks, 120);
AT(bfc_stats_t, metadata_bytes, 128);
AT(bfc_stats_t, num_planned_allocs, 136);
SIZE(bfc_stats_t, 144);
#endif

FIELD(bfc_options_t, struct_size, size_t);
FIELD(bfc_options_t, backend, uint32_t);
FIELD(bfc_options_t, flags, uint32_t);
FIELD(bfc_options_t, memory_limit, uint64_t);
FIELD(bfc_options_t, memory_fraction, double);
FIELD(bfc_options_t, fragmentation_fraction, double);
FIELD(bfc_options_t, initial_region_bytes, uint64_t);
FIELD(bfc_options_t, retry_timeout_ms, uint32_t);
FIELD(bfc_options_t, name, const char *);
FIELD(bfc_options_t, suballocator, const bfc_suballocator_t *);
FIELD(bfc_options_t, growth_policy, uint32_t);
FIELD(bfc_options_t, plan, const char *);
FIELD(bfc_request_t, bytes, size_t);
FIELD(bfc_request_t, alignment, size_t);
FIELD(bfc_request_t, stream, void *);
FIELD(bfc_request_t, freed_before, uint64_t);
FIELD(bfc_request_t, flags, uint32_t);
FIELD(bfc_stats_t, num_allocs, uint64_t);
FIELD(bfc_stats_t, metadata_bytes, uint64_t);
FIELD(bfc_stats_t, num_planned_allocs, uint64_t);

/* A wrong signature does not initialize these. */
static bfc_status_t (*const of_device[])(int32_t) = {bfc_destroy, bfc_destroy_forced, bfc_reset_stats, bfc_check};
static bfc_status_t (*const create)(int32_t, const bfc_options_t *) = bfc_create;
static bfc_status_t (*const alloc)(int32_t, size_t, void **) = bfc_alloc;
static bfc_status_t (*const alloc_aligned)(int32_t, size_t, size_t, void **) = bfc_alloc_aligned;
static bfc_status_t (*const alloc_ex)(int32_t, const bfc_request_t *, void **) = bfc_alloc_ex;
static bfc_status_t (*const free_it)(int32_t, void *) = bfc_free;
static bfc_status_t (*const alloc_async)(int32_t, size_t, bfc_stream_t, void **) = bfc_alloc_async;
static bfc_status_t (*const with_stream[])(int32_t, void *, bfc_stream_t) = {bfc_free_async, bfc_record_stream};
static bfc_status_t (*const of_stream[])(int32_t, bfc_stream_t) = {bfc_forget_stream, bfc_stream_synchronized};
static bfc_status_t (*const timestamp)(int32_t, uint64_t *) = bfc_timestamp;
static bfc_status_t (*const frontier)(int32_t, uint64_t) = bfc_set_safe_frontier;
static bfc_status_t (*const freed_before)(int32_t, size_t, uint64_t, void **) = bfc_alloc_freed_before;
static bfc_status_t (*const sizes[])(int32_t, const void *, size_t *) = {bfc_requested_size, bfc_allocated_size};
static bfc_status_t (*const id)(int32_t, const void *, int64_t *) = bfc_allocation_id;
static bfc_status_t (*const range)(int32_t, const void *, void **, size_t *, void **, size_t *) = bfc_address_range;
static bfc_status_t (*const owner)(const void *, int32_t *) = bfc_owner;
static bfc_status_t (*const trim)(int32_t, uint64_t, uint64_t *) = bfc_trim;
static bfc_status_t (*const set_limit)(int32_t, uint64_t) = bfc_set_memory_limit;
static bfc_status_t (*const stats)(int32_t, bfc_stats_t *) = bfc_stats;
static bfc_status_t (*const texts[])(int32_t, char *, size_t, size_t *) = {bfc_occupancy, bfc_memory_map, bfc_report};
static bfc_status_t (*const metrics)(char *, size_t, size_t *) = bfc_metrics;
static bfc_status_t (*const resolve)(int32_t, const bfc_options_t *, char *, size_t, size_t *) = bfc_resolve_options;
static bfc_status_t (*const scope_begin)(const char *, uint64_t) = bfc_scope_begin;
static bfc_status_t (*const scope_end)(void) = bfc_scope_end;
static bfc_status_t (*const set_log)(bfc_log_callback_t, void *) = bfc_set_log_callback;
static const char *(*const status_string)(bfc_status_t) = bfc_status_string;
static size_t (*const last_error)(char *, size_t) = bfc_last_error;
static const char *(*const version)(void) = bfc_version;

int main(void) {
  char expected[32];
  CHECK(of_device[0] && create && alloc && alloc_aligned && alloc_ex && free_it && alloc_async && with_stream[0]);
  CHECK(of_stream[0] && timestamp && frontier && freed_before && sizes[0] && id && range && owner && trim &&
        set_limit && stats);
  CHECK(texts[0] && metrics && resolve && scope_begin && scope_end);
  CHECK(set_log && status_string && last_error && version);
  /* The header that this was compiled with is that of the library it runs with. */
  snprintf(expected, sizeof(expected), "%d.%d.%d", BFC_VERSION_MAJOR, BFC_VERSION_MINOR, BFC_VERSION_PATCH);
  CHECK(strcmp(bfc_version(), expected) == 0);
  CHECK(strcmp(bfc_version(), BFC_TESTS_PACKAGE_VERSION) == 0);
  return 0;
}
