// RMM's containers and adaptors over libbfc's resource.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "tests.hpp"

#include <rmm/device_buffer.hpp>
#include <rmm/device_scalar.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/device_vector.hpp>

#if __has_include(<rmm/mr/statistics_resource_adaptor.hpp>)
#include <rmm/mr/aligned_resource_adaptor.hpp>
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/limiting_resource_adaptor.hpp>
#include <rmm/mr/logging_resource_adaptor.hpp>
#include <rmm/mr/polymorphic_allocator.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/mr/thread_safe_resource_adaptor.hpp>
#include <rmm/mr/tracking_resource_adaptor.hpp>
#else
#include <rmm/mr/device/aligned_resource_adaptor.hpp>
#include <rmm/mr/device/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/device/limiting_resource_adaptor.hpp>
#include <rmm/mr/device/logging_resource_adaptor.hpp>
#include <rmm/mr/device/polymorphic_allocator.hpp>
#include <rmm/mr/device/statistics_resource_adaptor.hpp>
#include <rmm/mr/device/thread_safe_resource_adaptor.hpp>
#include <rmm/mr/device/tracking_resource_adaptor.hpp>
#endif

#include <numeric>
#include <sstream>
#include <utility>

namespace tests {
namespace {

#if BFC_RMM_HAS_BASE_CLASS
const rmm::cuda_stream_view on_default{cudaStream_t{nullptr}};
#define ADAPTOR(name) rmm::mr::name<rmm::mr::device_memory_resource>
#define UPSTREAM(resource) &(resource)
#else
const cuda::stream_ref on_default{cudaStream_t{nullptr}};
#define ADAPTOR(name) rmm::mr::name
#define UPSTREAM(resource) resource
#endif

void buffers() {
  const pool_of pool(0);
  bfc::rmm_resource resource;
  std::vector<unsigned char> host(100'000);
  std::iota(host.begin(), host.end(), 0);
  {
    rmm::device_buffer one(host.data(), host.size(), on_default, resource);
    CHECK(pool.stats().bytes_requested == host.size() && bfc::device::owner(one.data()) == bfc::device(0));
    rmm::device_buffer two(one, on_default, resource), moved(std::move(one));
    CHECK(one.data() == nullptr && one.size() == 0);
    moved.resize(3 * host.size(), on_default);
    moved.resize(50'000, on_default);
    moved.shrink_to_fit(on_default);
    CHECK(pool.stats().bytes_requested == host.size() + 50'000);
    for (const rmm::device_buffer *each : {&two, &moved}) {
      std::vector<unsigned char> back(each->size());
      CHECK(cudaMemcpyAsync(back.data(), each->data(), back.size(), cudaMemcpyDefault, nullptr) == cudaSuccess);
      CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
      CHECK(std::equal(back.begin(), back.end(), host.begin()));
    }
    two = std::move(moved);
    CHECK(pool.stats().bytes_requested == 50'000);
    const rmm::device_buffer empty(0, on_default, resource);
    CHECK(empty.data() == nullptr);
#if !BFC_RMM_HAS_BASE_CLASS
    const rmm::device_buffer aligned(1000, 4096, on_default, resource);
    CHECK(number(aligned.data()) % 4096 == 0);
#endif
    // What fails leaves the buffer as it was.
    void *const before = two.data();
    CHECK(what_of([&] { two.resize(1000 * mib, on_default); }) == thrown::out_of_memory);
    CHECK(two.data() == before && two.size() == 50'000);
  }
  CHECK(pool.stats().bytes_in_use == 0 && pool.stats().num_allocs == pool.stats().num_frees);
}

void vectors() {
  const pool_of pool(0);
  bfc::rmm_resource resource;
  make_current(0, resource);
  const int element = 42;
  const double half = 0.5;
  {
    rmm::device_uvector<int> numbers(1000, on_default, resource);
    numbers.set_element_async(999, element, on_default);
    CHECK(numbers.element(999, on_default) == 42 && numbers.back_element(on_default) == 42);
    numbers.resize(100'000, on_default);
    CHECK(numbers.element(999, on_default) == 42);
    const rmm::device_uvector<int> copy(numbers, on_default);
    CHECK(copy.element(999, on_default) == 42 && pool.stats().bytes_requested == 2 * 400'000);
    const rmm::device_scalar<double> scalar(half, on_default, resource);
    CHECK(scalar.value(on_default) == half);
    rmm::mr::polymorphic_allocator<int> allocator(resource);
    int *const ptr = allocator.allocate(1000, on_default);
    CHECK(bfc::device::owner(ptr) == bfc::device(0));
    allocator.deallocate(ptr, 1000, on_default);
    // Its elements are written by thrust, which is told here to do that on the CPU: there is no kernel.
    rmm::device_vector<int> by_thrust(5000, 7);
    by_thrust.push_back(8);
    CHECK(by_thrust[4999] == 7 && by_thrust[5000] == 8);
    CHECK(bfc::device::owner(thrust::raw_pointer_cast(by_thrust.data())) == bfc::device(0));
  }
  CHECK(pool.stats().bytes_in_use == 0 && pool.stats().num_allocs > 5);
}

void current_resource() {
  const pool_of first(0), second(1);
  bfc::rmm_resource resources[] = {bfc::rmm_resource(bfc::device(0)), bfc::rmm_resource(bfc::device(1))};
  for (const int device : {0, 1}) make_current(device, resources[device]);
  for (const int device : {0, 1}) {
    CHECK(cudaSetDevice(device) == cudaSuccess);
    const rmm::device_buffer buffer(mib, on_default);
    CHECK(bfc::device::owner(buffer.data()) == bfc::device(device));
#if !BFC_RMM_HAS_BASE_CLASS
    CHECK(ref(resources[device]) == current());
#endif
  }
  // It goes back to its own device, whichever is current.
  CHECK(cudaSetDevice(1) == cudaSuccess);
  auto *const buffer = new rmm::device_buffer(mib, on_default);
  CHECK(cudaSetDevice(0) == cudaSuccess);
  delete buffer;
}

void statistics_and_limits() {
  const pool_of pool(0);
  bfc::rmm_resource resource;
  ADAPTOR(statistics_resource_adaptor) statistics(UPSTREAM(resource));
  ADAPTOR(limiting_resource_adaptor) limited(UPSTREAM(statistics), 10 * mib);
  ADAPTOR(thread_safe_resource_adaptor) outermost(UPSTREAM(limited));
  void *const ptr = take(outermost, 5 * mib);
  CHECK(statistics.get_bytes_counter().value == 5 * mib && limited.get_allocated_bytes() == 5 * mib);
  // The limit is the adaptor's, and libbfc is not asked.
  try {
    (void)take(outermost, 6 * mib);
    CHECK(!"refused");
  } catch (const rmm::out_of_memory &) {}
  CHECK(pool.stats().num_failures == 0);
  give(outermost, ptr, 5 * mib);
  CHECK(statistics.get_bytes_counter().value == 0 && statistics.get_bytes_counter().peak == 5 * mib);
  CHECK(statistics.get_allocations_counter().total == 1);
}

void logging_and_tracking() {
  const pool_of pool(0, 64 * mib);
  bfc::rmm_resource resource;
  std::ostringstream text;
  {
    ADAPTOR(logging_resource_adaptor) logging(UPSTREAM(resource), text, true);
    ADAPTOR(tracking_resource_adaptor) tracking(UPSTREAM(logging));
    // The older RMM rounds up to the alignment.
    void *const ptr = take(tracking, 1280);
    CHECK(tracking.get_outstanding_allocations().size() == 1 && tracking.get_allocated_bytes() == 1280);
    CHECK(what_of([&] { (void)take(tracking, 100 * mib); }) == thrown::out_of_memory);
    give(tracking, ptr, 1280);
    CHECK(tracking.get_outstanding_allocations().empty());
  }
  const std::string log = text.str();
  for (const char *word : {"allocate,", ",1280,", "allocate failure,", "free,"})
    CHECK(log.find(word) != std::string::npos);
}

void alignment_and_failures() {
  const pool_of pool(0, 64 * mib);
  bfc::rmm_resource resource;
  ADAPTOR(aligned_resource_adaptor) aligned(UPSTREAM(resource), 4096);
  void *ptr = take(aligned, 5000);
  CHECK(number(ptr) % 4096 == 0);
  give(aligned, ptr, 5000);
  // A program that frees something when it hears of out_of_memory, and is asked again: cuDF spills this way.
  void *spilled = take(resource, 60 * mib);
  std::pair<ref, void **> what(resource, &spilled);
  const auto spill = [](std::size_t, void *argument) {
    auto &[from, piece] = *static_cast<std::pair<ref, void **> *>(argument);
    if (*piece == nullptr) return false;
    give(from, std::exchange(*piece, nullptr), 60 * mib);
    return true;
  };
#if BFC_RMM_HAS_BASE_CLASS
  rmm::mr::failure_callback_resource_adaptor<rmm::mr::device_memory_resource, rmm::out_of_memory> retrying(
      &resource, spill, &what);
#else
  rmm::mr::failure_callback_resource_adaptor<rmm::out_of_memory> retrying(resource, spill, &what);
#endif
  ptr = take(retrying, 40 * mib);
  CHECK(ptr != nullptr && spilled == nullptr);
  CHECK(what_of([&] { (void)take(retrying, 40 * mib); }) == thrown::out_of_memory);
  give(retrying, ptr, 40 * mib);
}

}  // namespace

std::vector<test> containers() {
  return {{"buffers", buffers},
          {"vectors", vectors},
          {"current_resource", current_resource},
          {"statistics_and_limits", statistics_and_limits},
          {"logging_and_tracking", logging_and_tracking},
          {"alignment_and_failures", alignment_and_failures}};
}

}  // namespace tests
