// bfc/tensorflow.hpp in a C++ program that is linked with TensorFlow: the program's functions precede TensorFlow's, as
// those of any program do. Each test checks one promise at the beginning of that file.

#include "bfc/tensorflow.hpp"

#include "../check_that.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>

// In derived.cc: a class in the source with bfc/tensorflow.hpp would bring a function along that is replaced there.
std::unique_ptr<tsl::BFCAllocator> make_derived(std::unique_ptr<tsl::SubAllocator> source, bool *has_ended);

namespace {

using Type = tsl::AllocatorMemoryType;

// Gives TensorFlow regions, and counts them.
class Source : public tsl::SubAllocator {
 public:
  Source(Type type, int *regions) : SubAllocator({}, {}), type_(type), regions_(regions) {}
  void *Alloc(size_t alignment, size_t bytes, size_t *received) override {
    ++*regions_;
    *received = bytes;
    return std::aligned_alloc(alignment, bytes);
  }
  void Free(void *ptr, size_t) override {
    --*regions_;
    std::free(ptr);
  }
  bool SupportsCoalescing() const override { return false; }
  Type GetMemoryType() const override { return type_; }

 private:
  Type type_;
  int *regions_;
};

std::unique_ptr<tsl::BFCAllocator> make(Type type, int *regions, size_t limit = 64 << 20) {
  tsl::BFCAllocator::Options options;
  return std::make_unique<tsl::BFCAllocator>(std::make_unique<Source>(type, regions), limit, "test", options);
}

std::int32_t owner(const void *ptr) {
  std::int32_t device = 0;
  return bfc_owner(ptr, &device) == BFC_OK ? device : -1;
}

bfc_stats_t stats(std::int32_t device) {
  bfc_stats_t found = BFC_STATS_INIT;
  CHECK_THAT(bfc_stats(device, &found) == BFC_OK);
  return found;
}

bool exists(std::int32_t device) {
  bfc_stats_t found = BFC_STATS_INIT;
  return bfc_stats(device, &found) == BFC_OK;
}

// Each has a pool of its own, which ends with it; TensorFlow's source is never asked.
void pools_come_and_go() {
  int regions = 0;
  auto first = make(Type::kHostPageable, &regions);
  auto second = make(Type::kHostPageable, &regions);
  CHECK_THAT(!exists(256));
  void *const one = first->AllocateRaw(64, 1000);
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.backend = BFC_BACKEND_HOST;
  CHECK_THAT(bfc_create(258, &options) == BFC_OK);
  void *const two = second->AllocateRaw(64, 1000);
  CHECK_THAT(owner(one) == 256 && owner(two) == 259);
  CHECK_THAT(first->RequestedSize(one) == 1000 && first->AllocatedSize(one) == 1024 && first->AllocationId(one) == 1);
  CHECK_THAT(first->AllocatedSizeSlow(one) == 1024 && first->TracksAllocationSizes());
  CHECK_THAT(first->Name() == "test (libbfc, device 256)" && second->Name() == "test (libbfc, device 259)");
  CHECK_THAT(regions == 0 && bfc::tensorflow::allocators().size() == 2);
  for (const auto &facts : bfc::tensorflow::allocators()) {
    CHECK_THAT(facts.name == "test" && facts.own_allocations == 0 && facts.own_bytes == 0);
  }
  // With what still lives in it.
  first.reset();
  CHECK_THAT(!exists(256) && exists(259) && bfc::tensorflow::allocators().size() == 1);
  second->DeallocateRaw(two);
  second->DeallocateRaw(nullptr);
  CHECK_THAT(stats(259).bytes_in_use == 0);
  auto third = make(Type::kHostPageable, &regions);
  CHECK_THAT(owner(third->AllocateRaw(4096, 1)) == 256);
  second.reset();
  third.reset();
  CHECK_THAT(!exists(256) && !exists(259) && exists(258) && regions == 0);
  CHECK_THAT(bfc_destroy(258) == BFC_OK);
}

// A pool that existed before is shared, and stays.
void the_programs_own_pool() {
  CHECK_THAT(bfc_create(300, nullptr) != BFC_OK);
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.backend = BFC_BACKEND_HOST;
  options.memory_limit = 4 << 20;
  CHECK_THAT(bfc_create(300, &options) == BFC_OK);
  bfc::tensorflow::use_device(300);
  int regions = 0;
  auto allocator = make(Type::kHostPageable, &regions);
  void *const ptr = allocator->AllocateRaw(64, 1);
  CHECK_THAT(owner(ptr) == 300 && allocator->GetStats()->bytes_limit == 4 << 20);
  allocator->DeallocateRaw(ptr);
  allocator.reset();
  CHECK_THAT(exists(300) && bfc_destroy(300) == BFC_OK);
  bfc::tensorflow::use_device(256);
}

// Memory that is not the host's is not libbfc's to give.
void other_memory_stays_tensorflows() {
  for (const Type type : {Type::kDevice, Type::kHostPinned, Type::kUnknown}) {
    int regions = 0;
    auto allocator = make(type, &regions);
    CHECK_THAT(allocator->GetStats()->num_allocs == 0 && allocator->Name() == "test");
    void *const ptr = allocator->AllocateRaw(64, 1000);
    CHECK_THAT(ptr != nullptr && owner(ptr) == -1 && regions == 1 && !exists(256));
    CHECK_THAT(allocator->RequestedSize(ptr) == 1000 && allocator->AllocatedSize(ptr) == 1024);
    CHECK_THAT(allocator->AllocationId(ptr) == 1 && allocator->Name() == "test");
    CHECK_THAT(allocator->GetStats()->num_allocs == 1 && allocator->GetStats()->bytes_in_use == 1024);
    CHECK_THAT(bfc::tensorflow::allocators().at(0).ordinal == -1);
    CHECK_THAT(bfc::tensorflow::allocators().at(0).own_allocations == 1);
    allocator->DeallocateRaw(ptr);
    CHECK_THAT(allocator->ClearStats() && allocator->GetStats()->num_allocs == 0);
    allocator.reset();
    CHECK_THAT(regions == 0 && bfc::tensorflow::allocators().empty());
  }
}

// A class that the program derives has its table of virtual functions in the program.
void derived_classes() {
  int regions = 0;
  bool has_ended = false;
  auto ours = make_derived(std::make_unique<Source>(Type::kHostPageable, &regions), &has_ended);
  auto others = make_derived(std::make_unique<Source>(Type::kDevice, &regions), &has_ended);
  void *const ptr = ours->AllocateRaw(64, 100);
  CHECK_THAT(owner(ptr) == 256 && regions == 0 && ours->Name() == "derived (libbfc, device 256)");
  void *const other = others->AllocateRaw(64, 100);
  CHECK_THAT(other != nullptr && owner(other) == -1 && regions == 1);
  others->DeallocateRaw(other);
  others.reset();
  CHECK_THAT(has_ended && exists(256) && regions == 0);
  has_ended = false;
  ours.reset();
  CHECK_THAT(has_ended && !exists(256));
}

// The smaller limit counts; what is asked for beside the size does not change what TensorFlow would get.
void requests_and_limits() {
  bfc::tensorflow::set_retry(0);
  int regions = 0;
  auto allocator = make(Type::kHostPageable, &regions, 1 << 20);
  CHECK_THAT(allocator->AllocateRaw(64, 0) == nullptr);
  void *const all = allocator->AllocateRaw(64, 1 << 20);
  CHECK_THAT(all != nullptr && stats(256).bytes_limit == 1 << 20);
  CHECK_THAT(allocator->AllocateRaw(64, 1) == nullptr);
  allocator->DeallocateRaw(all);
  CHECK_THAT(allocator->AllocateRaw(64, ~size_t{0}) == nullptr);
  std::function<uint64_t()> freed_by = [] { return uint64_t{1}; };
  void *const aligned = allocator->AllocateRaw(1 << 16, 100, tsl::AllocationAttributes(false, true, &freed_by));
  CHECK_THAT(aligned != nullptr && reinterpret_cast<std::uintptr_t>(aligned) % (1 << 16) == 0);
  allocator->SetSafeFrontier(7);
  const auto told = allocator->GetStats();
  const bfc_stats_t is = stats(256);
  CHECK_THAT(told->num_allocs == 2 && told->bytes_in_use == static_cast<int64_t>(is.bytes_in_use));
  CHECK_THAT(told->peak_bytes_in_use == 1 << 20);
  CHECK_THAT(told->largest_alloc_size == 1 << 20 && told->bytes_limit == 1 << 20 && is.num_failures == 2);
  CHECK_THAT(*told->pool_bytes == static_cast<int64_t>(is.pool_bytes) && *told->peak_pool_bytes == 1 << 20);
  CHECK_THAT(told->largest_free_block_bytes == static_cast<int64_t>(is.largest_free_block_bytes));
  CHECK_THAT(allocator->ClearStats());
  CHECK_THAT(allocator->GetStats()->num_allocs == 0 && allocator->GetStats()->peak_bytes_in_use == told->bytes_in_use);
}

// A request for a tensor waits for another thread's free; one that can do without fails at once.
void waiting() {
  // Long enough, whatever else the machine does.
  bfc::tensorflow::set_retry(120'000);
  int regions = 0;
  auto allocator = make(Type::kHostPageable, &regions, 1 << 20);
  for (int round = 0; round < 50; ++round) {
    void *const all = allocator->AllocateRaw(64, 1 << 20);
    CHECK_THAT(allocator->AllocateRaw(64, 1 << 19, tsl::AllocationAttributes(false, false, nullptr)) == nullptr);
    const std::uint64_t failures = stats(256).num_failures;
    void *got = nullptr;
    std::thread other([&] { got = allocator->AllocateRaw(64, 1 << 19); });
    // In every other round while it waits; else perhaps before, in between, or after.
    while (round % 2 == 0 && stats(256).num_failures < failures + 2) std::this_thread::yield();
    allocator->DeallocateRaw(all);
    other.join();
    CHECK_THAT(got != nullptr);
    allocator->DeallocateRaw(got);
  }
  // And fails once the time is over.
  void *const all = allocator->AllocateRaw(64, 1 << 20);
  bfc::tensorflow::set_retry(1);
  CHECK_THAT(allocator->AllocateRaw(64, 1) == nullptr);
  allocator->DeallocateRaw(all);
  bfc::tensorflow::set_retry(0);
}

// Thousands of random sizes from four threads, in a pool that is too small for them.
void random_sizes() {
  int regions = 0;
  auto allocator = make(Type::kHostPageable, &regions, 8 << 20);
  std::atomic<int> served{0};
  std::atomic<int> failed{0};
  const auto work = [&](unsigned seed) {
    std::mt19937 choose(seed);
    std::vector<std::pair<unsigned char *, size_t>> kept;
    const auto drop = [&](size_t index) {
      const auto [ptr, size] = kept[index];
      for (size_t at = 0; at < size; at += 97) CHECK_THAT(ptr[at] == static_cast<unsigned char>(size + seed));
      CHECK_THAT(allocator->RequestedSize(ptr) == size && allocator->AllocatedSize(ptr) >= size);
      allocator->DeallocateRaw(ptr);
      kept[index] = kept.back();
      kept.pop_back();
    };
    for (int step = 0; step < 5000; ++step) {
      const size_t size = choose() % (choose() % 8 == 0 ? 1 << 20 : 4000) + 1;
      auto *const ptr = static_cast<unsigned char *>(allocator->AllocateRaw(64, size));
      ptr == nullptr ? ++failed : ++served;
      if (ptr != nullptr) {
        std::memset(ptr, static_cast<unsigned char>(size + seed), size);
        kept.emplace_back(ptr, size);
      }
      while (kept.size() > 60 || (!kept.empty() && choose() % 3 == 0)) drop(choose() % kept.size());
    }
    while (!kept.empty()) drop(0);
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread &thread : threads) thread.join();
  CHECK_THAT(served > 1000 && failed > 100);
  CHECK_THAT(bfc_check(256) == BFC_OK && stats(256).bytes_in_use == 0 && regions == 0);
  std::printf("%d served, %d failed\n", served.load(), failed.load());
}

// What TensorFlow never does ends the program, with the reason.
void wrong_frees() {
  int regions = 0;
  auto allocator = make(Type::kHostPageable, &regions);
  auto *const ptr = static_cast<char *>(allocator->AllocateRaw(64, 1000));
  const std::function<void()> wrongs[] = {
      [&] { allocator->DeallocateRaw(ptr + 256); },
      [&] { allocator->DeallocateRaw(&regions); },
      [&] { (void)allocator->AllocationId(ptr + 1); },
      [&] {
        allocator->DeallocateRaw(ptr);
        allocator->DeallocateRaw(ptr);
      },
  };
  for (const auto &wrong : wrongs) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      std::freopen("/dev/null", "w", stderr);
      wrong();
      _exit(0);
    }
    int status = 0;
    CHECK_THAT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  }
}

}  // namespace

int main() {
  const std::pair<const char *, void (*)()> tests[] = {
      {"pools_come_and_go", pools_come_and_go},
      {"the_programs_own_pool", the_programs_own_pool},
      {"other_memory_stays_tensorflows", other_memory_stays_tensorflows},
      {"derived_classes", derived_classes},
      {"requests_and_limits", requests_and_limits},
      {"waiting", waiting},
      {"random_sizes", random_sizes},
      {"wrong_frees", wrong_frees},
  };
  for (const auto &[name, test] : tests) {
    test();
    std::printf("%s: ok\n", name);
  }
}
