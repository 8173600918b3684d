// The behaviours of RMM's tests of a resource reference, 30 times in one process and each time in another order, as
// `gtest --gtest_repeat=30 --gtest_shuffle` runs them: each has a stream of its own that is created, used, synchronized
// and destroyed. RMM's resources are told nothing of the end of a stream, and libbfc is not either.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "tests.hpp"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

namespace tests {
namespace {

constexpr int rounds = 30;
constexpr std::size_t large = 5 * mib;

// The stream of one test. It is destroyed without a word to libbfc.
class own_stream {
 public:
  explicit own_stream(unsigned flags) { CHECK(cudaStreamCreateWithFlags(&handle_, flags) == cudaSuccess); }
  own_stream(const own_stream &) = delete;
  own_stream &operator=(const own_stream &) = delete;
  ~own_stream() {
    CHECK(cudaStreamSynchronize(handle_) == cudaSuccess);
    CHECK(cudaStreamDestroy(handle_) == cudaSuccess);
  }
  operator cudaStream_t() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

struct situation {
  ref resource;
  cudaStream_t stream;  // of the test; 0 for those of the default stream
  unsigned seed;
  std::uint64_t limit;
};

void synchronize(cudaStream_t stream) {
  if (stream != nullptr) CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

// A kernel that writes the memory, and one that reads it later.
void use(const situation &in, void *ptr, std::size_t bytes) {
  CHECK(simcuda_fill(in.stream, number(ptr), bytes / 8 * 8, number(ptr) + in.seed) == 0);
}
void read(const situation &in, void *ptr, std::size_t bytes) {
  CHECK(simcuda_expect(in.stream, number(ptr), bytes / 8 * 8, number(ptr) + in.seed) == 0);
}

void various_sizes(const situation &in) {
  give(in.resource, take(in.resource, 0, in.stream), 0, in.stream);
  synchronize(in.stream);
  for (const std::size_t bytes : {std::size_t{4}, kib, mib, std::size_t{in.limit / 2}}) {
    void *const ptr = take(in.resource, bytes, in.stream);
    CHECK(ptr != nullptr && number(ptr) % 256 == 0);
    use(in, ptr, bytes);
    synchronize(in.stream);
    read(in, ptr, bytes);
    give(in.resource, ptr, bytes, in.stream);
    synchronize(in.stream);
  }
  CHECK(what_of([&] { (void)take(in.resource, std::size_t{1} << 50, in.stream); }) == thrown::out_of_memory);
}

void random_allocations(const situation &in) {
  std::mt19937 random(in.seed);
  std::vector<std::pair<void *, std::size_t>> held;
  // As many of up to 5 MiB as the half of the pool has at least.
  for (std::size_t times = 0; times < in.limit / large / 2; ++times) {
    const std::size_t bytes = 1 + random() % large;
    held.emplace_back(take(in.resource, bytes, in.stream), bytes);
    CHECK(held.back().first != nullptr && number(held.back().first) % 256 == 0);
    use(in, held.back().first, bytes);
    synchronize(in.stream);
  }
  for (const auto &[ptr, bytes] : held) {
    read(in, ptr, bytes);
    give(in.resource, ptr, bytes, in.stream);
    synchronize(in.stream);
  }
}

void mixed_random(const situation &in) {
  std::mt19937 random(in.seed);
  std::vector<std::pair<void *, std::size_t>> held;
  for (std::size_t allocated = 0; allocated < 100 || !held.empty();) {
    if (held.empty() || (allocated < 100 && held.size() < in.limit / large / 2 && random() % 100 < 53)) {
      const std::size_t bytes = 1 + random() % large;
      held.emplace_back(take(in.resource, bytes, in.stream), bytes);
      use(in, held.back().first, bytes);
      ++allocated;
    } else {
      std::swap(held[random() % held.size()], held.back());
      read(in, held.back().first, held.back().second);
      give(in.resource, held.back().first, held.back().second, in.stream);
      held.pop_back();
    }
  }
}

void different_addresses(const situation &in) {
  void *const first = take(in.resource, 8, in.stream), *const second = take(in.resource, 8, in.stream);
  CHECK(first != second);
  give(in.resource, first, 8, in.stream);
  give(in.resource, second, 8, in.stream);
}

// Allocated by one thread and freed by another, in the order of one stream.
void freed_by_another_thread(const situation &in) {
  std::vector<std::pair<void *, std::size_t>> passed;
  std::mt19937 random(in.seed);
  for (int times = 0; times < 8; ++times) {
    const std::size_t bytes = 1 + random() % mib;
    passed.emplace_back(take(in.resource, bytes, in.stream), bytes);
    use(in, passed.back().first, bytes);
  }
  std::thread([&] {
    CHECK(cudaSetDevice(0) == cudaSuccess);
    for (const auto &[ptr, bytes] : passed) {
      read(in, ptr, bytes);
      give(in.resource, ptr, bytes, in.stream);
    }
  }).join();
}

// All memory of the pool at once, which is that of streams that are gone by now.
void whole_pool(const situation &in) {
  const std::size_t bytes = in.limit / 10 * 9 / 8 * 8;
  void *const ptr = take(in.resource, bytes, in.stream);
  use(in, ptr, bytes);
  read(in, ptr, bytes);
  give(in.resource, ptr, bytes, in.stream);
}

void (*const behaviours_of_a_reference[])(const situation &) = {
    various_sizes, random_allocations, mixed_random, different_addresses, freed_by_another_thread, whole_pool};

// Each behaviour on the default stream, on a blocking stream and on a non-blocking one.
void shuffled(ref resource, std::uint64_t limit) {
  constexpr std::size_t kinds = 3, behaviours = std::size(behaviours_of_a_reference);
  std::vector<std::size_t> order(kinds * behaviours);
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937 random(11);
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t which : order) {
      const auto behaviour = behaviours_of_a_reference[which / kinds];
      const unsigned seed = static_cast<unsigned>(round * order.size() + which);
      if (which % kinds == 0) {
        behaviour({resource, nullptr, seed, limit});
      } else {
        const own_stream stream(which % kinds == 1 ? cudaStreamDefault : cudaStreamNonBlocking);
        behaviour({resource, stream, seed, limit});
      }
      CHECK_OK(bfc_check(0));
    }
  }
  std::uint64_t released = 0;
  CHECK_OK(bfc_trim(0, 0, &released));
}

void repeated(bool recycles, bool callback) {
  CHECK(simcuda_set(SIMCUDA_RECYCLE_HANDLES, recycles) == 0);
  constexpr std::uint64_t limit = 128 * mib;
  const pool_of pool(0, limit);
  bfc::rmm_resource resource;
  if (callback) {
    rmm::mr::callback_memory_resource pair(bfc::rmm_allocator{}, bfc::rmm_deallocator{});
    shuffled(pair, limit);
  } else {
    shuffled(resource, limit);
  }
}

}  // namespace

std::vector<test> repeated() {
  return {{"repeated_new_handles", [] { repeated(false, false); }},
          {"repeated_recycled_handles", [] { repeated(true, false); }},
          {"repeated_callback", [] { repeated(true, true); }}};
}

}  // namespace tests
