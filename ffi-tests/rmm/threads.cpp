// Several threads: as RMM's multithreaded tests.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "tests.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace tests {
namespace {

constexpr int thread_count = 4;

template <class Work>
void in_threads(Work work) {
  std::vector<std::thread> all;
  for (int number = 0; number < thread_count; ++number) {
    all.emplace_back([&work, number] {
      CHECK(cudaSetDevice(0) == cudaSuccess);
      work(number);
    });
  }
  for (std::thread &each : all) each.join();
}

void mixed(ref resource, int seed, cudaStream_t on) {
  std::mt19937_64 random(seed);
  std::vector<std::pair<void *, std::size_t>> held;
  for (int times = 0; times < 1000; ++times) {
    if (held.size() < 50 && random() % 2 == 0) {
      const std::size_t bytes = (1 + random() % 2048) * 64;
      held.emplace_back(take(resource, bytes, on), bytes);
      CHECK(simcuda_fill(on, number(held.back().first), bytes, number(held.back().first)) == 0);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const auto [ptr, bytes] = held.back();
      CHECK(simcuda_expect(on, number(ptr), bytes, number(ptr)) == 0);
      give(resource, ptr, bytes, on);
      held.pop_back();
    }
  }
  for (const auto &[ptr, bytes] : held) give(resource, ptr, bytes, on);
}

void on_one_stream() {
  const pool_of pool(0);
  bfc::rmm_resource resource;
  in_threads([&](int seed) { mixed(resource, seed, nullptr); });
}

void on_streams_of_their_own() {
  const pool_of pool(0);
  bfc::rmm_resource resource;
  in_threads([&](int seed) {
    const stream own;
    mixed(resource, seed, own);
  });
}

void on_default_streams_of_threads() {
  const pool_of pool(0);
  rmm::mr::callback_memory_resource callback(bfc::rmm_allocator{}, bfc::rmm_deallocator{});
  in_threads([&](int seed) { mixed(callback, seed, cudaStreamPerThread); });
}

// AllocFreeDifferentThreads: one allocates, another frees, in the order of one stream.
void freed_by_another_thread() {
  const pool_of pool(0);
  bfc::rmm_resource resource;
  const stream on;
  std::mutex lock;
  std::condition_variable changed;
  std::deque<std::pair<void *, std::size_t>> handed;
  constexpr int count = 2000;
  std::thread frees([&] {
    for (int times = 0; times < count; ++times) {
      std::unique_lock<std::mutex> held(lock);
      changed.wait(held, [&] { return !handed.empty(); });
      const auto [ptr, bytes] = handed.front();
      handed.pop_front();
      held.unlock();
      CHECK(simcuda_expect(on, number(ptr), 64, number(ptr)) == 0);
      give(resource, ptr, bytes, on);
    }
  });
  for (int times = 0; times < count; ++times) {
    const std::size_t bytes = 64 + 64 * (times % 999);
    void *const ptr = take(resource, bytes, on);
    CHECK(simcuda_fill(on, number(ptr), 64, number(ptr)) == 0);
    const std::lock_guard<std::mutex> held(lock);
    handed.emplace_back(ptr, bytes);
    changed.notify_one();
  }
  frees.join();
}

// All construct one at once where there is none: one allocator is made.
void at_once() {
  in_threads([](int) {
    bfc::rmm_resource resource;
    give(resource, take(resource, mib), mib);
  });
  CHECK_OK(bfc_destroy(0));
}

// Each has a device, and that device's resource is the current one of RMM.
void a_device_each() {
  const pool_of first(0), second(1);
  bfc::rmm_resource resources[] = {bfc::rmm_resource(bfc::device(0)), bfc::rmm_resource(bfc::device(1))};
  for (const int device : {0, 1}) make_current(device, resources[device]);
  in_threads([](int number) {
    CHECK(cudaSetDevice(number % 2) == cudaSuccess);
    void *const ptr = take(current(), mib);
    CHECK(bfc::device::owner(ptr) == bfc::device(number % 2));
    give(current(), ptr, mib);
  });
}

}  // namespace

std::vector<test> threads() {
  return {{"on_one_stream", on_one_stream},
          {"on_streams_of_their_own", on_streams_of_their_own},
          {"on_default_streams_of_threads", on_default_streams_of_threads},
          {"freed_by_another_thread", freed_by_another_thread},
          {"at_once", at_once},
          {"a_device_each", a_device_each}};
}

}  // namespace tests
