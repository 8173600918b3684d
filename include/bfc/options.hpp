/* Options of a pool. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_OPTIONS_HPP
#define BFC_OPTIONS_HPP

#include "error.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>

namespace bfc {

/* Where regions come from: BFC_BACKEND_... */
enum class backend : std::uint32_t {
  automatic = BFC_BACKEND_AUTO,
  host = BFC_BACKEND_HOST,
  custom = BFC_BACKEND_CUSTOM,
  cuda = BFC_BACKEND_CUDA,
  cuda_vmm = BFC_BACKEND_CUDA_VMM,
  host_vmm = BFC_BACKEND_HOST_VMM,
  prefer_cuda_vmm = BFC_BACKEND_PREFER_CUDA_VMM
};

/* How the sizes of regions are chosen with growth: BFC_GROWTH_... */
enum class growth_policy : std::uint32_t {
  by_default = BFC_GROWTH_DEFAULT, /* the value of BFC_GROWTH, else tensorflow with options::allow_growth */
  tensorflow = BFC_GROWTH_TENSORFLOW,
  need = BFC_GROWTH_NEED,
  prefer_need = BFC_GROWTH_PREFER_NEED /* the value of BFC_GROWTH, else need */
};

/* The options of a pool, as bfc_options_t. An option that is not set comes from the environment (BFC_...), or else
 * from the default. Each function sets one option and returns the object, so that calls can be chained. Nothing is
 * checked here: pool::create refuses invalid values. An object must not be changed by two threads at once. */
class options {
 public:
  options() noexcept = default;

  /* Returns options with growth and garbage collection. Regions double and small remainders are not split off, as in
   * TensorFlow: recommended() holds less. */
  static options growing() noexcept { return options().allow_growth().garbage_collection(); }

  /* Returns options for most programs, the same as those of a pool without options: growth by need unless BFC_GROWTH
   * says otherwise, garbage collection, and every remainder split off. Default-constructed options have no growth: the
   * pool takes its whole limit at the first allocation. */
  static options recommended() noexcept {
    return growing().split_always().growth_policy(bfc::growth_policy::prefer_need);
  }

  options &backend(bfc::backend kind) noexcept { return raw_.backend = static_cast<std::uint32_t>(kind), *this; }
  /* The maximum number of bytes held from the backend. 0: the available memory. */
  options &memory_limit(std::uint64_t bytes) noexcept { return raw_.memory_limit = bytes, *this; }
  /* The limit as a fraction of the device's total memory, from 0 to 1, if there is no memory_limit. */
  options &memory_fraction(double share) noexcept { return raw_.memory_fraction = share, *this; }
  /* Split off a remainder of this fraction of the limit, from 0 to 1. 0: the 128 MiB rule. */
  options &fragmentation_fraction(double share) noexcept { return raw_.fragmentation_fraction = share, *this; }
  /* The bytes of the first region with growth. 0: 2 MiB. */
  options &initial_region_bytes(std::uint64_t bytes) noexcept { return raw_.initial_region_bytes = bytes, *this; }
  /* How the sizes of regions are chosen with growth. */
  options &growth_policy(bfc::growth_policy policy) noexcept {
    return raw_.growth_policy = static_cast<std::uint32_t>(policy), *this;
  }
  /* How long a request waits for another thread's free before it fails. Negative is 0; the maximum is 49 days. */
  options &retry_timeout(std::chrono::milliseconds time) noexcept {
    constexpr std::int64_t most = std::numeric_limits<std::uint32_t>::max();
    raw_.retry_timeout_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(time.count(), 0, most));
    return *this;
  }
  /* The name in reports. UTF-8. */
  options &name(std::string text) noexcept { return name_ = std::move(text), *this; }

  /* The path of a plan that `bfc plan` has computed for the program. Empty: no plan, even if BFC_PLAN names one. */
  options &plan(std::string path) noexcept { return plan_ = std::move(path), *this; }

  /* Obtain regions on demand instead of one region of memory_limit. */
  options &allow_growth(bool on = true) noexcept { return flag(BFC_ALLOW_GROWTH, on); }
  /* Release wholly free regions before a request fails. */
  options &garbage_collection(bool on = true) noexcept { return flag(BFC_GARBAGE_COLLECTION, on); }
  /* Stamp frees; see device::set_safe_frontier. Excludes streams. */
  options &timestamps(bool on = true) noexcept { return flag(BFC_TIMESTAMPS, on); }
  /* Split off any remainder of 256 bytes or more. */
  options &split_always(bool on = true) noexcept { return flag(BFC_SPLIT_ALWAYS, on); }
  /* With timestamps: never hand out a chunk whose stamp is not safe. */
  options &quarantine(bool on = true) noexcept { return flag(BFC_QUARANTINE, on); }
  /* Learn which sizes are usually freed soon, and place them at the upper end of a free chunk. Not for timestamps,
   * virtual ranges, plans and several streams. */
  options &two_ends(bool on = true) noexcept { return flag(BFC_TWO_ENDS, on); }

  /* Obtain regions from the caller's functions; see bfc_suballocator_t. They must not throw. */
  options &suballocator(bfc_region_alloc_t alloc, bfc_region_free_t free, void *user_data,
                        bool supports_coalescing = false) noexcept {
    raw_.backend = BFC_BACKEND_CUSTOM;
    bfc_suballocator_t functions = BFC_SUBALLOCATOR_INIT;
    functions.user_data = user_data;
    functions.alloc = alloc;
    functions.free = free;
    functions.supports_coalescing = supports_coalescing ? 1 : 0;
    suballocator_ = functions;
    return *this;
  }

  /* Obtain regions from a memory resource. It must outlive the pool, and is called by several threads at once. */
  options &upstream(std::pmr::memory_resource &resource) noexcept {
    return suballocator(&options::take_region, &options::give_region, &resource);
  }

  /* Returns the settings that pool::create would use for a device, as JSON, and the effect of each variable of the
   * environment; docs/environment.md has the schema. Creates nothing and calls no driver. Errors are those of
   * bfc_resolve_options. */
  std::string resolve(std::int32_t ordinal, std::error_code &ec) const noexcept {
    const bfc_options_t own = raw();
    return detail::text(ec, [&](char *buffer, std::size_t capacity, std::size_t *length) {
      return bfc_resolve_options(ordinal, &own, buffer, capacity, length);
    });
  }
#if BFC_HAS_EXCEPTIONS
  std::string resolve(std::int32_t ordinal) const {
    return detail::must("bfc_resolve_options", [&](auto &ec) { return resolve(ordinal, ec); });
  }
#endif
#if BFC_HAS_EXPECTED
  result<std::string> try_resolve(std::int32_t ordinal) const noexcept {
    return detail::attempt([&](auto &ec) { return resolve(ordinal, ec); });
  }
#endif

  /* Returns the struct for bfc_create. Its pointers are valid until this object is changed, moved or destroyed. */
  bfc_options_t raw() const noexcept {
    bfc_options_t result = raw_;
    result.name = name_ ? name_->c_str() : nullptr;
    result.plan = plan_ ? plan_->c_str() : nullptr;
    result.suballocator = suballocator_ ? &*suballocator_ : nullptr;
    return result;
  }

 private:
  /* Both calls of a resource must name the same alignment. The library finds a larger one inside. */
  static constexpr std::size_t region_alignment = 4096;

  static void *take_region(void *resource, std::size_t, std::size_t bytes, std::size_t *) noexcept {
#if BFC_HAS_EXCEPTIONS
    try {
      return static_cast<std::pmr::memory_resource *>(resource)->allocate(bytes, region_alignment);
    } catch (...) { return nullptr; }
#else
    return static_cast<std::pmr::memory_resource *>(resource)->allocate(bytes, region_alignment);
#endif
  }
  static void give_region(void *resource, void *region, std::size_t bytes) noexcept {
    static_cast<std::pmr::memory_resource *>(resource)->deallocate(region, bytes, region_alignment);
  }

  options &flag(std::uint32_t bit, bool on) noexcept {
    raw_.flags = on ? raw_.flags | bit : raw_.flags & ~bit;
    return *this;
  }

  bfc_options_t raw_ = BFC_OPTIONS_INIT;
  std::optional<std::string> name_;
  std::optional<std::string> plan_;
  std::optional<bfc_suballocator_t> suballocator_;
};

}  // namespace bfc

#endif  // BFC_OPTIONS_HPP
