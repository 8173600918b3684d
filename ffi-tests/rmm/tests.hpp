// What the files of this program share: the cases, the two generations of RMM's interface, and the end of a case.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#ifndef BFC_TESTS_RMM_HPP
#define BFC_TESTS_RMM_HPP

#include <bfc/rmm.hpp>

#include "../c/check.h"
#include "../../crates/simcuda/simcuda.h"

#if __has_include(<rmm/mr/callback_memory_resource.hpp>)
#include <rmm/mr/callback_memory_resource.hpp>
#include <rmm/mr/per_device_resource.hpp>
#else
#include <rmm/mr/device/callback_memory_resource.hpp>
#include <rmm/mr/device/per_device_resource.hpp>
#endif
#include <rmm/resource_ref.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

namespace tests {

using ref = rmm::device_async_resource_ref;

struct test {
  const char *name;
  std::function<void()> run;
};
std::vector<test> behaviours();
std::vector<test> streams();
std::vector<test> failures();
std::vector<test> threads();
std::vector<test> containers();
std::vector<test> repeated();

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;

// Up to 25.10 a reference has other names for these.
#if __has_include(<rmm/mr/callback_memory_resource.hpp>)
#define TESTS_OLD_REFERENCES 0
#else
#define TESTS_OLD_REFERENCES 1
#endif

// All generations, as RMM's containers call them.
inline void *take(ref from, std::size_t bytes, cudaStream_t stream = nullptr, std::size_t alignment = 256) {
#if TESTS_OLD_REFERENCES
  return from.allocate_async(bytes, alignment, rmm::cuda_stream_view(stream));
#else
  return from.allocate(cuda::stream_ref(stream), bytes, alignment);
#endif
}
inline void give(ref to, void *ptr, std::size_t bytes, cudaStream_t stream = nullptr, std::size_t alignment = 256) {
#if TESTS_OLD_REFERENCES
  to.deallocate_async(ptr, bytes, alignment, rmm::cuda_stream_view(stream));
#else
  to.deallocate(cuda::stream_ref(stream), ptr, bytes, alignment);
#endif
}

// Programs that do not say `ref` in the newer RMM keep a copy; in the older one the resource must outlive its use.
template <class Resource>
void make_current(int device, Resource &resource) {
#if BFC_RMM_HAS_BASE_CLASS
  rmm::mr::set_per_device_resource(rmm::cuda_device_id(device), &resource);
#else
  rmm::mr::set_per_device_resource(rmm::cuda_device_id(device), resource);
#endif
}
inline ref current() {
#if BFC_RMM_HAS_BASE_CLASS
  return rmm::mr::get_current_device_resource();
#else
  return rmm::mr::get_current_device_resource_ref();
#endif
}

// The pool of a device with that limit, until the end of the case: then nothing is in use, and the driver has it all back.
class pool_of {
 public:
  explicit pool_of(int device, std::uint64_t limit = 256 * mib) : device_(device) {
    bfc_options_t options = BFC_OPTIONS_INIT;
    options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
    options.memory_limit = limit;
    CHECK_OK(bfc_create(device, &options));
  }
  pool_of(const pool_of &) = delete;
  pool_of &operator=(const pool_of &) = delete;
  ~pool_of() {
    CHECK(stats().bytes_in_use == 0);
    CHECK_OK(bfc_check(device_));
    CHECK_OK(bfc_destroy(device_));
    CHECK(simcuda_used(device_) == 0);
  }
  bfc_stats_t stats() const {
    bfc_stats_t now = BFC_STATS_INIT;
    CHECK_OK(bfc_stats(device_, &now));
    return now;
  }

 private:
  int device_;
};

// What is thrown, exactly: RMM's containers and retry loops tell these apart.
enum class thrown { nothing, out_of_memory, bad_alloc, other };
template <class Call>
thrown what_of(Call call) {
  try {
    call();
    return thrown::nothing;
  } catch (const rmm::out_of_memory &failed) {
    CHECK(std::strstr(failed.what(), "bfc_alloc_async: ") != nullptr);
    return thrown::out_of_memory;
  } catch (const rmm::bad_alloc &) { return thrown::bad_alloc; } catch (...) {
    return thrown::other;
  }
}

class stream {
 public:
  explicit stream(unsigned flags = cudaStreamNonBlocking) {
    CHECK(cudaStreamCreateWithFlags(&handle_, flags) == cudaSuccess);
  }
  stream(const stream &) = delete;
  stream &operator=(const stream &) = delete;
  // As docs/rmm.md says: libbfc hears of it before.
  ~stream() {
    bfc_forget_stream(0, handle_);
    CHECK(cudaStreamDestroy(handle_) == cudaSuccess);
  }
  operator cudaStream_t() const { return handle_; }

 private:
  cudaStream_t handle_ = nullptr;
};

inline std::uint64_t number(const void *ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

}  // namespace tests

#endif  // BFC_TESTS_RMM_HPP
