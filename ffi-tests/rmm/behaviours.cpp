// One stream and one thread: what RMM's tests ask of any resource, and of a pool with a limit.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "tests.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

namespace tests {
namespace {

// Each behaviour over both ways into libbfc.
void over_both(const std::function<void(ref, std::size_t largest_alignment)> &behaviour) {
  const pool_of pool(0);
  bfc::rmm_resource resource;
  behaviour(resource, BFC_RMM_HAS_BASE_CLASS ? 256 : 1 << 16);
  rmm::mr::callback_memory_resource callback(bfc::rmm_allocator{}, bfc::rmm_deallocator{});
  behaviour(callback, 256);
}

void equality() {
  const pool_of first(0), second(1);
  bfc::rmm_resource resource, copy(resource), same(bfc::device(0)), other(bfc::device(1));
  CHECK(resource == resource && resource == copy && resource == same && !(resource != same));
  CHECK(resource != other && !(resource == other));
  CHECK(ref(resource) == ref(copy) && ref(resource) != ref(other));
  copy = other;
  CHECK(copy == other && copy.get_device() == bfc::device(1));
  bfc::rmm_resource moved(std::move(copy));
  CHECK(moved == other);
  static_assert(std::is_copy_constructible_v<bfc::rmm_resource> && std::is_move_assignable_v<bfc::rmm_resource>);
#if !BFC_RMM_HAS_BASE_CLASS
  cuda::mr::any_resource<cuda::mr::device_accessible> any(resource);
  CHECK(any == cuda::mr::any_resource<cuda::mr::device_accessible>(same));
  static_assert(cuda::mr::synchronous_resource_with<bfc::rmm_resource, cuda::mr::device_accessible>);
  static_assert(!cuda::has_property<bfc::rmm_resource, cuda::mr::host_accessible>);
#endif
}

void sizes() {
  over_both([](ref resource, std::size_t) {
    for (const std::size_t bytes : {std::size_t{8}, 4 * kib, kib, 1025 * kib, 4 * mib, 100 * mib}) {
      for (cudaStream_t on : {cudaStream_t{nullptr}, cudaStreamLegacy, cudaStreamPerThread}) {
        void *const ptr = take(resource, bytes, on);
        CHECK(ptr != nullptr && number(ptr) % 256 == 0);
        CHECK(simcuda_fill(on, number(ptr), bytes / 8 * 8, 7) == 0);
        CHECK(simcuda_expect(on, number(ptr), bytes / 8 * 8, 7) == 0);
        give(resource, ptr, bytes, on);
      }
    }
  });
}

void zero() {
  over_both([](ref resource, std::size_t) {
    void *const ptr = take(resource, 0);
    give(resource, ptr, 0);
    give(resource, nullptr, 0);
  });
}

void alignments() {
  over_both([](ref resource, std::size_t largest) {
    for (std::size_t alignment = 1; alignment <= largest; alignment *= 2) {
      std::vector<void *> held;
      for (int times = 0; times < 10; ++times) held.push_back(take(resource, 1 + 300 * times, nullptr, alignment));
      for (int times = 0; times < 10; ++times) {
        CHECK(number(held[times]) % std::max<std::size_t>(alignment, 256) == 0);
        give(resource, held[times], 1 + 300 * times, nullptr, alignment);
      }
    }
  });
}

#if !BFC_RMM_HAS_BASE_CLASS
void strange_alignments() {
  const pool_of pool(0);
  bfc::rmm_resource resource;
  for (const std::size_t alignment : {3, 48, 257, 768, 3 << 20}) {
    CHECK(what_of([&] { (void)take(resource, 1000, nullptr, alignment); }) == thrown::bad_alloc);
  }
  CHECK(pool.stats().num_allocs == 0);
}
#endif

// As RMM's tests: up to 5 MiB, any number of bytes, of either end.
void random_allocations() {
  over_both([](ref resource, std::size_t) {
    std::mt19937 random(1);
    std::uniform_int_distribution<std::size_t> of_bytes(1, 2 * mib);
    std::vector<std::pair<void *, std::size_t>> held;
    for (int times = 0; times < 100; ++times) {
      const std::size_t bytes = of_bytes(random);
      held.emplace_back(take(resource, bytes), bytes);
      CHECK(held.back().first != nullptr);
    }
    for (const auto &[ptr, bytes] : held) give(resource, ptr, bytes);
  });
}

// And nothing overlaps: each has a pattern of its own until it is freed.
void mixed_random() {
  over_both([](ref resource, std::size_t) {
    std::mt19937_64 random(2);
    struct piece {
      void *ptr;
      std::size_t bytes;
      std::uint64_t pattern;
    };
    std::vector<piece> held;
    for (int times = 0; times < 2000; ++times) {
      if (held.empty() || (held.size() < 100 && random() % 100 < 53)) {
        const std::size_t bytes = (1 + random() % (mib / 8)) * 8;
        held.push_back({take(resource, bytes), bytes, random()});
        CHECK(simcuda_fill(nullptr, number(held.back().ptr), bytes, held.back().pattern) == 0);
      } else {
        std::swap(held[random() % held.size()], held.back());
        CHECK(simcuda_expect(nullptr, number(held.back().ptr), held.back().bytes, held.back().pattern) == 0);
        give(resource, held.back().ptr, held.back().bytes);
        held.pop_back();
      }
    }
    for (const piece &each : held) give(resource, each.ptr, each.bytes);
  });
}

// AllocateNinetyPercent, TwoLargeBuffers, and what does not fit.
void limits() {
  const pool_of pool(0, 64 * mib);
  bfc::rmm_resource resource;
  rmm::mr::callback_memory_resource callback(bfc::rmm_allocator{}, bfc::rmm_deallocator{});
  for (ref each : {ref(resource), ref(callback)}) {
    void *ptr = take(each, 58 * mib);
    CHECK(what_of([&] { (void)take(each, 32 * mib); }) == thrown::out_of_memory);
    give(each, ptr, 58 * mib);
    void *const first = take(each, 30 * mib), *const second = take(each, 30 * mib);
    CHECK(what_of([&] { (void)take(each, 8 * mib); }) == thrown::out_of_memory);
    give(each, first, 30 * mib);
    give(each, second, 30 * mib);
    for (const std::size_t bytes : {65 * mib, std::size_t{1} << 47, std::numeric_limits<std::size_t>::max() / 2}) {
      CHECK(what_of([&] { (void)take(each, bytes); }) == thrown::out_of_memory);
    }
    ptr = take(each, 60 * mib);
    give(each, ptr, 60 * mib);
  }
}

// The device is that of the construction, whichever is current later.
void two_devices() {
  const pool_of first(0), second(1);
  std::vector<bfc::rmm_resource> resources;
  for (const int device : {0, 1}) {
    CHECK(cudaSetDevice(device) == cudaSuccess);
    resources.emplace_back();
    CHECK(resources.back().get_device() == bfc::device(device));
  }
  for (const int now : {0, 1}) {
    CHECK(cudaSetDevice(now) == cudaSuccess);
    void *const on_first = take(resources[0], mib), *const on_second = take(resources[1], 2 * mib);
    CHECK(bfc::device::owner(on_first) == bfc::device(0) && bfc::device::owner(on_second) == bfc::device(1));
    CHECK(first.stats().bytes_in_use == mib && second.stats().bytes_in_use == 2 * mib);
    give(resources[0], on_first, mib);
    give(resources[1], on_second, 2 * mib);
  }
  CHECK(cudaSetDevice(0) == cudaSuccess);
}

// Without bfc_create: from the environment, and once for all.
void from_the_environment() {
  CHECK(setenv("BFC_MEMORY_LIMIT", "32MiB", 1) == 0);
  bfc::rmm_resource resource;
  bfc_stats_t stats = BFC_STATS_INIT;
  CHECK_OK(bfc_stats(0, &stats));
  CHECK(stats.bytes_limit == 32 * mib && stats.pool_bytes == 0);
  const bfc::rmm_resource again;
  CHECK(what_of([&] { (void)take(resource, 33 * mib); }) == thrown::out_of_memory);
  void *const ptr = take(resource, mib);
  give(resource, ptr, mib);
  CHECK_OK(bfc_destroy(0));
  // There is no seventh device.
  CHECK(what_of([] { bfc::rmm_resource(bfc::device(7)); }) == thrown::bad_alloc);
  CHECK(what_of([] { bfc::rmm_allocator(bfc::device(7)); }) == thrown::bad_alloc);
}

}  // namespace

std::vector<test> behaviours() {
  return {{"equality", equality},
          {"sizes", sizes},
          {"zero", zero},
          {"alignments", alignments},
#if !BFC_RMM_HAS_BASE_CLASS
          {"strange_alignments", strange_alignments},
#endif
          {"random_allocations", random_allocations},
          {"mixed_random", mixed_random},
          {"limits", limits},
          {"two_devices", two_devices},
          {"from_the_environment", from_the_environment}};
}

}  // namespace tests
