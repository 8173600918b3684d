#include "shrink.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

namespace {

class Shrinker {
 public:
  Shrinker(Program program, Mutation mutation) : best_(std::move(program)), mutation_(mutation) {}

  Program Run() {
    Accept(best_);  // cuts what follows the difference
    size_t before;
    do {
      before = best_.steps.size();
      Remove();
      ScaleDown();
      Fuse();
    } while (best_.steps.size() < before && !OutOfTime());
    Simplify();
    return best_;
  }

 private:
  // Whether `candidate` mismatches too; if so it is the best so far, up to where it does.
  bool Accept(Program candidate) {
    const Outcome outcome = RunProgram(candidate, mutation_, false);
    if (!outcome.mismatch) return false;
    candidate.steps.resize(std::min(candidate.steps.size(), outcome.last_step + 1));
    best_ = std::move(candidate);
    return true;
  }

  // Halves, quarters, ... single steps: once a single step is gone, larger cuts may work again.
  void Remove() {
    bool shorter = true;
    while (shorter && !OutOfTime()) {
      shorter = false;
      for (size_t cut = std::max<size_t>(best_.steps.size() / 2, 1);; cut /= 2) {
        shorter |= RemoveEach(cut);
        if (cut == 1) break;
      }
    }
  }

  // A pool must often be full for a difference to show, and no allocation can then be missed. Smaller
  // pools and larger allocations fill it in fewer steps.
  void ScaleDown() {
    for (uint64_t divisor : {256, 16, 4, 2}) {
      while (!OutOfTime() && best_.config.limit >= 256 * divisor) {
        Program candidate = best_;
        candidate.config.limit /= divisor;
        for (Step &step : candidate.steps) step.bytes = (step.bytes + divisor - 1) / divisor;
        if (!Accept(std::move(candidate))) break;
      }
    }
  }
  void Fuse() {
    const auto allocates = [](const Step &step) { return step.kind <= Step::kAllocSafe; };
    const auto rounded = [](uint64_t bytes) { return (bytes + 255) / 256 * 256; };
    for (size_t i = 0; i + 1 < best_.steps.size() && !OutOfTime();) {
      Program candidate = best_;
      Step &first = candidate.steps[i];
      const Step &second = candidate.steps[i + 1];
      const bool both = allocates(first) && allocates(second);
      if (both) first.bytes = rounded(first.bytes) + rounded(second.bytes);
      candidate.steps.erase(candidate.steps.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      if (!both || !Accept(std::move(candidate))) ++i;
    }
  }

  bool RemoveEach(size_t cut) {
    bool removed = false;
    // From the end: frees go before the allocations that they depend on.
    for (size_t end = best_.steps.size(); end > 0 && !OutOfTime();) {
      const size_t begin = end > cut ? end - cut : 0;
      Program candidate = best_;
      candidate.steps.erase(candidate.steps.begin() + static_cast<std::ptrdiff_t>(begin),
                            candidate.steps.begin() + static_cast<std::ptrdiff_t>(end));
      removed |= Accept(std::move(candidate));
      end = std::min(begin, best_.steps.size());
    }
    return removed;
  }

  // Round numbers and plain functions, where the difference survives them.
  void Simplify() {
    for (size_t i = 0; i < best_.steps.size() && !OutOfTime(); ++i) {
      Try(i, [](Step &step) { step.entry = 0; });
      Try(i, [](Step &step) { step.lag = 0; });
      Try(i, [](Step &step) { step.bytes = (step.bytes + 255) / 256 * 256; });
      for (uint64_t unit = uint64_t{1} << 40; unit >= 256; unit >>= 4) {
        Try(i, [unit](Step &step) { step.bytes = std::max(step.bytes / unit * unit, uint64_t{256}); });
      }
    }
  }

  template <class Edit>
  void Try(size_t index, Edit edit) {
    if (index >= best_.steps.size()) return;
    const Step before = best_.steps[index];
    Step after = before;
    edit(after);
    if (before.bytes == 0) after.bytes = 0;
    if (after.bytes == before.bytes && after.entry == before.entry && after.lag == before.lag) return;
    Program candidate = best_;
    candidate.steps[index] = after;
    Accept(std::move(candidate));
  }

  bool OutOfTime() const { return std::chrono::steady_clock::now() > deadline_; }

  Program best_;
  const Mutation mutation_;
  const std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + std::chrono::seconds(60);
};

}  // namespace

Program Shrink(Program program, Mutation mutation) { return Shrinker(std::move(program), mutation).Run(); }
