/* What is called on the measured stack under the interposer. The simulated driver does what matters to pools. In place of its
 * other functions there is one that only answers.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "hooks.h"

#include "../c/check.h"
#include "painted.h"

#include <dlfcn.h>
#include <sys/resource.h>

typedef int (*function)(word, word, word, word, word, word);

#define KIB ((word)1 << 10)
#define MANY 1300
#define OUT_OF_MEMORY 2

char hooks[MOST_HOOKS][60];
size_t hook_count;
word fail_nth, trace_limit;
int fail_code;
static void *interposer, *driver;

/* ---- The driver ---------------------------------------------------------------------------------------------- */

/* Hooks whose function of the driver is the simulation's. */
static const char *const simulated[] = {"cuGetProcAddress",
                                        "cuGetProcAddress_v2",
                                        "cuMemAlloc_v2",
                                        "cuMemFree_v2",
                                        "cuMemGetInfo_v2",
                                        "cuMemGetAddressRange_v2",
                                        "cuPointerGetAttribute",
                                        "cuPointerGetAttributes",
                                        "cuIpcGetMemHandle",
                                        "cuMemAllocPitch_v2",
                                        "cuMemAllocManaged",
                                        "cuMemCreate",
                                        "cuMemAllocAsync",
                                        "cuMemAllocAsync_ptsz",
                                        "cuMemFreeAsync",
                                        "cuMemFreeAsync_ptsz",
                                        "cuMemHostAlloc",
                                        "cuMemAllocHost_v2",
                                        "cuMemFreeHost",
                                        "cuCtxSynchronize",
                                        "cuStreamBeginCapture_v2",
                                        "cuStreamEndCapture",
                                        "cuStreamDestroy_v2",
                                        "cuCtxEnablePeerAccess",
                                        "cuMemSetAccess",
                                        "cuMemRetainAllocationHandle",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuDevicePrimaryCtxRelease_v2",
                                        "cuDevicePrimaryCtxReset_v2",
                                        "cuCtxCreate_v2",
                                        "cuCtxDestroy_v2"};

static int is_of(const char *symbol, const char *name) {
  const size_t length = strlen(name);
  return strncmp(symbol, name, length) == 0 && (symbol[length] == '\0' || strncmp(symbol + length, "_v", 2) == 0);
}

static int is_simulated(const char *name) {
  size_t at;
  for (at = 0; at < sizeof(simulated) / sizeof(simulated[0]); at++) {
    if (is_of(simulated[at], name)) return 1;
  }
  return 0;
}

static int answered;

static int answer(void) { return answered; }

static void *replace(const char *name, void *found) {
  size_t at;
  if (is_simulated(name)) return found;
  for (at = 0; at < hook_count; at++) {
    if (is_of(hooks[at], name)) return (void *)(uintptr_t)answer;
  }
  return found;
}

static void *of_driver(const char *name) {
  void *found = dlsym(driver, name);
  CHECK(found != NULL);
  return fence(found);
}

#define DRIVER(name, type) ((int(*) type)(uintptr_t)of_driver(name))

/* ---- Measured calls -------------------------------------------------------------------------------------------- */

static function hook(const char *name) {
  void *found = dlsym(interposer, name);
  if (found == NULL) fprintf(stderr, "the interposer has no %s\n", name);
  CHECK(found != NULL);
  return (function)(uintptr_t)found;
}

static __attribute__((noinline)) int measured(const char *shown, function f, const word *arguments) {
  int code;
  paint();
  code = f(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
  note_depth(shown);
  return code;
}

#define P(pointer) ((word)(uintptr_t)(pointer))
#define CALL(name, ...) measured(#name "(" #__VA_ARGS__ ")", hook(#name), (const word[6]){__VA_ARGS__})
/* One that succeeds, unless a call of the driver fails in this scenario. */
#define OK(call) CHECK((call) == 0 || fail_nth != 0)

static word pieces[MANY], streams[3], contexts[3], other_memory;

/* ---- What is called --------------------------------------------------------------------------------------------- */

static void begin(void) {
  int at;
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(driver != NULL);
  CHECK(DRIVER("cuInit", (unsigned))(0) == 0);
  for (at = 0; at < 2; at++) { CHECK(DRIVER("cuDevicePrimaryCtxRetain", (word *, int))(&contexts[at], at) == 0); }
  CHECK(DRIVER("cuCtxSetCurrent", (word))(contexts[0]) == 0);
  for (at = 0; at < 3; at++) CHECK(DRIVER("cuStreamCreate", (word *, unsigned))(&streams[at], 1) == 0);
}

static void lookups(void) {
  void *found = NULL;
  int status = 0;
  CALL(dlsym, P(driver), P("cuMemAlloc_v2"));
  CALL(dlsym, P(RTLD_DEFAULT), P("cuMemAlloc_v2"));
  CALL(dlsym, P(driver), P("cuMemcpyNobodyKnows"));
  CALL(dlsym, P(driver), P("cuGraphLaunch"));
  CALL(dlsym, P(RTLD_DEFAULT), P("malloc"));
  CALL(cuGetProcAddress_v2, P("cuMemAlloc"), P(&found), 12000, 0, P(&status));
  CALL(cuGetProcAddress_v2, P("cuMemAlloc"), P(&found), 99000, 0, P(&status));
  CALL(cuGetProcAddress_v2, P("cuMemcpyNobodyKnows"), P(&found), 12000, 0, P(&status));
  CALL(cuGetProcAddress_v2, P("cuGraphLaunch"), P(&found), 12000, 2, P(&status));
  CALL(cuGetProcAddress, P("cuMemFree"), P(&found), 11030, 0);
  CALL(cuGetProcAddress, P("cuMemFree"), P(&found), 99000, 0);
}

static void hold(word stream) {
  CHECK(DRIVER("simcuda_hold", (word))(stream) == 0);
  CHECK(DRIVER("simcuda_launch", (word, void *, void *))(stream, of_driver("simcuda_clear_log"), NULL) == 0);
}

static void release_all(void) { ((void (*)(void))(uintptr_t)of_driver("simcuda_release_all"))(); }

static void device_memory(void) {
  word free_bytes = 0, total = 0, address = 0, base = 0, bytes = 0, attribute = 0;
  unsigned attributes[3] = {10, 11, 12};
  word values[3] = {0};
  void *places[3] = {&values[0], &values[1], &values[2]};
  char handle[64];
  int at, round;
  CALL(cuMemGetInfo_v2, P(&free_bytes), P(&total));
  OK(CALL(cuMemAlloc_v2, P(&address), 1000));
  CALL(cuMemGetInfo_v2, P(&free_bytes), P(&total));
  CALL(cuMemGetAddressRange_v2, P(&base), P(&bytes), address + 5);
  CALL(cuMemGetAddressRange_v2, P(&base), P(&bytes), address + 1020);
  CALL(cuPointerGetAttribute, P(&attribute), 11, address);
  CALL(cuPointerGetAttributes, 3, P(attributes), P(places), address);
  CALL(cuIpcGetMemHandle, P(handle), address);
  OK(CALL(cuMemFree_v2, address));
  CALL(cuMemFree_v2, address);
  CALL(cuMemFree_v2, 64);
  CALL(cuMemFree_v2, 0);
  CALL(cuMemAlloc_v2, 0, 1000);
  CALL(cuMemAlloc_v2, P(&address), 0);
  for (round = 0; round < 2; round++) {
    for (at = 0; at < MANY; at++) {
      pieces[at] = 0;
      CALL(cuMemAlloc_v2, P(&pieces[at]), (word)(1 + at % 7 * 3000));
    }
    for (at = 0; at < MANY; at++) {
      if (pieces[at] != 0) CALL(cuMemFree_v2, pieces[at]);
    }
  }
  /* It grows, collects, synchronizes, and at last there is none. */
  for (at = 0; at < 40; at++) {
    pieces[at] = 0;
    CALL(cuMemAlloc_v2, P(&pieces[at]), 3 * MIB + (word)at * 1000);
  }
  for (at = 0; at < 40; at += 2) CALL(cuMemFree_v2, pieces[at]);
  if (CALL(cuMemAlloc_v2, P(&address), 20 * MIB) == 0) CALL(cuMemFree_v2, address);
  for (at = 1; at < 40; at += 2) CALL(cuMemFree_v2, pieces[at]);
  for (at = 0; at < 40; at++) {
    pieces[at] = 0;
    CALL(cuMemAlloc_v2, P(&pieces[at]), 16 * MIB);
  }
  CALL(cuMemAlloc_v2, P(&address), 500 * MIB);
  CALL(cuMemAlloc_v2, P(&address), ~(word)0);
  for (at = 0; at < 40; at++) CALL(cuMemFree_v2, pieces[at]);
  CALL(cuCtxSynchronize, 0);
}

static void other_memory_kinds(void) {
  word address = 0, pitch = 0, host = 0;
  struct {
    int type, handles, location, device;
    void *security;
    char rest[8];
  } kind = {1, 0, 1, 0, NULL, {0}};
  int at;
  for (at = 0; at < 2; at++) {
    const word bytes = at == 0 ? 3 * MIB : 900 * MIB;
    /* So that there is something to give back. */
    if (CALL(cuMemAlloc_v2, P(&address), 30 * MIB) == 0) CALL(cuMemFree_v2, address);
    CALL(cuMemAllocPitch_v2, P(&address), P(&pitch), bytes / 1024, 1024, 4);
    CALL(cuMemAllocManaged, P(&address), bytes, 1);
    CALL(cuMemCreate, P(&address), at == 0 ? 2 * MIB : 900 * MIB, P(&kind), 0);
    if (CALL(cuMemHostAlloc, P(&host), bytes, 0) == 0) CALL(cuMemFreeHost, host);
    CALL(cuMemHostAlloc, P(&host), bytes, 1);
    if (CALL(cuMemAllocHost_v2, P(&host), bytes) == 0) CALL(cuMemFreeHost, host);
  }
  CALL(cuMemFreeHost, P(&host));
}

static void in_streams(void) {
  word address = 0;
  int at, round;
  for (round = 0; round < 3; round++) {
    if (round == 1) hold(streams[1]);
    for (at = 0; at < 60; at++) {
      pieces[at] = 0;
      CALL(cuMemAllocAsync, P(&pieces[at]), (word)(1 + at % 7 * 3000), streams[at % 3]);
    }
    for (at = 0; at < 60; at++) {
      if (pieces[at] == 0) continue;
      if (at % 5 == 0) CALL(cuMemFree_v2, pieces[at]);
      else CALL(cuMemFreeAsync, pieces[at], streams[(at + round) % 3]);
    }
    if (CALL(cuMemAllocAsync, P(&address), 40 * MIB, streams[0]) == 0) CALL(cuMemFreeAsync, address, streams[2]);
    if (CALL(cuMemAllocAsync_ptsz, P(&address), 3000, 0) == 0) CALL(cuMemFreeAsync_ptsz, address, 0);
    if (CALL(cuMemAlloc_v2, P(&address), 30 * MIB) == 0) CALL(cuMemFreeAsync, address, streams[0]);
    CALL(cuMemAllocAsync, P(&address), 900 * MIB, streams[0]);
    CALL(cuMemFreeAsync, 64, streams[0]);
    release_all();
  }
  CALL(cuStreamDestroy_v2, streams[2]);
}

static void in_captures(void) {
  word graph = 0, address = 0;
  CALL(cuStreamBeginCapture_v2, streams[0], 2);
  if (CALL(cuMemAlloc_v2, P(&address), 5000) == 0) CALL(cuMemFree_v2, address);
  CALL(cuMemAllocAsync, P(&address), 5000, streams[1]);
  CALL(cuMemAlloc_v2, P(&address), 900 * MIB);
  CALL(cuStreamEndCapture, streams[0], P(&graph));
  if (CALL(cuMemAlloc_v2, P(&address), 5000) == 0) CALL(cuMemFree_v2, address);
  CALL(cuStreamBeginCapture, streams[1]);
  CALL(cuStreamDestroy, streams[1]);
}

/* Another device's context, and one that the program has created. */
static void with_others(void) {
  struct {
    int type, device, flags;
  } access_of_other = {1, 1, 3};
  word address = 0, handle = 0;
  int at;
  CHECK(DRIVER("cuCtxSetCurrent", (word))(contexts[1]) == 0);
  CALL(cuMemAlloc_v2, P(&other_memory), 5000);
  CALL(cuCtxEnablePeerAccess, contexts[0], 0);
  CALL(cuMemAlloc_v2, P(&address), 5000);
  CHECK(DRIVER("cuCtxSetCurrent", (word))(contexts[0]) == 0);
  if (address != 0) CALL(cuMemFree_v2, address);
  CALL(cuCtxCreate_v2, P(&contexts[2]), 0, 1);
  CALL(cuMemAlloc_v2, P(&address), 5000);
  CALL(cuCtxEnablePeerAccess, contexts[0], 0);
  CHECK(DRIVER("cuCtxSetCurrent", (word))(contexts[0]) == 0);
  for (at = 0; at < 1100; at++) {
    if (CALL(cuMemAlloc_v2, P(&address), 3 * MIB + (word)at * 512 * KIB / 100) == 0) CALL(cuMemFree_v2, address);
  }
  CALL(cuMemAlloc_v2, P(&address), 900 * MIB);
  CALL(cuCtxDestroy_v2, contexts[2]);
  CALL(cuCtxCreate_v2, P(&contexts[2]), 0, 0);
  CALL(cuCtxDestroy, contexts[2]);
  CALL(cuCtxCreate, P(&contexts[2]), 0, 0);
  CALL(cuCtxDestroy_v2, contexts[2]);
  CHECK(DRIVER("cuCtxSetCurrent", (word))(contexts[0]) == 0);
  if (CALL(cuMemAlloc_v2, P(&address), 5000) != 0) return;
  CALL(cuMemSetAccess, address, 2 * MIB, P(&access_of_other), 1);
  CALL(cuMemRetainAllocationHandle, P(&handle), address);
  CALL(cuMemFree_v2, address);
}

static int takes_a_struct(const char *name) {
  return strstr(name, "2D") != NULL || strstr(name, "3D") != NULL || strstr(name, "Node") != NULL ||
         strstr(name, "Access") != NULL || strstr(name, "cuCtxCreate") != NULL || strstr(name, "Handle") != NULL ||
         strstr(name, "Context") != NULL;
}

/* Every hook except those that the simulation implements, called with addresses of the other device's pool as
 * arguments, and with structs that are full of them. */
static void all_others(void) {
  static word block[512];
  size_t at, place;
  for (at = 0; at < hook_count; at++) {
    char shown[80];
    int round;
    if (is_simulated(hooks[at]) || strcmp(hooks[at], "dlsym") == 0) continue;
    for (round = 0; round < 3; round++) {
      word arguments[6];
      for (place = 0; place < 512; place++) block[place] = other_memory;
      answered = round == 1 ? OUT_OF_MEMORY : 0;
      for (place = 0; place < 6; place++) {
        arguments[place] = round == 2 || takes_a_struct(hooks[at]) ? P(block) : other_memory;
      }
      snprintf(shown, sizeof(shown), "%.60s(...)", hooks[at]);
      measured(shown, hook(hooks[at]), arguments);
    }
  }
  answered = 0;
}

static void lives(void) {
  word address = 0, context = 0;
  CALL(cuDevicePrimaryCtxRetain, P(&context), 0);
  CALL(cuMemAlloc_v2, P(&address), 5000);
  CALL(cuStreamBeginCapture_v2, streams[0], 2);
  CALL(cuDevicePrimaryCtxReset_v2, 0);
  CHECK(DRIVER("cuDevicePrimaryCtxRetain", (word *, int))(&contexts[0], 0) == 0);
  CHECK(DRIVER("cuCtxSetCurrent", (word))(contexts[0]) == 0);
  CALL(cuMemAlloc_v2, P(&address), 5000);
  CALL(cuMemFree_v2, address);
  CALL(cuDevicePrimaryCtxReset, 0);
  CHECK(DRIVER("cuDevicePrimaryCtxRetain", (word *, int))(&contexts[0], 0) == 0);
  CALL(cuDevicePrimaryCtxRelease, 0);
  for (context = 0; context < 4; context++) CALL(cuDevicePrimaryCtxRelease_v2, 0);
}

/* The trace comes to its end. Only then, because the simulation has files too. */
static void with_full_disk(void) {
  struct rlimit before, limit;
  word address = 0;
  int at;
  OK(CALL(cuMemAlloc_v2, P(&address), 5000));
  CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
  limit = before;
  limit.rlim_cur = trace_limit;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  for (at = 0; at < 60000; at++) {
    const word arguments[] = {P(&address), 3000, 0, 0, 0, 0};
    /* Most of them unmeasured, for painting takes long. */
    if (at % 100 == 0 || at > 57000) CALL(cuMemAlloc_v2, P(&address), 3000);
    else hook("cuMemAlloc_v2")(arguments[0], arguments[1], 0, 0, 0, 0);
    if (at % 100 == 0) CALL(cuMemFree_v2, address);
    else hook("cuMemFree_v2")(address, 0, 0, 0, 0, 0);
  }
  CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
}

void work(void) {
  begin();
  if (fail_nth != 0) CHECK(DRIVER("simcuda_fail", (const char *, word, int))(NULL, fail_nth, fail_code) == 0);
  lookups();
  if (trace_limit != 0) with_full_disk();
  device_memory();
  other_memory_kinds();
  in_streams();
  in_captures();
  with_others();
  lives();
}

void work_of_others(void) {
  begin();
  lookups();
  with_others();
  all_others();
}

void work_until_exit(void) {
  word address = 0;
  begin();
  CALL(cuMemAlloc_v2, P(&address), 5000);
  CALL(cuMemAlloc_v2, P(&address), 900 * MIB);
  paint();
  exit(0);
}

void begin_hooks(const char *names, const char *path) {
  FILE *list = fopen(names, "r");
  CHECK(list != NULL);
  while (hook_count < MOST_HOOKS && fgets(hooks[hook_count], sizeof(hooks[0]), list) != NULL) {
    hooks[hook_count][strcspn(hooks[hook_count], "\n")] = '\0';
    if (hooks[hook_count][0] != '\0') hook_count++;
  }
  fclose(list);
  CHECK(hook_count > 100 && hook_count < MOST_HOOKS);
  interposer = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  CHECK(interposer != NULL);
  fence_open = interposer;
  fence_replace = replace;
}
