/* Calls from the measured stack that go on another one: of the driver, of the loader and of callbacks.
 *
 * libbfc finds the driver by dlopen, dlvsym and cuGetProcAddress. The program has functions of these names, so that
 * what libbfc finds is behind a fence.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "painted.h"

#include "../c/check.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>

#if !defined(__x86_64__)
#error "the fence is written for x86-64"
#endif

#define STUBS 1024

void *fence_targets[STUBS];
static char other_stack[1 << 20] __attribute__((aligned(64)));
char *const fence_stack = other_stack + sizeof(other_stack);

/* Each stub loads its number. Calls from elsewhere than the measured stack go straight on. Ten arguments: four of them may be
 * on the stack. */
__asm__(
    ".text\n"
    ".balign 16\n"
    "fence_stubs:\n"
    ".set number, 0\n"
    ".rept 1024\n"
    "  .balign 16\n"
    "  movl $number, %r11d\n"
    "  jmp fence_common\n"
    "  .set number, number + 1\n"
    ".endr\n"
    ".balign 16\n"
    "fence_common:\n"
    "  leaq fence_targets(%rip), %r10\n"
    "  movq (%r10,%r11,8), %r11\n"
    "  cmpq painted_low(%rip), %rsp\n"
    "  jb 1f\n"
    "  cmpq painted_high(%rip), %rsp\n"
    "  jae 1f\n"
    "  pushq %rbp\n"
    "  movq %rsp, %rbp\n"
    "  movq fence_stack(%rip), %rsp\n"
    "  pushq 40(%rbp)\n"
    "  pushq 32(%rbp)\n"
    "  pushq 24(%rbp)\n"
    "  pushq 16(%rbp)\n"
    "  call *%r11\n"
    "  movq %rbp, %rsp\n"
    "  popq %rbp\n"
    "  ret\n"
    "1: jmp *%r11\n");
extern char fence_stubs[];

static void *get_proc_address(int which, void *found);

void *fence(void *function) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static size_t used;
  size_t at = 0;
  if (function == NULL) return NULL;
  pthread_mutex_lock(&lock);
  while (at < used && fence_targets[at] != function) at++;
  CHECK(at < STUBS);
  fence_targets[at] = function;
  if (at == used) used++;
  pthread_mutex_unlock(&lock);
  return fence_stubs + 16 * at;
}

/* ---- The loader ---------------------------------------------------------------------------------------- */

typedef void *(*open_function)(const char *, int);
typedef void *(*find_function)(void *, const char *);
typedef void *(*find_version_function)(void *, const char *, const char *);
typedef int (*get_function)(const char *, void **, int, uint64_t);
typedef int (*get_function_v2)(const char *, void **, int, uint64_t, int *);

/* The C library's function of a name, found in its own table of symbols: dlsym may be the interposer's. */
typedef struct search {
  const char *name;
  void *found;
} search;

static uint32_t hash_of(const char *name) {
  uint32_t hash = 5381;
  for (; *name != '\0'; name++) hash = hash * 33 + (unsigned char)*name;
  return hash;
}

static int look(struct dl_phdr_info *info, size_t size, void *argument) {
  search *const wanted = (search *)argument;
  const ElfW(Dyn) *entry = NULL;
  const ElfW(Sym) *symbols = NULL;
  const char *strings = NULL;
  const uint32_t *table = NULL, *buckets, *chain;
  const uint32_t hash = hash_of(wanted->name);
  uint32_t at;
  int part;
  (void)size;
  if (info->dlpi_name == NULL || strstr(info->dlpi_name, "/libc.so.6") == NULL) return 0;
  for (part = 0; part < info->dlpi_phnum; part++) {
    if (info->dlpi_phdr[part].p_type != PT_DYNAMIC) continue;
    entry = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[part].p_vaddr);
  }
  for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_STRTAB) strings = (const char *)entry->d_un.d_ptr;
    if (entry->d_tag == DT_GNU_HASH) table = (const uint32_t *)entry->d_un.d_ptr;
  }
  CHECK(symbols != NULL && strings != NULL && table != NULL);
  /* Number of buckets, first symbol, words of the filter, its shift; the filter has words of 64 bits. */
  buckets = table + 4 + 2 * table[2];
  chain = buckets + table[0];
  at = buckets[hash % table[0]];
  for (; at != 0; at++) {
    const uint32_t other = chain[at - table[1]];
    if ((other | 1) == (hash | 1) && strcmp(strings + symbols[at].st_name, wanted->name) == 0) {
      wanted->found = (void *)(info->dlpi_addr + symbols[at].st_value);
      return 1;
    }
    if (other & 1) break;
  }
  return 0;
}

static void *next(const char *name) {
  search wanted = {name, NULL};
  dl_iterate_phdr(look, &wanted);
  CHECK(wanted.found != NULL);
  return wanted.found;
}

void *fence_open;
void *(*fence_replace)(const char *name, void *found);

/* What the caller gets for a function of the driver. */
static void *fenced(const char *name, void *found) {
  return fence(found != NULL && fence_replace != NULL ? fence_replace(name, found) : found);
}

int fence_hides_driver;

/* On the other stack, from the first instruction. */
static void *open_elsewhere(const char *name, int mode) {
  const int hidden = fence_hides_driver && name != NULL && strstr(name, "libcuda") != NULL;
  return ((open_function)(uintptr_t)next("dlopen"))(hidden ? "libno-driver.so" : name, mode);
}

static int close_elsewhere(void *handle) { return ((int (*)(void *))(uintptr_t)next("dlclose"))(handle); }

static char *error_elsewhere(void) { return ((char *(*)(void))(uintptr_t)next("dlerror"))(); }

static void *find_elsewhere(void *handle, const char *name) {
  void *found = ((void *(*)(void *, const char *))(uintptr_t)next("dlsym"))(handle, name);
  if (found == NULL || strncmp(name, "cu", 2) != 0 || (handle != NULL && handle == fence_open)) return found;
  if (strcmp(name, "cuGetProcAddress") == 0) return get_proc_address(1, found);
  if (strcmp(name, "cuGetProcAddress_v2") == 0) return get_proc_address(2, found);
  return fenced(name, found);
}

static void *find_version_elsewhere(void *handle, const char *name, const char *version) {
  void *found = ((find_version_function)(uintptr_t)next("dlvsym"))(handle, name, version);
  if (found == NULL || strcmp(name, "dlsym") != 0) return found;
  return fence((void *)(uintptr_t)find_elsewhere);
}

void *dlopen(const char *name, int mode) {
  return ((open_function)(uintptr_t)fence((void *)(uintptr_t)open_elsewhere))(name, mode);
}

int dlclose(void *handle) { return ((int (*)(void *))(uintptr_t)fence((void *)(uintptr_t)close_elsewhere))(handle); }

char *dlerror(void) { return ((char *(*)(void))(uintptr_t)fence((void *)(uintptr_t)error_elsewhere))(); }

void *dlvsym(void *handle, const char *name, const char *version) {
  find_version_function find = (find_version_function)(uintptr_t)fence((void *)(uintptr_t)find_version_elsewhere);
  return find(handle, name, version);
}

/* ---- The driver's own table ------------------------------------------------------------------------------ */

static get_function real_get;
static get_function_v2 real_get_v2;

static int get(const char *name, void **place, int version, uint64_t flags) {
  const int result = real_get(name, place, version, flags);
  if (result == 0) *place = fenced(name, *place);
  return result;
}

static int get_v2(const char *name, void **place, int version, uint64_t flags, int *status) {
  const int result = real_get_v2(name, place, version, flags, status);
  if (result == 0) *place = fenced(name, *place);
  return result;
}

static void *get_proc_address(int which, void *found) {
  if (which == 1) {
    real_get = (get_function)(uintptr_t)found;
    return fence((void *)(uintptr_t)get);
  }
  real_get_v2 = (get_function_v2)(uintptr_t)found;
  return fence((void *)(uintptr_t)get_v2);
}
