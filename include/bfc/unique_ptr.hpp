/* std::unique_ptr over a device's memory. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_UNIQUE_PTR_HPP
#define BFC_UNIQUE_PTR_HPP

#include "allocation.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace bfc {

namespace detail {

/* Marks a stream as that of the allocation. */
struct of_allocation {};

/* Where memory is freed, for deleters: the device, and the stream or null. */
class freeing {
 public:
  freeing() noexcept = default;
  explicit freeing(device from) noexcept : device_(from) {}
  /* A default stream is resolved at the free. */
  freeing(device from, stream_ref stream) noexcept : device_(from), is_named_(true), stream_(stream.get()) {}
  freeing(device from, stream_ref stream, of_allocation) noexcept : device_(from), stream_(stream.get()) {}

  /* Like that of bfc::allocation: the device, and the handle of the stream or null. */
  device get_device() const noexcept { return device_; }
  bfc_stream_t stream() const noexcept { return stream_; }

 protected:
  void free(void *ptr) const noexcept {
    if (is_named_) {
      (bfc_free_async)(device_.ordinal(), ptr, stream_);
    } else {
      /* As in bfc::allocation, on the stream of the allocation. */
      bfc_free(device_.ordinal(), ptr);
    }
  }

 private:
  device device_ = device(nowhere);
  bool is_named_ = false;
  bfc_stream_t stream_ = nullptr;
};

/* The bytes of an array. A count that overflows becomes a size that no allocator has, so that the library reports out
 * of memory. */
template <class T>
std::size_t bytes_of(std::size_t count) noexcept {
  return count <= SIZE_MAX / sizeof(T) ? count * sizeof(T) : SIZE_MAX;
}

}  // namespace detail

/* Destroys an object and frees its memory, in the order of a stream if it has one. The destructor runs on the CPU, so
 * a type that is not trivially destructible needs memory that the CPU can access. A free that fails is not reported,
 * as in the destructor of bfc::allocation. There is no conversion to the deleter of a base class, because a pointer
 * to a base may not be the start of the allocation. */
template <class T>
class deleter : public detail::freeing {
 public:
  using freeing::freeing;
  void operator()(T *object) const noexcept {
    object->~T();
    free(object);
  }
};

/* Frees arrays whose elements are trivially destructible: the number of elements is not stored. For others
 * use a std::vector with bfc::memory_resource. */
template <class T>
class deleter<T[]> : public detail::freeing {
 public:
  static_assert(
      std::is_trivially_destructible_v<T>,
      "arrays of bfc::unique_ptr need trivially destructible elements: use a container with bfc::memory_resource");
  using freeing::freeing;
  void operator()(T *array) const noexcept { free(array); }
};

/* A std::unique_ptr that frees on a device. It must not outlive the allocator. It may be used in any thread, by one at
 * a time. */
template <class T>
using unique_ptr = std::unique_ptr<T, deleter<T>>;

#if BFC_HAS_EXCEPTIONS

/* Constructs an object from `args` in memory of a device that the CPU can access (a pool on host memory). Throws
 * bfc::out_of_memory, bfc::status_error or what the constructor throws, and then the memory is free again. */
template <class T, class... Args, std::enable_if_t<!std::is_array_v<T>, int> = 0>
unique_ptr<T> make_unique(device from, Args &&...args) {
  allocation memory(from, sizeof(T), alignof(T) > 256 ? alignof(T) : 0);
  T *const object = ::new (memory.data()) T(std::forward<Args>(args)...);
  memory.release();
  return unique_ptr<T>(object, deleter<T>(from));
}

/* Constructs an array of `count` value-initialized elements: zeros for numbers. The memory and the exceptions are as
 * above. 0 elements are null. */
template <class T, std::enable_if_t<std::is_array_v<T> && std::extent_v<T> == 0, int> = 0>
unique_ptr<T> make_unique(device from, std::size_t count) {
  using element = std::remove_extent_t<T>;
  allocation memory(from, detail::bytes_of<element>(count), alignof(element) > 256 ? alignof(element) : 0);
  std::uninitialized_value_construct_n(static_cast<element *>(memory.data()), count);
  return unique_ptr<T>(static_cast<element *>(memory.release()), deleter<T>(from));
}

#endif  // BFC_HAS_EXCEPTIONS

/* Allocates an array of `count` elements without touching the memory, which may therefore be that of a CUDA device,
 * in the order of a stream or without one. The contents are undefined. The elements are trivially copyable. 0
 * elements are null. Errors are those of bfc_alloc_ex, and then the result is null; a size that overflows is
 * errc::out_of_memory. */
template <class T>
unique_ptr<T> make_unique_for_overwrite(device from, std::size_t count, std::error_code &ec) noexcept {
  using element = std::remove_extent_t<T>;
  static_assert(std::is_array_v<T> && std::is_trivially_copyable_v<element>,
                "make_unique_for_overwrite<T[]> needs trivially copyable elements");
  auto memory =
      allocation::create(from, detail::bytes_of<element>(count), alignof(element) > 256 ? alignof(element) : 0, ec);
  return unique_ptr<T>(static_cast<element *>(memory.release()), deleter<T>(from));
}
template <class T>
unique_ptr<T> make_unique_for_overwrite(device from, std::size_t count, stream_ref stream,
                                        std::error_code &ec) noexcept {
  using element = std::remove_extent_t<T>;
  static_assert(std::is_array_v<T> && std::is_trivially_copyable_v<element>,
                "make_unique_for_overwrite<T[]> needs trivially copyable elements");
  static_assert(alignof(element) <= 256, "use bfc::request and bfc::allocation for a larger alignment");
  auto memory = allocation::create(from, detail::bytes_of<element>(count), stream, ec);
  return unique_ptr<T>(static_cast<element *>(memory.release()), deleter<T>(from, stream, detail::of_allocation()));
}
#if BFC_HAS_EXCEPTIONS
template <class T>
unique_ptr<T> make_unique_for_overwrite(device from, std::size_t count) {
  return detail::must("bfc_alloc_ex", [&](auto &ec) { return make_unique_for_overwrite<T>(from, count, ec); });
}
template <class T>
unique_ptr<T> make_unique_for_overwrite(device from, std::size_t count, stream_ref stream) {
  return detail::must("bfc_alloc_ex", [&](auto &ec) { return make_unique_for_overwrite<T>(from, count, stream, ec); });
}
#endif
#if BFC_HAS_EXPECTED
template <class T>
result<unique_ptr<T>> try_make_unique_for_overwrite(device from, std::size_t count) noexcept {
  return detail::attempt([&](auto &ec) { return make_unique_for_overwrite<T>(from, count, ec); });
}
template <class T>
result<unique_ptr<T>> try_make_unique_for_overwrite(device from, std::size_t count, stream_ref stream) noexcept {
  return detail::attempt([&](auto &ec) { return make_unique_for_overwrite<T>(from, count, stream, ec); });
}
#endif

}  // namespace bfc

#endif  // BFC_UNIQUE_PTR_HPP
