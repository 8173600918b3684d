/* Host memory that fails at the n-th allocation, for every n: a script that uses the whole library runs once
 * for each n in a process of its own, so that what happens once in a process is failed too. A call either
 * does its work or is BFC_ERROR_OUT_OF_MEMORY and has done nothing: what lives is untouched, the books are
 * sound, and the same call succeeds once there is memory again. In the end nothing is leaked.
 *
 *     nth_failure one|all      only the n-th allocation fails, or all from there to the end of the call
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "../c/check.h"
#include "host_memory.h"

#include <bfc_adapters.h>

#include <sys/mman.h>
#include <sys/wait.h>

enum { ADAPTED = 0, HOST = 256, STAMPED = 300, CUSTOM, ORDERED, PRIVATE, GRANULES, GUARDED, DEVICES = 8 };
enum { MIB = 1 << 20, KIB = 1 << 10, MANY = 1500, OPERATIONS = 150 };

/* What a run tells the process that started it. */
typedef struct outcome {
  long asked; /* host allocations while a call was under way */
  long refused;
  long failed_calls;
  long blocks, mapped; /* held in the end, beyond what was held in the beginning */
  const char *doing;   /* the last one; a string of this program, which has the same addresses in both */
} outcome;

static outcome *result;

/* What lives in the pools, with the byte that its beginning is filled with, and its end. */
typedef struct piece {
  int32_t device;
  char *ptr;
  size_t bytes;
  char mark;
} piece;

static piece pieces[3 * MANY];
static size_t count;

static void everything_is_as_it_was(int thoroughly) {
  static const int32_t devices[DEVICES] = {HOST, STAMPED, CUSTOM, ORDERED, PRIVATE, GRANULES, GUARDED, ADAPTED};
  uint64_t live[DEVICES] = {0};
  size_t at, device;
  for (at = 0; at < count; at++) {
    const piece *const p = &pieces[at];
    size_t bytes = 0, more = 0;
    void *chunk, *region;
    CHECK(is_filled(p->ptr, p->bytes < 64 ? p->bytes : 64, p->mark));
    if (!thoroughly) continue;
    CHECK(p->ptr[p->bytes - 1] == p->mark);
    /* With its guards, which bfc_allocated_size leaves out. */
    CHECK_OK(bfc_address_range(p->device, p->ptr, &chunk, &bytes, &region, &more));
    for (device = 0; device < DEVICES; device++) live[device] += p->device == devices[device] ? bytes : 0;
  }
  for (device = 0; thoroughly && device < DEVICES; device++) {
    bfc_stats_t stats = BFC_STATS_INIT;
    const bfc_status_t status = bfc_stats(devices[device], &stats);
    if (status == BFC_ERROR_NO_ALLOCATOR) continue;
    CHECK_OK(status);
    CHECK(stats.bytes_in_use == live[device]);
    CHECK_OK(bfc_check(devices[device]));
  }
}

static void failed(const char *call, bfc_status_t status) {
  char words[1100];
  if (status != BFC_ERROR_OUT_OF_MEMORY) check_failed(__FILE__, __LINE__, call, bfc_status_string(status));
  CHECK(bfc_last_error(words, sizeof(words)) > 0 && strstr(words, "memory") != NULL);
  result->failed_calls++;
  everything_is_as_it_was(1);
}

/* A call while which host memory is counted, and refused where the run says so. */
#define WATCHED(call) (result->doing = #call, host_memory_arm(), watched(call))

static bfc_status_t watched(bfc_status_t status) {
  result->refused += host_memory_disarm();
  return status;
}

/* A call that may fail, but only for want of host memory, and then not twice. */
#define MAY_FAIL(call)                                                                           \
  do {                                                                                           \
    long refused_;                                                                               \
    bfc_status_t status_;                                                                        \
    check_forget_last_error();                                                                   \
    refused_ = result->refused;                                                                  \
    status_ = WATCHED(call);                                                                     \
    if (status_ != BFC_OK) {                                                                     \
      if (result->refused == refused_) check_status(__FILE__, __LINE__, #call, status_, BFC_OK); \
      failed(#call, status_);                                                                    \
      CHECK_OK(call);                                                                            \
    }                                                                                            \
  } while (0)

/* A call that needs no host memory, or does without. */
#define NEVER_FAILS(call) check_status(__FILE__, __LINE__, #call, WATCHED(call), BFC_OK)

/* A request for more than there is: it fails with and without host memory, and that is all it does. */
#define ALWAYS_FAILS(call) failed(#call, WATCHED(call))

static void lives(int32_t device, void *ptr, size_t bytes) {
  piece *const p = &pieces[count];
  CHECK(ptr != NULL && count < sizeof(pieces) / sizeof(pieces[0]));
  p->device = device;
  p->ptr = (char *)ptr;
  p->bytes = bytes;
  p->mark = (char)('A' + count % 26);
  count++;
  memset(ptr, p->mark, bytes < 64 ? bytes : 64);
  p->ptr[bytes - 1] = p->mark;
}

static void get(int32_t device, size_t bytes) {
  void *ptr = NULL;
  MAY_FAIL(bfc_alloc(device, bytes, &ptr));
  lives(device, ptr, bytes);
}

static void get_aligned(int32_t device, size_t bytes, size_t alignment) {
  void *ptr = NULL;
  MAY_FAIL(bfc_alloc_aligned(device, bytes, alignment, &ptr));
  CHECK((uintptr_t)ptr % alignment == 0);
  lives(device, ptr, bytes);
}

/* Frees the pieces `from`, `from` + `step`, ... of a device. No free ever fails for want of memory. */
static void give_back(int32_t device, size_t from, size_t step) {
  size_t at, kept = 0, seen = 0;
  for (at = 0; at < count; at++) {
    if (pieces[at].device == device && seen++ % step == from) {
      NEVER_FAILS(bfc_free(device, pieces[at].ptr));
    } else {
      pieces[kept++] = pieces[at];
    }
  }
  count = kept;
  everything_is_as_it_was(0);
}

static void ask(int32_t device) {
  static char text[256 * KIB];
  bfc_stats_t stats = BFC_STATS_INIT;
  size_t length = 0, bytes = 0, more = 0;
  void *chunk, *region;
  int64_t id;
  int32_t owner;
  NEVER_FAILS(bfc_stats(device, &stats));
  NEVER_FAILS(bfc_occupancy(device, text, sizeof(text), &length));
  NEVER_FAILS(bfc_memory_map(device, text, sizeof(text), &length));
  NEVER_FAILS(bfc_resolve_options(256, NULL, text, sizeof(text), &length));
  NEVER_FAILS(bfc_report(device, text, sizeof(text), &length));
  CHECK(length > 100);
  MAY_FAIL(bfc_metrics(text, sizeof(text), &length));
  CHECK(length > 100);
  NEVER_FAILS(bfc_requested_size(device, pieces[count - 1].ptr, &bytes));
  NEVER_FAILS(bfc_allocation_id(device, pieces[count - 1].ptr, &id));
  NEVER_FAILS(bfc_address_range(device, pieces[count - 1].ptr + 1, &chunk, &bytes, &region, &more));
  NEVER_FAILS(bfc_owner(pieces[count - 1].ptr, &owner));
  CHECK(owner == device);
  CHECK_OK(bfc_check(device));
  NEVER_FAILS(bfc_reset_stats(device));
}

static void listen(void *user_data, int32_t level, const char *message) {
  CHECK(user_data == result && level > 0 && message[0] != '\0');
}

static void on_the_host(void) {
  bfc_options_t options = host_options(64 * MIB);
  void *none = NULL;
  uint64_t released = 0;
  int at;
  options.flags |= BFC_GARBAGE_COLLECTION;
  options.initial_region_bytes = 128 * KIB;
  options.name = "a name that has to be copied somewhere";
  MAY_FAIL(bfc_create(HOST, &options));
  for (at = 0; at < MANY; at++) {
    if (at < OPERATIONS) {
      char name[32];
      snprintf(name, sizeof(name), "operation %d", at);
      NEVER_FAILS(bfc_scope_begin(name, (uint64_t)at));
    }
    get(HOST, (size_t)(1 + at % 7 * 300));
    if (at < OPERATIONS) NEVER_FAILS(bfc_scope_end());
  }
  ask(HOST);
  give_back(HOST, 0, 2);
  for (at = 0; at < 5; at++) get_aligned(HOST, 3000, (size_t)4096 << at);
  for (at = 0; at < 4; at++) get(HOST, (size_t)(1 + at) * MIB);
  ALWAYS_FAILS(bfc_alloc(HOST, 60 * MIB, &none));
  ask(HOST);
  give_back(HOST, 1, 2);
  MAY_FAIL(bfc_trim(HOST, 0, &released));
  /* Garbage collection: the large piece has room only once the regions of the small ones are gone. */
  for (at = 0; at < 6; at++) get(HOST, 6 * MIB);
  give_back(HOST, 0, 1);
  get(HOST, 50 * MIB);
  give_back(HOST, 0, 1);
  MAY_FAIL(bfc_trim(HOST, 0, &released));
  get(HOST, 100);
  give_back(HOST, 0, 1);
  NEVER_FAILS(bfc_destroy(HOST));
}

static void with_stamps(void) {
  bfc_options_t options = host_options(64 * MIB);
  uint64_t stamp = 0, released = 0;
  int at, round;
  options.flags |= BFC_TIMESTAMPS | BFC_QUARANTINE;
  MAY_FAIL(bfc_create(STAMPED, &options));
  for (round = 0; round < 3; round++) {
    for (at = 0; at < 300; at++) get(STAMPED, (size_t)(1 + at % 5 * 700));
    give_back(STAMPED, 0, 2);
    NEVER_FAILS(bfc_timestamp(STAMPED, &stamp));
    NEVER_FAILS(bfc_set_safe_frontier(STAMPED, stamp / 2));
    get(STAMPED, 10000);
    NEVER_FAILS(bfc_set_safe_frontier(STAMPED, stamp + 1));
    {
      void *ptr = NULL;
      MAY_FAIL(bfc_alloc_freed_before(STAMPED, 300, stamp, &ptr));
      lives(STAMPED, ptr, 300);
    }
    ask(STAMPED);
  }
  give_back(STAMPED, 0, 1);
  MAY_FAIL(bfc_trim(STAMPED, 0, &released));
  NEVER_FAILS(bfc_destroy(STAMPED));
}

/* Regions side by side that become one; their memory is not host memory, so only the books can fail. */
static _Alignas(4096) char memory[4 * MIB];
static size_t used;

static void *give(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  char *const region = memory + used;
  (void)user_data, (void)alignment, (void)received;
  if (bytes > sizeof(memory) - used) return NULL;
  used += bytes;
  return region;
}

/* Only the last one can be given again. */
static void take(void *user_data, void *ptr, size_t bytes) {
  (void)user_data;
  if ((char *)ptr + bytes == memory + used) used -= bytes;
}

static void of_the_caller(void) {
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = BFC_OPTIONS_INIT;
  uint32_t coalescing;
  for (coalescing = 0; coalescing < 2; coalescing++) {
    int at;
    used = 0;
    suballocator.supports_coalescing = coalescing;
    options.flags = BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS;
    options.memory_limit = 3 * MIB;
    options.initial_region_bytes = 16 * KIB;
    use_functions(&options, &suballocator, give, take);
    MAY_FAIL(bfc_create(CUSTOM, &options));
    for (at = 0; at < 200; at++) get(CUSTOM, 5000);
    ask(CUSTOM);
    MAY_FAIL(bfc_check(CUSTOM)); /* here, for it may need memory for every chunk */
    give_back(CUSTOM, 0, 3);
    for (at = 0; at < 50; at++) get(CUSTOM, 5000);
    ask(CUSTOM);
    /* With everything alive. */
    count = 0;
    NEVER_FAILS(bfc_destroy_forced(CUSTOM));
    CHECK(used == 0 || !coalescing);
  }
}

static void *stream(int number) { return &memory[number]; }

static void get_from(int32_t device, int number, size_t bytes) {
  void *ptr = NULL;
  MAY_FAIL(bfc_alloc_async(device, bytes, stream(number), &ptr));
  lives(device, ptr, bytes);
}

static void get_on(int number, size_t bytes) { get_from(ORDERED, number, bytes); }

/* Frees the last piece in the order of a stream, for which the stream may have to become known. */
static void give_back_on(int number) {
  /* Until it is freed it lives: a call that fails changes nothing. */
  MAY_FAIL(bfc_free_async(ORDERED, pieces[count - 1].ptr, stream(number)));
  count--;
}

/* The first stream alone, then others beside it, with records and with streams that end. 2 is the thread's own. */
static void in_the_order_of_streams(void) {
  bfc_options_t options = host_options(64 * MIB);
  bfc_request_t request = BFC_REQUEST_INIT;
  void *ptr = NULL;
  uint64_t released = 0;
  int at, round;
  MAY_FAIL(bfc_create(ORDERED, &options));
  for (at = 0; at < 40; at++) get_on(0, (size_t)(1 + at % 7 * 300));
  for (at = 0; at < 10; at++) MAY_FAIL(bfc_record_stream(ORDERED, pieces[count - 1 - (size_t)at].ptr, stream(0)));
  for (at = 0; at < 5; at++) give_back_on(0);
  for (round = 0; round < 3; round++) {
    for (at = 0; at < 60; at++) {
      const int number = 1 + at % 3 + 3 * round;
      get_on(number, (size_t)(1 + at % 7 * 300));
      if (at % 4 == 0) MAY_FAIL(bfc_record_stream(ORDERED, pieces[count - 1].ptr, stream(number + 1)));
      if (at % 3 == 0) give_back_on(number + at % 2);
    }
    request.bytes = 3000;
    request.alignment = 16384;
    request.flags = BFC_REQUEST_ON_STREAM;
    request.stream = stream(1 + 3 * round);
    MAY_FAIL(bfc_alloc_ex(ORDERED, &request, &ptr));
    lives(ORDERED, ptr, request.bytes);
    MAY_FAIL(bfc_stream_synchronized(ORDERED, stream(2 + 3 * round)));
    MAY_FAIL(bfc_forget_stream(ORDERED, stream(1 + 3 * round)));
    MAY_FAIL(bfc_alloc_async(ORDERED, 1000, (bfc_stream_t)2, &ptr));
    lives(ORDERED, ptr, 1000);
    MAY_FAIL(bfc_free_async(ORDERED, pieces[count - 1].ptr, (bfc_stream_t)2));
    count--;
  }
  ask(ORDERED);
  give_back(ORDERED, 0, 2);
  MAY_FAIL(bfc_trim(ORDERED, 0, &released));
  ALWAYS_FAILS(bfc_alloc_async(ORDERED, 65 * MIB, stream(0), &ptr));
  give_back(ORDERED, 0, 1);
  for (at = 0; at < 12; at++) MAY_FAIL(bfc_stream_synchronized(ORDERED, stream(at)));
  MAY_FAIL(bfc_stream_synchronized(ORDERED, (bfc_stream_t)2));
  MAY_FAIL(bfc_trim(ORDERED, 0, &released));
  NEVER_FAILS(bfc_destroy(ORDERED));
}

/* Bytes known to the callback. */
static size_t told;

static void hear(void *user_data, int32_t device, void *base, size_t bytes, int32_t event) {
  CHECK(user_data == result && base != NULL && (device == PRIVATE || device == GRANULES));
  told += event == BFC_REGION_OBTAINED ? bytes : (size_t)0 - bytes;
}

static void hears_all_of(int32_t device) {
  bfc_stats_t stats = BFC_STATS_INIT;
  CHECK_OK(bfc_stats(device, &stats));
  CHECK(stats.pool_bytes == told);
}

/* Private pools, as for graphs, and who is told of regions. */
static void in_private_pools(void) {
  bfc_options_t options = host_options(64 * MIB);
  uint64_t released = 0;
  int at, pool;
  told = 0;
  MAY_FAIL(bfc_create(PRIVATE, &options));
  MAY_FAIL(bfc_set_region_callback(PRIVATE, hear, result));
  for (pool = 0; pool < 3; pool++) {
    MAY_FAIL(bfc_pool_begin(PRIVATE, (uint64_t)pool, stream(pool)));
    for (at = 0; at < 20; at++) {
      get_from(PRIVATE, pool, (size_t)(1 + at % 7 * 300));
      if (at % 3 == 0) MAY_FAIL(bfc_record_stream(PRIVATE, pieces[count - 1].ptr, stream(pool + 1)));
      if (at % 2 == 0) {
        MAY_FAIL(bfc_free_async(PRIVATE, pieces[count - 1].ptr, stream(pool)));
        count--;
      }
      get_from(PRIVATE, 9, 500);
    }
    NEVER_FAILS(bfc_pool_end(PRIVATE, (uint64_t)pool, stream(pool)));
    hears_all_of(PRIVATE);
  }
  ask(PRIVATE);
  for (pool = 0; pool < 3; pool++) MAY_FAIL(bfc_pool_release(PRIVATE, (uint64_t)pool));
  give_back(PRIVATE, 0, 1);
  for (at = 0; at < 10; at++) MAY_FAIL(bfc_stream_synchronized(PRIVATE, stream(at)));
  MAY_FAIL(bfc_trim(PRIVATE, 0, &released));
  hears_all_of(PRIVATE);
  NEVER_FAILS(bfc_destroy(PRIVATE));
  CHECK(told == 0);
}

/* What gives no status gives words, or NULL. */
static bfc_status_t said_nothing(void) {
  char words[1100];
  bfc_last_error(words, sizeof(words));
  return strstr(words, "device -4711") != NULL ? BFC_OK : BFC_ERROR_OUT_OF_MEMORY;
}

static bfc_status_t of_pytorch(size_t bytes, int number, void **out) {
  *out = bfc_torch_alloc(bytes, ADAPTED, stream(number));
  return *out != NULL ? BFC_OK : BFC_ERROR_OUT_OF_MEMORY;
}

static bfc_status_t of_cupy(size_t bytes, void **out) {
  *out = bfc_cupy_malloc(NULL, bytes, ADAPTED);
  return *out != NULL ? BFC_OK : BFC_ERROR_OUT_OF_MEMORY;
}

static bfc_status_t given_back_by_cupy(void *ptr) {
  check_forget_last_error();
  bfc_cupy_free(NULL, ptr, ADAPTED);
  return said_nothing();
}

static bfc_status_t released(int pool) {
  check_forget_last_error();
  bfc_torch_release_pool(ADAPTED, 7, (uint64_t)pool);
  return said_nothing();
}

static bfc_status_t reset(void) {
  check_forget_last_error();
  bfc_torch_reset();
  return said_nothing();
}

/* Functions of frameworks, with PyTorch's pools. */
static void by_adapters(void) {
  bfc_options_t options = host_options(64 * MIB);
  void *ptr = NULL;
  int at, pool;
  MAY_FAIL(bfc_create(ADAPTED, &options));
  for (pool = 0; pool < 3; pool++) {
    const size_t before = count;
    int begun;
    check_forget_last_error();
    WATCHED((bfc_torch_begin_allocate_to_pool(ADAPTED, 7, (uint64_t)pool, NULL), BFC_OK));
    begun = said_nothing() == BFC_OK;
    everything_is_as_it_was(1);
    /* What could not begin at all cannot end. */
    for (at = 0; at < 10; at++) {
      MAY_FAIL(of_pytorch(3000, at % 3, &ptr));
      lives(ADAPTED, ptr, 3000);
      MAY_FAIL(of_cupy(2000, &ptr));
      lives(ADAPTED, ptr, 2000);
      if (at % 2 == 0) {
        NEVER_FAILS(given_back_by_cupy(pieces[count - 1].ptr));
        count--;
      }
    }
    bfc_torch_end_allocate_to_pool(ADAPTED, 7, (uint64_t)pool);
    while (count > before) NEVER_FAILS(bfc_free(ADAPTED, pieces[--count].ptr));
    /* What fails in a release the next call makes good. */
    check_forget_last_error();
    if (WATCHED(released(pool)) != BFC_OK && begun) CHECK_OK(reset());
  }
  for (at = 0; at < 3; at++) MAY_FAIL(bfc_stream_synchronized(ADAPTED, stream(at)));
  MAY_FAIL(bfc_stream_synchronized(ADAPTED, NULL));
  MAY_FAIL(reset());
  {
    bfc_stats_t stats = BFC_STATS_INIT;
    CHECK_OK(bfc_stats(ADAPTED, &stats));
    CHECK(stats.pool_bytes == 0);
  }
  NEVER_FAILS(bfc_destroy(ADAPTED));
}

/* Memory that is mapped, moved and given back by granules: each step of that may find no memory for its mapping. */
static void by_granules(void) {
  bfc_options_t options = host_options(16 * MIB);
  uint64_t released = 0;
  void *none = NULL;
  int at;
  told = 0;
  options.backend = BFC_BACKEND_HOST_VMM;
  MAY_FAIL(bfc_create(GRANULES, &options));
  MAY_FAIL(bfc_set_region_callback(GRANULES, hear, result));
  for (at = 0; at < 8; at++) get(GRANULES, 2 * MIB);
  hears_all_of(GRANULES);
  give_back(GRANULES, 0, 2);
  get(GRANULES, 6 * MIB); /* three that are apart move */
  hears_all_of(GRANULES);
  ask(GRANULES);
  ALWAYS_FAILS(bfc_alloc(GRANULES, 8 * MIB, &none));
  give_back(GRANULES, 0, 2);
  MAY_FAIL(bfc_trim(GRANULES, 8 * MIB, &released));
  MAY_FAIL(bfc_trim(GRANULES, 0, &released));
  hears_all_of(GRANULES);
  get(GRANULES, 5 * MIB);
  give_back(GRANULES, 0, 1);
  NEVER_FAILS(bfc_destroy(GRANULES));
  CHECK(told == 0);
}

/* Guards around each chunk. */
static void with_guards(void) {
  bfc_options_t options = host_options(16 * MIB);
  uint64_t released = 0;
  int at;
  setenv("BFC_DEBUG", "guard", 1);
  MAY_FAIL(bfc_create(GUARDED, &options));
  unsetenv("BFC_DEBUG");
  for (at = 0; at < 200; at++) get(GUARDED, (size_t)(1 + at % 7 * 300));
  ask(GUARDED);
  give_back(GUARDED, 0, 2);
  for (at = 0; at < 3; at++) get_aligned(GUARDED, 3000, (size_t)4096 << at);
  for (at = 0; at < 20; at++) get_from(GUARDED, at % 3, 700);
  give_back(GUARDED, 0, 1);
  MAY_FAIL(bfc_trim(GUARDED, 0, &released));
  NEVER_FAILS(bfc_destroy(GUARDED));
}

static void script(void) {
  count = 0;
  NEVER_FAILS(bfc_set_log_callback(listen, result));
  on_the_host();
  with_stamps();
  of_the_caller();
  in_the_order_of_streams();
  in_private_pools();
  by_adapters();
  by_granules();
  with_guards();
  NEVER_FAILS(bfc_set_log_callback(NULL, NULL));
}

/* One run in a new process that never called the library before. */
static void run(long nth, refusal how) {
  int status = -1;
  pid_t child;
  memset(result, 0, sizeof(*result));
  child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    const long blocks = host_memory_blocks(), mapped = host_memory_mapped();
    alarm(HANG_SECONDS);
    host_memory_refuse(nth, how);
    script();
    result->asked = host_memory_asked();
    result->blocks = host_memory_blocks() - blocks;
    result->mapped = host_memory_mapped() - mapped;
    if (nth == 0) {
      /* A second life costs nothing that the first did not. */
      script();
      CHECK(host_memory_blocks() - blocks == result->blocks && host_memory_mapped() - mapped == result->mapped);
    }
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child);
  if (status != 0) {
    fprintf(stderr, "the run in which host allocation %ld failed ended in %s with status %#x\n", nth, result->doing,
            (unsigned)status);
    _exit(1);
  }
}

int main(int argc, char **argv) {
  const refusal how = argc == 2 && strcmp(argv[1], "all") == 0 ? ALL_FROM_THERE : ONLY_THAT_ONE;
  long nth, failed_calls = 0, asked, blocks, mapped;
  forget_environment();
  setenv("BFC_LOG", "debug", 1);
  setenv("BFC_REPORT_ON_FAILURE", "1", 1);
  result = (outcome *)mmap(NULL, sizeof(*result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(result != (outcome *)MAP_FAILED);
  run(0, how);
  asked = result->asked;
  blocks = result->blocks;
  mapped = result->mapped;
  /* The library's memory is this program's: else nothing below would mean anything. In each of the two lives
   * three calls asked for more than there was. */
  CHECK(asked > 30 && result->refused == 0 && result->failed_calls == 6);
  CHECK(blocks >= 0 && mapped == 0);
  for (nth = 1;; nth++) {
    run(nth, how);
    failed_calls += result->failed_calls - 3;
    if (result->blocks != blocks || result->mapped != mapped) {
      fprintf(stderr, "host allocation %ld failed, and %ld blocks and %ld mapped bytes are leaked\n", nth,
              result->blocks - blocks, result->mapped - mapped);
      return 1;
    }
    if (result->refused == 0) break;
  }
  printf("%ld host allocations, each failed once; %ld calls failed of it\n", nth - 1, failed_calls);
  CHECK(failed_calls > 20);
  return 0;
}
