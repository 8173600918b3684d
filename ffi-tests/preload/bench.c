/* What the interposer costs and saves, on the simulated driver: `cargo xtask bench --only preload` runs it with and
 * without LD_PRELOAD.
 *
 *   bench pairs           nanoseconds of a cuMemAlloc and cuMemFree, of the plain bfc_alloc and bfc_free where libbfc is
 *                         loaded, and of calls that do nothing; needs two devices
 *   bench steady          driver calls of a thousand such pairs, once all is warm, by name
 *   bench replay TRACE    frees and synchronisations of a recorded program, and requests that failed
 *   bench peak TRACE      the most that it has at one time, in bytes
 *
 * A line of JSON on standard output. The limit of a replay is the environment's (BFC_MEMORY_LIMIT).
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bfc.h"

typedef uint64_t Address;

static int (*init)(unsigned);
static int (*retain)(void **, int);
static int (*set_current)(void *);
static int (*get_current)(void **);
static int (*get_version)(int *);
static int (*allocate)(Address *, size_t);
static int (*release)(Address);
static uint64_t (*calls)(const char *);

/* libbfc's own, which exist if the interposer is loaded. */
static __typeof__(bfc_create) *plain_create;
static __typeof__(bfc_alloc) *plain_alloc;
static __typeof__(bfc_free) *plain_free;

static void die(const char *what) {
  fprintf(stderr, "bench: %s\n", what);
  exit(1);
}

static void *find(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) die(name);
  return found;
}

static void begin(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) die("there is no libcuda.so.1");
  *(void **)&init = find(driver, "cuInit");
  *(void **)&retain = find(driver, "cuDevicePrimaryCtxRetain");
  *(void **)&set_current = find(driver, "cuCtxSetCurrent");
  *(void **)&get_current = find(driver, "cuCtxGetCurrent");
  *(void **)&get_version = find(driver, "cuDriverGetVersion");
  *(void **)&allocate = find(driver, "cuMemAlloc_v2");
  *(void **)&release = find(driver, "cuMemFree_v2");
  *(void **)&calls = find(driver, "simcuda_calls");
  void *context = NULL;
  if (init(0) || retain(&context, 0) || set_current(context)) die("the driver does not begin");
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* ---- A warm pool: 256 live allocations of small sizes, of which one is replaced by each pair ---- */

enum { LIVE = 256, PAIRS = 100000, ROUNDS = 9 };

static Address live[LIVE];

static size_t size_of(int i) { return (size_t)(512 * (1 + i * 7 % 37) - 3); }

static void fill(void) {
  for (int i = 0; i < LIVE; i++)
    if (allocate(&live[i], size_of(i))) die("cuMemAlloc failed");
}

static void pair(int i) {
  Address address = 0;
  if (allocate(&address, size_of(i))) die("cuMemAlloc failed");
  Address *place = &live[i * 31 % LIVE];
  if (release(*place)) die("cuMemFree failed");
  *place = address;
}

/* The same with libbfc's plain calls, on the second device, whose pool is the program's: same backend, no quarantine. */

enum { PLAIN = 1 };

static void *plain_live[LIVE];

static int plain_begin(void) {
  *(void **)&plain_create = dlsym(RTLD_DEFAULT, "bfc_create");
  *(void **)&plain_alloc = dlsym(RTLD_DEFAULT, "bfc_alloc");
  *(void **)&plain_free = dlsym(RTLD_DEFAULT, "bfc_free");
  if (!plain_create || !plain_alloc || !plain_free) return 0;
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.backend = BFC_BACKEND_CUDA;
  options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION | BFC_SPLIT_ALWAYS;
  if (plain_create(PLAIN, &options)) die("bfc_create failed");
  for (int i = 0; i < LIVE; i++)
    if (plain_alloc(PLAIN, size_of(i), &plain_live[i])) die("bfc_alloc failed");
  return 1;
}

static void plain_pair(int i) {
  void *address = NULL;
  if (plain_alloc(PLAIN, size_of(i), &address)) die("bfc_alloc failed");
  void **place = &plain_live[i * 31 % LIVE];
  if (plain_free(PLAIN, *place)) die("bfc_free failed");
  *place = address;
}

static double least(double a, double b) { return a < b ? a : b; }

/* The best of several rounds, which alternate: other programs' time is in the others. */
static void pairs(void) {
  double of_pair = 1e18, of_plain = 1e18, of_current = 1e18, of_version = 1e18;
  fill();
  const int is_plain = plain_begin();
  for (int round = 0; round < ROUNDS; round++) {
    double start = now();
    for (int i = 0; i < PAIRS; i++) pair(i);
    of_pair = least(of_pair, (now() - start) / PAIRS);
    if (is_plain) {
      start = now();
      for (int i = 0; i < PAIRS; i++) plain_pair(i);
      of_plain = least(of_plain, (now() - start) / PAIRS);
    }
    void *context;
    start = now();
    for (int i = 0; i < PAIRS; i++) get_current(&context);
    of_current = least(of_current, (now() - start) / PAIRS);
    int version;
    start = now();
    for (int i = 0; i < PAIRS; i++) get_version(&version);
    of_version = least(of_version, (now() - start) / PAIRS);
  }
  printf("{\"pair_ns\": %.1f, ", of_pair);
  if (is_plain) printf("\"plain_ns\": %.1f, ", of_plain);
  printf("\"current_ns\": %.1f, \"nothing_ns\": %.1f}\n", of_current, of_version);
}

static void steady(void) {
  enum { COUNT = 20000 };
  static const char *const names[] = {"cuCtxGetCurrent", "cuCtxSynchronize"};
  fill();
  for (int i = 0; i < PAIRS; i++) pair(i);
  uint64_t all = calls(NULL), of[2];
  for (int k = 0; k < 2; k++) of[k] = calls(names[k]);
  for (int i = 0; i < COUNT; i++) pair(i);
  all = calls(NULL) - all;
  for (int k = 0; k < 2; k++) of[k] = calls(names[k]) - of[k];
  printf("{\"pairs\": %d, \"calls\": %" PRIu64 ", \"current\": %" PRIu64 ", \"synchronize\": %" PRIu64 "}\n", COUNT,
         all, of[0], of[1]);
}

/* ---- Recorded programs ---- */

typedef struct Allocation {
  Address address;
  size_t bytes;
} Allocation;

static Allocation *allocations;
static size_t room;

static Allocation *numbered(size_t id) {
  if (id >= room) {
    size_t more = (id + 1) * 2;
    allocations = realloc(allocations, more * sizeof *allocations);
    if (!allocations) die("no host memory");
    memset(allocations + room, 0, (more - room) * sizeof *allocations);
    room = more;
  }
  return &allocations[id];
}

/* How often the driver was told to wait, or asked whether the work is done. */
static uint64_t settled(void) { return calls("cuCtxSynchronize") + calls("cuCtxRecordEvent"); }

static size_t rounded(size_t bytes) { return (bytes + 511) & ~(size_t)511; }

static void replay(const char *path, int is_real) {
  FILE *trace = fopen(path, "r");
  if (!trace) die(path);
  char line[256];
  size_t id, bytes, now_live = 0, peak = 0;
  uint64_t failed = 0, frees = 0;
  uint64_t synchronized = is_real ? settled() : 0;
  while (fgets(line, sizeof line, trace)) {
    if (sscanf(line, "+ %zu %zu", &id, &bytes) == 2) {
      Allocation *it = numbered(id);
      it->bytes = rounded(bytes);
      if (is_real && allocate(&it->address, bytes)) {
        it->address = 0;
        failed++;
      }
      now_live += it->bytes;
      if (now_live > peak) peak = now_live;
    } else if (sscanf(line, "- %zu", &id) == 1) {
      Allocation *it = numbered(id);
      now_live -= it->bytes;
      if (!is_real || !it->address) continue;
      if (release(it->address)) die("cuMemFree failed");
      frees++;
    }
  }
  fclose(trace);
  if (is_real) synchronized = settled() - synchronized;
  printf("{\"peak\": %zu, \"frees\": %" PRIu64 ", \"synchronizations\": %" PRIu64 ", \"failed\": %" PRIu64 "}\n", peak,
         frees, synchronized, failed);
}

int main(int count, char **arguments) {
  const char *what = count > 1 ? arguments[1] : "";
  if (count == 3 && !strcmp(what, "peak")) {
    replay(arguments[2], 0);
    return 0;
  }
  begin();
  if (!strcmp(what, "pairs")) pairs();
  else if (!strcmp(what, "steady")) steady();
  else if (count == 3 && !strcmp(what, "replay")) replay(arguments[2], 1);
  else die("pairs, steady, replay TRACE or peak TRACE");
  return 0;
}
