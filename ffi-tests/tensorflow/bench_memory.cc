// Sections first_allocation and host_memory: what a pool costs before it does anything, and what its
// chunks cost. Each measurement runs in a child of its own: memory that one frees must not hide what
// the next one takes.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "bench.h"
#include "rng.h"

namespace {

constexpr uint64_t kPoolBytes = uint64_t{80} << 30;
constexpr size_t kChunks = 1000000;

double ResidentBytes() {
  long total = 0, resident = 0;
  std::FILE *file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld", &total, &resident) != 2) {
    std::perror("/proc/self/statm");
    std::exit(2);
  }
  std::fclose(file);
  return static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

struct Sample {
  bool good = false;
  double milliseconds = 0;
  double resident_bytes = 0;
  double metadata_bytes = 0;
};

template <class Body>
Sample InChild(Body body) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const Sample sample = body();
    _exit(write(ends[1], &sample, sizeof sample) == sizeof sample ? 0 : 1);
  }
  close(ends[1]);
  Sample sample;
  int status = 1;
  if (child < 0 || read(ends[0], &sample, sizeof sample) != sizeof sample) sample = {};
  close(ends[0]);
  if (child > 0) waitpid(child, &status, 0);
  sample.good = sample.good && status == 0;
  return sample;
}

// Creation and the first allocation, which takes the whole pool from the backend.
Sample LibbfcFirst() {
  Sample sample;
  const double resident = ResidentBytes();
  const double begin = NowNs();
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.backend = BFC_BACKEND_HOST;
  options.memory_limit = kPoolBytes;
  void *ptr = nullptr;
  const bfc_status_t created = bfc_create(256, &options);
  const bfc_status_t allocated = created == BFC_OK ? bfc_alloc(256, 1 << 20, &ptr) : created;
  sample.milliseconds = (NowNs() - begin) / 1e6;
  sample.resident_bytes = ResidentBytes() - resident;
  if (allocated != BFC_OK) {
    std::printf("  libbfc: %s (%s)\n", bfc_status_string(allocated), BfcLastError().c_str());
    std::fflush(stdout);
    return sample;
  }
  bfc_stats_t stats = BFC_STATS_INIT;
  sample.good = bfc_stats(256, &stats) == BFC_OK && stats.pool_bytes == kPoolBytes;
  sample.metadata_bytes = static_cast<double>(stats.metadata_bytes);
  return sample;
}

#ifndef BFC_WITHOUT_TENSORFLOW
Sample TensorFlowFirst() {
  Sample sample;
  const double resident = ResidentBytes();
  const double begin = NowNs();
  FakeMemory memory{FakeMemoryOptions{}};
  TensorFlowOptions options;
  options.limit = kPoolBytes;
  const auto allocator = MakeTensorFlow(options, &memory);
  sample.good = allocator->AllocateRaw(tsl::Allocator::kAllocatorAlignment, 1 << 20) != nullptr;
  sample.milliseconds = (NowNs() - begin) / 1e6;
  sample.resident_bytes = ResidentBytes() - resident;
  return sample;
}
#endif

// Pool and a million live chunks of 256 to 4096 bytes.
template <class Allocator>
Sample LiveChunks(const std::function<double(const Allocator &)> &metadata) {
  Rng rng(1);
  std::vector<uint32_t> sizes;
  uint64_t bytes = 0;
  for (size_t i = 0; i < kChunks; ++i) {
    sizes.push_back(static_cast<uint32_t>(rng.Between(256, 4096)));
    bytes += (sizes.back() + 255) / 256 * 256;
  }
  Sample sample;
  const double resident = ResidentBytes();
  Allocator allocator(bytes / 4 * 5 / 256 * 256);
  sample.good = true;
  for (uint32_t size : sizes) sample.good = allocator.Alloc(size) != nullptr && sample.good;
  sample.resident_bytes = ResidentBytes() - resident;
  if (metadata) sample.metadata_bytes = metadata(allocator);
  return sample;
}

}  // namespace

void BenchFirstAllocation(const BenchOptions &options, Report &report) {
  report.Section("first_allocation", "Creation and first allocation of an 80 GiB pool (libbfc: BFC_BACKEND_HOST)");
  std::vector<double> our_ms, our_mib, our_metadata, their_ms, their_mib;
  // Each of TensorFlow's takes seconds and gigabytes.
  for (int round = 0; round < (options.rounds + 1) / 2; ++round) {
    const Sample ours = InChild(LibbfcFirst);
    if (!ours.good) return report.Fail("libbfc's first allocation");
    our_ms.push_back(ours.milliseconds);
    our_mib.push_back(ours.resident_bytes / (1 << 20));
    our_metadata.push_back(ours.metadata_bytes / (1 << 20));
#ifndef BFC_WITHOUT_TENSORFLOW
    const Sample theirs = InChild(TensorFlowFirst);
    if (!theirs.good) return report.Fail("tensorflow's first allocation");
    their_ms.push_back(theirs.milliseconds);
    their_mib.push_back(theirs.resident_bytes / (1 << 20));
#endif
  }
  report.Add("wall time", "ms", Better::kLower, Compare(Better::kLower, our_ms, their_ms));
  report.Add("growth of resident memory", "MiB", Better::kLower, Compare(Better::kLower, our_mib, their_mib));
  report.Add("metadata_bytes", "MiB", Better::kLower, Compare(Better::kLower, our_metadata, {}));
}

void BenchHostMemory(const BenchOptions &, Report &report) {
  report.Section("host_memory", "A pool with 1e6 live chunks of 256 to 4096 bytes, host memory for each");
  const Sample ours = InChild([] {
    return LiveChunks<BenchLibbfc>(
        [](const BenchLibbfc &libbfc) { return static_cast<double>(libbfc.MetadataBytes()); });
  });
  if (!ours.good) return report.Fail("libbfc's chunks");
  std::vector<double> theirs;
#ifndef BFC_WITHOUT_TENSORFLOW
  const Sample tensorflow = InChild([] { return LiveChunks<BenchTensorFlow>(nullptr); });
  if (!tensorflow.good) return report.Fail("tensorflow's chunks");
  theirs.push_back(tensorflow.resident_bytes / kChunks);
#endif
  report.Add("growth of resident memory", "bytes/chunk", Better::kLower,
             Compare(Better::kLower, {ours.resident_bytes / kChunks}, theirs));
  report.Add("metadata_bytes", "bytes/chunk", Better::kLower,
             Compare(Better::kLower, {ours.metadata_bytes / kChunks}, {}));
}
