// Section threads: throughput and latencies of several threads, on one device and on several, and beside other processes.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "bench_steady.h"

namespace {

// Latencies in nanoseconds: 16 buckets for each octave, so a quantile is exact to 6%.
class Latencies {
 public:
  void Add(uint64_t ns) {
    ++buckets_[Bucket(ns)];
    ++count_;
    worst_ = std::max(worst_, ns);
  }
  void Add(const Latencies &other) {
    for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    worst_ = std::max(worst_, other.worst_);
  }
  double Quantile(double share) const {
    uint64_t left = static_cast<uint64_t>(share * static_cast<double>(count_));
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i] > left) return static_cast<double>(LowestOf(i));
      left -= buckets_[i];
    }
    return Worst();
  }
  double Worst() const { return static_cast<double>(worst_); }

 private:
  static constexpr unsigned kBits = 4;
  static size_t Bucket(uint64_t ns) {
    if (ns < 1 << kBits) return ns;
    const unsigned shift = 63 - static_cast<unsigned>(__builtin_clzll(ns)) - kBits;
    return (size_t{shift} << kBits) + (ns >> shift);
  }
  static uint64_t LowestOf(size_t bucket) {
    if (bucket < 2 << kBits) return bucket;
    const size_t shift = (bucket >> kBits) - 1;
    return ((bucket & ((1 << kBits) - 1)) + (1 << kBits)) << shift;
  }

  std::array<uint64_t, 61 << kBits> buckets_{};
  uint64_t count_ = 0, worst_ = 0;
};

// Threads that run at the same time. Each keeps chunks of its own and draws from a plan of its own. The first ones share
// the first device, the next ones the second.
template <class Allocator>
class Threads {
 public:
  Threads(const std::vector<Plan> &plans, size_t devices) : plans_(plans) {
    const size_t each = plans.size() / devices;
    for (size_t device = 0; device < devices; ++device) {
      uint64_t limit = 0;
      for (size_t t = 0; t < each; ++t) limit += plans[device * each + t].Limit();
      allocators_.push_back(std::make_unique<Allocator>(limit));
    }
  }

  // Pairs a second of all threads together.
  double PairsPerSecond(double milliseconds) {
    return Run(milliseconds, [](Steady<Allocator> &steady, Thread &thread) {
      steady.Run(64);
      thread.pairs += 64;
    });
  }

  // Adds the time of each pair, with that of a look at the clock.
  void Measure(double milliseconds, Latencies *latencies) {
    Run(milliseconds, [](Steady<Allocator> &steady, Thread &thread) {
      double before = NowNs();
      for (int i = 0; i < 64; ++i) {
        steady.Run(1);
        const double now = NowNs();
        thread.latencies.Add(static_cast<uint64_t>(now - before));
        before = now;
      }
    });
    for (const Thread &thread : threads_) latencies->Add(thread.latencies);
  }

 private:
  struct alignas(128) Thread {
    uint64_t pairs = 0;
    Latencies latencies;
  };

  template <class Step>
  double Run(double milliseconds, const Step &step) {
    threads_.assign(plans_.size(), Thread());
    std::atomic<size_t> ready{0};
    std::atomic<bool> go{false}, stop{false};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < plans_.size(); ++t) {
      threads.emplace_back([&, t] {
        Steady<Allocator> steady(plans_[t], *allocators_[t * allocators_.size() / plans_.size()]);
        steady.Run(1000);
        ready.fetch_add(1);
        while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
        while (!stop.load(std::memory_order_relaxed)) step(steady, threads_[t]);
      });
    }
    while (ready.load() != plans_.size()) std::this_thread::yield();
    const double begin = NowNs();
    go.store(true, std::memory_order_release);
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
    stop.store(true);
    const double seconds = (NowNs() - begin) / 1e9;
    uint64_t pairs = 0;
    for (size_t t = 0; t < threads.size(); ++t) {
      threads[t].join();
      pairs += threads_[t].pairs;
    }
    return static_cast<double>(pairs) / seconds;
  }

  const std::vector<Plan> &plans_;
  std::vector<std::unique_ptr<Allocator>> allocators_;
  std::vector<Thread> threads_;
};

void Measure(const BenchOptions &options, Report &report, const std::string &name, size_t threads, size_t devices) {
  std::vector<Plan> plans;
  for (size_t t = 0; t < threads; ++t) plans.emplace_back(64, Distribution::kUniform, 1000 + t);
  Threads<BenchLibbfc> libbfc(plans, devices);
  const double milliseconds = 4 * options.measure_ms;  // several turns of the scheduler
  std::function<double()> theirs;
  Latencies ours_at, theirs_at;
#ifndef BFC_WITHOUT_TENSORFLOW
  Threads<BenchTensorFlow> tensorflow(plans, devices);
  theirs = [&] { return tensorflow.PairsPerSecond(milliseconds); };
#endif
  report.Add(name, "pairs/s", Better::kHigher,
             Interleave(options.rounds, Better::kHigher, [&] { return libbfc.PairsPerSecond(milliseconds); }, theirs));
  for (int round = 0; round < options.rounds; ++round) {
    libbfc.Measure(milliseconds / 2, &ours_at);
#ifndef BFC_WITHOUT_TENSORFLOW
    tensorflow.Measure(milliseconds / 2, &theirs_at);
#endif
  }
  const auto add = [&](const char *which, double ours, double other) {
    std::vector<double> others;
    if (theirs) others.push_back(other);
    report.Add(name + ", " + which, "ns/pair", Better::kLower, Compare(Better::kLower, {ours}, others));
  };
  add("p50", ours_at.Quantile(0.5), theirs_at.Quantile(0.5));
  add("p99", ours_at.Quantile(0.99), theirs_at.Quantile(0.99));
  add("p99.9", ours_at.Quantile(0.999), theirs_at.Quantile(0.999));
  add("worst", ours_at.Worst(), theirs_at.Worst());
}

// Processes that compute all the time, until this is destroyed.
class BusyProcesses {
 public:
  explicit BusyProcesses(int count) {
    for (int at = 0; at < count; ++at) {
      const pid_t child = fork();
      if (child == 0) {
        // They end with the bench, however it ends.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile unsigned turns = 0;; turns = turns + 1) {}
      }
      if (child > 0) children_.push_back(child);
    }
  }
  BusyProcesses(const BusyProcesses &) = delete;
  BusyProcesses &operator=(const BusyProcesses &) = delete;
  ~BusyProcesses() {
    for (const pid_t child : children_) kill(child, SIGKILL);
    for (const pid_t child : children_) waitpid(child, nullptr, 0);
  }

 private:
  std::vector<pid_t> children_;
};

}  // namespace

void BenchThreads(const BenchOptions &options, Report &report) {
  report.Section("threads", "Threads, 64 live chunks each, random sizes up to 1 MiB (" +
                                std::to_string(std::thread::hardware_concurrency()) +
                                " cores); on one device unless it says otherwise");
  for (size_t threads : {1, 2, 4, 8}) {
    Measure(options, report, std::to_string(threads) + (threads == 1 ? " thread" : " threads"), threads, 1);
  }
  for (size_t threads : {2, 4, 8}) {
    Measure(options, report, std::to_string(threads) + " threads, a device each", threads, threads);
  }
  Measure(options, report, "4 threads on two devices", 4, 2);
  const BusyProcesses busy(15);
  Measure(options, report, "8 threads beside 15 busy processes", 8, 1);
}
