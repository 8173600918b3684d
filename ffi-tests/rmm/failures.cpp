// Memory that runs out and a driver that fails: RMM's own exceptions, and nothing lost.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "tests.hpp"

#include <utility>

namespace tests {
namespace {

constexpr int out_of_memory = 2, unknown = 999;

void trim() {
  std::uint64_t released = 0;
  CHECK_OK(bfc_trim(0, 0, &released));
}

void driver_fails() {
  const pool_of pool(0);
  bfc::rmm_resource resource;
  rmm::mr::callback_memory_resource callback(bfc::rmm_allocator{}, bfc::rmm_deallocator{});
  for (ref each : {ref(resource), ref(callback)}) {
    for (const auto &[code, expected] :
         {std::pair{out_of_memory, thrown::out_of_memory}, {unknown, thrown::bad_alloc}}) {
      // libbfc asks for less, and less again.
      for (int nth = 1; nth <= 200; ++nth) CHECK(simcuda_fail("cuMemAlloc", nth, code) == 0);
      CHECK(what_of([&] { (void)take(each, 100 * mib); }) == expected);
      CHECK(simcuda_struck() != 0);
      simcuda_clear_faults();
      void *const ptr = take(each, 3 * mib);
      give(each, ptr, 3 * mib);
      trim();
    }
  }
}

// An allocator with timestamps serves no stream; and one that is gone none at all.
void other_failures() {
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.flags = BFC_ALLOW_GROWTH | BFC_TIMESTAMPS;
  CHECK_OK(bfc_create(0, &options));
  bfc::rmm_resource resource;
  CHECK(what_of([&] { (void)take(resource, 1000); }) == thrown::bad_alloc);
  CHECK_OK(bfc_destroy(0));
  CHECK(what_of([&] { (void)take(resource, 1000); }) == thrown::bad_alloc);
  // Nobody hears of it, and nothing happens.
  give(resource, reinterpret_cast<void *>(std::uintptr_t{0x1000}), 1000);
}

// A thousand requests of random sizes and alignments from a small pool whose driver fails now and then.
void thousand(ref resource, bool aligned, const pool_of &pool) {
  std::mt19937_64 random(4);
  struct piece {
    void *ptr;
    std::size_t bytes, alignment;
  };
  std::vector<piece> held;
  int served = 0, refused = 0, broken = 0;
  const auto free_one = [&] {
    std::swap(held[random() % held.size()], held.back());
    give(resource, held.back().ptr, held.back().bytes, nullptr, held.back().alignment);
    held.pop_back();
  };
  for (int times = 0; times < 1000; ++times) {
    // One failure is nothing: libbfc asks for less.
    const int failing = random() % 4 == 0 ? 40 : static_cast<int>(random() % 2);
    const int code = random() % 2 == 0 ? out_of_memory : unknown;
    for (int nth = 1; nth <= failing; ++nth) CHECK(simcuda_fail("cuMemAlloc", nth, code) == 0);
    const std::size_t bytes = random() % (std::size_t{1} << (1 + random() % 24));
    const std::size_t alignment = aligned ? std::size_t{1} << random() % 17 : 256;
    void *ptr = nullptr;
    switch (what_of([&] { ptr = take(resource, bytes, nullptr, alignment); })) {
      case thrown::nothing:
        CHECK((ptr == nullptr) == (bytes == 0) && number(ptr) % alignment == 0);
        held.push_back({ptr, bytes, alignment});
        ++served;
        break;
      case thrown::out_of_memory:
        CHECK(ptr == nullptr);
        ++refused;
        break;
      case thrown::bad_alloc:
        CHECK(ptr == nullptr);
        ++broken;
        break;
      case thrown::other: CHECK(!"an exception of RMM's");
    }
    simcuda_clear_faults();
    while (held.size() > 40 || (!held.empty() && random() % 3 == 0)) free_one();
    if (random() % 8 == 0) trim();
    CHECK_OK(bfc_check(0));
  }
  while (!held.empty()) free_one();
  std::printf("%d served, %d out of memory, %d other failures\n", served, refused, broken);
  CHECK(served > 500 && refused > 20 && broken > 3);
  CHECK(pool.stats().bytes_in_use == 0);
  trim();
  CHECK(simcuda_used(0) == 0);
}

void random_failures() {
  const pool_of pool(0, 24 * mib);
  bfc::rmm_resource resource;
  thousand(resource, !BFC_RMM_HAS_BASE_CLASS, pool);
}

void random_failures_callback() {
  const pool_of pool(0, 24 * mib);
  rmm::mr::callback_memory_resource callback(bfc::rmm_allocator{}, bfc::rmm_deallocator{});
  thousand(callback, false, pool);
}

}  // namespace

std::vector<test> failures() {
  return {{"driver_fails", driver_fails},
          {"other_failures", other_failures},
          {"random_failures", random_failures},
          {"random_failures_callback", random_failures_callback}};
}

}  // namespace tests
