#include "runner.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <functional>
#include <memory>
#include <unordered_map>

#include "calls.h"
#include "libbfc_side.h"
#include "stamps.h"
#include "tensorflow_chunks.h"
#include "tensorflow_side.h"
#include "text.h"

Progress progress = {0, 0};

namespace {

// One token is as good as another where no driver is asked.
bfc_stream_t const kStream = reinterpret_cast<bfc_stream_t>(uintptr_t{0x5000});

// The statistics that both sides have.
constexpr int kFigures = 8;
const char *const kFigureNames[kFigures] = {
    "num_allocs",  "bytes_in_use", "peak_bytes_in_use", "largest_alloc_size",
    "bytes_limit", "pool_bytes",   "peak_pool_bytes",   "largest_free_block_bytes"};

class Runner {
 public:
  Runner(const Program &program, Mutation mutation, bool record)
      : program_(program),
        config_(program.config),
        mutation_(mutation),
        record_(record),
        tf_memory_(config_.memory),
        bfc_memory_(config_.memory),
        stamps_(config_.coalescing) {
    TensorFlowOptions tf;
    tf.limit = config_.limit;
    tf.growth = config_.growth;
    tf.garbage_collection = config_.garbage_collection;
    tf.fragmentation_fraction = config_.fragmentation_fraction;
    tf.coalescing = config_.coalescing;
    tf_ = MakeTensorFlow(tf, &tf_memory_);
    if (config_.timestamps) tf_->SetTimingCounter(&counter_);

    bfc_options_t bfc = BFC_OPTIONS_INIT;
    bfc.flags = (config_.growth ? BFC_ALLOW_GROWTH : 0u) | (config_.garbage_collection ? BFC_GARBAGE_COLLECTION : 0u) |
                (config_.timestamps ? BFC_TIMESTAMPS : 0u) | (mutation == Mutation::kSplit ? BFC_SPLIT_ALWAYS : 0u);
    bfc.memory_limit = config_.limit;
    bfc.fragmentation_fraction = config_.fragmentation_fraction;
    bfc.name = "lockstep";
    bfc_ = std::make_unique<BfcDevice>(config_.device, bfc, &bfc_memory_, config_.coalescing);
    hint_bound_ = config_.growth ? 2 << 20 : static_cast<double>(config_.limit);
  }

  Outcome Run() {
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      progress.step = i;
      outcome_.last_step = i;
      tf_memory_.BeginStep();
      bfc_memory_.BeginStep();
      line_.clear();
      const bool done = !Execute(program_.steps[i]);
      if (record_) {
        if (outcome_.mismatch) line_ += "   <-- here they differ";
        outcome_.trace.push_back(line_);
      }
      if (done) break;
    }
    if (!outcome_.mismatch) CheckCounters();
    if (!outcome_.mismatch) CheckEverythingGivenBack();
    return outcome_;
  }

 private:
  struct Live {
    void *tf;
    void *bfc;
    uint64_t bytes;  // chunk size
  };

  // Each returns whether the program goes on.
  bool Execute(const Step &step) {
    switch (step.kind) {
      case Step::kAlloc:
      case Step::kAllocFreedBefore:
      case Step::kAllocSafe: return Allocate(step);
      case Step::kFree: return Free(step);
      case Step::kFreeNull:
        tf_->DeallocateRaw(nullptr);
        Note("free NULL");
        return SameStatus(BFC_OK, bfc_free(config_.device, nullptr)) && SameFigures();
      case Step::kQuery: {
        const auto live = live_.find(step.id);
        if (live == live_.end()) return true;
        Note("query #%u", step.id);
        return SameChunk(live->second) && SameFigures();
      }
      case Step::kFrontier: return Frontier(step);
      case Step::kClearStats:
        if (!tf_->ClearStats()) return Differ("TensorFlow's ClearStats refuses");
        tf_memory_.ResetPeak();
        cleared_ = true;
        Note("clear stats");
        return SameStatus(BFC_OK, bfc_reset_stats(config_.device)) && SameFigures();
    }
    return true;
  }

  bool Allocate(const Step &step) {
    uint64_t freed_before = 0;
    const uint64_t last = static_cast<uint64_t>(counter_.get());
    if (step.kind == Step::kAllocFreedBefore) freed_before = last > step.lag ? last - step.lag : 1;
    if (step.kind == Step::kAllocSafe) {
      freed_before = stamps_.frontier() > step.lag + 1 ? stamps_.frontier() - 1 - step.lag : 1;
    }
    std::function<uint64_t()> freed_by = [freed_before] { return freed_before; };
    const tsl::AllocationAttributes attributes(/*retry_on_failure=*/false,
                                               /*allocation_will_be_logged=*/false,
                                               freed_before != 0 ? &freed_by : nullptr);
    Live live = {};
    live.tf = tf_->AllocateRaw(256, step.bytes, attributes);
    if (live.tf != nullptr) live.bytes = tf_->AllocatedSize(live.tf);
    const bfc_status_t status = BfcAllocate(step, freed_before, &live.bfc);
    if (freed_before != 0) {
      Note("#%u = alloc %" PRIu64 " freed before %" PRIu64, step.id, step.bytes, freed_before);
    } else {
      Note("#%u = alloc %" PRIu64, step.id, step.bytes);
    }
    Note(": tensorflow %p, libbfc %p", live.tf, live.bfc);

    if (bfc_memory_.stuck()) {
      return Differ("libbfc asks its sub-allocator for the size that has just failed:" + ShowCalls(bfc_memory_.log()));
    }
    if (tf_memory_.stuck()) return ShrinkingStuck();
    Stamps::Verdict verdict;
    if (config_.timestamps && step.bytes != 0) {
      verdict = stamps_.OnAlloc({(step.bytes + 255) / 256 * 256, freed_before}, reinterpret_cast<uint64_t>(live.tf),
                                live.bytes, tf_memory_.log());
      if (!ModelHolds()) return false;
    }
    merge_forced_ = verdict.merge_forced;
    if (!verdict.compare_step) return Deviates(verdict, live.bfc) && End(verdict.deviation);

    const bool failed = live.tf == nullptr && step.bytes != 0;
    if (failed && AskedExactly(step.bytes)) {
      if (status == BFC_OK) return End(Deviation::kExactSize);
      // The fake memories must have been called equally often.
      size_t received = 0;
      tf_memory_.Alloc((step.bytes + 255) / 256 * 256, &received);
    }
    if (!SameStatus(failed ? BFC_ERROR_OUT_OF_MEMORY : BFC_OK, status)) return false;
    if (live.tf != live.bfc) return Differ(Format("tensorflow gives %p, libbfc %p", live.tf, live.bfc));
    if (!SameCalls() || (live.tf != nullptr && !SameChunk(live)) || !SameFigures()) return false;
    if (live.tf != nullptr) live_[step.id] = live;

    if (verdict.deviation != Deviation::kNone) return End(verdict.deviation);
    if (tf_memory_.held() > config_.limit) return End(Deviation::kPoolAboveLimit);
    // A request raises the hint to less than twice itself, and every region may double it.
    if (step.bytes <= config_.limit) hint_bound_ = std::max(hint_bound_, 2.0 * static_cast<double>(step.bytes));
    if (hint_bound_ * std::exp2(static_cast<double>(tf_memory_.successes())) > 0x1p62) {
      return End(Deviation::kHintWraps);
    }
    return true;
  }

  bfc_status_t BfcAllocate(const Step &step, uint64_t freed_before, void **out) {
    size_t bytes = step.bytes;
    if (mutation_ == Mutation::kSize && bytes != 0) bytes += 256;
    if (config_.one_stream && step.entry != 3) { return bfc_alloc_async(config_.device, bytes, kStream, out); }
    if (freed_before != 0 && step.entry % 2 == 0) {
      return bfc_alloc_freed_before(config_.device, bytes, freed_before, out);
    }
    if (freed_before != 0 || config_.one_stream || step.entry == 2) {
      bfc_request_t request = BFC_REQUEST_INIT;
      request.bytes = bytes;
      request.freed_before = freed_before;
      if (config_.one_stream) {
        request.flags = BFC_REQUEST_ON_STREAM;
        request.stream = kStream;
      }
      return bfc_alloc_ex(config_.device, &request, out);
    }
    // Every chunk is aligned to 256, so up to there an alignment changes nothing.
    return step.entry == 1 ? bfc_alloc_aligned(config_.device, bytes, size_t{1} << (step.id % 9), out)
                           : bfc_alloc(config_.device, bytes, out);
  }

  bool Free(const Step &step) {
    const auto found = live_.find(step.id);
    if (found == live_.end()) return true;  // its allocation failed, or shrinking removed it
    const Live live = found->second;
    live_.erase(found);
    tf_->DeallocateRaw(live.tf);
    const bfc_status_t status = config_.one_stream && step.entry % 2 == 0
                                    ? bfc_free_async(config_.device, live.bfc, kStream)
                                    : bfc_free(config_.device, live.bfc);
    Note("free #%u", step.id);
    if (!SameStatus(BFC_OK, status) || !SameTimestamp() || !SameCalls() || !SameFigures()) return false;
    if (!config_.timestamps) return true;
    stamps_.OnFree(reinterpret_cast<uint64_t>(live.tf), static_cast<uint64_t>(counter_.get()));
    return ModelHolds();
  }

  bool Frontier(const Step &step) {
    const uint64_t next = static_cast<uint64_t>(counter_.get()) + 1;
    const uint64_t count = next > step.lag ? next - step.lag : 0;
    tf_->SetSafeFrontier(count);
    const bfc_status_t status =
        bfc_set_safe_frontier(config_.device, mutation_ == Mutation::kFrontier && count != 0 ? count - 1 : count);
    stamps_.OnFrontier(count);
    Note("safe frontier %" PRIu64, count);
    return SameStatus(BFC_OK, status) && SameTimestamp() && SameFigures();
  }

  // Up to the size that TensorFlow repeats, both must have asked for the same.
  bool ShrinkingStuck() {
    std::vector<FakeMemory::Call> tf = tf_memory_.log();
    std::vector<FakeMemory::Call> bfc = bfc_memory_.log();
    tf.pop_back();  // the repeated call
    if (bfc.size() > tf.size()) bfc.resize(tf.size());
    return EqualCalls(tf, bfc) ? End(Deviation::kShrinkProgress) : DifferInCalls();
  }

  // Deviation 13: after all sizes that TensorFlow asks its sub-allocator for, the size of the request itself.
  bool AskedExactly(uint64_t bytes) {
    std::vector<FakeMemory::Call> bfc = bfc_memory_.log();
    if (bfc.size() != tf_memory_.log().size() + 1) return false;
    const FakeMemory::Call last = bfc.back();
    bfc.pop_back();
    return last.is_alloc && last.bytes == (bytes + 255) / 256 * 256 && EqualCalls(tf_memory_.log(), bfc);
  }

  bool SameStatus(bfc_status_t expected, bfc_status_t status) {
    if (status == expected) return true;
    return Differ(Format("libbfc says '%s' (%s) where tensorflow's answer means '%s'", bfc_status_string(status),
                         BfcLastError().c_str(), bfc_status_string(expected)));
  }

  bool SameTimestamp() {
    if (!config_.timestamps) return true;
    uint64_t count = 0;
    if (!SameStatus(BFC_OK, bfc_timestamp(config_.device, &count))) return false;
    const uint64_t expected = static_cast<uint64_t>(counter_.get());
    if (count == expected) return true;
    return Differ(Format("last stamp: tensorflow %" PRIu64 ", libbfc %" PRIu64, expected, count));
  }

  bool SameChunk(const Live &live) {
    size_t requested = 0, allocated = 0;
    int64_t id = 0;
    if (!SameStatus(BFC_OK, bfc_requested_size(config_.device, live.bfc, &requested)) ||
        !SameStatus(BFC_OK, bfc_allocated_size(config_.device, live.bfc, &allocated)) ||
        !SameStatus(BFC_OK, bfc_allocation_id(config_.device, live.bfc, &id))) {
      return false;
    }
    const size_t tf_requested = tf_->RequestedSize(live.tf), tf_allocated = tf_->AllocatedSize(live.tf);
    const int64_t tf_id = tf_->AllocationId(live.tf);
    if (requested == tf_requested && allocated == tf_allocated && id == tf_id) return true;
    return Differ(Format("chunk (requested, allocated, id): tensorflow (%zu, %zu, %" PRId64
                         "), libbfc (%zu, %zu, %" PRId64 ")",
                         tf_requested, tf_allocated, tf_id, requested, allocated, id));
  }

  bool SameCalls() {
    if (bfc_memory_.bad_free()) {
      return Differ("libbfc gives back what it does not have:" + ShowCalls(bfc_memory_.log()));
    }
    return EqualCalls(tf_memory_.log(), bfc_memory_.log()) || DifferInCalls();
  }
  bool DifferInCalls() {
    return Differ("sub-allocator calls: tensorflow" + ShowCalls(tf_memory_.log()) + "; libbfc" +
                  ShowCalls(bfc_memory_.log()));
  }

  bool SameFigures() {
    const tsl::AllocatorStats tf = *tf_->GetStats();
    const bfc_stats_t bfc = bfc_->Stats();
    // TensorFlow's ClearStats forgets peak_pool_bytes, bfc_reset_stats sets it to the current value:
    // what TensorFlow took from its sub-allocator since then is the same thing.
    const int64_t tf_peak_pool = static_cast<int64_t>(tf_memory_.peak_held());
    if (!cleared_ && tf_peak_pool != *tf.peak_pool_bytes) return Differ("the fake memory miscounts");
    const int64_t tf_values[kFigures] = {tf.num_allocs,         tf.bytes_in_use,       tf.peak_bytes_in_use,
                                         tf.largest_alloc_size, *tf.bytes_limit,       *tf.pool_bytes,
                                         tf_peak_pool,          LargestFreeChunk(*tf_)};
    const uint64_t bfc_values[kFigures] = {
        bfc.num_allocs,  bfc.bytes_in_use, bfc.peak_bytes_in_use, bfc.largest_alloc_size,
        bfc.bytes_limit, bfc.pool_bytes,   bfc.peak_pool_bytes,   bfc.largest_free_block_bytes};
    std::string text;
    for (int i = 0; i < kFigures; ++i) {
      if (static_cast<uint64_t>(tf_values[i]) == bfc_values[i]) continue;
      text += Format("%s%s: tensorflow %" PRId64 ", libbfc %" PRIu64, text.empty() ? "" : "; ", kFigureNames[i],
                     tf_values[i], bfc_values[i]);
    }
    if (!text.empty()) return Differ(text);
    ++outcome_.compared;
    return true;
  }

  bool ModelHolds() {
    ChunksOf(*tf_, &tf_chunks_);
    const std::string difference = stamps_.Difference(tf_chunks_);
    return difference.empty() || Differ("lockstep's own model of TensorFlow is wrong: " + difference);
  }

  // Where TensorFlow no longer is the measure, the model may know what libbfc has to do.
  bool Deviates(const Stamps::Verdict &verdict, void *given) {
    if (verdict.libbfc_address == 0) return true;
    const uint64_t largest = bfc_->Stats().largest_free_block_bytes;
    if (reinterpret_cast<uint64_t>(given) == verdict.libbfc_address && largest == verdict.libbfc_largest_free &&
        bfc_memory_.log().empty()) {
      return true;
    }
    return Differ(Format("by %s, libbfc should give 0x%" PRIx64 ", with %" PRIu64 " bytes in one piece left; "
                         "it gives %p, has %" PRIu64 " left, asks its sub-allocator for%s",
                         TextOf(verdict.deviation).name, verdict.libbfc_address, verdict.libbfc_largest_free, given,
                         largest, ShowCalls(bfc_memory_.log()).c_str()));
  }

  // libbfc counts where deviation 5 begins; we found out for ourselves. Both must agree, as far as the
  // step that ended the program was compared at all.
  void CheckCounters() {
    if (!config_.timestamps) return;
    const std::string map = bfc_->MemoryMap();
    const auto splits = CounterIn(map, "stamped_splits");
    const auto merges = CounterIn(map, "forced_merges");
    if (!splits || !merges) {
      Differ("libbfc's memory map has no counters stamped_splits and forced_merges");
      return;
    }
    const Deviation end = outcome_.deviation;
    bool agree = true;
    if (end == Deviation::kNone || end == Deviation::kStampedSplit) {
      agree = (*splits != 0) == (end == Deviation::kStampedSplit) && *merges == 0;
    } else if (end == Deviation::kForcedMerge && merge_forced_) {
      agree = *merges != 0;  // without a neighbour to merge with, the forced merge merges nothing
    }
    if (agree) return;
    Differ(Format("libbfc counts %" PRIu64 " stamped splits and %" PRIu64
                  " forced merges; by TensorFlow's answers the program ended with: %s",
                  *splits, *merges, TextOf(end).name));
  }

  void CheckEverythingGivenBack() {
    bfc_memory_.BeginStep();
    bfc_->Destroy();
    if (bfc_memory_.bad_free())
      Differ("at destruction libbfc gives back what it does not have:" + ShowCalls(bfc_memory_.log()));
    if (bfc_memory_.held() != 0)
      Differ(Format("libbfc still holds %" PRIu64 " bytes after its destruction", bfc_memory_.held()));
  }

  bool End(Deviation deviation) {
    outcome_.deviation = deviation;
    return false;
  }
  bool Differ(const std::string &what) {
    outcome_.mismatch = true;
    outcome_.difference = what;
    return false;
  }
  __attribute__((format(printf, 2, 3))) void Note(const char *format, ...) {
    if (!record_) return;
    va_list arguments;
    va_start(arguments, format);
    line_ += FormatList(format, arguments);
    va_end(arguments);
  }

  const Program &program_;
  const Config &config_;
  const Mutation mutation_;
  const bool record_;
  FakeMemory tf_memory_;
  FakeMemory bfc_memory_;
  tsl::SharedCounter counter_;
  std::unique_ptr<tsl::BFCAllocator> tf_;
  std::unique_ptr<BfcDevice> bfc_;
  Stamps stamps_;
  std::vector<ChunkAt> tf_chunks_;
  std::unordered_map<uint32_t, Live> live_;
  bool merge_forced_ = false;
  bool cleared_ = false;
  double hint_bound_;  // TensorFlow's region hint is not above this
  Outcome outcome_;
  std::string line_;
};

}  // namespace

Outcome RunProgram(const Program &program, Mutation mutation, bool record) {
  progress.seed = program.config.seed;
  return Runner(program, mutation, record).Run();
}
