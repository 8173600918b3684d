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

class Regions : public tsl::SubAllocator {
 public:
  Regions() : tsl::SubAllocator({}, {}) {}
  void *Alloc(size_t, size_t bytes, size_t *received) override {
    *received = bytes;
    held += bytes;
    next += bytes + kApart;
    return reinterpret_cast<void *>(next - bytes - kApart);
  }
  void Free(void *, size_t bytes) override { held -= bytes; }
  bool SupportsCoalescing() const override { return false; }
  tsl::AllocatorMemoryType GetMemoryType() const override { return tsl::AllocatorMemoryType::kDevice; }

  static inline uint64_t held = 0;

 private:
  static constexpr size_t kApart = 1 << 21;
  uintptr_t next = PEER_ADDRESS;
};

tsl::BFCAllocator *allocator = nullptr;

}  // namespace

// As with the option allow_growth of its users.
const char *peer_open_on_demand() {
  tsl::BFCAllocator::Options options;
  options.allow_growth = true;
  options.allow_retry_on_failure = false;
  allocator = new tsl::BFCAllocator(std::make_unique<Regions>(), size_t{1} << 40, "peer", options);
  return nullptr;
}

uint64_t peer_held() { return Regions::held; }

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
