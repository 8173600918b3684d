/* libbfc for RMM, and thus for cuDF, cuML and everything else built on it: a memory resource, and the pair of functions
 * for rmm::mr::callback_memory_resource. docs/rmm.md is the page for users.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 *     rmm::mr::set_current_device_resource(bfc::rmm_resource());   // RMM 26.6 and newer: a copy is kept
 *
 *     bfc::rmm_resource resource;                                  // older: it must outlive its use
 *     rmm::mr::set_current_device_resource(&resource);
 *
 * Needs RMM's headers and its library, as RMM itself does, and the C++ standard that they require: C++20 since RMM
 * 26.10. bfc.hpp does not include this.
 */

#ifndef BFC_RMM_HPP
#define BFC_RMM_HPP

#include "../bfc.hpp"
#include "../bfc_adapters.h"

#if !BFC_HAS_EXCEPTIONS
#error "bfc/rmm.hpp needs exceptions: RMM tells by them that there is no memory"
#endif

#include <cuda_runtime_api.h>
#include <rmm/cuda_device.hpp>
#include <rmm/error.hpp>

#if __has_include(<rmm/mr/device_memory_resource.hpp>)
#include <rmm/mr/device_memory_resource.hpp>
#define BFC_RMM_HAS_BASE_CLASS 1 /* 25.12 to 26.4 */
#elif __has_include(<rmm/mr/device/device_memory_resource.hpp>)
#include <rmm/mr/device/device_memory_resource.hpp>
#define BFC_RMM_HAS_BASE_CLASS 1
#else
#include <cuda/memory_resource>
#define BFC_RMM_HAS_BASE_CLASS 0 /* a concept has replaced it */
#endif

#if __has_include(<cuda/stream>)
#include <cuda/stream>
#elif __has_include(<cuda/stream_ref>)
#include <cuda/stream_ref>
#endif

#include <cstddef>
#include <string>

namespace bfc {

namespace detail {

/* The alignment that every RMM resource guarantees. Callbacks are assumed to provide it, because they are passed none.
 * */
inline constexpr std::size_t rmm_alignment = 256;

/* The handle of the stream type that this RMM passes: the older type has no get(). */
template <class Stream>
auto rmm_handle(const Stream &stream, int) noexcept -> decltype(static_cast<cudaStream_t>(stream.get())) {
  return stream.get();
}
template <class Stream>
cudaStream_t rmm_handle(const Stream &stream, long) noexcept {
  return stream.value();
}

/* RMM has two exceptions for memory. Callers that catch them retry with less only after the first. */
[[noreturn]] inline void rmm_raise(const char *function, std::error_code code) {
  const std::string words = std::string(function) + ": " + last_error();
  if (code == errc::out_of_memory) throw rmm::out_of_memory(words);
  throw rmm::bad_alloc(words);
}

/* Creates the device's allocator from the environment, unless there is one. */
inline device rmm_device(device of) {
  std::error_code ec;
  pool::create(of.ordinal(), ec).release();
  if (ec && ec != errc::already_exists) rmm_raise("bfc_create", ec);
  return of;
}

inline device rmm_current_device() { return rmm_device(device(rmm::get_current_cuda_device().value())); }

/* 0 bytes return null, as in most of RMM's resources. */
inline void *rmm_allocate(device from, stream_ref stream, std::size_t bytes, std::size_t alignment) {
  std::error_code ec;
  void *ptr = nullptr;
  if (alignment <= rmm_alignment && (alignment & (alignment - 1)) == 0) {
    ptr = from.allocate_async(bytes, stream, ec);
  } else {
    request wanted;
    wanted.bytes = bytes;
    wanted.alignment = alignment; /* bfc_alloc_ex refuses one that is no power of two */
    wanted.stream = stream.get();
    ptr = from.allocate(wanted, ec);
  }
  if (ec) rmm_raise("bfc_alloc_async", ec);
  return ptr;
}

/* The caller cannot receive a failure. BFC_LOG=error reports it. */
inline void rmm_deallocate(device from, stream_ref stream, void *ptr) noexcept {
  /* Frees like bfc_free_async, and logs a failure. */
  bfc_torch_free(ptr, 0, from.ordinal(), stream.get());
}

/* Makes that device current for a block, if it is a device at all: other ordinals are the program's. */
class rmm_on_device {
 public:
  explicit rmm_on_device(device wanted) noexcept {
    if (wanted.ordinal() >= host_device || cudaGetDevice(&before_) != cudaSuccess) return;
    changed_ = before_ != wanted.ordinal() && cudaSetDevice(wanted.ordinal()) == cudaSuccess;
  }
  rmm_on_device(const rmm_on_device &) = delete;
  rmm_on_device &operator=(const rmm_on_device &) = delete;
  ~rmm_on_device() {
    if (changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

/* Memory usable in the order of any stream: that of the default stream, once its work has completed. */
inline void *rmm_allocate_sync(device from, std::size_t bytes, std::size_t alignment) {
  void *const ptr = rmm_allocate(from, cudaStreamLegacy, bytes, alignment);
  const rmm_on_device current(from);
  const cudaError_t failed = ptr == nullptr ? cudaSuccess : cudaStreamSynchronize(cudaStreamLegacy);
  if (failed == cudaSuccess) return ptr;
  rmm_deallocate(from, cudaStreamLegacy, ptr);
  cudaGetLastError(); /* otherwise the program's next check would find the error */
  throw rmm::bad_alloc(std::string("cudaStreamSynchronize: ") + cudaGetErrorString(failed));
}

}  // namespace detail

/* Stream 0 is the default stream of the unit that names the resource, as in RMM's own headers; see stream_ref. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline namespace per_thread_default_stream {
#else
inline namespace legacy_default_stream {
#endif

/* An RMM resource over a device's allocator. Allocates in stream order, like bfc_alloc_async.
 *
 * - The device is fixed at construction. If it has no allocator, one is created then from the environment, and a
 *   failure is rmm::bad_alloc. The object holds nothing but the ordinal: copies are equal, and so are any two of one
 *   device. The allocator must outlive the allocations.
 * - All functions may be called from any thread at any time.
 * - Alignment: 256, and larger powers of two as asked. Out of device memory: rmm::out_of_memory; any other failure,
 *   including an alignment that is no power of two: rmm::bad_alloc. Both have the message of bfc_last_error. 0 bytes
 *   return null.
 * - deallocate may name a stream other than that of allocate: freed memory immediately belongs to that stream. Before a
 *   stream of the program is destroyed, call bfc::device(ordinal).forget_stream(stream).
 * - The functions without a stream wait for the default stream, and their frees are in its order. */
#if BFC_RMM_HAS_BASE_CLASS

class rmm_resource final : public rmm::mr::device_memory_resource {
 public:
  rmm_resource() : device_(detail::rmm_current_device()) {}
  explicit rmm_resource(device of) : device_(detail::rmm_device(of)) {}
  device get_device() const noexcept { return device_; }

 private:
  void *do_allocate(std::size_t bytes, rmm::cuda_stream_view stream) override {
    return detail::rmm_allocate(device_, stream.value(), bytes, detail::rmm_alignment);
  }
  void do_deallocate(void *ptr, std::size_t, rmm::cuda_stream_view stream) noexcept override {
    detail::rmm_deallocate(device_, stream.value(), ptr);
  }
  bool do_is_equal(const rmm::mr::device_memory_resource &other) const noexcept override {
    const auto *same = dynamic_cast<const rmm_resource *>(&other);
    return same != nullptr && same->device_ == device_;
  }

  device device_;
};

#else

class rmm_resource final {
 public:
  rmm_resource() : device_(detail::rmm_current_device()) {}
  explicit rmm_resource(device of) : device_(detail::rmm_device(of)) {}
  device get_device() const noexcept { return device_; }

  [[nodiscard]] void *allocate(cuda::stream_ref stream, std::size_t bytes,
                               std::size_t alignment = detail::rmm_alignment) {
    return detail::rmm_allocate(device_, stream.get(), bytes, alignment);
  }
  void deallocate(cuda::stream_ref stream, void *ptr, std::size_t, std::size_t = detail::rmm_alignment) noexcept {
    detail::rmm_deallocate(device_, stream.get(), ptr);
  }
  [[nodiscard]] void *allocate_sync(std::size_t bytes, std::size_t alignment = detail::rmm_alignment) {
    return detail::rmm_allocate_sync(device_, bytes, alignment);
  }
  void deallocate_sync(void *ptr, std::size_t, std::size_t = detail::rmm_alignment) noexcept {
    detail::rmm_deallocate(device_, cudaStreamLegacy, ptr);
  }

  friend bool operator==(const rmm_resource &a, const rmm_resource &b) noexcept { return a.device_ == b.device_; }
  friend bool operator!=(const rmm_resource &a, const rmm_resource &b) noexcept { return !(a == b); }
  /* The CPU cannot access it. */
  friend constexpr void get_property(const rmm_resource &, cuda::mr::device_accessible) noexcept {}

 private:
  device device_;
};

static_assert(cuda::mr::resource_with<rmm_resource, cuda::mr::device_accessible>,
              "this RMM asks more of a resource than bfc::rmm_resource has");

#endif  // BFC_RMM_HAS_BASE_CLASS

/* The pair for rmm::mr::callback_memory_resource, of one device:
 *
 *     rmm::mr::callback_memory_resource resource(bfc::rmm_allocator{}, bfc::rmm_deallocator{});
 *
 * Like rmm_resource, with the alignment 256: RMM does not pass the requested alignment to callbacks, so larger ones
 * fail or are not met. RMM does not check the result of the first, which throws on failure. */
class rmm_allocator {
 public:
  rmm_allocator() : device_(detail::rmm_current_device()) {}
  explicit rmm_allocator(device of) : device_(detail::rmm_device(of)) {}
  /* The stream is RMM's cuda_stream_view or CCCL's cuda::stream_ref; the last argument is ignored. */
  template <class Stream>
  void *operator()(std::size_t bytes, Stream stream, void *) const {
    return detail::rmm_allocate(device_, detail::rmm_handle(stream, 0), bytes, detail::rmm_alignment);
  }

 private:
  device device_;
};

class rmm_deallocator {
 public:
  rmm_deallocator() : device_(detail::rmm_current_device()) {}
  explicit rmm_deallocator(device of) : device_(detail::rmm_device(of)) {}
  template <class Stream>
  void operator()(void *ptr, std::size_t, Stream stream, void *) const noexcept {
    detail::rmm_deallocate(device_, detail::rmm_handle(stream, 0), ptr);
  }

 private:
  device device_;
};

}  // inline namespace

}  // namespace bfc

#endif  // BFC_RMM_HPP
