/* What the order of streams costs, counted and not timed: `cargo xtask bench --only driver_calls` and `cargo xtask bench
 * --only instructions` run it.
 *
 *   bench calls                  driver calls of each free, and of each request that finds nothing, by name
 *   bench pairs WAY BACKEND N    N pairs of a free and an allocation in a warm pool, for callgrind
 *
 * WAY is plain, one_stream, two_streams or four_streams. BACKEND is fixed (memory at the same addresses in each run, so that
 * counts can be compared) or cuda. `calls`, and `pairs` on cuda, need the simulated driver (crates/simcuda). `calls`
 * prints a line of JSON for each row.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include <bfc.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *Stream;

enum { DEVICE = 0, MIB = 1 << 20, LIVE = 256, STREAMS = 4, FREES = 4000, NON_BLOCKING = 1 };

static void die(const char *what) {
  fprintf(stderr, "bench: %s\n", what);
  exit(1);
}

static void ok(bfc_status_t status, const char *what) {
  char why[512] = "";
  if (status == BFC_OK) return;
  bfc_last_error(why, sizeof why);
  fprintf(stderr, "bench: %s: %s: %s\n", what, bfc_status_string(status), why);
  exit(1);
}
#define OK(call) ok((call), #call)

/* ---- The simulated driver ---- */

static int (*init)(unsigned);
static int (*retain)(void **, int);
static int (*set_current)(void *);
static int (*create_stream)(Stream *, unsigned);
static int (*set)(int, int64_t);
static uint64_t (*calls)(const char *);
static int (*hold)(Stream);
static void (*release_all)(void);
static int (*launch)(Stream, void (*)(void *), void *);
static uint64_t (*misuses)(void);

static void *find(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) die(name);
  return found;
}

static void enter_driver(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
  if (!driver) die("there is no libcuda.so.1");
  *(void **)&init = find(driver, "cuInit");
  *(void **)&retain = find(driver, "cuDevicePrimaryCtxRetain");
  *(void **)&set_current = find(driver, "cuCtxSetCurrent");
  *(void **)&create_stream = find(driver, "cuStreamCreate");
  *(void **)&set = find(driver, "simcuda_set");
  *(void **)&calls = find(driver, "simcuda_calls");
  *(void **)&hold = find(driver, "simcuda_hold");
  *(void **)&release_all = find(driver, "simcuda_release_all");
  *(void **)&launch = find(driver, "simcuda_launch");
  *(void **)&misuses = find(driver, "simcuda_misuses");
  if (init(0) || retain(&context, 0) || set_current(context)) die("the driver does not begin");
}

static Stream streams[STREAMS];

/* Memory that is never touched, at the same address in each run: the library hashes addresses, so the number of its
 * instructions depends on them. */
static void *obtain(void *next, size_t alignment, size_t bytes, size_t *received) {
  uintptr_t *place = next, start = (*place + alignment - 1) / alignment * alignment;
  (void)received;
  *place = start + bytes;
  return (void *)start;
}

static void take_back(void *next, void *address, size_t bytes) { (void)next, (void)address, (void)bytes; }

static void create(uint32_t backend, uint64_t limit) {
  static uintptr_t next = (uintptr_t)1 << 44;
  bfc_suballocator_t fixed = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = BFC_OPTIONS_INIT;
  fixed.user_data = &next;
  fixed.alloc = obtain;
  fixed.free = take_back;
  options.backend = backend;
  options.memory_limit = limit;
  if (backend == BFC_BACKEND_CUSTOM) options.suballocator = &fixed;
  OK(bfc_create(DEVICE, &options));
  for (int k = 0; k < STREAMS; k++) {
    if (backend == BFC_BACKEND_CUSTOM) streams[k] = (Stream)(uintptr_t)(0x1000 + 16 * k);
    else if (create_stream(&streams[k], NON_BLOCKING)) die("cuStreamCreate failed");
  }
}

/* ---- A warm pool: live allocations of small sizes on each stream, one of which is replaced by each pair ---- */

/* Requests without a stream, and frees without one. */
#define PLAIN ((Stream)UINTPTR_MAX)

static void *live[STREAMS][LIVE];

static size_t size_of(int i) { return (size_t)(512 * (1 + i * 7 % 37) - 3); }

static void *get(size_t bytes, Stream stream) {
  void *address;
  if (stream == PLAIN) OK(bfc_alloc(DEVICE, bytes, &address));
  else OK(bfc_alloc_async(DEVICE, bytes, stream, &address));
  return address;
}

static void give(void *address, Stream stream) {
  if (stream == PLAIN) OK(bfc_free(DEVICE, address));
  else OK(bfc_free_async(DEVICE, address, stream));
}

static void fill(int count) {
  for (int i = 0; i < LIVE; i++)
    for (int k = 0; k < count; k++) live[k][i] = get(size_of(i), streams[k]);
}

static void **place_of(int i, int k) { return &live[k][i * 31 % LIVE]; }

static void run(int pairs, int count) {
  for (int i = 0; i < pairs; i++) {
    const int k = i % count;
    void **place = place_of(i / count, k);
    give(*place, streams[k]);
    *place = get(size_of(i / count), streams[k]);
  }
}

static void pairs(const char *way, const char *backend, int count) {
  static const char *const WAYS[] = {"plain", "one_stream", "two_streams", "four_streams"};
  static const int COUNTS[] = {1, 1, 2, 4};
  const int is_cuda = !strcmp(backend, "cuda");
  int chosen = 0;
  while (chosen < 4 && strcmp(way, WAYS[chosen]) != 0) chosen++;
  if (chosen == 4 || (!is_cuda && strcmp(backend, "fixed") != 0)) die("no such pairs");
  if (is_cuda) enter_driver();
  create(is_cuda ? BFC_BACKEND_CUDA : BFC_BACKEND_CUSTOM, 256 * (uint64_t)MIB);
  if (chosen == 0) streams[0] = PLAIN;
  fill(COUNTS[chosen]);
  run(count, COUNTS[chosen]);
}

/* ---- Driver calls, by name ---- */

static const char *const NAMES[] = {
    "cuCtxGetCurrent",
    "cuCtxGetId",
    "cuStreamIsCapturing",
    "cuStreamGetCtx",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
    "cuEventSynchronize",
    "cuCtxSynchronize",
    "cuThreadExchangeStreamCaptureMode",
};
enum { NAMED = sizeof NAMES / sizeof *NAMES };

typedef struct Count {
  uint64_t all, of[NAMED];
} Count;

static Count count(void) {
  Count now = {calls(NULL), {0}};
  for (int k = 0; k < NAMED; k++) now.of[k] = calls(NAMES[k]);
  return now;
}

static void add(Count *sum, Count since) {
  const Count now = count();
  sum->all += now.all - since.all;
  for (int k = 0; k < NAMED; k++) sum->of[k] += now.of[k] - since.of[k];
}

/* What a number of operations called. */
static void print(const char *name, const char *each, uint64_t operations, const Count *sum) {
  uint64_t others = sum->all;
  printf("{\"name\": \"%s\", \"each\": \"%s\", \"operations\": %" PRIu64 ", \"calls\": %" PRIu64 ", \"of\": {", name,
         each, operations, sum->all);
  for (int k = 0; k < NAMED; k++) {
    others -= sum->of[k];
    printf("\"%s\": %" PRIu64 ", ", NAMES[k], sum->of[k]);
  }
  printf("\"others\": %" PRIu64 "}}\n", others);
}

static void end(void) {
  release_all();
  OK(bfc_destroy_forced(DEVICE));
  if (misuses() != 0) die("the driver was misused");
}

typedef enum Use { NO_USE, RECORDED, NO_STREAM } Use;

/* Frees in the steady state, of the streams in turn, each its own; with counts once the pool is warm. The limit leaves
 * little more than what lives, so that memory with a use recorded on another stream comes round again and again, and its
 * events with it. */
static void frees(const char *name, int number, Stream first, Use use) {
  enum { WARM = 8 * LIVE };
  Count of_frees = {0, {0}}, of_requests = {0, {0}};
  create(BFC_BACKEND_CUDA, 16 * (uint64_t)MIB);
  if (first) streams[0] = first;
  fill(number);
  for (int i = 0; i < WARM + FREES; i++) {
    const int k = i % number;
    void **place = place_of(i / number, k);
    if (i == WARM) memset(&of_frees, 0, sizeof of_frees), memset(&of_requests, 0, sizeof of_requests);
    if (use == RECORDED) OK(bfc_record_stream(DEVICE, *place, streams[(k + 1) % number]));
    const Count before = count();
    give(*place, use == NO_STREAM ? PLAIN : streams[k]);
    add(&of_frees, before);
    const Count between = count();
    *place = get(size_of(i / number), streams[k]);
    add(&of_requests, between);
  }
  print(name, "free", FREES, &of_frees);
  print(name, "request", FREES, &of_requests);
  end();
}

static void nothing(void *argument) { (void)argument; }

/* Requests that find nothing in the pool but what another stream freed, whose work is done or not. */
static void requests(const char *name, int chunks, int is_held, int is_plain) {
  enum { ROUNDS = 50, LARGE = 32 * MIB };
  const size_t bytes = (size_t)(LARGE / chunks);
  void *parts[1024];
  Count of_requests = {0, {0}};
  /* No room to grow, and a second stream, so that the pool tells them apart. */
  create(BFC_BACKEND_CUDA, LARGE);
  give(get(512, streams[1]), streams[1]);
  OK(bfc_stream_synchronized(DEVICE, streams[1]));
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < chunks; i++) parts[i] = get(bytes, streams[0]);
    if (is_held && hold(streams[0])) die("simcuda_hold failed");
    if (launch(streams[0], nothing, NULL)) die("simcuda_launch failed");
    for (int i = 0; i < chunks; i++) give(parts[i], streams[0]);
    const Count before = count();
    void *address = get(bytes, is_plain ? PLAIN : streams[1]);
    add(&of_requests, before);
    release_all();
    give(address, is_plain ? PLAIN : streams[1]);
    OK(bfc_stream_synchronized(DEVICE, streams[0]));
    OK(bfc_stream_synchronized(DEVICE, streams[1]));
    if (is_plain) OK(bfc_stream_synchronized(DEVICE, NULL));
  }
  print(name, "request that finds nothing", ROUNDS, &of_requests);
  end();
}

static void count_calls(void) {
  enum { PER_THREAD = 2 };
  enter_driver();
  frees("one stream alone", 1, NULL, NO_USE);
  frees("two streams", 2, NULL, NO_USE);
  frees("four streams", 4, NULL, NO_USE);
  frees("four streams, frees without a stream", 4, NULL, NO_STREAM);
  frees("two streams, a use recorded on the other", 2, NULL, RECORDED);
  frees("a thread's default stream alone", 1, (Stream)PER_THREAD, NO_USE);
  frees("a thread's default stream and another", 2, (Stream)PER_THREAD, NO_USE);
  requests("another stream's work is done, 1 free chunk", 1, 0, 0);
  requests("another stream's work is done, 1024 free chunks", 1024, 0, 0);
  requests("another stream's work goes on, 1 free chunk", 1, 1, 0);
  requests("another stream's work goes on, 1024 free chunks", 1024, 1, 0);
  requests("the same, without a stream", 1, 1, 1);
}

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "calls")) count_calls();
  else if (argc == 5 && !strcmp(argv[1], "pairs")) pairs(argv[2], argv[3], atoi(argv[4]));
  else die("calls, or pairs WAY BACKEND N");
  return 0;
}
