/* What a thread takes from the C library's heap: for an account of all of it, without libbfc and with it.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BFC_TESTS_HEAP_H
#define BFC_TESTS_HEAP_H

#include <cstdint>

/* Of the calls of one thread while it is counted. */
struct Heap {
  std::uint64_t aligned = 0; /* requests with an alignment: so does ONNX Runtime's CPU allocator take memory */
  std::uint64_t aligned_bytes = 0;
  std::uint64_t large = 0; /* other requests of 2 KiB and more: malloc, calloc, realloc, operator new */
  std::uint64_t large_bytes = 0;
};

/* Counts what this thread requests until the end of the block. One at a time in a thread. */
class Counted {
 public:
  Counted();
  ~Counted();
  Counted(const Counted &) = delete;
  Counted &operator=(const Counted &) = delete;
  const Heap &so_far() const { return heap_; }

 private:
  Heap heap_;
};

#endif
