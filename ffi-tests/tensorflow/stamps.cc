#include "stamps.h"

#include <algorithm>
#include <cinttypes>
#include <iterator>
#include <utility>

#include "text.h"

namespace {

// A larger remainder is always split off (fragmentation_fraction 0).
constexpr uint64_t kMaxSlack = 128 << 20;

// In one region, with nothing between them.
bool AreNeighbours(const std::pair<const uint64_t, Chunk> &left, const std::pair<const uint64_t, Chunk> &right) {
  return !right.second.first && left.first + left.second.bytes == right.first;
}
bool MayMerge(const Chunk &chunk, bool ignore_stamps) { return !chunk.in_use && (chunk.stamp == 0 || ignore_stamps); }
bool Same(const Chunk &a, const Chunk &b) {
  return a.bytes == b.bytes && a.in_use == b.in_use && a.first == b.first && (a.in_use || a.stamp == b.stamp);
}

std::string Show(uint64_t address, const Chunk &chunk) {
  std::string text = Format("0x%" PRIx64 " %" PRIu64 " bytes, ", address, chunk.bytes);
  text += chunk.in_use ? "in use" : Format("free, stamp %" PRIu64, chunk.stamp);
  return text + (chunk.first ? ", begins a region" : "");
}

// The two part here: libbfc has these chunks, of which it serves the request if one is large enough.
void Part(Deviation deviation, Chunks libbfc, const Chunks::Want &want, Stamps::Verdict *verdict) {
  verdict->deviation = deviation;
  verdict->compare_step = false;
  const uint64_t address = libbfc.Find(want);
  if (address == 0) return;
  const uint64_t whole = libbfc.At(address).bytes;
  const bool splits = whole >= 2 * want.bytes || whole - want.bytes >= kMaxSlack;
  libbfc.Take(address, splits ? want.bytes : whole);
  verdict->libbfc_address = address;
  verdict->libbfc_largest_free = libbfc.LargestFree();
}

}  // namespace

void Chunks::Add(uint64_t address, uint64_t bytes, bool coalescing) {
  const auto above = chunks_.lower_bound(address);
  const bool touches = above != chunks_.begin() && std::prev(above)->first + std::prev(above)->second.bytes == address;
  chunks_[address] = {bytes, 0, false, !(coalescing && touches)};
}

bool Chunks::Remove(uint64_t address, uint64_t bytes) {
  bool stamped = false;
  auto at = chunks_.lower_bound(address);
  while (at != chunks_.end() && at->first < address + bytes) {
    stamped |= at->second.stamp != 0;
    at = chunks_.erase(at);
  }
  return stamped;
}

void Chunks::Join(Iterator left, Iterator right) {
  left->second.bytes += right->second.bytes;
  left->second.stamp = std::max(left->second.stamp, right->second.stamp);
  chunks_.erase(right);
}

uint64_t Chunks::Merge(uint64_t address, bool ignore_stamps) {
  Iterator at = chunks_.find(address);
  if (!MayMerge(at->second, ignore_stamps)) return address;
  const Iterator next = std::next(at);
  if (next != chunks_.end() && AreNeighbours(*at, *next) && MayMerge(next->second, ignore_stamps)) { Join(at, next); }
  if (at == chunks_.begin()) return address;
  const Iterator before = std::prev(at);
  if (!AreNeighbours(*before, *at) || !MayMerge(before->second, ignore_stamps)) return address;
  Join(before, at);
  return before->first;
}

bool Chunks::MergeForced(const std::vector<uint64_t> &order, uint64_t bytes) {
  for (uint64_t address : order) {
    if (Has(address) && At(Merge(address, /*ignore_stamps=*/true)).bytes >= bytes) return true;
  }
  return false;
}

bool Chunks::CanMerge() const {
  if (chunks_.empty()) return false;
  for (auto at = chunks_.begin(), next = std::next(at); next != chunks_.end(); at = next++) {
    if (AreNeighbours(*at, *next) && MayMerge(at->second, false) && MayMerge(next->second, false)) { return true; }
  }
  return false;
}

void Chunks::MergeAll() {
  for (Iterator at = chunks_.begin(); at != chunks_.end(); ++at) {
    const uint64_t address = at->first;
    while (!at->second.in_use) {
      const uint64_t before = at->second.bytes;
      at = chunks_.find(Merge(address, false));
      if (at->second.bytes == before) break;
    }
  }
}

uint64_t Chunks::Find(const Want &want) const {
  const std::pair<const uint64_t, Chunk> *best = nullptr;
  for (const auto &entry : chunks_) {
    const Chunk &chunk = entry.second;
    const bool fits =
        !chunk.in_use && chunk.bytes >= want.bytes && (want.freed_before == 0 || chunk.stamp <= want.freed_before);
    if (fits && (best == nullptr || chunk.bytes < best->second.bytes)) best = &entry;
  }
  return best == nullptr ? 0 : best->first;
}

void Chunks::Take(uint64_t address, uint64_t bytes) {
  Chunk &chunk = At(address);
  if (chunk.bytes > bytes) chunks_[address + bytes] = {chunk.bytes - bytes, chunk.stamp, false, false};
  chunk.bytes = bytes;
  chunk.in_use = true;
}

uint64_t Chunks::LargestFree() const {
  uint64_t largest = 0;
  for (const auto &entry : chunks_) {
    if (!entry.second.in_use) largest = std::max(largest, entry.second.bytes);
  }
  return largest;
}

bool Chunks::operator==(const Chunks &other) const {
  return std::equal(chunks_.begin(), chunks_.end(), other.chunks_.begin(), other.chunks_.end(),
                    [](const auto &a, const auto &b) { return a.first == b.first && Same(a.second, b.second); });
}

void Stamps::OnFree(uint64_t address, uint64_t stamp) {
  Chunk &chunk = chunks_.At(address);
  chunk.in_use = false;
  chunk.stamp = stamp;
  // The queue may still have an entry from the last time: TensorFlow drops those of chunks in use at
  // the next request.
  queue_.push_back(address);
}

void Stamps::OnFrontier(uint64_t frontier) { frontier_ = std::max(frontier_, frontier); }

// TensorFlow's MergeTimestampedChunks(0): first it clears all stamps that have become safe, then every
// chunk that still exists merges once with a neighbour on either side.
void Stamps::MergeSafe() {
  std::vector<uint64_t> safe, waiting;
  for (uint64_t address : queue_) {
    Chunk &chunk = chunks_.At(address);
    if (chunk.in_use) continue;
    if (chunk.stamp < frontier_) chunk.stamp = 0;
    (chunk.stamp == 0 ? safe : waiting).push_back(address);
  }
  queue_.swap(waiting);
  for (uint64_t address : safe) {
    if (chunks_.Has(address)) chunks_.Merge(address, false);
  }
}

// And MergeTimestampedChunks(bytes), in the order of its queue. That is the order of the stamps, which
// is libbfc's, but for chunks that were handed out and freed again between two requests.
bool Stamps::MergeForced(const Chunks::Want &want, Verdict *verdict) {
  Chunks by_stamp = chunks_;
  const size_t before = chunks_.all().size();
  const bool helps = chunks_.MergeForced(queue_, want.bytes);
  std::vector<uint64_t> order = queue_;
  std::sort(order.begin(), order.end(),
            [&](uint64_t a, uint64_t b) { return by_stamp.At(a).stamp < by_stamp.At(b).stamp; });
  order.erase(std::unique(order.begin(), order.end()), order.end());
  by_stamp.MergeForced(order, want.bytes);
  if (by_stamp == chunks_) {
    verdict->deviation = Deviation::kForcedMerge;
    verdict->merge_forced = chunks_.all().size() < before;
  } else {
    Part(Deviation::kQueuedTwice, std::move(by_stamp), want, verdict);
  }
  return helps;
}

// Follows the calls of one extension: failures, then perhaps a region.
bool Stamps::Extend(const Calls &calls, size_t *next) {
  for (; *next < calls.size() && calls[*next].is_alloc; ++*next) {
    const FakeMemory::Call &call = calls[*next];
    if (call.address == 0) continue;
    ++*next;
    chunks_.Add(call.address, call.bytes, coalescing_);
    chunks_.Merge(call.address, false);
    return true;
  }
  return false;
}

// Returns whether TensorFlow gave back memory that was not safe.
bool Stamps::Collect(const Calls &calls, size_t *next) {
  bool unsafe = false;
  for (; *next < calls.size() && !calls[*next].is_alloc; ++*next) {
    unsafe |= chunks_.Remove(calls[*next].address, calls[*next].bytes);
  }
  return unsafe;
}

Stamps::Verdict Stamps::OnAlloc(const Chunks::Want &want, uint64_t address, uint64_t bytes, const Calls &calls) {
  Verdict verdict;
  MergeSafe();
  // So far the two had the same chunks, none of which could merge.
  Verdict incomplete;
  if (chunks_.CanMerge()) {
    Chunks libbfc = chunks_;
    libbfc.MergeAll();
    Part(Deviation::kSafeMerge, std::move(libbfc), want, &incomplete);
  }

  size_t next = 0;
  uint64_t found = chunks_.Find(want);
  if (found == 0 && Extend(calls, &next)) {
    found = chunks_.Find(want);
  } else if (found == 0) {
    if (want.freed_before == 0 && !queue_.empty() && MergeForced(want, &verdict)) { found = chunks_.Find(want); }
    if (found == 0 && Collect(calls, &next)) {
      verdict = {};
      verdict.deviation = Deviation::kUnsafeCollection;
      verdict.compare_step = false;
    }
    if (found == 0 && Extend(calls, &next)) found = chunks_.Find(want);
  }

  if (found != address || next != calls.size()) {
    wrong_ = Format("the model expects 0x%" PRIx64 " after %zu calls of the sub-allocator, not 0x%" PRIx64 " after %zu",
                    found, next, address, calls.size());
    return verdict;
  }
  if (address != 0) {
    const Chunk &chunk = chunks_.At(address);
    const bool stamped_split = chunk.stamp != 0 && chunk.bytes > bytes;
    if (stamped_split && verdict.deviation == Deviation::kNone) { verdict.deviation = Deviation::kStampedSplit; }
    chunks_.Take(address, bytes);
  }
  return incomplete.deviation == Deviation::kNone ? verdict : incomplete;
}

std::string Stamps::Difference(const std::vector<ChunkAt> &tensorflow) const {
  if (!wrong_.empty()) return wrong_;
  auto model = chunks_.all().begin();
  const auto end = chunks_.all().end();
  for (const ChunkAt &seen : tensorflow) {
    if (model != end && model->first == seen.address && Same(model->second, seen.chunk)) {
      ++model;
      continue;
    }
    return Format("tensorflow's chunk %s; the model's %s", Show(seen.address, seen.chunk).c_str(),
                  model == end ? "none" : Show(model->first, model->second).c_str());
  }
  if (model == end) return {};
  return "tensorflow has no chunk " + Show(model->first, model->second);
}
