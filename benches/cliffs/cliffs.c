/* Runs programs of allocator calls, described by a line each, and tells which call of each kind did the most work:
 * `cargo xtask cliffs` builds and runs it. Its backends only reserve addresses.
 *
 *   cliffs serve                      for each line "SCALE PROGRAM" of the input: a line "KIND=BLOCKS@CALL;..."
 *   cliffs one SCALE CALL PROGRAM     one program; callgrind collects in that call only; prints its nanoseconds
 *   cliffs all SCALE PROGRAM          one program; prints the number of its calls, and of the blocks in them
 *
 * A block is a basic block of libbfc that ran, in a libbfc.so that was compiled with -sanitizer-coverage-trace-pc. CALL is
 * the number of a call in its program. A program is "OPTIONS; STEP; STEP...", where a step is a name and fields, all numbers:
 *
 *   alloc     n k size other share step align streams first before
 *   free      n k every from skip order streams first
 *   use       n k every from skip order streams first     bfc_record_stream
 *   sync, forget     streams first             a call for each stream
 *   begin, end       streams first             private pool 7;     release
 *   frontier  share                            of the last stamp, in percent
 *   trim; limit (to what is held); hold streams first (their work goes on; cuda only); done (all of it)
 *
 * Options: growth stamps quarantine split gc coalesce cuda, and room=UNITS for each chunk of the scale.
 * n is in thousandths of the scale, k comes on top. Sizes are in units of 256 bytes, alignments powers of two.
 * A program allocates no more often than the scale says (2% and 64 more), so the scale bounds its chunks too.
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
#include <time.h>
#include <unistd.h>
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else /* The blocks are counted without it. */
#define CALLGRIND_START_INSTRUMENTATION (void)0
#define CALLGRIND_TOGGLE_COLLECT (void)0
#endif

enum { UNIT = 256, STREAMS = 1024, KINDS = 64, PRIVATE = 7, NO_NUMBER = -2, DEFAULT = STREAMS };

static void die(const char *what) {
  fprintf(stderr, "cliffs: %s\n", what);
  exit(1);
}

/* ---- Counting ---- */

static uint64_t blocks;
/* Called by libbfc.so at each basic block. */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) { blocks++; }

typedef struct Kind {
  char name[64];
  uint64_t blocks, call;
} Kind;

static Kind kinds[KINDS];
static int kind_count;
static uint64_t calls, chosen, all_blocks, block_budget;
static uint64_t before;
static struct timespec started;
/* What tells kinds of calls apart, besides the function. Calls that name no stream are one more. */
static int has_grown, stream_count, streams_before, has_stamps;

static int64_t since_start(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (now.tv_sec - started.tv_sec) * 1000000000ll + now.tv_nsec - started.tv_nsec;
}

static char seen[STREAMS + 2];

static void notice(int number, bfc_status_t status) {
  if (number == NO_NUMBER || status != BFC_OK) return;
  stream_count += !seen[number + 1], seen[number + 1] = 1;
}

static void enter(void) {
  has_grown = 0;
  streams_before = stream_count;
  if (++calls == chosen) {
    CALLGRIND_START_INSTRUMENTATION;
    clock_gettime(CLOCK_MONOTONIC, &started);
    CALLGRIND_TOGGLE_COLLECT;
  }
  before = blocks;
}

static void leave(const char *name, const char *how, bfc_status_t status) {
  const uint64_t took = blocks - before;
  char full[64];
  int k = 0;
  if (calls == chosen) {
    CALLGRIND_TOGGLE_COLLECT;
    printf("%" PRId64 "\n", since_start());
    fflush(stdout);
    _exit(0);
  }
  if (status == BFC_ERROR_INTERNAL) die("an invariant is broken");
  all_blocks += took;
  if (status != BFC_OK && status != BFC_ERROR_OUT_OF_MEMORY) return;
  /* What else was asked for makes no other kind of these. */
  if (streams_before == 1 && stream_count == 2) snprintf(full, sizeof full, "%s second stream", name);
  else if (has_grown) snprintf(full, sizeof full, "%s growing%s", name, status == BFC_OK ? "" : " refused");
  else
    snprintf(full, sizeof full, "%s%s%s%s%s", name, how, has_stamps ? " stamps" : "",
             stream_count > 1 ? " streams" : "", status == BFC_OK ? "" : " refused");
  while (k < kind_count && strcmp(kinds[k].name, full) != 0) k++;
  if (k == KINDS) return;
  if (k == kind_count) {
    kinds[kind_count++] = (Kind){.blocks = 0};
    memcpy(kinds[k].name, full, sizeof full);
  }
  if (took > kinds[k].blocks) kinds[k].blocks = took, kinds[k].call = calls;
}

/* A call in which the pool may learn of a stream; -1 is what names none. */
#define CALL_ON(number, name, how, call) \
  do {                                   \
    enter();                             \
    const bfc_status_t status = call;    \
    notice(number, status);              \
    leave(name, how, status);            \
  } while (0)
#define CALL(name, how, call) CALL_ON(NO_NUMBER, name, how, call)

/* ---- Backends ---- */

static uintptr_t next_address;

static void *obtain(void *data, size_t alignment, size_t bytes, size_t *received) {
  const uintptr_t start = (next_address + alignment - 1) / alignment * alignment;
  (void)data, (void)received;
  has_grown = 1;
  next_address = start + bytes;
  return (void *)start;
}

static void take_back(void *data, void *address, size_t bytes) { (void)data, (void)address, (void)bytes; }

static int (*create_stream)(void **, unsigned);
static int (*hold)(void *);
static void (*release_all)(void);
static int (*launch)(void *, void (*)(void *), void *);
static void *handles[STREAMS];
/* Whether streams were routed to the private pool. */
static int uses_pool;
static int is_cuda, device;

static void *find(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) die(name);
  return found;
}

static void enter_driver(void) {
  static int is_there;
  int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *);
  void *driver, *context = NULL;
  if (is_there) return;
  if (!(driver = dlopen("libcuda.so.1", RTLD_NOW))) die("there is no libcuda.so.1");
  *(void **)&init = find(driver, "cuInit");
  *(void **)&retain = find(driver, "cuDevicePrimaryCtxRetain");
  *(void **)&set_current = find(driver, "cuCtxSetCurrent");
  *(void **)&create_stream = find(driver, "cuStreamCreate");
  *(void **)&hold = find(driver, "simcuda_hold");
  *(void **)&release_all = find(driver, "simcuda_release_all");
  *(void **)&launch = find(driver, "simcuda_launch");
  if (init(0) || retain(&context, 0) || set_current(context)) die("the driver does not begin");
  is_there = 1;
}

static void nothing(void *data) { (void)data; }

/* ---- Programs ---- */

static uint64_t scale;
static void **live;
static uint64_t live_count, allocated;
static uint64_t random_state;

static uint64_t below(uint64_t bound) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (random_state >> 33) % bound;
}

/* A field of a step, or what it is if the step does not have it. */
static uint64_t field(const char *step, const char *name, uint64_t otherwise) {
  const size_t length = strlen(name);
  for (const char *at = step; (at = strchr(at, ' ')); at++)
    if (!strncmp(at + 1, name, length) && at[1 + length] == '=') return strtoull(at + length + 2, NULL, 10);
  return otherwise;
}

static uint64_t count_of(const char *step) { return field(step, "n", 0) * scale / 1000 + field(step, "k", 0); }

/* The i-th stream of a step; -1 without any. */
static int stream_of(const char *step, uint64_t i) {
  const uint64_t streams = field(step, "streams", 0);
  return streams ? (int)((field(step, "first", 0) + i % streams) % STREAMS) : -1;
}

static void *handle(int number) {
  if (number < 0) return NULL;
  if (!is_cuda) return (void *)(uintptr_t)(0x1000 + 16 * number);
  if (!handles[number] && create_stream(&handles[number], 1)) die("cuStreamCreate failed");
  return handles[number];
}

static int may_go_on(void) { return calls < 8 * scale + 512 && all_blocks < block_budget; }

static void allocate(const char *step) {
  const uint64_t count = count_of(step), size = field(step, "size", 1), other = field(step, "other", 0);
  const uint64_t share = field(step, "share", 0), rise = field(step, "step", 0), align = field(step, "align", 0);
  const uint64_t part = field(step, "before", 0);
  for (uint64_t i = 0; i < count && allocated < scale + scale / 50 + 64 && may_go_on(); i++) {
    bfc_request_t request = BFC_REQUEST_INIT;
    const int is_other = other && (share ? below(100) >= share : i % 2);
    const int stream = stream_of(step, i);
    char how[40];
    void *address = NULL;
    uint64_t stamp = 0;
    request.bytes = ((is_other ? other : size) + rise * i) * UNIT;
    request.alignment = align ? (size_t)1 << align : 0;
    request.stream = handle(stream);
    request.flags = stream < 0 ? 0 : BFC_REQUEST_ON_STREAM;
    if (part && bfc_timestamp(device, &stamp) == BFC_OK) request.freed_before = stamp * part / 100 + 1;
    snprintf(how, sizeof how, "%s%s%s", align > 8 ? " aligned" : "", request.freed_before ? " freed_before" : "",
             stream < 0 ? "" : " async");
    CALL_ON(stream, "alloc", how, bfc_alloc_ex(device, &request, &address));
    if (address) live[live_count++] = address, allocated++;
  }
}

/* Which live allocations a step means, in its order; the numbers are in `picked`. */
static uint64_t pick(const char *step, uint64_t *picked) {
  const uint64_t every = field(step, "every", 1), order = field(step, "order", 0), want = count_of(step);
  uint64_t count = 0;
  for (uint64_t i = field(step, "from", 0) * live_count / 1000 + field(step, "skip", 0); i < live_count && count < want;
       i += every ? every : 1)
    picked[count++] = i;
  for (uint64_t i = 0; i + 1 < count; i++) {
    /* 1: backwards, 2: shuffled, 3: from both ends inwards. */
    const uint64_t j = order == 1            ? count - 1 - i
                       : order == 2          ? i + below(count - i)
                       : order == 3 && i % 2 ? count - 1 - i / 2
                                             : i;
    const uint64_t kept = picked[i];
    if (order == 1 && j <= i) break;
    picked[i] = picked[j], picked[j] = kept;
  }
  return count;
}

static void on_live(const char *step, int is_free) {
  uint64_t *picked = calloc(live_count + 1, sizeof *picked), count = pick(step, picked), left = 0;
  for (uint64_t i = 0; i < count && may_go_on(); i++) {
    void **place = &live[picked[i]];
    const int stream = stream_of(step, i);
    void *const named = handle(stream);
    if (!is_free) CALL_ON(stream < 0 ? DEFAULT : stream, "record", "", bfc_record_stream(device, *place, named));
    else if (stream < 0) CALL_ON(stream, "free", "", bfc_free(device, *place));
    else CALL_ON(stream, "free", " async", bfc_free_async(device, *place, named));
    if (is_free) *place = NULL;
  }
  for (uint64_t i = 0; i < live_count; i++)
    if (live[i]) live[left++] = live[i];
  live_count = left;
  free(picked);
}

static void on_streams(const char *step, const char *name) {
  const uint64_t streams = field(step, "streams", 0);
  if (!strcmp(name, "hold") && !is_cuda) return;
  for (uint64_t i = 0; i < (streams ? streams : 1) && may_go_on(); i++) {
    const int number = stream_of(step, i);
    void *const named = handle(number);
    if (!strcmp(name, "sync")) CALL(name, "", bfc_stream_synchronized(device, named));
    else if (!strcmp(name, "begin")) {
      uses_pool = 1;
      CALL_ON(number < 0 ? DEFAULT : number, name, "", bfc_pool_begin(device, PRIVATE, named));
    } else if (!strcmp(name, "end")) CALL(name, "", bfc_pool_end(device, PRIVATE, named));
    else if (!strcmp(name, "hold")) {
      if (number >= 0 && (hold(named) || launch(named, nothing, NULL))) die("a stream cannot be held");
    } else CALL(name, "", bfc_forget_stream(device, named));
  }
}

static void others(const char *step, const char *name) {
  bfc_stats_t stats = BFC_STATS_INIT;
  uint64_t value = 0;
  if (!strcmp(name, "frontier")) {
    if (bfc_timestamp(device, &value) != BFC_OK) return;
    const uint64_t to = value * field(step, "share", 100) / 100 + 1;
    CALL(name, "", bfc_set_safe_frontier(device, to));
  } else if (!strcmp(name, "trim")) CALL(name, "", bfc_trim(device, 0, &value));
  else if (!strcmp(name, "release")) CALL(name, "", bfc_pool_release(device, PRIVATE));
  else if (!strcmp(name, "limit")) {
    if (bfc_stats(device, &stats) != BFC_OK) die("no statistics");
    CALL(name, "", bfc_set_memory_limit(device, stats.pool_bytes));
  } else if (!strcmp(name, "done")) {
    if (is_cuda) release_all();
  } else die(step);
}

static void create(char *words) {
  static const char *const NAMES[] = {"growth", "gc", "stamps", "split", "quarantine"};
  bfc_suballocator_t fixed = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = BFC_OPTIONS_INIT;
  uint64_t room = 0;
  is_cuda = has_stamps = 0;
  for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
    unsigned k = 0;
    while (k < 5 && strcmp(word, NAMES[k]) != 0) k++;
    if (k < 5) options.flags |= 1u << k;
    else if (!strcmp(word, "cuda")) is_cuda = 1;
    else if (!strcmp(word, "coalesce")) fixed.supports_coalescing = 1;
    else if (!strncmp(word, "room=", 5)) room = strtoull(word + 5, NULL, 10);
    else die(word);
  }
  if (options.flags & BFC_QUARANTINE) options.flags |= BFC_TIMESTAMPS;
  has_stamps = (options.flags & BFC_TIMESTAMPS) != 0;
  if (is_cuda) enter_driver(), options.flags |= BFC_ALLOW_GROWTH;
  device = is_cuda ? 0 : 258;
  next_address = (uintptr_t)1 << 44;
  fixed.alloc = obtain;
  fixed.free = take_back;
  options.backend = is_cuda ? BFC_BACKEND_CUDA : BFC_BACKEND_CUSTOM;
  options.memory_limit = room ? room * scale * UNIT : is_cuda ? (uint64_t)4 << 30 : (uint64_t)1 << 45;
  if (!is_cuda) options.suballocator = &fixed;
  if (bfc_create(device, &options) != BFC_OK) die("bfc_create failed");
}

static void run(uint64_t of_scale, char *program) {
  char *rest = program, *options = strsep(&rest, ";");
  scale = of_scale;
  block_budget = 5000 * scale;
  live = realloc(live, (2 * scale + 64) * sizeof *live);
  live_count = allocated = calls = all_blocks = random_state = 0;
  kind_count = stream_count = 0;
  memset(seen, 0, sizeof seen);
  create(options);
  for (char *step; (step = strsep(&rest, ";")) && may_go_on();) {
    char name[16] = "";
    sscanf(step, " %15s", name);
    while (*step == ' ') step++;
    if (!strcmp(name, "alloc")) allocate(step);
    else if (!strcmp(name, "free")) on_live(step, 1);
    else if (!strcmp(name, "use")) on_live(step, 0);
    else if (strstr("sync forget begin end hold", name)) on_streams(step, name);
    else others(step, name);
  }
  if (is_cuda) release_all();
  /* While a capture is announced an allocator is not destroyed. */
  for (int number = -1; number < STREAMS && uses_pool; number++) {
    if (number < 0 || handles[number]) (void)bfc_pool_end(device, PRIVATE, handle(number));
  }
  uses_pool = 0;
  if (bfc_destroy_forced(device) != BFC_OK) die("bfc_destroy_forced failed");
}

int main(int argc, char **argv) {
  static char line[1 << 16];
  if (argc == 5 && !strcmp(argv[1], "one")) {
    chosen = strtoull(argv[3], NULL, 10);
    run(strtoull(argv[2], NULL, 10), argv[4]);
    die("the program has no such call");
  }
  if (argc == 4 && !strcmp(argv[1], "all")) {
    run(strtoull(argv[2], NULL, 10), argv[3]);
    printf("%" PRIu64 " %" PRIu64 "\n", calls, all_blocks);
    return 0;
  }
  if (argc != 2 || strcmp(argv[1], "serve") != 0) die("serve, one SCALE CALL PROGRAM, or all SCALE PROGRAM");
  while (fgets(line, sizeof line, stdin)) {
    char *program = strchr(line, ' ');
    if (!program) die("a line is SCALE PROGRAM");
    line[strcspn(line, "\n")] = '\0';
    /* A call without an end is a finding too. */
    alarm(120);
    run(strtoull(line, NULL, 10), program + 1);
    alarm(0);
    for (int k = 0; k < kind_count; k++)
      printf("%s=%" PRIu64 "@%" PRIu64 ";", kinds[k].name, kinds[k].blocks, kinds[k].call);
    putchar('\n');
    fflush(stdout);
  }
  return 0;
}
