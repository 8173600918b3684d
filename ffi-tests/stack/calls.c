/* What is called on the measured stack: each function of libbfc's headers, where it succeeds and where it fails.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "calls.h"

#include "../c/check.h"
#include "painted.h"

#include <bfc_adapters.h>
#include <dlfcn.h>
#include <stdint.h>
#include <sys/mman.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define OTHER 300
#define MANY 900

/* A call that comes to `expected`, unless something is made to fail in this scenario. */
#define AS(expected, call)                                                                                     \
  do {                                                                                                         \
    const bfc_status_t status_ = DEEP(call);                                                                   \
    if (!anything_goes && status_ != (expected)) check_status(__FILE__, __LINE__, #call, status_, (expected)); \
  } while (0)
#define OK(call) AS(BFC_OK, call)
#define ANY(call) ((void)DEEP(call))

static int anything_goes;
static char text[1 << 20];
static void *pieces[MANY];
static void *streams[6];

/* ---- Callbacks, all behind fences -------------------------------------------------------------------------- */

#define REGIONS (64 * MIB)
static char *regions;
static size_t regions_used, refuse_from = REGIONS;
static int misaligned, calls_back;

static void *give(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  const size_t start = (regions_used + alignment - 1) / alignment * alignment;
  void *ptr = NULL;
  (void)user_data, (void)received;
  if (calls_back) bfc_alloc((int32_t)(intptr_t)user_data, 1, &ptr);
  if (start + bytes > refuse_from) return NULL;
  regions_used = start + bytes;
  return regions + start + misaligned;
}

static void take(void *user_data, void *ptr, size_t bytes) { (void)user_data, (void)ptr, (void)bytes; }

static void region_changed(void *user_data, int32_t device, void *base, size_t bytes, int32_t event) {
  (void)user_data, (void)device, (void)base, (void)bytes, (void)event;
}

static void message(void *user_data, int32_t level, const char *words) { (void)user_data, (void)level, (void)words; }

/* ---- The simulated driver ------------------------------------------------------------------------------------ */

static void *driver;

static void *in_driver(const char *name) {
  void *found = dlsym(driver, name);
  CHECK(found != NULL);
  return fence(found);
}

#define DRIVER(type, name) ((int(*) type)(uintptr_t)in_driver(name))

static void begin_driver(const struct pool_kind *kind) {
  void *context = NULL;
  size_t at;
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver != NULL);
  CHECK(DRIVER((unsigned), "cuInit")(0) == 0);
  CHECK(DRIVER((void **, int), "cuDevicePrimaryCtxRetain")(&context, 0) == 0);
  CHECK(DRIVER((void *), "cuCtxSetCurrent")(context) == 0);
  for (at = 0; at < 6; at++) CHECK(DRIVER((void **, unsigned), "cuStreamCreate")(&streams[at], 1) == 0);
  if (kind->fail_nth != 0) {
    CHECK(DRIVER((const char *, uint64_t, int), "simcuda_fail")(NULL, kind->fail_nth, kind->fail_code) == 0);
  }
}

/* Work on a stream that is not done, so that what is freed there has to wait. */
static void hold(void *stream) {
  if (driver == NULL) return;
  CHECK(DRIVER((void *), "simcuda_hold")(stream) == 0);
  CHECK(DRIVER((void *, void (*)(void *), void *), "simcuda_launch")(
            stream, (void (*)(void *))(uintptr_t)in_driver("simcuda_clear_log"), NULL) == 0);
}

static void release_all(void) {
  if (driver != NULL) ((void (*)(void))(uintptr_t)in_driver("simcuda_release_all"))();
}

static void capture(void *stream, int begins) {
  void *graph = NULL;
  if (driver == NULL) return;
  if (begins) {
    DRIVER((void *, int), "cuStreamBeginCapture_v2")(stream, 2);
  } else {
    DRIVER((void *, void **), "cuStreamEndCapture")(stream, &graph);
  }
}

/* ---- The calls ------------------------------------------------------------------------------------------------ */

static bfc_options_t options_of(const struct pool_kind *kind, bfc_suballocator_t *functions) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.backend = kind->backend;
  options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
  options.memory_limit = 64 * MIB;
  options.initial_region_bytes = 64 * KIB;
  options.name = "a pool with a name";
  if (kind->backend == BFC_BACKEND_CUSTOM) {
    functions->alloc = (bfc_region_alloc_t)(uintptr_t)fence((void *)(uintptr_t)give);
    functions->free = (bfc_region_free_t)(uintptr_t)fence((void *)(uintptr_t)take);
    functions->user_data = (void *)(intptr_t)kind->device;
    options.suballocator = functions;
  }
  return options;
}

static void before_creation(int32_t device) {
  void *ptr = NULL;
  size_t bytes = 0;
  AS(BFC_ERROR_NO_ALLOCATOR, bfc_alloc(device, 1, &ptr));
  AS(BFC_ERROR_NO_ALLOCATOR, bfc_free(device, text));
  AS(BFC_ERROR_INVALID_ARGUMENT, bfc_free(-1, text));
  AS(BFC_ERROR_NO_ALLOCATOR, bfc_destroy(device));
  AS(BFC_ERROR_NO_ALLOCATOR, bfc_report(device, text, sizeof(text), &bytes));
  OK(bfc_free(device, NULL));
}

static void reports(int32_t device, void *live) {
  bfc_stats_t stats = BFC_STATS_INIT;
  void *chunk, *region;
  size_t bytes, region_bytes;
  int64_t id;
  int32_t owner;
  OK(bfc_requested_size(device, live, &bytes));
  OK(bfc_allocated_size(device, live, &bytes));
  OK(bfc_allocation_id(device, live, &id));
  OK(bfc_address_range(device, (char *)live + 1, &chunk, &bytes, &region, &region_bytes));
  OK(bfc_owner(live, &owner));
  AS(BFC_ERROR_INVALID_POINTER, bfc_requested_size(device, text, &bytes));
  AS(BFC_ERROR_INVALID_POINTER, bfc_allocated_size(device, text, &bytes));
  AS(BFC_ERROR_INVALID_POINTER, bfc_allocation_id(device, text, &id));
  AS(BFC_ERROR_INVALID_POINTER, bfc_address_range(device, text, &chunk, &bytes, &region, &region_bytes));
  AS(BFC_ERROR_INVALID_POINTER, bfc_owner(text, &owner));
  OK(bfc_stats(device, &stats));
  ANY(bfc_set_memory_limit(device, 0));
  ANY(bfc_set_memory_limit(device, stats.bytes_limit));
  OK(bfc_check(device));
  OK(bfc_occupancy(device, text, sizeof(text), &bytes));
  OK(bfc_memory_map(device, text, sizeof(text), &bytes));
  OK(bfc_report(device, text, sizeof(text), &bytes));
  OK(bfc_metrics(text, sizeof(text), &bytes));
  OK(bfc_resolve_options(device, NULL, text, sizeof(text), &bytes));
  DEEP(bfc_last_error(text, sizeof(text)));
}

static void history(int32_t device) {
  void *ptr = NULL;
  AS(BFC_ERROR_INVALID_ARGUMENT, bfc_history_mark("early"));
  OK(bfc_history_start(NULL, 1));
  ANY(bfc_alloc(device, 1000, &ptr));
  OK(bfc_history_mark("recorded"));
  AS(BFC_ERROR_INVALID_ARGUMENT, bfc_history_save("/nonexistent/folder/history"));
  ANY(bfc_free(device, ptr));
  OK(bfc_history_stop());
  AS(BFC_ERROR_UNSUPPORTED, bfc_history_start_with_stacks(NULL, 1, BFC_STACKS_PYTHON));
  OK(bfc_history_start_with_stacks(NULL, 1, BFC_STACKS_NATIVE));
  /* The stack that the unwinder needs is not libbfc's own. */
  (void)(bfc_alloc(device, 1000, &ptr) == BFC_OK && bfc_free(device, ptr));
  OK(bfc_history_stop());
}

static void growth_and_failure(int32_t device) {
  bfc_request_t request = BFC_REQUEST_INIT;
  void *ptr = NULL, *live = NULL;
  int at;
  ANY(bfc_alloc(device, 1000, &live));
  for (at = 0; at < MANY; at++) ANY(bfc_alloc(device, (size_t)(1 + at % 7 * 300), &pieces[at]));
  OK(bfc_scope_begin("an operation", 7));
  ANY(bfc_alloc(device, 3 * MIB, &ptr));
  ANY(bfc_free(device, ptr));
  ANY(bfc_alloc_aligned(device, 3000, 64 * KIB, &ptr));
  ANY(bfc_free(device, ptr));
  AS(BFC_ERROR_INVALID_ARGUMENT, bfc_alloc_aligned(device, 3000, 3, &ptr));
  request.bytes = 100 * KIB;
  ANY(bfc_alloc_ex(device, &request, &ptr));
  ANY(bfc_free(device, ptr));
  request.bytes = 60 * MIB;
  request.flags = BFC_REQUEST_NO_GROWTH | BFC_REQUEST_SIZE_512;
  AS(BFC_ERROR_OUT_OF_MEMORY, bfc_alloc_ex(device, &request, &ptr));
  ANY(bfc_alloc_failed(device, &request));
  AS(BFC_ERROR_OUT_OF_MEMORY, bfc_alloc(device, 65 * MIB, &ptr));
  AS(BFC_ERROR_OUT_OF_MEMORY, bfc_alloc(device, SIZE_MAX, &ptr));
  AS(BFC_ERROR_INVALID_ARGUMENT, bfc_alloc(device, 1, NULL));
  if (live != NULL) {
    reports(device, live);
    AS(BFC_ERROR_INVALID_POINTER, bfc_free(device, (char *)live + 256));
    AS(BFC_ERROR_NO_ALLOCATOR, bfc_free(OTHER, live));
    AS(BFC_ERROR_BUSY, bfc_destroy(device));
  }
  OK(bfc_scope_end());
  AS(BFC_ERROR_INVALID_ARGUMENT, bfc_scope_end());
  for (at = 0; at < 9; at++) ANY(bfc_scope_begin("nested too deep", 1));
  for (at = 0; at < 8; at++) OK(bfc_scope_end());
  AS(BFC_ERROR_INVALID_POINTER, bfc_free(device, text));
  for (at = 0; at < MANY; at += 2) ANY(bfc_free(device, pieces[at]));
  if (pieces[0] != NULL) ANY(bfc_free(device, pieces[0]));
  ANY(bfc_alloc(device, 8 * MIB, &ptr));
  ANY(bfc_free(device, ptr));
  for (at = 1; at < MANY; at += 2) ANY(bfc_free(device, pieces[at]));
  /* Garbage collection: there is no room but by giving the small regions back. */
  ANY(bfc_alloc(device, 60 * MIB, &ptr));
  ANY(bfc_free(device, ptr));
  ANY(bfc_free(device, live));
  OK(bfc_reset_stats(device));
}

static void in_streams(int32_t device) {
  bfc_request_t request = BFC_REQUEST_INIT;
  uint64_t released = 0;
  void *ptr = NULL;
  int at, round;
  for (round = 0; round < 2; round++) {
    hold(streams[2]);
    for (at = 0; at < 60; at++) {
      void *const stream = streams[at % 4];
      ANY(bfc_alloc_async(device, (size_t)(1 + at % 7 * 300), stream, &pieces[at]));
      if (at % 4 == 0 && pieces[at] != NULL) ANY(bfc_record_stream(device, pieces[at], streams[2]));
    }
    for (at = 0; at < 40; at++) ANY(bfc_free_async(device, pieces[at], streams[(at + round) % 4]));
    for (at = 40; at < 60; at++) ANY(bfc_free(device, pieces[at]));
    AS(BFC_ERROR_INVALID_POINTER, bfc_free_async(device, text, streams[0]));
    AS(BFC_ERROR_INVALID_POINTER, bfc_record_stream(device, text, streams[0]));
    ANY(bfc_alloc_async(device, 40 * MIB, streams[2], &ptr));
    ANY(bfc_free_async(device, ptr, streams[2]));
    /* Only what waits for the other stream has room for it. */
    ANY(bfc_alloc_async(device, 40 * MIB, streams[1], &ptr));
    ANY(bfc_free_async(device, ptr, streams[1]));
    ANY(bfc_alloc(device, 40 * MIB, &ptr));
    ANY(bfc_free(device, ptr));
    request.bytes = 3000;
    request.alignment = 16 * KIB;
    request.flags = BFC_REQUEST_ON_STREAM;
    request.stream = streams[3];
    ANY(bfc_alloc_ex(device, &request, &ptr));
    ANY(bfc_free_async(device, ptr, (bfc_stream_t)2));
    AS(BFC_ERROR_OUT_OF_MEMORY, bfc_alloc_async(device, 65 * MIB, streams[0], &ptr));
    release_all();
    ANY(bfc_stream_synchronized(device, streams[2]));
    ANY(bfc_forget_stream(device, streams[3]));
    ANY(bfc_trim(device, 0, &released));
  }
}

static void in_captures(int32_t device) {
  uint64_t released = 0;
  void *ptr = NULL;
  ANY(bfc_pool_begin(device, 1, streams[0]));
  AS(BFC_ERROR_INVALID_ARGUMENT, bfc_pool_begin(device, 1, streams[0]));
  capture(streams[0], 1);
  ANY(bfc_alloc_async(device, 5000, streams[0], &ptr));
  ANY(bfc_free_async(device, ptr, streams[0]));
  ANY(bfc_alloc_async(device, 5000, streams[1], &ptr));
  ANY(bfc_free_async(device, ptr, streams[1]));
  ANY(bfc_trim(device, 0, &released));
  ANY(bfc_alloc_async(device, 63 * MIB, streams[1], &ptr));
  if (ptr != NULL) ANY(bfc_free_async(device, ptr, streams[1]));
  capture(streams[0], 0);
  ANY(bfc_pool_end(device, 1, streams[0]));
  AS(BFC_ERROR_INVALID_ARGUMENT, bfc_pool_end(device, 1, streams[0]));
  ANY(bfc_pool_release(device, 1));
  AS(BFC_ERROR_INVALID_ARGUMENT, bfc_pool_release(device, 1));
  OK(bfc_capture_begin());
  ANY(bfc_alloc(device, 40 * MIB, &ptr));
  ANY(bfc_free(device, ptr));
  ANY(bfc_trim(device, 0, &released));
  OK(bfc_capture_end());
  AS(BFC_ERROR_INVALID_ARGUMENT, bfc_capture_end());
}

static void with_adapters(int32_t device) {
  const bfc_options_t options = BFC_OPTIONS_INIT;
  void *ptr;
  size_t bytes = 0;
  OK(bfc_adapter_options(device, &options));
  OK(bfc_adapter_options(device, NULL));
  DEEP_VOID(bfc_torch_init(1));
  DEEP_VOID(bfc_torch_memory_fraction(0.5, device));
  DEEP_VOID(bfc_torch_begin_allocate_to_pool(device, 7, 1, NULL));
  ptr = DEEP(bfc_torch_alloc(3000, device, streams[0]));
  if (ptr != NULL) {
    DEEP(bfc_torch_base_alloc(ptr, &bytes));
    DEEP_VOID(bfc_torch_record_stream(ptr, streams[1]));
    DEEP_VOID(bfc_torch_free(ptr, 3000, device, streams[0]));
  }
  DEEP_VOID(bfc_torch_free(text, 3000, device, streams[0]));
  DEEP(bfc_torch_base_alloc(text, &bytes));
  DEEP_VOID(bfc_torch_record_stream(text, streams[1]));
  DEEP_VOID(bfc_torch_end_allocate_to_pool(device, 7, 1));
  DEEP_VOID(bfc_torch_release_pool(device, 7, 1));
  DEEP_VOID(bfc_torch_release_pool(device, 7, 1));
  ptr = DEEP(bfc_cupy_malloc(NULL, 3000, device));
  DEEP_VOID(bfc_cupy_free(NULL, ptr, device));
  DEEP_VOID(bfc_cupy_free(NULL, text, device));
  DEEP(bfc_cupy_malloc(NULL, 65 * MIB, device));
  ANY(bfc_cached_alloc(256, 900, &ptr));
  ANY(bfc_cached_free(256, ptr));
  ptr = DEEP(bfc_numpy_malloc(NULL, 3000));
  ptr = DEEP(bfc_numpy_realloc(NULL, ptr, 3 * MIB));
  DEEP_VOID(bfc_numpy_free(NULL, ptr, 3 * MIB));
  ptr = DEEP(bfc_numpy_calloc(NULL, 3, MIB));
  DEEP_VOID(bfc_numpy_free(NULL, ptr, 3 * MIB));
  DEEP(bfc_numpy_realloc(NULL, text, 3000));
  DEEP_VOID(bfc_numpy_free(NULL, text, 3000));
  ANY(bfc_adapter_status());
  ptr = DEEP(bfc_ort_alloc_on_stream(device, 3000, streams[0]));
  DEEP_VOID(bfc_ort_free(ptr));
  ptr = DEEP(bfc_ort_alloc(3000));
  DEEP_VOID(bfc_ort_free(ptr));
  DEEP_VOID(bfc_ort_free(text));
  DEEP(bfc_ort_alloc(65 * MIB));
  DEEP_VOID(bfc_ort_empty_cache());
  ANY(bfc_handler_alloc(NULL, &ptr, 3000, streams[0]));
  ANY(bfc_handler_free(NULL, ptr, 3000, streams[0]));
  ANY(bfc_handler_alloc(NULL, &ptr, 65 * MIB, streams[0]));
  ANY(bfc_handler_free(NULL, text, 1, streams[0]));
  DEEP_VOID(bfc_torch_reset());
  DEEP(bfc_torch_alloc(65 * MIB, device, streams[0]));
}

/* A write after the end of an allocation, which the debug mode detects. */
static void with_damage(int32_t device) {
  char *ptr = NULL;
  int at;
  for (at = 0; at < 2; at++) {
    void *place = NULL;
    ANY(bfc_alloc(device, 1000, &place));
    ptr = (char *)place;
    if (ptr == NULL) return;
    ptr[1003] = 1;
    if (at == 0) ANY(bfc_check(device));
    ANY(bfc_free(device, ptr));
  }
  ANY(bfc_report(device, text, sizeof(text), &(size_t){0}));
}

/* More regions than a sort of few elements is for. */
static void many_regions(int32_t device) {
  uint64_t released = 0;
  int at;
  for (at = 0; at < 60; at++) {
    ANY(bfc_alloc(device, 300 * KIB, &pieces[at]));
    ANY(bfc_trim(device, 0, &released));
  }
  for (at = 0; at < 60; at += 2) ANY(bfc_free(device, pieces[at]));
  ANY(bfc_alloc(device, 12 * MIB, &pieces[0]));
  for (at = 1; at < 60; at += 2) ANY(bfc_free(device, pieces[at]));
  ANY(bfc_free(device, pieces[0]));
  ANY(bfc_trim(device, 0, &released));
}

/* A backend that refuses, gives what is of no use, and calls back. */
static void with_bad_backend(int32_t device) {
  void *ptr = NULL;
  refuse_from = regions_used + 2 * MIB;
  AS(BFC_ERROR_OUT_OF_MEMORY, bfc_alloc(device, 20 * MIB, &ptr));
  refuse_from = REGIONS;
  misaligned = 8;
  ANY(bfc_alloc(device, 12 * MIB, &ptr));
  misaligned = 0;
  calls_back = 1;
  ANY(bfc_alloc(device, 12 * MIB, &ptr));
  ANY(bfc_free(device, ptr));
  calls_back = 0;
}

static void with_stamps(const struct pool_kind *kind) {
  bfc_suballocator_t functions = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = options_of(kind, &functions);
  uint64_t stamp = 0;
  void *ptr = NULL;
  int at;
  options.flags |= BFC_TIMESTAMPS | BFC_QUARANTINE;
  ANY(bfc_create(kind->device, &options));
  for (at = 0; at < 200; at++) ANY(bfc_alloc(kind->device, (size_t)(1 + at % 5 * 700), &pieces[at]));
  for (at = 0; at < 200; at += 2) ANY(bfc_free(kind->device, pieces[at]));
  ANY(bfc_timestamp(kind->device, &stamp));
  ANY(bfc_alloc_freed_before(kind->device, 300, stamp, &ptr));
  ANY(bfc_set_safe_frontier(kind->device, stamp + 1));
  ANY(bfc_alloc(kind->device, 50 * MIB, &ptr));
  ANY(bfc_alloc_async(kind->device, 300, streams[0], &ptr));
  ANY(bfc_alloc(kind->device, 65 * MIB, &ptr));
  ANY(bfc_report(kind->device, text, sizeof(text), (size_t *)&stamp));
  ANY(bfc_destroy_forced(kind->device));
}

/* A limit that is a share of the system's memory is compared with it before a request fails. */
static void with_share_as_limit(int32_t device, bfc_options_t options) {
  void *ptr = NULL;
  options.memory_limit = 0;
  options.memory_fraction = 0.01;
  if (DEEP(bfc_create(device, &options)) != BFC_OK) return;
  ANY(bfc_alloc(device, 1000, &ptr));
  AS(BFC_ERROR_OUT_OF_MEMORY, bfc_alloc(device, (size_t)1 << 44, &ptr));
  ANY(bfc_destroy_forced(device));
}

void exercise(const struct pool_kind *kind) {
  const int32_t device = kind->device;
  bfc_suballocator_t functions = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options;
  uint64_t released = 0;
  void *ptr = NULL;
  size_t at;
  for (at = 0; at < 6; at++) streams[at] = &text[at];
  anything_goes = kind->anything_goes;
  if (kind->backend == BFC_BACKEND_CUSTOM) {
    regions = (char *)mmap(NULL, REGIONS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(regions != MAP_FAILED);
  }
  fence_hides_driver = !kind->driver;
  before_creation(device);
  if (kind->driver) begin_driver(kind);
  if (kind->callback) {
    OK(bfc_set_log_callback((bfc_log_callback_t)(uintptr_t)fence((void *)(uintptr_t)message), NULL));
  }
  options = options_of(kind, &functions);
  if (DEEP(bfc_create(device, &options)) == BFC_OK) {
    AS(BFC_ERROR_ALREADY_EXISTS, bfc_create(device, &options));
    OK(bfc_set_region_callback(device, (bfc_region_callback_t)(uintptr_t)fence((void *)(uintptr_t)region_changed),
                               NULL));
    OK(bfc_set_idle_callback(device, NULL, NULL));
  }
  history(device);
  growth_and_failure(device);
  ANY(bfc_trim(device, 0, &released));
  many_regions(device);
  if (getenv("BFC_DEBUG") != NULL && !kind->driver) with_damage(device);
  if (kind->backend == BFC_BACKEND_CUSTOM) with_bad_backend(device);
  in_streams(device);
  in_captures(device);
  with_adapters(device);
  ANY(bfc_alloc(device, 5000, &ptr));
  ANY(bfc_device_lost(device));
  release_all();
  ANY(bfc_destroy_forced(device));
  ANY(bfc_destroy_forced(device));
  if (kind->backend != BFC_BACKEND_CUSTOM) with_share_as_limit(device, options);
  regions_used = 0;
  with_stamps(kind);
  DEEP(bfc_status_string(BFC_ERROR_BUSY));
  DEEP(bfc_version());
  OK(bfc_set_log_callback(NULL, NULL));
}
