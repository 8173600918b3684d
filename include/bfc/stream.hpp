/* Streams and requests. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_STREAM_HPP
#define BFC_STREAM_HPP

#include "error.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace bfc {

/* Translation units of one program may be compiled with different default streams. An inline function that both have is
 * linked from only one of them, so whatever depends on the unit is a type of a namespace for that kind of unit. Every
 * inline function with a parameter of such a type is then another symbol. The types that units share (pool, device,
 * allocation) keep resolved handles. They call functions of bfc.h by names in parentheses, which the macros of
 * bfc.h do not replace, for the same reason. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline namespace per_thread_default_stream {
#else
inline namespace legacy_default_stream {
#endif

/* A stream, not owned: a value of the size of a pointer. It is made implicitly from a cudaStream_t or CUstream, from
 * any other pointer that serves as a token on backends without a device, and from classes that convert to one, such
 * as rmm::cuda_stream_view. No header of CUDA is needed.
 *
 * NULL is the default stream: the legacy one, or in a translation unit that defines
 * CUDA_API_PER_THREAD_DEFAULT_STREAM before this header (nvcc --default-stream per-thread does) the calling thread's
 * own. It is resolved where the object is made, so the object means the same stream in every unit.
 *
 * The stream must exist during each call that it is passed to, and while memory that was allocated on it or recorded
 * for it is in use; see device::forget_stream. Nothing here throws or calls the driver. */
class stream_ref {
 public:
  stream_ref(bfc_stream_t handle) noexcept
      : value_(handle == nullptr ? default_value : reinterpret_cast<std::uintptr_t>(handle)) {}
  template <class Stream,
            std::enable_if_t<std::is_class_v<Stream> && std::is_convertible_v<const Stream &, bfc_stream_t>, int> = 0>
  stream_ref(const Stream &stream) noexcept : stream_ref(static_cast<bfc_stream_t>(stream)) {}

  /* Returns the handle, which means the same stream in every unit and to CUDA's own functions. Never NULL: a default
   * stream is BFC_STREAM_LEGACY or BFC_STREAM_PER_THREAD. Cast it to cudaStream_t. */
  bfc_stream_t get() const noexcept { return reinterpret_cast<bfc_stream_t>(value_); }

  /* Return the two default streams of CUDA, and the one that NULL is in this unit. */
  static constexpr stream_ref legacy() noexcept { return stream_ref(number(), legacy_value); }
  static constexpr stream_ref per_thread() noexcept { return stream_ref(number(), per_thread_value); }
  static constexpr stream_ref by_default() noexcept { return stream_ref(number(), default_value); }

  friend constexpr bool operator==(stream_ref a, stream_ref b) noexcept { return a.value_ == b.value_; }
  friend constexpr bool operator!=(stream_ref a, stream_ref b) noexcept { return a.value_ != b.value_; }

 private:
  struct number {};
  constexpr stream_ref(number, std::uintptr_t value) noexcept : value_(value) {}

  static constexpr std::uintptr_t legacy_value = 1;
  static constexpr std::uintptr_t per_thread_value = 2;
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
  static constexpr std::uintptr_t default_value = per_thread_value;
#else
  static constexpr std::uintptr_t default_value = legacy_value;
#endif

  std::uintptr_t value_;
};

/* The default streams by name. per_thread_stream is another stream in each thread. */
inline constexpr stream_ref default_stream = stream_ref::by_default();
inline constexpr stream_ref legacy_stream = stream_ref::legacy();
inline constexpr stream_ref per_thread_stream = stream_ref::per_thread();

/* A request with all optional parameters, as bfc_request_t. */
struct request {
  /* The number of bytes. A request for 0 bytes returns null. */
  std::size_t bytes = 0;
  /* 0 stands for 256. Any other value must be a power of two. */
  std::size_t alignment = 0;
  /* Accept only chunks stamped at most this. 0: any. Requires options::timestamps, and excludes `stream`. */
  std::uint64_t freed_before = 0;
  /* Allocate in the order of this stream. nullopt: without a stream. */
  std::optional<stream_ref> stream = std::nullopt;
  /* Use only memory that the pool already holds. Nothing is obtained from the backend, and the call never waits for
   * device work. Being out of memory then does not count as a failure in statistics, and no report is written. */
  bool no_growth = false;
  /* Round the size up to a multiple of 512 instead of 256. */
  bool size_512 = false;
  /* A hint that the memory will be freed soon, for instance a workspace: it is placed at the upper end of a free chunk.
   */
  bool short_lived = false;
  /* An attempt of a caller that has other ways to serve the request. A failure is not counted, not recorded in the history,
   * and no report is written: device::allocation_failed counts the request once no attempt is left. */
  bool attempt = false;

  /* Returns the struct for bfc_alloc_ex. */
  bfc_request_t raw() const noexcept {
    bfc_request_t result = BFC_REQUEST_INIT;
    result.bytes = bytes;
    result.alignment = alignment;
    result.stream = stream ? stream->get() : nullptr;
    result.freed_before = freed_before;
    result.flags = (stream ? BFC_REQUEST_ON_STREAM : 0u) | (no_growth ? BFC_REQUEST_NO_GROWTH : 0u) |
                   (size_512 ? BFC_REQUEST_SIZE_512 : 0u) | (short_lived ? BFC_REQUEST_SHORT_LIVED : 0u) |
                   (attempt ? BFC_REQUEST_ATTEMPT : 0u);
    return result;
  }
};

}  // inline namespace

}  // namespace bfc

#endif  // BFC_STREAM_HPP
