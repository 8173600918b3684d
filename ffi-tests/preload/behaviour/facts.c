/* What a program with one device and the runtime sees, see facts.h. */
#include "facts.h"

static const size_t SIZES[] = {1,    2,       255,     256,     257,         511,       512,           513,
                               1000, 1024,    4095,    4096,    4097,        65536,     100000,        MIB - 1,
                               MIB,  MIB + 1, 2 * MIB, 3 * MIB, 7 * MIB + 7, 100 * MIB, 1000 * MIB + 1};
enum { SIZE_COUNT = sizeof SIZES / sizeof SIZES[0] };

static void sizes(void) {
  const size_t before = free_bytes();
  void *memory[SIZE_COUNT] = {NULL};
  for (int each = 0; each < SIZE_COUNT; each++) {
    const size_t bytes = SIZES[each];
    unsigned char ends[2] = {0, 0};
    const int code = cudaMalloc(&memory[each], bytes);
    char *at = memory[each];
    SAY("%zu bytes: %d, %s, aligned to 512: %d", bytes, code, at ? "there" : "NULL", (uintptr_t)at % 512 == 0);
    SAY_CODE("  first byte set", cudaMemset(at, 0x11, 1));
    SAY_CODE("  last byte set", cudaMemset(at + bytes - 1, 0x22, 1));
    if (bytes < 4 * MIB) SAY_CODE("  all of it set", cudaMemset(at, 0x33, bytes));
    cudaMemcpy(&ends[0], at, 1, cudaMemcpyDeviceToHost);
    cudaMemcpy(&ends[1], at + bytes - 1, 1, cudaMemcpyDeviceToHost);
    SAY("  bytes read: %x %x", ends[0], ends[1]);
    say_free("  then", before);
  }
  for (int one = 0; one < SIZE_COUNT; one++)
    for (int other = 0; other < one; other++)
      if (overlap(memory[one], SIZES[one], memory[other], SIZES[other])) SAY("%d and %d overlap", one, other);
  for (int each = 0; each < SIZE_COUNT; each++) SAY_CODE("freed", cudaFree(memory[each]));
  cudaDeviceSynchronize();
  say_free("in the end", before);
}

static void no_size(void) {
  void *memory = (void *)0x1234;
  OK(cudaFree(NULL));
  SAY_CODE("cudaMalloc of nothing", cudaMalloc(&memory, 0));
  SAY("it gives %p", memory);
  SAY_CODE("cudaMalloc to nowhere", cudaMalloc(NULL, 100));
  SAY_CODE("cudaMalloc of nothing to nowhere", cudaMalloc(NULL, 0));
  Address address = 0x1234;
  SAY("cuMemAlloc of nothing: %d", cuMemAlloc_v2(&address, 0));
  SAY("it gives %llx", (unsigned long long)address);
  SAY("cuMemAlloc to nowhere: %d", cuMemAlloc_v2(NULL, 100));
  SAY_CODE("cudaFree of NULL", cudaFree(NULL));
  SAY("cuMemFree of 0: %d", cuMemFree_v2(0));
  memory = (void *)0x1234;
  SAY_CODE("cudaMallocManaged of nothing", cudaMallocManaged(&memory, 0, cudaMemAttachGlobal));
  SAY_CODE("cudaMallocAsync of nothing", cudaMallocAsync(&memory, 0, NULL));
  SAY_CODE("cudaMallocHost of nothing", cudaMallocHost(&memory, 0));
  SAY_CODE("cudaFreeHost of NULL", cudaFreeHost(NULL));
  SAY_CODE("cudaFreeAsync of NULL", cudaFreeAsync(NULL, NULL));
}

static void huge_sizes(void) {
  size_t total = 0, free = free_bytes();
  OK(cudaMemGetInfo(&free, &total));
  const size_t sizes[] = {SIZE_MAX,        SIZE_MAX - 1,     SIZE_MAX - 255, SIZE_MAX - 511,
                          SIZE_MAX - 4096, SIZE_MAX / 2 + 1, SIZE_MAX / 2,   (size_t)1 << 62,
                          (size_t)1 << 50, (size_t)1 << 40,  total + 1,      total + 512};
  for (unsigned each = 0; each < sizeof sizes / sizeof sizes[0]; each++) {
    char what[100];
    void *memory = (void *)0x4321;
    Address address = 0x4321;
    snprintf(what, sizeof what, "cudaMalloc of %zu", sizes[each]);
    SAY_CODE(what, cudaMalloc(&memory, sizes[each]));
    SAY("  it gives %p", memory);
    SAY("  cuMemAlloc: %d", cuMemAlloc_v2(&address, sizes[each]));
    SAY("  it gives %llx", (unsigned long long)address);
    say_free("  then", free);
  }
  SAY_CODE("a small one", cudaMalloc(&(void *){NULL}, 1000));
}

static void attributes(void) {
  void *one = NULL, *other = NULL, *third = NULL;
  OK(cudaMalloc(&one, 1000));
  OK(cudaMalloc(&other, 3 * MIB + 5));
  say_pointer("base", (Address)one);
  say_pointer("inside", (Address)one + 100);
  say_pointer("last byte", (Address)one + 999);
  say_pointer("behind the end", (Address)one + 1000);
  say_pointer("base of a large one", (Address)other);
  say_pointer("inside a large one", (Address)other + 2 * MIB + 1);
  say_pointer("last byte of a large one", (Address)other + 3 * MIB + 4);
  say_pointer("behind the end of a large one", (Address)other + 3 * MIB + 5);
  SAY("one number for all of an allocation: %d", buffer_id(one) == buffer_id((char *)one + 999));
  SAY("another for another: %d", buffer_id(one) != buffer_id(other));
  const uint64_t before = buffer_id(one);
  SAY_CODE("freed", cudaFree(one));
  say_pointer("freed", (Address)one);
  say_pointer("inside what was freed", (Address)one + 500);
  OK(cudaDeviceSynchronize());
  OK(cudaMalloc(&third, 1000));
  SAY("numbers are not used again: %d", buffer_id(third) != before && buffer_id(third) != buffer_id(other));
  say_pointer("NULL", 0);
  say_pointer("1", 1);
  say_pointer("a variable of the program", (Address)(uintptr_t)&one);
  SAY("one attribute to nowhere: %d", cuPointerGetAttribute(NULL, 2, (Address)other));
  SAY("an attribute that is none: %d", cuPointerGetAttribute(&(uint64_t){0}, 4711, (Address)other));
  SAY("no attributes: %d", cuPointerGetAttributes(0, NULL, NULL, (Address)other));
  SAY("attributes from nowhere: %d", cuPointerGetAttributes(2, NULL, NULL, (Address)other));
  Address base = 0;
  size_t bytes = 0;
  SAY("range without a size: %d", cuMemGetAddressRange_v2(&base, NULL, (Address)other + 5));
  SAY("range without a base: %d", cuMemGetAddressRange_v2(NULL, &bytes, (Address)other + 5));
  SAY("they are %d, %zu", base == (Address)other, bytes);
  SAY("range of nothing: %d", cuMemGetAddressRange_v2(NULL, NULL, (Address)other + 5));
}

static void set_attribute(void) {
  void *one = NULL, *other = NULL;
  unsigned is_set = 1, seen = 7;
  OK(cudaMalloc(&one, 1000));
  OK(cudaMalloc(&other, 1000));
  SAY("set: %d", cuPointerSetAttribute(&is_set, 6, (Address)one));
  OK(cuPointerGetAttribute(&seen, 6, (Address)one));
  SAY("of that: %u", seen);
  OK(cuPointerGetAttribute(&seen, 6, (Address)other));
  SAY("of another: %u", seen);
}

static void kinds(void) {
  void *memory = NULL;
  size_t pitch = 0;
  unsigned flags = 0;
  const size_t before = free_bytes();
  SAY_CODE("cudaMallocPitch", cudaMallocPitch(&memory, &pitch, 1000, 10));
  SAY("pitch %zu", pitch);
  say_pointer("pitched", (Address)memory);
  say_pointer("pitched, inside", (Address)memory + 5000);
  say_free("with it", before);
  SAY_CODE("freed", cudaFree(memory));
  say_pointer("pitched, freed", (Address)memory);
  SAY_CODE("cudaMallocManaged", cudaMallocManaged(&memory, 10000, cudaMemAttachGlobal));
  say_pointer("managed", (Address)memory);
  say_free("with it", before);
  SAY_CODE("freed", cudaFree(memory));
  SAY_CODE("cudaMallocManaged with flags that are none", cudaMallocManaged(&memory, 10000, 77));
  SAY_CODE("cudaMallocHost", cudaMallocHost(&memory, 10000));
  say_pointer("pinned", (Address)memory);
  SAY("flags: %d", cuMemHostGetFlags(&flags, memory));
  SAY("they are %u", flags);
  SAY_CODE("cudaFree of it", cudaFree(memory));
  SAY_CODE("cudaFreeHost", cudaFreeHost(memory));
  SAY_CODE("cudaFreeHost again", cudaFreeHost(memory));
  for (unsigned each = 1; each <= 8; each++) {
    SAY_CODE("cudaHostAlloc with flags", cudaHostAlloc(&memory, 4097, each));
    if (each == 8) break;
    SAY("flags: %d", cuMemHostGetFlags(&flags, memory));
    SAY("they are %u", flags);
    SAY_CODE("freed", cudaFreeHost(memory));
  }
  SAY_CODE("cudaMallocAsync", cudaMallocAsync(&memory, 20000, NULL));
  say_pointer("stream-ordered", (Address)memory);
  SAY_CODE("cudaFree", cudaFree(memory));
  SAY_CODE("cudaFree again", cudaFree(memory));
  SAY_CODE("cudaMallocAsync", cudaMallocAsync(&memory, 20000, NULL));
  SAY_CODE("cudaFreeAsync", cudaFreeAsync(memory, NULL));
  SAY_CODE("cudaFreeAsync again", cudaFreeAsync(memory, NULL));
  OK(cudaMalloc(&memory, 20000));
  SAY_CODE("cudaFreeAsync of what cudaMalloc gave", cudaFreeAsync(memory, NULL));
  OK(cudaDeviceSynchronize());
  say_pointer("freed so", (Address)memory);
  SAY_CODE("cudaFree of it", cudaFree(memory));
}

static void frees(void) {
  void *memory = NULL, *host = NULL, *other = NULL;
  int variable = 0;
  OK(cudaMalloc(&memory, 5000));
  OK(cudaMalloc(&other, 5000));
  OK(cudaMallocHost(&host, 5000));
  SAY_CODE("cudaFree inside", cudaFree((char *)memory + 512));
  SAY_CODE("cudaFree of an odd address", cudaFree((char *)memory + 1));
  SAY_CODE("cudaFree behind the end", cudaFree((char *)memory + 5000));
  SAY_CODE("cudaFree of a variable", cudaFree(&variable));
  SAY_CODE("cudaFree of 1", cudaFree((void *)1));
  SAY_CODE("cudaFree of a large number", cudaFree((void *)UINTPTR_MAX));
  SAY_CODE("cudaFree of pinned memory", cudaFree(host));
  SAY_CODE("cudaFreeHost of device memory", cudaFreeHost(memory));
  SAY_CODE("cudaFreeHost inside", cudaFreeHost((char *)host + 512));
  SAY_CODE("cudaFreeAsync inside", cudaFreeAsync((char *)memory + 512, NULL));
  SAY_CODE("cudaFreeAsync of a variable", cudaFreeAsync(&variable, NULL));
  say_pointer("after all that", (Address)memory);
  SAY_CODE("cudaFree", cudaFree(memory));
  SAY_CODE("cudaFree again", cudaFree(memory));
  SAY_CODE("cudaFree of what was inside", cudaFree((char *)memory + 512));
  SAY_CODE("cudaFreeAsync again", cudaFreeAsync(memory, NULL));
  OK(cudaDeviceSynchronize());
  SAY_CODE("cudaFree after a synchronisation", cudaFree(memory));
  SAY_CODE("cudaFree of another", cudaFree(other));
  SAY_CODE("cudaFree of another again", cudaFree(other));
}

/* A thread's failure stays until it is asked for, whatever succeeds in between. */
static void last_error(void) {
  void *memory = NULL;
  OK(cudaMalloc(&memory, 100));
  SAY("failure: %d", cudaFree((char *)memory + 1));
  SAY("success: %d", cudaMalloc(&(void *){NULL}, 100));
  SAY("success: %d", cudaFree(memory));
  SAY("peek: %d", cudaPeekAtLastError());
  SAY("peek: %d", cudaPeekAtLastError());
  SAY("get: %d", cudaGetLastError());
  SAY("get: %d", cudaGetLastError());
}

static void information(void) {
  size_t free = 0, total = 0, before = free_bytes();
  enum { COUNT = 3000 };
  static void *memory[COUNT];
  OK(cuMemGetInfo_v2(&free, NULL));
  SAY("free alone: %d", free == before);
  SAY("total alone: %d", cuMemGetInfo_v2(NULL, &total));
  SAY("it is %zu", total);
  SAY("neither: %d", cuMemGetInfo_v2(NULL, NULL));
  uint64_t random = 12345;
  for (int each = 0; each < COUNT; each++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    if (cudaMalloc(&memory[each], 1 + (random >> 33) % (1u << (4 + each % 18)))) SAY("cudaMalloc failed");
    if (each % 500 == 499) say_free("with many", before);
  }
  for (int each = 0; each < COUNT; each += 2) OK(cudaFree(memory[each]));
  say_free("half of them freed", before);
  for (int each = 1; each < COUNT; each += 2) OK(cudaFree(memory[each]));
  say_free("all of them freed", before);
}

/* The largest allocation, and how many of a size there are, to the last byte. */
static void exhaustion(void) {
  const size_t before = free_bytes();
  size_t least = 1, most = before + 1;
  enum { MOST = 100000 };
  static void *memory[MOST];
  SAY("free in the beginning: %zu", before);
  while (most - least > 1) {
    const size_t middle = least + (most - least) / 2;
    if (cudaMalloc(&memory[0], middle)) {
      most = middle;
    } else {
      OK(cudaFree(memory[0]));
      least = middle;
    }
  }
  SAY("the largest: %zu", least);
  cudaGetLastError();
  for (size_t bytes = 64 * MIB; bytes >= 256 * KIB; bytes /= 4) {
    int count = 0;
    while (count < MOST && !cudaMalloc(&memory[count], bytes)) count++;
    SAY("of %zu bytes: %d, then %d", bytes, count, cudaGetLastError());
    say_free("when there is no more", before);
    for (int each = 0; each < count; each++) OK(cudaFree(memory[each]));
  }
  /* Of all sizes until nothing is left. */
  size_t sum = 0;
  int count = 0;
  for (size_t bytes = 1000 * MIB; bytes >= 512; bytes = bytes * 3 / 4 / 512 * 512) {
    while (count < MOST && !cudaMalloc(&memory[count], bytes)) {
      count++;
      sum += bytes;
    }
  }
  SAY("of all sizes: %zu bytes", sum);
  for (int each = 0; each < count; each++) OK(cudaFree(memory[each]));
  cudaGetLastError();
  say_free("freed", before);
  SAY_CODE("all of it again", cudaMalloc(&memory[0], before));
}

/* Other kinds of memory, where cudaMalloc has had all and has given it back. */
static void exhaustion_of_kinds(void) {
  const size_t before = free_bytes();
  const MemoryKind kind = MEMORY_OF(0);
  void *memory[64] = {NULL};
  for (int round = 0; round < 5; round++) {
    const size_t part = before / 64 / 512 * 512;
    uint64_t handle = 0;
    size_t pitch = 0;
    for (int each = 0; each < 64; each++) OK(cudaMalloc(&memory[each], part));
    for (int each = 0; each < 64; each++) OK(cudaFree(memory[each]));
    const size_t most = before / 4 * 3 / (2 * MIB) * (2 * MIB);
    switch (round) {
      case 0:
        SAY_CODE("cudaMallocPitch", cudaMallocPitch(memory, &pitch, 1 << 20, most >> 20));
        OK(cudaFree(memory[0]));
        break;
      case 1:
        SAY_CODE("cudaMallocManaged", cudaMallocManaged(memory, most, cudaMemAttachGlobal));
        OK(cudaFree(memory[0]));
        break;
      case 2:
        SAY("cuMemCreate: %d", cuMemCreate(&handle, most, &kind, 0));
        OK(cuMemRelease(handle));
        break;
      case 3:
        SAY_CODE("cudaMallocAsync", cudaMallocAsync(memory, most, NULL));
        OK(cudaFreeAsync(memory[0], NULL));
        OK(cudaDeviceSynchronize());
        break;
      default: SAY_CODE("cudaMalloc", cudaMalloc(memory, most));
    }
  }
}

static const Case CASES[] = {
    {"sizes", sizes, NULL},
    {"no_size", no_size, NULL},
    {"huge_sizes", huge_sizes, NULL},
    {"attributes", attributes, NULL},
    {"set_attribute", set_attribute, NULL},
    {"kinds", kinds, NULL},
    {"frees", frees, NULL},
    {"last_error", last_error, NULL},
    {"information", information, NULL},
    {"exhaustion", exhaustion, NULL},
    {"exhaustion_of_kinds", exhaustion_of_kinds, NULL},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
