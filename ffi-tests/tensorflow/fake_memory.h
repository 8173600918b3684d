// The memory that both allocators of a comparison believe they manage: addresses that are never dereferenced. Two
// FakeMemory objects with equal options answer equal call sequences equally, so any difference between two allocators
// comes from the allocators.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "rng.h"

// Where the next region goes. The allocators break ties between equally large chunks by address, so
// the order of the regions' addresses matters; most real mmaps go downward.
enum class Placement {
  kUpward,     // each region above all earlier ones
  kDownward,   // each region below all earlier ones
  kBothWays,   // above or below, by hash
  kLowestFit,  // the lowest hole that fits: addresses given back come again
  kHighestFit  // the highest hole that fits
};

struct FakeMemoryOptions {
  Placement placement = Placement::kUpward;
  uint64_t base = uint64_t{1} << 40;  // the first region starts here (or, going down, ends here)
  uint64_t gap = 2 << 20;             // bytes between neighbours; 0 lets regions touch
  uint64_t granule = 256;             // a region's bytes are rounded up to this: more than was asked
  uint64_t capacity = UINT64_MAX;     // a call that would take the sum above this fails
  uint32_t fail_every = 0;            // every n-th call fails; 0 = none
  uint32_t fail_percent = 0;          // and this share of the calls, by hash
  uint64_t seed = 0;
};

class FakeMemory {
 public:
  struct Call {
    bool is_alloc;
    uint64_t address;  // 0: the allocation failed
    uint64_t bytes;    // asked for, or given back
  };

  explicit FakeMemory(const FakeMemoryOptions &options) : options_(options), up_(options.base), down_(options.base) {}

  void *Alloc(size_t bytes, size_t *received) {
    ++calls_;
    // TensorFlow 2.21 asks for the same size forever once rounding cancels the reduction (deviation 11). Only a success
    // ends that loop, and the caller must check `stuck()`.
    if (!log_.empty() && log_.back().is_alloc && log_.back().address == 0 && log_.back().bytes == bytes) {
      stuck_ = true;
    }
    const uint64_t size = (bytes + options_.granule - 1) / options_.granule * options_.granule;
    if (!stuck_ && MustFail(size)) {
      log_.push_back({true, 0, bytes});
      return nullptr;
    }
    const uint64_t address = Place(size);
    regions_[address] = size;
    held_ += size;
    peak_held_ = std::max(peak_held_, held_);
    ++successes_;
    log_.push_back({true, address, bytes});
    *received = size;
    return reinterpret_cast<void *>(address);
  }

  // Merged regions come back in one call, so a range may cover several; it must cover them whole.
  void Free(void *ptr, size_t bytes) {
    const uint64_t begin = reinterpret_cast<uint64_t>(ptr);
    log_.push_back({false, begin, bytes});
    uint64_t at = begin;
    while (at < begin + bytes) {
      const auto region = regions_.find(at);
      if (region == regions_.end() || region->second > begin + bytes - at) {
        bad_free_ = true;
        return;
      }
      at += region->second;
      held_ -= region->second;
      regions_.erase(region);
    }
  }

  void BeginStep() { log_.clear(); }
  const std::vector<Call> &log() const { return log_; }
  bool stuck() const { return stuck_; }        // asked for the size that had just failed
  bool bad_free() const { return bad_free_; }  // gave back what it did not have
  uint64_t held() const { return held_; }
  uint64_t peak_held() const { return peak_held_; }
  void ResetPeak() { peak_held_ = held_; }
  uint64_t successes() const { return successes_; }

 private:
  bool MustFail(uint64_t size) const {
    if (size > options_.capacity || held_ > options_.capacity - size) return true;
    if (options_.fail_every != 0 && calls_ % options_.fail_every == 0) return true;
    return options_.fail_percent != 0 && Mix(options_.seed ^ (calls_ << 20)) % 100 < options_.fail_percent;
  }

  uint64_t Place(uint64_t size) {
    switch (options_.placement) {
      case Placement::kUpward: return PlaceAbove(size);
      case Placement::kDownward: return PlaceBelow(size);
      case Placement::kBothWays: return Mix(options_.seed + successes_) % 2 == 0 ? PlaceAbove(size) : PlaceBelow(size);
      case Placement::kLowestFit: {
        uint64_t at = options_.base;
        for (const auto &region : regions_) {
          if (region.first >= at + size + options_.gap) break;
          at = region.first + region.second + options_.gap;
        }
        return at;
      }
      case Placement::kHighestFit: {
        uint64_t end = options_.base;
        for (auto region = regions_.rbegin(); region != regions_.rend(); ++region) {
          if (region->first + region->second + options_.gap + size <= end) break;
          end = region->first - options_.gap;
        }
        return end - size;
      }
    }
    return 0;
  }
  uint64_t PlaceAbove(uint64_t size) {
    const uint64_t at = up_;
    up_ += size + options_.gap;
    return at;
  }
  uint64_t PlaceBelow(uint64_t size) {
    down_ -= size;
    const uint64_t at = down_;
    down_ -= options_.gap;
    return at;
  }

  FakeMemoryOptions options_;
  uint64_t up_;
  uint64_t down_;
  std::map<uint64_t, uint64_t> regions_;  // address -> bytes
  std::vector<Call> log_;                 // of the current step
  uint64_t held_ = 0;
  uint64_t peak_held_ = 0;
  uint64_t calls_ = 0;
  uint64_t successes_ = 0;
  bool stuck_ = false;
  bool bad_free_ = false;
};
