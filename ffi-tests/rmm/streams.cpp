// The order of streams: what is freed on one is at once that stream's, and another's when the work is done.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "tests.hpp"

#include <memory>
#include <utility>

namespace tests {
namespace {

// The whole pool is one request, so any request served while it is in use would get memory that belongs to it.
void reuse() {
  const pool_of pool(0, 64 * mib);
  bfc::rmm_resource resource;
  const stream first, second;
  // From here on the two are told apart.
  give(resource, take(resource, 256, second), 256, second);
  CHECK(simcuda_hold(first) == 0);
  void *const ptr = take(resource, 20 * mib, first);
  CHECK(simcuda_fill(first, number(ptr), 20 * mib, 1) == 0);
  give(resource, ptr, 20 * mib, first);
  CHECK(simcuda_pending(first) != 0);
  // At once on the same stream, with the work still pending.
  CHECK(take(resource, 20 * mib, first) == ptr);
  CHECK(simcuda_expect(first, number(ptr), 20 * mib, 1) == 0);
  give(resource, ptr, 20 * mib, first);
  // Elsewhere not before it is done.
  void *const other = take(resource, 20 * mib, second);
  CHECK(other != ptr);
  CHECK(simcuda_fill(second, number(other), 20 * mib, 2) == 0);
  CHECK(simcuda_pending(first) != 0);
  CHECK(simcuda_release(first) == 0);
  CHECK(cudaStreamSynchronize(first) == cudaSuccess);
  void *const after = take(resource, 20 * mib, second);
  CHECK(after == ptr);
  give(resource, after, 20 * mib, second);
  give(resource, other, 20 * mib, second);
}

// If nothing else fits the asking stream waits for the other, and not the program.
void waiting_for_another() {
  const pool_of pool(0, 64 * mib);
  bfc::rmm_resource resource;
  const stream first, second;
  give(resource, take(resource, 256, second), 256, second);
  CHECK(simcuda_hold(first) == 0);
  void *const ptr = take(resource, 60 * mib, first);
  CHECK(simcuda_fill(first, number(ptr), 60 * mib, 1) == 0);
  CHECK(simcuda_expect(first, number(ptr), 60 * mib, 1) == 0);
  give(resource, ptr, 60 * mib, first);
  void *const again = take(resource, 60 * mib, second);
  CHECK(again == ptr && simcuda_pending(first) != 0);
  CHECK(simcuda_fill(second, number(again), 60 * mib, 2) == 0);
  CHECK(simcuda_pending(second) != 0);
  CHECK(simcuda_release(first) == 0);
  CHECK(simcuda_expect(second, number(again), 60 * mib, 2) == 0);
  give(resource, again, 60 * mib, second);
}

// Allocated on one stream and freed on another, as RMM allows once the second waits for the first.
void freed_elsewhere() {
  const pool_of pool(0);
  bfc::rmm_resource resource;
  const stream first, second;
  CHECK(simcuda_hold(first) == 0);
  CHECK(simcuda_hold(second) == 0);
  void *const ptr = take(resource, mib, first);
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  CHECK(simcuda_fill(first, number(ptr), mib, 3) == 0);
  CHECK(cudaEventRecord(event, first) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(second, event, 0) == cudaSuccess);
  CHECK(simcuda_expect(second, number(ptr), mib, 3) == 0);
  give(resource, ptr, mib, second);
  void *const on_first = take(resource, mib, first), *const on_second = take(resource, mib, second);
  CHECK(on_first != ptr && on_second == ptr);
  CHECK(simcuda_fill(first, number(on_first), mib, 4) == 0);
  simcuda_release_all();
  give(resource, on_first, mib, first);
  give(resource, on_second, mib, second);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
}

// Random programs on held streams that advance at random. Whoever gets memory too early overwrites a pattern.
void random_programs(ref resource) {
  std::vector<std::unique_ptr<stream>> all;
  for (int count = 0; count < 4; ++count) all.push_back(std::make_unique<stream>());
  for (const auto &each : all) CHECK(simcuda_hold(*each) == 0);
  struct piece {
    void *ptr;
    std::size_t bytes;
    std::uint64_t pattern;
    cudaStream_t on;
  };
  std::mt19937_64 random(3);
  std::vector<piece> held;
  const auto free_one = [&] {
    std::swap(held[random() % held.size()], held.back());
    const piece &last = held.back();
    CHECK(simcuda_expect(last.on, number(last.ptr), last.bytes, last.pattern) == 0);
    give(resource, last.ptr, last.bytes, last.on);
    held.pop_back();
  };
  for (int times = 0; times < 3000; ++times) {
    const cudaStream_t on = *all[random() % all.size()];
    const auto chosen = random() % 100;
    if (chosen < 40 && held.size() < 40) {
      const std::size_t bytes = (1 + random() % 4096) * 64;
      held.push_back({take(resource, bytes, on), bytes, random(), on});
      CHECK(simcuda_fill(on, number(held.back().ptr), bytes, held.back().pattern) == 0);
    } else if (chosen < 75 && !held.empty()) {
      free_one();
    } else {
      simcuda_step(on, random() % 8);
    }
  }
  while (!held.empty()) free_one();
  simcuda_release_all();
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

void random_streams() {
  const pool_of pool(0, 32 * mib);
  bfc::rmm_resource resource;
  random_programs(resource);
}

void random_streams_callback() {
  const pool_of pool(0, 32 * mib);
  rmm::mr::callback_memory_resource callback(bfc::rmm_allocator{}, bfc::rmm_deallocator{});
  random_programs(callback);
}

#if !BFC_RMM_HAS_BASE_CLASS
// The functions without a stream: no work uses the memory that they return, so any stream may use it at once.
void synchronous() {
  const pool_of pool(0, 64 * mib), other(1, 64 * mib);
  bfc::rmm_resource resource;
  const stream one;
  give(resource, take(resource, 256, one), 256, one);
  CHECK(simcuda_hold(nullptr) == 0);
  void *const ptr = take(resource, 60 * mib);
  CHECK(simcuda_fill(nullptr, number(ptr), 60 * mib, 1) == 0);
  give(resource, ptr, 60 * mib);
  CHECK(simcuda_pending(nullptr) != 0);
  void *const again = resource.allocate_sync(60 * mib);
  CHECK(again == ptr && simcuda_pending(nullptr) == 0);
  CHECK(simcuda_fill(one, number(again), 60 * mib, 2) == 0);
  CHECK(simcuda_expect(one, number(again), 60 * mib, 2) == 0);
  CHECK(cudaStreamSynchronize(one) == cudaSuccess);
  resource.deallocate_sync(again, 60 * mib);
  CHECK(resource.allocate_sync(0) == nullptr);
  void *const aligned = resource.allocate_sync(1000, 4096);
  CHECK(number(aligned) % 4096 == 0);
  resource.deallocate_sync(aligned, 1000, 4096);
  // Of a device that is not the current one, which stays.
  bfc::rmm_resource second(bfc::device(1));
  void *const elsewhere = second.allocate_sync(mib);
  int now = -1;
  CHECK(bfc::device::owner(elsewhere) == bfc::device(1) && cudaGetDevice(&now) == cudaSuccess && now == 0);
  second.deallocate_sync(elsewhere, mib);
  // The wait fails: the memory is not lost, and neither is there an error for the program to find.
  CHECK(simcuda_fail("cuStreamSynchronize", 1, 999) == 0);
  CHECK(what_of([&] { (void)resource.allocate_sync(mib); }) == thrown::bad_alloc);
  CHECK(cudaPeekAtLastError() == cudaSuccess && pool.stats().bytes_in_use == 0);
}
#endif

// A stream of the program's ends with memory freed on it.
void stream_that_ends() {
  const pool_of pool(0);
  bfc::rmm_resource resource;
  void *ptr = nullptr;
  {
    const stream one, two;
    ptr = take(resource, mib, one);
    give(resource, ptr, mib, one);
    give(resource, take(resource, mib, two), mib, two);
  }
  const stream other;
  ptr = take(resource, 2 * mib, other);
  give(resource, ptr, 2 * mib, other);
}

}  // namespace

std::vector<test> streams() {
  return {{"reuse", reuse},
          {"waiting_for_another", waiting_for_another},
          {"freed_elsewhere", freed_elsewhere},
          {"random_streams", random_streams},
          {"random_streams_callback", random_streams_callback},
#if !BFC_RMM_HAS_BASE_CLASS
          {"synchronous", synchronous},
#endif
          {"stream_that_ends", stream_that_ends}};
}

}  // namespace tests
