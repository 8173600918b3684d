/* See host_memory.h. Everything is forwarded to glibc's own names, or to the kernel: glibc itself does not
 * call its mmap by a name that could be taken, so what malloc maps for itself is not counted twice.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "host_memory.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *ptr, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *ptr);

static atomic_long blocks, mapped, asked;
static atomic_int armed, refused;
static long refuse_at;
static refusal how_long;

void host_memory_refuse(long nth, refusal how) {
  refuse_at = nth;
  how_long = how;
  asked = 0;
}

void host_memory_arm(void) {
  refused = 0;
  armed = 1;
}

int host_memory_disarm(void) {
  armed = 0;
  if (refused) refuse_at = 0;
  return refused;
}

long host_memory_asked(void) { return asked; }
long host_memory_blocks(void) { return blocks; }
long host_memory_mapped(void) { return mapped; }

static int is_refused(void) {
  long number;
  if (!armed) return 0;
  number = atomic_fetch_add(&asked, 1) + 1;
  if (refuse_at == 0 || number < refuse_at || (how_long == ONLY_THAT_ONE && number > refuse_at)) return 0;
  atomic_fetch_add(&refused, 1);
  errno = ENOMEM;
  return 1;
}

static void *counted(void *block) {
  if (block != NULL) atomic_fetch_add(&blocks, 1);
  return block;
}

void *malloc(size_t bytes) { return is_refused() ? NULL : counted(__libc_malloc(bytes)); }
void *calloc(size_t count, size_t bytes) { return is_refused() ? NULL : counted(__libc_calloc(count, bytes)); }

void *memalign(size_t alignment, size_t bytes) {
  return is_refused() ? NULL : counted(__libc_memalign(alignment, bytes));
}

void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

int posix_memalign(void **out, size_t alignment, size_t bytes) {
  void *const block = memalign(alignment, bytes);
  if (block == NULL) return ENOMEM;
  *out = block;
  return 0;
}

void free(void *block) {
  if (block != NULL) atomic_fetch_sub(&blocks, 1);
  __libc_free(block);
}

void *realloc(void *block, size_t bytes) {
  void *moved;
  if (block == NULL) return malloc(bytes);
  if (bytes == 0) {
    free(block);
    return NULL;
  }
  if (is_refused()) return NULL;
  moved = __libc_realloc(block, bytes);
  return moved;
}

static long pages(size_t bytes) { return (long)((bytes + 4095) / 4096 * 4096); }

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
  void *place;
  if (is_refused()) return MAP_FAILED;
  place = (void *)(uintptr_t)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
  /* In a fixed place it takes the place of what was there: a reserved range. */
  if (place != MAP_FAILED && !(flags & MAP_FIXED)) atomic_fetch_add(&mapped, pages(bytes));
  return place;
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
  return mmap(address, bytes, protection, flags, file, offset);
}

int munmap(void *address, size_t bytes) {
  const int result = (int)syscall(SYS_munmap, address, bytes);
  if (result == 0) atomic_fetch_sub(&mapped, pages(bytes));
  return result;
}

void *mremap(void *address, size_t old, size_t bytes, int flags, ...) {
  void *place, *wanted = NULL;
  if (flags & MREMAP_FIXED) {
    va_list more;
    va_start(more, flags);
    wanted = va_arg(more, void *);
    va_end(more);
  }
  if (is_refused()) return MAP_FAILED;
  place = (void *)(uintptr_t)syscall(SYS_mremap, address, old, bytes, flags, wanted);
  if (place != MAP_FAILED) atomic_fetch_add(&mapped, pages(bytes) - pages(old));
  return place;
}
