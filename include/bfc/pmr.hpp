/* libbfc for the containers of std::pmr. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_PMR_HPP
#define BFC_PMR_HPP

/* For programs that include only this header. When bfc.hpp includes it, device.hpp is already there. */
#include "../bfc.hpp"

#if BFC_HAS_EXCEPTIONS

#include <algorithm>
#include <cstddef>
#include <memory_resource>

namespace bfc {

/* A device's memory for the containers of std::pmr, which the CPU must be able to access. Holds only the ordinal: the
 * allocator must outlive the containers. Two are equal if their devices are. Without RTTI (-fno-rtti) each is equal
 * only to itself, so that containers copy where they could move. May be used by several threads at once. */
class memory_resource final : public std::pmr::memory_resource {
 public:
  explicit memory_resource(device from) noexcept : device_(from) {}
  device get_device() const noexcept { return device_; }

 private:
  /* Every chunk is aligned to 256 anyway; 0 bytes must not be null here. */
  void *do_allocate(std::size_t bytes, std::size_t alignment) override {
    bytes = std::max<std::size_t>(bytes, 1);
    return alignment <= 256 ? device_.allocate(bytes) : device_.allocate(bytes, alignment);
  }
  /* Containers cannot receive an error of a free. */
  void do_deallocate(void *ptr, std::size_t, std::size_t) override { bfc_free(device_.ordinal(), ptr); }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
#if defined(__cpp_rtti) || defined(_CPPRTTI)
    const auto *same = dynamic_cast<const memory_resource *>(&other);
    return same != nullptr && same->device_ == device_;
#else
    return this == &other;
#endif
  }

  device device_;
};

}  // namespace bfc

#endif  // BFC_HAS_EXCEPTIONS

#endif  // BFC_PMR_HPP
