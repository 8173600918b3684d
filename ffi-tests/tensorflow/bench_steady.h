// A steady state of live chunks: free one at random, allocate another.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bench.h"
#include "rng.h"

inline constexpr uint64_t kLargest = 1 << 20;

enum class Distribution { kUniform, kLogUniform };

// What to free and what to ask for next, drawn beforehand: the harness must not be what is measured.
struct Pair {
  uint32_t victim;
  uint32_t bytes;
};
struct Plan {
  Plan(uint32_t live, Distribution distribution, uint64_t seed) {
    Rng rng(seed);
    const auto size = [&] {
      return distribution == Distribution::kUniform ? static_cast<uint32_t>(rng.Between(1, kLargest))
                                                    : static_cast<uint32_t>(std::exp2(rng.Unit() * 20));
    };
    for (uint32_t i = 0; i < live; ++i) first.push_back(size());
    for (int i = 0; i < 1 << 17; ++i) pairs.push_back({static_cast<uint32_t>(rng.Below(live)), size()});
  }
  // Half as much again as all chunks at once: nothing fails, as the section checks.
  uint64_t Limit() const {
    uint64_t bytes = 16 * kLargest;
    for (uint32_t size : first) bytes += (size + 255) / 256 * 256;
    return bytes / 2 * 3;
  }
  std::vector<uint32_t> first;
  std::vector<Pair> pairs;
};

template <class Allocator>
class Steady {
 public:
  Steady(const Plan &plan, Allocator &allocator) : plan_(plan), allocator_(allocator) {
    for (uint32_t bytes : plan.first) live_.push_back(allocator.Alloc(bytes));
  }
  ~Steady() {
    for (void *ptr : live_) allocator_.Free(ptr);
  }

  void Run(uint64_t pairs) {
    for (uint64_t i = 0; i < pairs; ++i) {
      const Pair &pair = plan_.pairs[next_];
      next_ = next_ + 1 == plan_.pairs.size() ? 0 : next_ + 1;
      allocator_.Free(live_[pair.victim]);
      live_[pair.victim] = allocator_.Alloc(pair.bytes);
    }
  }
  double TimedNs(uint64_t pairs) {
    const double begin = NowNs();
    Run(pairs);
    return (NowNs() - begin) / static_cast<double>(pairs);
  }
  bool AnyFailed() const { return std::find(live_.begin(), live_.end(), nullptr) != live_.end(); }

 private:
  const Plan &plan_;
  Allocator &allocator_;
  std::vector<void *> live_;
  size_t next_ = 0;
};
