// TensorFlow's own metadata, for holding the model of stamps.h against them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stamps.h"
#include "xla/tsl/framework/bfc_allocator.h"

namespace private_access {
template <class Table, class Regions>
void Walk(const Table &table, const Regions &regions, std::vector<ChunkAt> *found) {
  for (const auto &region : regions) {
    bool first = true;
    for (size_t handle = region.get_handle(region.ptr()); handle != SIZE_MAX;) {
      const auto &chunk = table[handle];
      found->push_back(
          {reinterpret_cast<uint64_t>(chunk.ptr), {chunk.size, chunk.freed_at_count, chunk.in_use(), first}});
      handle = chunk.next;
      first = false;
    }
  }
}

// As for LargestFreeChunk: an explicit instantiation may name private members.
void WalkBooks(tsl::BFCAllocator &allocator, std::vector<ChunkAt> *found);
template <auto table, auto regions>
struct OpenBooks {
  friend void WalkBooks(tsl::BFCAllocator &allocator, std::vector<ChunkAt> *found) {
    Walk(allocator.*table, (allocator.*regions).regions(), found);
  }
};
template struct OpenBooks<&tsl::BFCAllocator::chunks_, &tsl::BFCAllocator::region_manager_>;
}  // namespace private_access

// All chunks in address order. Without TensorFlow's lock, so only from the one thread that uses the
// allocator.
inline void ChunksOf(tsl::BFCAllocator &allocator, std::vector<ChunkAt> *chunks) {
  chunks->clear();
  private_access::WalkBooks(allocator, chunks);
}
