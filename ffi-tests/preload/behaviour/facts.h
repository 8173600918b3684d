/* A program that says what it sees, a fact a line, in words that are the same at each run: the suite compares what it says
 * with the interposer with what it says without. Addresses are said by what is comparable about them.
 */
#ifndef BFC_BEHAVIOUR_FACTS_H
#define BFC_BEHAVIOUR_FACTS_H

#include "test.h"

#define SAY(...) (printf(__VA_ARGS__), printf("\n"))

/* A call's code, and what cudaGetLastError returns after it. */
#define SAY_CODE(what, call)                                                             \
  do {                                                                                   \
    const int code_ = (call);                                                            \
    const int peeked_ = cudaPeekAtLastError(), last_ = cudaGetLastError();               \
    SAY("%s: %d, last error %d %d %d", what, code_, peeked_, last_, cudaGetLastError()); \
  } while (0)

/* The CU_POINTER_ATTRIBUTEs that say what a pointer is, but P2P_TOKENS, which wants rights. */
static const int ATTRIBUTES[] = {1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
enum { ATTRIBUTE_COUNT = sizeof ATTRIBUTES / sizeof ATTRIBUTES[0], MOST_ATTRIBUTES = 21 };

UNUSED static const char *attribute_name(int attribute) {
  static const char *const names[MOST_ATTRIBUTES] = {"0",
                                                     "context",
                                                     "memory type",
                                                     "device pointer",
                                                     "host pointer",
                                                     "tokens",
                                                     "sync memops",
                                                     "buffer id",
                                                     "is managed",
                                                     "device ordinal",
                                                     "has legacy IPC",
                                                     "range start",
                                                     "range size",
                                                     "is mapped",
                                                     "handle types",
                                                     "has RDMA",
                                                     "access flags",
                                                     "pool",
                                                     "mapping size",
                                                     "mapping base",
                                                     "memory block id"};
  return names[attribute];
}

static uint64_t marked(void) { return 0x5a5a5a5a5a5a5a5aull; }

/* An attribute's value in comparable words: an address by its distance from the pointer that was asked for, a number that
 * names something by whether it is there. Its width is as many bytes as were written. */
UNUSED static void say_value(const char *what, int attribute, int code, uint64_t value, Address at) {
  const char *name = attribute_name(attribute);
  if (value == marked()) {
    SAY("%s, %s: %d, nothing written", what, name, code);
    return;
  }
  switch (attribute) {
    case 1: { /* CONTEXT */
      Handle current = NULL;
      cuCtxGetCurrent(&current);
      SAY("%s, %s: %d, %s", what, name, code,
          !value                                  ? "none"
          : value == (uint64_t)(uintptr_t)current ? "the current one"
                                                  : "another");
      break;
    }
    case 3:
    case 4:
    case 11:
    case 19: /* addresses */
      if (value) SAY("%s, %s: %d, %lld from it", what, name, code, (long long)(value - at));
      else SAY("%s, %s: %d, NULL", what, name, code);
      break;
    case 7:
    case 17:
    case 20: /* numbers of things */ SAY("%s, %s: %d, %s", what, name, code, value ? "there" : "none"); break;
    default: {
      const int half = value >> 32 == marked() >> 32;
      SAY("%s, %s: %d, %llx in %d bytes", what, name, code, (unsigned long long)(half ? (uint32_t)value : value),
          half ? 4 : 8);
    }
  }
}

/* The runtime retains the primary context at its first call: a program that counts does without it. */
UNUSED static int without_runtime;

UNUSED static void say_runtime(const char *what, Address at) {
  struct cudaPointerAttributes seen;
  memset(&seen, 0x5a, sizeof seen);
  const int code = cudaPointerGetAttributes(&seen, (void *)at);
  SAY("%s: runtime %d, type %d, device %d, device pointer %s, host pointer %s", what, code, (int)seen.type, seen.device,
      (Address)seen.devicePointer == at ? "itself"
      : seen.devicePointer              ? "another"
                                        : "NULL",
      (Address)seen.hostPointer == at ? "itself"
      : seen.hostPointer              ? "another"
                                      : "NULL");
  cudaGetLastError();
}

/* All that is said of an address. */
UNUSED static void say_pointer(const char *what, Address at) {
  Address base = 0;
  size_t bytes = 0;
  int code = cuMemGetAddressRange_v2(&base, &bytes, at);
  SAY("%s: range %d, %lld from it, %zu bytes", what, code, code ? 0 : (long long)(base - at), bytes);
  if (!without_runtime) say_runtime(what, at);
  int asked[ATTRIBUTE_COUNT];
  void *places[ATTRIBUTE_COUNT];
  uint64_t values[ATTRIBUTE_COUNT];
  char together[200];
  for (int each = 0; each < ATTRIBUTE_COUNT; each++) {
    uint64_t value = marked();
    code = cuPointerGetAttribute(&value, ATTRIBUTES[each], at);
    say_value(what, ATTRIBUTES[each], code, value, at);
    asked[each] = ATTRIBUTES[each];
    values[each] = marked();
    places[each] = &values[each];
  }
  code = cuPointerGetAttributes(ATTRIBUTE_COUNT, asked, places, at);
  snprintf(together, sizeof together, "%s, together", what);
  for (int each = 0; each < ATTRIBUTE_COUNT; each++) say_value(together, asked[each], code, values[each], at);
}

UNUSED static uint64_t buffer_id(const void *memory) {
  uint64_t id = 0;
  cuPointerGetAttribute(&id, 7, (Address)memory);
  return id;
}

/* What is free, as a difference from before. */
UNUSED static void say_free(const char *what, size_t before) {
  size_t free = 0, total = 0;
  int code = without_runtime ? cuMemGetInfo_v2(&free, &total) : (int)cudaMemGetInfo(&free, &total);
  SAY("%s: memory information %d, total %zu, %lld bytes less than before", what, code, total,
      (long long)before - (long long)free);
}

#endif
