/* Replacements of the C library's heap functions. Libraries that are loaded later bind to them too, because the program
 * exports them (-rdynamic).
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "heap.h"

#include <cstddef>

extern "C" {
/* glibc's own, by the names that it has for this. */
void *__libc_malloc(std::size_t bytes);
void *__libc_calloc(std::size_t count, std::size_t bytes);
void *__libc_realloc(void *ptr, std::size_t bytes);
void *__libc_memalign(std::size_t alignment, std::size_t bytes);
}

static thread_local Heap *counting = nullptr;

Counted::Counted() { counting = &heap_; }
Counted::~Counted() { counting = nullptr; }

static void count(std::size_t bytes) {
  constexpr std::size_t large = 2048;
  if (counting == nullptr || bytes < large) return;
  counting->large += 1;
  counting->large_bytes += bytes;
}

static void *aligned(std::size_t alignment, std::size_t bytes) {
  if (counting != nullptr) {
    counting->aligned += 1;
    counting->aligned_bytes += bytes;
  }
  return __libc_memalign(alignment, bytes);
}

extern "C" {
void *malloc(std::size_t bytes) {
  count(bytes);
  return __libc_malloc(bytes);
}
void *calloc(std::size_t number, std::size_t bytes) {
  count(number * bytes);
  return __libc_calloc(number, bytes);
}
void *realloc(void *ptr, std::size_t bytes) {
  count(bytes);
  return __libc_realloc(ptr, bytes);
}
int posix_memalign(void **out, std::size_t alignment, std::size_t bytes) {
  *out = aligned(alignment, bytes);
  return *out == nullptr ? 12 /* ENOMEM */ : 0;
}
/* operator new with an alignment calls it. */
void *aligned_alloc(std::size_t alignment, std::size_t bytes) { return aligned(alignment, bytes); }
void *memalign(std::size_t alignment, std::size_t bytes) { return aligned(alignment, bytes); }
}
