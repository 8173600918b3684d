// TensorFlow's own allocator over a FakeMemory.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "fake_memory.h"
#include "xla/tsl/framework/allocator.h"
#include "xla/tsl/framework/bfc_allocator.h"
#include "xla/tsl/framework/shared_counter.h"

class FakeSubAllocator : public tsl::SubAllocator {
 public:
  FakeSubAllocator(FakeMemory *memory, bool coalescing)
      : tsl::SubAllocator({}, {}), memory_(memory), coalescing_(coalescing) {}

  void *Alloc(size_t /*alignment*/, size_t bytes, size_t *received) override { return memory_->Alloc(bytes, received); }
  void Free(void *ptr, size_t bytes) override { memory_->Free(ptr, bytes); }
  bool SupportsCoalescing() const override { return coalescing_; }
  tsl::AllocatorMemoryType GetMemoryType() const override { return tsl::AllocatorMemoryType::kDevice; }

 private:
  FakeMemory *const memory_;
  const bool coalescing_;
};

struct TensorFlowOptions {
  uint64_t limit = 0;
  bool growth = false;
  bool garbage_collection = false;
  double fragmentation_fraction = 0;
  bool coalescing = false;
};

// Without retry: nothing waits, and a request that fails does so at once, as in libbfc with
// retry_timeout_ms = 0.
inline std::unique_ptr<tsl::BFCAllocator> MakeTensorFlow(const TensorFlowOptions &options, FakeMemory *memory) {
  tsl::BFCAllocator::Options bfc;
  bfc.allow_growth = options.growth;
  bfc.allow_retry_on_failure = false;
  bfc.garbage_collection = options.garbage_collection;
  bfc.fragmentation_fraction = options.fragmentation_fraction;
  return std::make_unique<tsl::BFCAllocator>(std::make_unique<FakeSubAllocator>(memory, options.coalescing),
                                             options.limit, "tensorflow", bfc);
}

// TensorFlow 2.21 has the statistic largest_free_block_bytes and never fills it. The function that
// knows is private: an explicit instantiation may name it all the same.
namespace private_access {
struct LargestFreeChunk {
  using type = int64_t (tsl::BFCAllocator::*)();
  friend type Find(LargestFreeChunk);
};
template <class Tag, typename Tag::type member>
struct Open {
  friend typename Tag::type Find(Tag) { return member; }
};
template struct Open<LargestFreeChunk, &tsl::BFCAllocator::LargestFreeChunk>;
}  // namespace private_access

// Without TensorFlow's lock, so only from the one thread that uses the allocator.
inline int64_t LargestFreeChunk(tsl::BFCAllocator &allocator) {
  return (allocator.*Find(private_access::LargestFreeChunk()))();
}

// TensorFlow logs every garbage collection. The environment that quiets it is read before main(), so
// the program starts itself again with it; two lines that no setting silences remain.
inline void QuietTensorFlow(char **argv) {
  if (getenv("TF_CPP_MIN_LOG_LEVEL") != nullptr) return;
  setenv("TF_CPP_MIN_LOG_LEVEL", "2", 1);
  execv("/proc/self/exe", argv);  // if that fails, we are merely loud
}
