// A model of TensorFlow's chunks in programs with timestamps. It follows what TensorFlow answers and
// says where deviations 5 and 12 begin, without asking the library under test. TensorFlow's own chunks
// are held against it after every step, so a wrong model is found out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "deviation.h"
#include "fake_memory.h"

// A chunk of either kind of books, TensorFlow's or the model's.
struct Chunk {
  uint64_t bytes;
  uint64_t stamp;  // 0: none. Means nothing while the chunk is in use
  bool in_use;
  bool first;  // of its region: merges with nothing before it
};
struct ChunkAt {
  uint64_t address;
  Chunk chunk;
};

// The chunks of all regions.
class Chunks {
 public:
  struct Want {
    uint64_t bytes;  // a multiple of 256
    uint64_t freed_before;
  };

  bool Has(uint64_t address) const { return chunks_.count(address) != 0; }
  Chunk &At(uint64_t address) { return chunks_.at(address); }
  const std::map<uint64_t, Chunk> &all() const { return chunks_; }

  void Add(uint64_t address, uint64_t bytes, bool coalescing);
  // Returns whether one of the chunks carried a stamp.
  bool Remove(uint64_t address, uint64_t bytes);
  // TensorFlow's TryToCoalesce: at most one neighbour on each side. Returns where the chunk is now.
  uint64_t Merge(uint64_t address, bool ignore_stamps);
  // Each of `order` that still exists in turn, whatever the stamps, until one has `bytes`.
  bool MergeForced(const std::vector<uint64_t> &order, uint64_t bytes);
  // Whether some free chunks without stamps lie beside each other in one region.
  bool CanMerge() const;
  void MergeAll();
  // The best fit: the smallest, then the lowest; 0 if there is none.
  uint64_t Find(const Want &want) const;
  // Hands out the first `bytes` of a chunk; the remainder stays free, with the same stamp.
  void Take(uint64_t address, uint64_t bytes);
  uint64_t LargestFree() const;
  bool operator==(const Chunks &other) const;

 private:
  using Iterator = std::map<uint64_t, Chunk>::iterator;
  void Join(Iterator left, Iterator right);

  std::map<uint64_t, Chunk> chunks_;  // by address
};

class Stamps {
 public:
  struct Verdict {
    Deviation deviation = Deviation::kNone;
    bool compare_step = true;   // this step's own results must still agree
    bool merge_forced = false;  // chunks were merged in spite of their stamps
    // Where libbfc merges otherwise, and then has a chunk for the request: what it must answer.
    uint64_t libbfc_address = 0;
    uint64_t libbfc_largest_free = 0;
  };
  using Calls = std::vector<FakeMemory::Call>;

  explicit Stamps(bool coalescing) : coalescing_(coalescing) {}

  void OnFree(uint64_t address, uint64_t stamp);
  void OnFrontier(uint64_t frontier);
  uint64_t frontier() const { return frontier_; }
  // After a request: TensorFlow gave `bytes` at `address`, which is 0 if it failed; `calls` are what it
  // asked of its sub-allocator meanwhile.
  Verdict OnAlloc(const Chunks::Want &want, uint64_t address, uint64_t bytes, const Calls &calls);
  // How TensorFlow's chunks, in address order, differ from the model; empty if they do not.
  std::string Difference(const std::vector<ChunkAt> &tensorflow) const;

 private:
  void MergeSafe();
  bool MergeForced(const Chunks::Want &want, Verdict *verdict);
  bool Extend(const Calls &calls, size_t *next);
  bool Collect(const Calls &calls, size_t *next);

  const bool coalescing_;
  Chunks chunks_;
  std::vector<uint64_t> queue_;  // stamped chunks in TensorFlow's order; also some in use
  uint64_t frontier_ = 0;
  std::string wrong_;  // TensorFlow did what the model cannot explain
};
