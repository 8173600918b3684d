/* An OrtAllocator around another one: counts the requests of ONNX Runtime, and fails when told to, as
 * bfc::ort_allocator does.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BFC_TESTS_COUNTING_H
#define BFC_TESTS_COUNTING_H

#include "ort.h"

#include <atomic>

class Counting final : public OrtAllocator {
 public:
  explicit Counting(OrtAllocator &other) : OrtAllocator(), behind_(other) {
    OrtAllocator::version = other.version;
    OrtAllocator::Alloc = [](OrtAllocator *self, std::size_t size) { return of(self).take(size, false); };
    OrtAllocator::Reserve = [](OrtAllocator *self, std::size_t size) { return of(self).take(size, true); };
    OrtAllocator::Free = [](OrtAllocator *self, void *ptr) { of(self).give(ptr); };
    OrtAllocator::Info = [](const OrtAllocator *self) {
      OrtAllocator &behind = static_cast<const Counting *>(self)->behind_;
      return behind.Info(&behind);
    };
  }

  /* The request with that number, counted from now and from 0, fails. */
  void fail_at(long number) { left_ = number; }

  std::atomic<std::uint64_t> requests{0}, bytes{0}, reserves{0}, reserved_bytes{0}, frees{0}, zeros{0}, nulls{0};
  /* Bytes of all, each a multiple of the 64 to which ONNX Runtime's CPU allocator aligns. */
  std::atomic<std::uint64_t> rounded{0};

 private:
  static Counting &of(OrtAllocator *self) { return *static_cast<Counting *>(self); }

  void *take(std::size_t size, bool is_reserve) {
    if (left_.fetch_sub(1) == 0) throw bfc::out_of_memory("injected");
    (is_reserve ? reserves : requests) += 1;
    (is_reserve ? reserved_bytes : bytes) += size;
    zeros += size == 0;
    rounded += (size + 63) / 64 * 64;
    return is_reserve ? behind_.Reserve(&behind_, size) : behind_.Alloc(&behind_, size);
  }
  void give(void *ptr) {
    frees += 1;
    nulls += ptr == nullptr;
    behind_.Free(&behind_, ptr);
  }

  OrtAllocator &behind_;
  std::atomic<long> left_{-1};
};

#endif
