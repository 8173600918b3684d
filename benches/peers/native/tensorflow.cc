// TensorFlow's tsl::BFCAllocator, from its wheel.
#include <memory>

#include "peer.h"
#include "xla/tsl/framework/allocator.h"
#include "xla/tsl/framework/bfc_allocator.h"

namespace {

class OneRegion : public tsl::SubAllocator {
 public:
  OneRegion() : tsl::SubAllocator({}, {}) {}
  void *Alloc(size_t, size_t bytes, size_t *received) override {
    *received = bytes;
    return reinterpret_cast<void *>(PEER_ADDRESS);
  }
  void Free(void *, size_t) override {}
  bool SupportsCoalescing() const override { return false; }
  tsl::AllocatorMemoryType GetMemoryType() const override { return tsl::AllocatorMemoryType::kDevice; }
};

tsl::BFCAllocator *allocator = nullptr;

}  // namespace

const char *peer_open(uint64_t capacity, int touched) {
  if (touched != 0) return "it only computes addresses";
  tsl::BFCAllocator::Options options;
  options.allow_growth = false;
  // A request that fails does so at once.
  options.allow_retry_on_failure = false;
  allocator = new tsl::BFCAllocator(std::make_unique<OneRegion>(), capacity, "peer", options);
  return nullptr;
}

void *peer_alloc(size_t bytes) { return allocator->AllocateRaw(tsl::Allocator::kAllocatorAlignment, bytes); }

void peer_free(void *ptr, size_t) { allocator->DeallocateRaw(ptr); }
