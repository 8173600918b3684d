// What lies behind the safe frontier, kept by the test itself from what TensorFlow answers: it says
// where deviation 5 begins without asking the library under test, whose own counters are then held
// against it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "fake_memory.h"
#include "runner.h"

class Stamps {
 public:
  struct Verdict {
    Deviation deviation = Deviation::kNone;
    bool compare_step = true;  // this step's own results must still agree
    bool merge_seen = false;   // chunks were merged for certain, not merely tried
  };

  void OnFree(uint64_t address, uint64_t bytes, uint64_t stamp) {
    unsafe_[address] = {bytes, stamp};
    // TensorFlow drops the queue's entry of a chunk that was handed out at the next request, if the
    // chunk is still in use then. This one now has two.
    if (address == taken_) queued_twice_.insert(address);
  }
  void OnFrontier(uint64_t frontier) { frontier_ = std::max(frontier_, frontier); }
  uint64_t frontier() const { return frontier_; }

  // After a request: `address` 0 if it failed; `plain` if it gave no freed_before; `calls` are what
  // the allocator asked of its sub-allocator meanwhile.
  Verdict OnAlloc(uint64_t address, uint64_t bytes, bool plain,
                  const std::vector<FakeMemory::Call>& calls) {
    taken_ = 0;
    // Every request first merges what has become safe: a chunk with two entries out of turn and twice,
    // and the second time it may find a neighbour which the first one left.
    for (auto it = queued_twice_.begin(); it != queued_twice_.end();) {
      const auto chunk = unsafe_.find(*it);
      if (chunk != unsafe_.end() && chunk->second.stamp < frontier_) {
        return {Deviation::kQueuedTwice, false, false};
      }
      it = chunk == unsafe_.end() ? queued_twice_.erase(it) : std::next(it);
    }
    for (auto it = unsafe_.begin(); it != unsafe_.end();) {
      it = it->second.stamp < frontier_ ? unsafe_.erase(it) : std::next(it);
    }
    if (unsafe_.empty()) return {};

    bool collected = false;
    for (const FakeMemory::Call& call : calls) {
      if (call.is_alloc) continue;
      collected = true;
      const auto first = unsafe_.lower_bound(call.address);
      if (first != unsafe_.end() && first->first < call.address + call.bytes) {
        return {Deviation::kUnsafeCollection, false, false};
      }
    }

    // Was the step of the forced merge reached? It comes before failing and before collecting; if it
    // helped, the chunk handed out was put together from chunks of which at least one is stamped, and
    // none of them was large enough alone, so the second of them starts inside it.
    const auto at = unsafe_.find(address);
    const auto inside = unsafe_.upper_bound(address);
    const bool spans = address != 0 && ((inside != unsafe_.end() && inside->first < address + bytes) ||
                                        (at != unsafe_.end() && at->second.bytes < bytes));
    if (plain && (address == 0 || collected || spans)) {
      return {Deviation::kForcedMerge, queued_twice_.empty(), spans};
    }
    if (at != unsafe_.end()) {
      const bool split = at->second.bytes > bytes;
      unsafe_.erase(at);
      taken_ = address;
      if (split) return {Deviation::kStampedSplit, true, false};
    }
    return {};
  }

 private:
  struct Chunk {
    uint64_t bytes;
    uint64_t stamp;
  };
  std::map<uint64_t, Chunk> unsafe_;  // by address: free, stamped, the frontier not past the stamp
  uint64_t frontier_ = 0;
  uint64_t taken_ = 0;  // the unsafe chunk that the last request was given
  std::set<uint64_t> queued_twice_;
};
