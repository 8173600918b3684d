// Sections random_sizes, same_size and threads: free-and-allocate pairs in a steady state.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "bench.h"
#include "rng.h"

namespace {

constexpr uint64_t kLargest = 1 << 20;

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

// Until the free chunks are as many and as mixed as they will stay.
template <class Allocator>
double WarmUp(Steady<Allocator> &steady, uint32_t live) {
  steady.Run(std::max<uint64_t>(4 * uint64_t{live}, 20000));
  return steady.TimedNs(20000);
}

void RandomSizes(const BenchOptions &options, Report &report, uint32_t live, Distribution distribution) {
  const Plan plan(live, distribution, live);
  BenchLibbfc libbfc(plan.Limit());
  Steady<BenchLibbfc> ours(plan, libbfc);
  double fastest = WarmUp(ours, live);
  std::function<double()> run_theirs;
#ifndef BFC_WITHOUT_TENSORFLOW
  BenchTensorFlow tensorflow(plan.Limit());
  Steady<BenchTensorFlow> theirs(plan, tensorflow);
  fastest = std::min(fastest, WarmUp(theirs, live));
#endif
  // The same number of pairs on both: then both hold the same chunks all along.
  const auto pairs = static_cast<uint64_t>(options.measure_ms * 1e6 / fastest) + 1;
#ifndef BFC_WITHOUT_TENSORFLOW
  run_theirs = [&] { return theirs.TimedNs(pairs); };
#endif
  const Figure figure = Interleave(options.rounds, Better::kLower, [&] { return ours.TimedNs(pairs); }, run_theirs);
  report.Add(std::to_string(live) + (distribution == Distribution::kUniform ? " live" : " live, log-uniform"),
             "ns/pair", Better::kLower, figure);
  if (ours.AnyFailed()) report.Fail("requests failed on libbfc");
#ifndef BFC_WITHOUT_TENSORFLOW
  if (theirs.AnyFailed()) report.Fail("requests failed on tensorflow");
#endif
}

template <class Allocator>
double SameSizeNs(Allocator &allocator, size_t bytes, double least_ms) {
  uint64_t pairs = 0;
  double spent = 0;
  while (spent < least_ms * 1e6) {
    const double begin = NowNs();
    for (int i = 0; i < 50000; ++i) allocator.Free(allocator.Alloc(bytes));
    spent += NowNs() - begin;
    pairs += 50000;
  }
  return spent / static_cast<double>(pairs);
}

// Pairs a second of all threads together. Every thread keeps chunks of its own and draws from a plan
// of its own; nothing but the allocator is shared.
template <class Allocator>
double PairsPerSecond(Allocator &allocator, const std::vector<Plan> &plans, double milliseconds) {
  struct alignas(128) Count {
    uint64_t pairs = 0;
  };
  std::vector<Count> counts(plans.size());
  std::atomic<size_t> ready{0};
  std::atomic<bool> go{false}, stop{false};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < plans.size(); ++t) {
    threads.emplace_back([&, t] {
      Steady<Allocator> steady(plans[t], allocator);
      steady.Run(1000);
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      uint64_t pairs = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        steady.Run(64);
        pairs += 64;
      }
      counts[t].pairs = pairs;
    });
  }
  while (ready.load() != plans.size()) std::this_thread::yield();
  const double begin = NowNs();
  go.store(true, std::memory_order_release);
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
  stop.store(true);
  const double seconds = (NowNs() - begin) / 1e9;
  uint64_t pairs = 0;
  for (size_t t = 0; t < threads.size(); ++t) {
    threads[t].join();
    pairs += counts[t].pairs;
  }
  return static_cast<double>(pairs) / seconds;
}

}  // namespace

void BenchRandomSizes(const BenchOptions &options, Report &report) {
  report.Section("random_sizes", "Free one at random, allocate a random size up to 1 MiB");
  for (Distribution distribution : {Distribution::kUniform, Distribution::kLogUniform}) {
    for (uint32_t live : {100u, 1000u, 10000u, 100000u}) RandomSizes(options, report, live, distribution);
  }
}

void BenchSameSize(const BenchOptions &options, Report &report) {
  report.Section("same_size", "Allocate and free one size");
  BenchLibbfc libbfc(1 << 30);
#ifndef BFC_WITHOUT_TENSORFLOW
  BenchTensorFlow tensorflow(1 << 30);
#endif
  for (size_t bytes : {size_t{256}, size_t{4096}, size_t{1} << 20}) {
    std::function<double()> theirs;
#ifndef BFC_WITHOUT_TENSORFLOW
    theirs = [&] { return SameSizeNs(tensorflow, bytes, options.measure_ms); };
#endif
    report.Add(
        std::to_string(bytes) + " bytes", "ns/pair", Better::kLower,
        Interleave(
            options.rounds, Better::kLower, [&] { return SameSizeNs(libbfc, bytes, options.measure_ms); }, theirs));
  }
}

void BenchThreads(const BenchOptions &options, Report &report) {
  report.Section("threads", "Threads on one device, 64 live chunks each, random sizes up to 1 MiB (" +
                                std::to_string(std::thread::hardware_concurrency()) + " cores)");
  for (size_t threads : {1, 2, 4, 8}) {
    std::vector<Plan> plans;
    uint64_t limit = 0;
    for (size_t t = 0; t < threads; ++t) {
      plans.emplace_back(64, Distribution::kUniform, 1000 + t);
      limit += plans.back().Limit();
    }
    BenchLibbfc libbfc(limit);
    const double milliseconds = 4 * options.measure_ms;  // several turns of the scheduler
    std::function<double()> theirs;
#ifndef BFC_WITHOUT_TENSORFLOW
    BenchTensorFlow tensorflow(limit);
    theirs = [&] { return PairsPerSecond(tensorflow, plans, milliseconds); };
#endif
    report.Add(
        std::to_string(threads) + (threads == 1 ? " thread" : " threads"), "pairs/s", Better::kHigher,
        Interleave(
            options.rounds, Better::kHigher, [&] { return PairsPerSecond(libbfc, plans, milliseconds); }, theirs));
  }
}
