// bfc::tensorrt_allocator, called through nvinfer1::IGpuAllocator as TensorRT calls it, on the simulated driver. The
// interface is NVIDIA's own header; TensorRT itself is not here. `allocator` lists the cases, `allocator NAME` runs one, and
// `allocator NAME leak` keeps what it should free.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc/tensorrt.hpp>

#include "../c/check.h"
#include "../../crates/simcuda/simcuda.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using interface = nvinfer1::IGpuAllocator;

constexpr std::uint64_t mib = 1 << 20;
constexpr nvinfer1::AllocatorFlags resizable = 1u << static_cast<int>(nvinfer1::AllocatorFlag::kRESIZABLE);

static_assert(std::is_base_of_v<nvinfer1::IGpuAsyncAllocator, bfc::tensorrt_allocator>);
static_assert(!std::is_abstract_v<bfc::tensorrt_allocator>);

std::uint64_t number(const void *ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

bfc_stats_t stats(int device = 0) {
  bfc_stats_t now = BFC_STATS_INIT;
  CHECK_OK(bfc_stats(device, &now));
  return now;
}

void create(int device, std::uint64_t limit) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
  options.memory_limit = limit;
  CHECK_OK(bfc_create(device, &options));
}

cudaStream_t new_stream() {
  cudaStream_t made = nullptr;
  CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking) == cudaSuccess);
  return made;
}

void end(cudaStream_t stream) {
  CHECK_OK(bfc_forget_stream(0, stream));
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
}

// What TensorRT asks before it calls: the name and version of the interface.
void interface_info() {
  bfc::tensorrt_allocator ours(bfc::device(0));
  const interface &allocator = ours;
  CHECK(std::string_view(allocator.getInterfaceInfo().kind) == "IGpuAllocator");
  CHECK(allocator.getInterfaceInfo().major == 1 && allocator.getInterfaceInfo().minor == 0);
  CHECK(ours.get_device() == bfc::device(0));
}

// Alignment 0 and each power of two; 0 bytes; what is no alignment.
void sizes_and_alignments() {
  create(0, 256 * mib);
  bfc::tensorrt_allocator ours(bfc::device(0));
  interface &allocator = ours;
  for (std::uint64_t alignment = 0; alignment <= 1 << 16; alignment = alignment == 0 ? 1 : 2 * alignment) {
    for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{1000}, 3 * mib}) {
      for (const nvinfer1::AllocatorFlags flags : {nvinfer1::AllocatorFlags{0}, resizable}) {
        void *const ptr = allocator.allocateAsync(size, alignment, flags, nullptr);
        CHECK(ptr != nullptr && number(ptr) % 256 == 0 && (alignment == 0 || number(ptr) % alignment == 0));
        CHECK(allocator.deallocateAsync(ptr, nullptr));
      }
    }
    CHECK(allocator.allocateAsync(0, alignment, 0, nullptr) == nullptr);
  }
  CHECK(allocator.allocateAsync(1000, 3, 0, nullptr) == nullptr);
  CHECK(allocator.deallocateAsync(nullptr, nullptr));
  // What is not live is refused, twice freed too.
  void *const ptr = allocator.allocateAsync(1000, 256, 0, nullptr);
  CHECK(!allocator.deallocateAsync(static_cast<char *>(ptr) + 1, nullptr));
  CHECK(allocator.deallocateAsync(ptr, nullptr) && !allocator.deallocateAsync(ptr, nullptr));
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
// The functions of before TensorRT 10, which name no stream.
void deprecated() {
  create(0, 64 * mib);
  bfc::tensorrt_allocator ours(bfc::device(0));
  interface &allocator = ours;
  void *const ptr = allocator.allocate(mib, 256, 0);
  CHECK(ptr != nullptr && bfc::device::owner(ptr) == bfc::device(0));
  CHECK(allocator.allocate(65 * mib, 256, 0) == nullptr && allocator.allocate(0, 0, 0) == nullptr);
  CHECK(allocator.deallocate(ptr) && allocator.deallocate(nullptr) && !allocator.deallocate(ptr));
  // Either kind frees what the other gave.
  CHECK(allocator.deallocate(allocator.allocateAsync(mib, 0, 0, nullptr)));
  CHECK(allocator.deallocateAsync(allocator.allocate(mib, 0, 0), nullptr));
}
#pragma GCC diagnostic pop

// In place as far as the chunk goes, and else null with all as it was.
void reallocation() {
  create(0, 64 * mib);
  bfc::tensorrt_allocator ours(bfc::device(0));
  interface &allocator = ours;
  void *const ptr = allocator.allocateAsync(1000, 256, resizable, nullptr);
  CHECK(allocator.reallocate(ptr, 256, 1024) == ptr && allocator.reallocate(ptr, 256, 10) == ptr);
  CHECK(allocator.reallocate(ptr, 256, 1025) == nullptr);
  CHECK(allocator.reallocate(ptr, 256, std::numeric_limits<std::uint64_t>::max()) == nullptr);
  CHECK(allocator.reallocate(nullptr, 256, 10) == nullptr);
  CHECK(allocator.reallocate(static_cast<char *>(ptr) + 256, 256, 10) == nullptr);
  std::size_t room = 0;
  CHECK_OK(bfc_allocated_size(0, ptr, &room));
  CHECK(room == 1024 && stats().bytes_in_use == 1024);
  CHECK(allocator.deallocateAsync(ptr, nullptr));
  CHECK(allocator.reallocate(ptr, 256, 10) == nullptr);
}

// The device that was named, whichever is current; made at the first request, and not before.
void devices() {
  CHECK(setenv("BFC_MEMORY_LIMIT", "32MiB", 1) == 0);
  bfc::tensorrt_allocator on_first(bfc::device(0)), on_second(bfc::device(1)), nowhere(bfc::device(7));
  bfc_stats_t none = BFC_STATS_INIT;
  CHECK_STATUS(bfc_stats(1, &none), BFC_ERROR_NO_ALLOCATOR);
  void *const first = on_first.allocateAsync(mib, 0, 0, nullptr), *const second =
                                                                      on_second.allocateAsync(mib, 0, 0, nullptr);
  CHECK(bfc::device::owner(first) == bfc::device(0) && bfc::device::owner(second) == bfc::device(1));
  CHECK(stats(1).bytes_limit == 32 * mib);
  CHECK(!on_first.deallocateAsync(second, nullptr));
  CHECK(on_first.deallocateAsync(first, nullptr) && on_second.deallocateAsync(second, nullptr));
  CHECK(nowhere.allocateAsync(mib, 0, 0, nullptr) == nullptr && !nowhere.deallocateAsync(first, nullptr));
  CHECK_OK(bfc_destroy(1));
}

// What two execution contexts do that share memory: freed in the order of a stream, while its work is queued.
void streams() {
  create(0, 64 * mib);
  bfc::tensorrt_allocator ours(bfc::device(0));
  interface &allocator = ours;
  const cudaStream_t first = new_stream(), second = new_stream();
  CHECK(allocator.deallocateAsync(allocator.allocateAsync(256, 0, 0, second), second));
  CHECK(simcuda_hold(first) == 0);
  void *const ptr = allocator.allocateAsync(20 * mib, 0, 0, first);
  CHECK(simcuda_fill(first, number(ptr), 20 * mib, 1) == 0);
  CHECK(simcuda_expect(first, number(ptr), 20 * mib, 1) == 0);
  CHECK(allocator.deallocateAsync(ptr, first));
  void *const other = allocator.allocateAsync(20 * mib, 0, 0, second), *const same = allocator.allocateAsync(
                                                                           20 * mib, 0, 0, first);
  CHECK(same == ptr && other != ptr && simcuda_pending(first) != 0);
  CHECK(simcuda_fill(second, number(other), 20 * mib, 2) == 0);
  CHECK(allocator.deallocateAsync(same, first));
  CHECK(simcuda_release(first) == 0);
  void *const after = allocator.allocateAsync(20 * mib, 0, 0, second);
  CHECK(after == ptr);
  CHECK(allocator.deallocateAsync(after, second) && allocator.deallocateAsync(other, second));
  end(first);
  end(second);
}

// TensorRT's library is not compiled for the per-thread default stream, whatever this program is: its 0 is the legacy one.
void stream_zero() {
  create(0, 64 * mib);
  bfc::tensorrt_allocator ours(bfc::device(0));
  interface &allocator = ours;
  allocator.deallocateAsync(allocator.allocateAsync(256, 0, 0, cudaStreamPerThread), cudaStreamPerThread);
  CHECK(simcuda_hold(cudaStreamLegacy) == 0);
  for (const std::uint64_t alignment : {0, 4096}) {
    void *const ptr = allocator.allocateAsync(20 * mib, alignment, 0, nullptr);
    CHECK(simcuda_fill(cudaStreamLegacy, number(ptr), 20 * mib, 1) == 0);
    CHECK(allocator.deallocateAsync(ptr, nullptr));
    // With the work pending: only the stream that it was freed on may have it.
    void *const other = allocator.allocateAsync(20 * mib, alignment, 0, cudaStreamPerThread);
    void *const same = allocator.allocateAsync(20 * mib, alignment, 0, cudaStreamLegacy);
    CHECK(same == ptr && other != ptr);
    CHECK(allocator.deallocateAsync(same, cudaStreamLegacy) && allocator.deallocateAsync(other, cudaStreamPerThread));
  }
  simcuda_release_all();
}

// A thousand requests of random sizes on two streams, from a small pool whose driver fails now and then.
void random_failures() {
  create(0, 24 * mib);
  bfc::tensorrt_allocator ours(bfc::device(0));
  interface &allocator = ours;
  const cudaStream_t on[] = {new_stream(), new_stream()};
  std::mt19937_64 random(6);
  std::vector<std::pair<void *, cudaStream_t>> held;
  int served = 0, refused = 0;
  const auto free_one = [&] {
    std::swap(held[random() % held.size()], held.back());
    CHECK(allocator.deallocateAsync(held.back().first, held.back().second));
    held.pop_back();
  };
  for (int times = 0; times < 1000; ++times) {
    const int failing = random() % 4 == 0 ? 40 : 0;
    for (int nth = 1; nth <= failing; ++nth) CHECK(simcuda_fail("cuMemAlloc", nth, random() % 2 == 0 ? 2 : 999) == 0);
    const std::uint64_t size = random() % (std::uint64_t{1} << (1 + random() % 24));
    const std::uint64_t alignment = random() % 2 == 0 ? 0 : std::uint64_t{1} << random() % 10;
    const cudaStream_t stream = on[random() % 2];
    void *const ptr = allocator.allocateAsync(size, alignment, random() % 2, stream);
    if (ptr != nullptr) {
      CHECK(size != 0 && (alignment == 0 || number(ptr) % alignment == 0));
      held.emplace_back(ptr, stream);
      ++served;
      CHECK(allocator.reallocate(ptr, alignment, size) == ptr);
    } else {
      refused += size != 0;
    }
    simcuda_clear_faults();
    while (held.size() > 40 || (!held.empty() && random() % 3 == 0)) free_one();
    std::uint64_t released = 0;
    if (random() % 8 == 0) CHECK_OK(bfc_trim(0, 0, &released));
    CHECK_OK(bfc_check(0));
  }
  while (!held.empty()) free_one();
  std::printf("%d served, %d refused\n", served, refused);
  CHECK(served > 500 && refused > 20);
  for (const cudaStream_t each : on) end(each);
}

// Threads that come at once create one allocator. The second finds one that did not exist a moment ago.
void at_once() {
  bfc::tensorrt_allocator ours(bfc::device(0));
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> ready{0};
    const auto first_request = [&] {
      ++ready;
      while (ready < 2) {}
      void *const ptr = ours.allocateAsync(256, 0, 0, nullptr);
      CHECK(ptr != nullptr && ours.deallocateAsync(ptr, nullptr));
    };
    std::thread other(first_request);
    first_request();
    other.join();
    CHECK_OK(bfc_destroy(0));
  }
}

// Several threads, each on its own default stream.
void threads() {
  bfc::tensorrt_allocator ours(bfc::device(0));
  std::vector<std::thread> all;
  for (unsigned seed = 0; seed < 4; ++seed) {
    all.emplace_back([&ours, seed] {
      CHECK(cudaSetDevice(0) == cudaSuccess);
      std::mt19937 random(seed);
      std::vector<void *> held;
      for (int times = 0; times < 1000; ++times) {
        held.push_back(ours.allocateAsync(1 + random() % mib, 256, resizable, cudaStreamPerThread));
        CHECK(held.back() != nullptr);
        CHECK(ours.reallocate(held.back(), 256, 1) == held.back());
        if (held.size() > 20) {
          std::swap(held[random() % held.size()], held.back());
          CHECK(ours.deallocateAsync(held.back(), cudaStreamPerThread));
          held.pop_back();
        }
      }
      for (void *each : held) CHECK(ours.deallocateAsync(each, cudaStreamPerThread));
    });
  }
  for (std::thread &each : all) each.join();
}

const std::pair<const char *, void (*)()> cases[] = {{"interface_info", interface_info},
                                                     {"sizes_and_alignments", sizes_and_alignments},
                                                     {"deprecated", deprecated},
                                                     {"reallocation", reallocation},
                                                     {"devices", devices},
                                                     {"streams", streams},
                                                     {"stream_zero", stream_zero},
                                                     {"random_failures", random_failures},
                                                     {"at_once", at_once},
                                                     {"threads", threads}};

}  // namespace

int main(int argc, char **argv) {
  alarm(HANG_SECONDS);
  for (const auto &[name, run] : cases) {
    if (argc < 2) {
      std::puts(name);
      continue;
    }
    if (std::strcmp(name, argv[1]) != 0) continue;
    CHECK(simcuda_configure(2, 512 * mib) == 0);
    CHECK(cudaSetDevice(0) == cudaSuccess);
    run();
    if (argc > 2) CHECK(bfc::tensorrt_allocator(bfc::device(0)).allocateAsync(1000, 0, 0, nullptr) != nullptr);
    // Nothing is in use, and the driver has it all back.
    const bfc_status_t ended = bfc_destroy(0);
    CHECK(ended == BFC_OK || ended == BFC_ERROR_NO_ALLOCATOR);
    CHECK(simcuda_live(SIMCUDA_ALLOCATIONS) == 0 && simcuda_misuses() == 0 && simcuda_mismatches() == 0);
    return 0;
  }
  return argc > 1 ? 2 : 0;
}
