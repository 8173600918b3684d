/* SPDX-License-Identifier: Apache-2.0 OR MIT */

#include "painted.h"

#include "../c/check.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

#define PATTERN UINT64_C(0xa5c35a3ca5c35a3c)
#define MOST_MEASUREMENTS 20000
/* What the painting function may use itself. */
#define OWN_FRAME 256

typedef struct shared {
  size_t count;
  /* Where the last measured call began. */
  uintptr_t base;
  measurement list[MOST_MEASUREMENTS];
} shared;

static shared *results;
static const char *scenario_name;

/* The measured stack, which fence.c reads. */
uintptr_t painted_low, painted_high;

int measurements_begin(void) {
  const int file = memfd_create("measurements", 0);
  CHECK(file >= 0 && ftruncate(file, sizeof(shared)) == 0);
  measurements_in(file);
  return file;
}

void measurements_in(int file) {
  void *place = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  CHECK(place != MAP_FAILED);
  results = (shared *)place;
}

const measurement *measurements(size_t *count) {
  *count = results->count;
  return results->list;
}

/* The caller's stack pointer: this function has a frame pointer, below it lies only its own frame. */
__attribute__((noinline)) void paint(void) {
  const uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
  volatile uint64_t *word;
  results->base = frame + 2 * sizeof(void *);
  for (word = (volatile uint64_t *)painted_low; (uintptr_t)word < frame - OWN_FRAME; word++) *word = PATTERN;
}

__attribute__((noinline)) void note_depth(const char *call) {
  const volatile uint64_t *word = (const volatile uint64_t *)painted_low;
  const size_t length = strcspn(call, "(");
  measurement *entry;
  long depth;
  size_t at;
  while ((uintptr_t)word < results->base && *word == PATTERN) word++;
  depth = (long)(results->base - (uintptr_t)word);
  for (at = 0; at < results->count; at++) {
    entry = &results->list[at];
    if (strncmp(entry->function, call, length) == 0 && entry->function[length] == '\0' &&
        strcmp(entry->scenario, scenario_name) == 0) {
      break;
    }
  }
  entry = &results->list[at];
  if (at == results->count) {
    CHECK(at < MOST_MEASUREMENTS && length < sizeof(entry->function));
    memcpy(entry->function, call, length);
    strncpy(entry->scenario, scenario_name, sizeof(entry->scenario) - 1);
    results->count++;
  }
  if (depth > entry->depth) {
    entry->depth = depth;
    strncpy(entry->call, call, sizeof(entry->call) - 1);
  }
}

static void *run(void *work) {
  ((void (*)(void))(uintptr_t)work)();
  return NULL;
}

#define PAGE ((size_t)4096)

char *painted_stack(size_t bytes) {
  char *stack = (char *)mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(stack != MAP_FAILED && mprotect(stack, PAGE, PROT_NONE) == 0);
  return stack;
}

void measure_on(char *stack, size_t bytes, const char *scenario) {
  scenario_name = scenario;
  painted_low = (uintptr_t)stack + PAGE;
  painted_high = painted_low + bytes;
}

void on_painted_stack(const char *scenario, size_t bytes, void (*work)(void)) {
  char *stack = painted_stack(bytes);
  measure_on(stack, bytes, scenario);
  run_on(stack, bytes, work);
}

void run_on(char *stack, size_t bytes, void (*work)(void)) {
  pthread_attr_t attributes;
  pthread_t thread;
  CHECK(pthread_attr_init(&attributes) == 0);
  CHECK(pthread_attr_setstack(&attributes, stack + PAGE, bytes) == 0);
  CHECK(pthread_create(&thread, &attributes, run, (void *)(uintptr_t)work) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
}
