// What the sections of the benchmark share: the two allocators with one interface, interleaved measurements, and the
// report.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libbfc_side.h"
#ifndef BFC_WITHOUT_TENSORFLOW
#include "tensorflow_side.h"
#endif

struct BenchOptions {
  std::string json;
  std::vector<std::string> traces;
  std::vector<std::string> only;  // sections; empty = all
  int rounds = 5;
  double measure_ms = 50;  // a measurement is at least this long
  bool Wants(const std::string &section) const;
};

// Both allocators own one fixed region of fake memory, taken before anything is timed: the first
// allocation has a section of its own.
class BenchLibbfc {
 public:
  explicit BenchLibbfc(uint64_t limit, bool begins_plainly = true) : memory_(FakeMemoryOptions{}) {
    static int32_t next_ordinal = 258;
    bfc_options_t options = BFC_OPTIONS_INIT;
    options.memory_limit = limit;
    options.name = "bench";
    ordinal_ = next_ordinal;
    next_ordinal = next_ordinal == 1023 ? 258 : next_ordinal + 1;
    device_ = std::make_unique<BfcDevice>(ordinal_, options, &memory_, false);
    if (begins_plainly) Free(Alloc(256));
  }
  void *Alloc(size_t bytes) {
    void *ptr = nullptr;
    bfc_alloc(ordinal_, bytes, &ptr);
    return ptr;
  }
  void Free(void *ptr) { bfc_free(ordinal_, ptr); }
  uint64_t MetadataBytes() const { return device_->Stats().metadata_bytes; }

 protected:
  int32_t ordinal_;

 private:
  FakeMemory memory_;
  std::unique_ptr<BfcDevice> device_;
};

// The same in the order of streams. One of them is synchronized, in turn, after this many calls; never if that is 0.
// `kAlone`: no request ever came without a stream, unlike the first request of a plain pool.
template <unsigned kSynchronisedEvery, bool kAlone = true>
class BenchStreams : public BenchLibbfc {
 public:
  explicit BenchStreams(uint64_t limit) : BenchLibbfc(limit, !kAlone) { Free(Alloc(256, 0), 0); }
  void *Alloc(size_t bytes, uint32_t stream) {
    void *ptr = nullptr;
    Count();
    bfc_alloc_async(ordinal_, bytes, Name(stream), &ptr);
    return ptr;
  }
  void Free(void *ptr, uint32_t stream) {
    Count();
    bfc_free_async(ordinal_, ptr, Name(stream));
  }

 private:
  static bfc_stream_t Name(uint32_t stream) { return reinterpret_cast<bfc_stream_t>(uintptr_t{0x5000} + 256 * stream); }
  void Count() {
    if (kSynchronisedEvery == 0 || ++calls_ < kSynchronisedEvery) return;
    calls_ = 0;
    bfc_stream_synchronized(ordinal_, Name(next_++ % 4));
  }
  uint32_t calls_ = 0, next_ = 0;
};

#ifndef BFC_WITHOUT_TENSORFLOW
class BenchTensorFlow {
 public:
  explicit BenchTensorFlow(uint64_t limit) : memory_(FakeMemoryOptions{}) {
    TensorFlowOptions options;
    options.limit = limit;
    allocator_ = MakeTensorFlow(options, &memory_);
    Free(Alloc(256));
  }
  void *Alloc(size_t bytes) { return allocator_->AllocateRaw(tsl::Allocator::kAllocatorAlignment, bytes); }
  void Free(void *ptr) { allocator_->DeallocateRaw(ptr); }

 private:
  FakeMemory memory_;
  std::unique_ptr<tsl::BFCAllocator> allocator_;
};
#endif

inline double NowNs() {
  return static_cast<double>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// One figure of both, from several rounds that alternate between them: a noisy machine slows both
// alike, so only the ratio travels.
struct Figure {
  bool has_tensorflow = false;
  double libbfc = 0, libbfc_median = 0;
  double tensorflow = 0, tensorflow_median = 0;  // or what else libbfc is held against
  double ratio = 0;                              // of the best rounds: libbfc / TensorFlow
  double ratio_median = 0;                       // median of the rounds' own ratios
};

enum class Better { kLower, kHigher };

// Each function makes one measurement. The second may be empty.
Figure Interleave(int rounds, Better better, const std::function<double()> &libbfc,
                  const std::function<double()> &tensorflow);
// The same from measurements already made; `tensorflow` may be empty.
Figure Compare(Better better, const std::vector<double> &libbfc, const std::vector<double> &tensorflow);

class Report {
 public:
  // `other` is what the figures of libbfc are held against.
  void Section(const std::string &section, const std::string &title, const std::string &other = "tensorflow");
  void Add(const std::string &name, const std::string &unit, Better better, const Figure &figure);
  void Summary(const std::string &name, double value);  // for the JSON, printed too
  void Fail(const std::string &what);
  bool failed() const { return failed_; }
  void WriteJson(const BenchOptions &options) const;

 private:
  struct Row {
    std::string section, other, name, unit;
    Better better;
    Figure figure;
  };
  std::string section_, other_;
  std::vector<Row> rows_;
  std::vector<std::pair<std::string, double>> summary_;
  bool failed_ = false;
};

void BenchTraces(const BenchOptions &options, Report &report);
void BenchStreamOrder(const BenchOptions &options, Report &report);
void BenchRandomSizes(const BenchOptions &options, Report &report);
void BenchSameSize(const BenchOptions &options, Report &report);
void BenchThreads(const BenchOptions &options, Report &report);
void BenchFirstAllocation(const BenchOptions &options, Report &report);
void BenchHostMemory(const BenchOptions &options, Report &report);
