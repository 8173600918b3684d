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
  measurement list[MOST_MEASUREMENTS];
} shared;

static shared *results;
static const char *scenario_name;

/* The measured stack, which fence.c reads. */
uintptr_t painted_low, painted_high;
static uintptr_t base;

void measurements_begin(void) {
  void *place = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
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
  base = frame + 2 * sizeof(void *);
  for (word = (volatile uint64_t *)painted_low; (uintptr_t)word < frame - OWN_FRAME; word++) *word = PATTERN;
}

__attribute__((noinline)) void note_depth(const char *call) {
  const volatile uint64_t *word = (const volatile uint64_t *)painted_low;
  const size_t length = strcspn(call, "(");
  measurement *entry;
  long depth;
  size_t at;
  while ((uintptr_t)word < base && *word == PATTERN) word++;
  depth = (long)(base - (uintptr_t)word);
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

void on_painted_stack(const char *scenario, size_t bytes, void (*work)(void)) {
  const size_t page = 4096;
  pthread_attr_t attributes;
  pthread_t thread;
  char *stack = (char *)mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(stack != MAP_FAILED && mprotect(stack, page, PROT_NONE) == 0);
  scenario_name = scenario;
  painted_low = (uintptr_t)stack + page;
  painted_high = painted_low + bytes;
  CHECK(pthread_attr_init(&attributes) == 0);
  CHECK(pthread_attr_setstack(&attributes, stack + page, bytes) == 0);
  CHECK(pthread_create(&thread, &attributes, run, (void *)(uintptr_t)work) == 0);
  CHECK(pthread_join(thread, NULL) == 0);
}
