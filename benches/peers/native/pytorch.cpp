// PyTorch's native CUDACachingAllocator, over the simulated runtime. It takes segments on demand.
#include <c10/cuda/CUDACachingAllocator.h>

#include <exception>
#include <string>

#include "peer.h"

namespace caching = c10::cuda::CUDACachingAllocator;

const char *peer_open(uint64_t, int touched) {
  static std::string why;
  if (touched != 0) return "the simulated device has no memory to write to";
  try {
    caching::init(1);
    caching::raw_delete(caching::raw_alloc(1));
    return nullptr;
  } catch (const std::exception &error) {
    why = error.what();
    return why.c_str();
  }
}

const char *peer_open_on_demand() { return peer_open(0, 0); }

uint64_t peer_held() {
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<uint64_t>(caching::getDeviceStats(0).reserved_bytes[all].current);
}

void *peer_alloc(size_t bytes) {
  try {
    return caching::raw_alloc(bytes);
  } catch (const std::exception &) { return nullptr; }
}

void peer_free(void *ptr, size_t) { caching::raw_delete(ptr); }
