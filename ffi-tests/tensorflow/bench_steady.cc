// Sections random_sizes and same_size: free-and-allocate pairs in a steady state.

#include "bench_steady.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

namespace {

#ifndef BFC_WITHOUT_TENSORFLOW
// TensorFlow's table of pointers has 8 bytes for each 256 of a pool, all of them touched: 20 GiB for a million live.
bool HasRoomForTensorFlow(uint64_t limit) {
  const uint64_t free_bytes = uint64_t(sysconf(_SC_AVPHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  return limit / 256 * 8 < free_bytes / 2;
}
#endif

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
  std::optional<BenchTensorFlow> tensorflow;
  std::optional<Steady<BenchTensorFlow>> theirs;
  if (HasRoomForTensorFlow(plan.Limit())) {
    tensorflow.emplace(plan.Limit());
    theirs.emplace(plan, *tensorflow);
    fastest = std::min(fastest, WarmUp(*theirs, live));
  }
#endif
  // The same number of pairs on both: then both hold the same chunks all along.
  const auto pairs = static_cast<uint64_t>(options.measure_ms * 1e6 / fastest) + 1;
#ifndef BFC_WITHOUT_TENSORFLOW
  if (theirs) run_theirs = [&] { return theirs->TimedNs(pairs); };
#endif
  const Figure figure = Interleave(options.rounds, Better::kLower, [&] { return ours.TimedNs(pairs); }, run_theirs);
  report.Add(std::to_string(live) + (distribution == Distribution::kUniform ? " live" : " live, log-uniform"),
             "ns/pair", Better::kLower, figure);
  if (ours.AnyFailed()) report.Fail("requests failed on libbfc");
#ifndef BFC_WITHOUT_TENSORFLOW
  if (theirs && theirs->AnyFailed()) report.Fail("requests failed on tensorflow");
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

}  // namespace

void BenchRandomSizes(const BenchOptions &options, Report &report) {
  report.Section("random_sizes", "Free one at random, allocate a random size up to 1 MiB");
  for (Distribution distribution : {Distribution::kUniform, Distribution::kLogUniform}) {
    for (uint32_t live : {100u, 1000u, 10000u, 100000u, 1000000u}) RandomSizes(options, report, live, distribution);
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
