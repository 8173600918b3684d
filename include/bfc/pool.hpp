/* Pools, owned, and scopes for reports. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_POOL_HPP
#define BFC_POOL_HPP

#include "device.hpp"
#include "options.hpp"

#include <cstdint>
#include <utility>

namespace bfc {

/* The allocator of a device, owned: created here, destroyed with this object. It is also a device, and can be passed
 * as one. Its operations may be called from any thread; creating, moving and destroying the object may not happen at
 * the same time as another use of the object. Moving leaves an empty pool, whose operations are
 * errc::invalid_argument. */
class pool : public device {
 public:
  /* Owns nothing. */
  pool() noexcept : device(detail::nowhere) {}

  /* Creates the device's allocator. No device memory is allocated before the first allocation. errc::already_exists
   * if there is one, which can be used as bfc::device; see bfc_create for other errors. On failure the result is
   * empty. */
  static pool create(std::int32_t ordinal, const options &how, std::error_code &ec) noexcept {
    const bfc_options_t raw = how.raw();
    return create(ordinal, &raw, ec);
  }
  /* Creates it as options::recommended() says, unless the environment says otherwise. */
  static pool create(std::int32_t ordinal, std::error_code &ec) noexcept { return create(ordinal, nullptr, ec); }
  /* Takes ownership of an allocator that exists already. */
  static pool adopt(device existing) noexcept { return pool(existing); }

#if BFC_HAS_EXCEPTIONS
  pool(std::int32_t ordinal, const options &how)
      : pool(detail::must("bfc_create", [&](auto &ec) { return create(ordinal, how, ec); })) {}
  explicit pool(std::int32_t ordinal)
      : pool(detail::must("bfc_create", [&](auto &ec) { return create(ordinal, ec); })) {}
#endif
#if BFC_HAS_EXPECTED
  static result<pool> try_create(std::int32_t ordinal, const options &how) noexcept {
    return detail::attempt([&](auto &ec) { return create(ordinal, how, ec); });
  }
  static result<pool> try_create(std::int32_t ordinal) noexcept {
    return detail::attempt([&](auto &ec) { return create(ordinal, ec); });
  }
#endif

  pool(const pool &) = delete;
  pool &operator=(const pool &) = delete;
  pool(pool &&other) noexcept : device(other.release()) {}
  pool &operator=(pool &&other) noexcept {
    pool old(std::exchange(static_cast<device &>(*this), other.release()));
    return *this;
  }
  /* Destroys the allocator. With live allocations it stays, because their pointers are still in use; it can be
   * adopted later. Call destroy() or destroy_forced() first to see an error or to override this. */
  ~pool() {
    if (*this) bfc_destroy(ordinal());
  }

  explicit operator bool() const noexcept { return ordinal() != detail::nowhere; }

  /* Destroys the allocator and releases all regions. errc::busy while allocations are live, and the pool keeps
   * ownership. */
  void destroy(std::error_code &ec) noexcept {
    if (detail::set(ec, bfc_destroy(ordinal()))) release();
  }
  /* Destroys the allocator even with live allocations, whose pointers are invalid afterwards. */
  void destroy_forced(std::error_code &ec) noexcept {
    if (detail::set(ec, bfc_destroy_forced(ordinal()))) release();
  }
#if BFC_HAS_EXCEPTIONS
  void destroy() {
    detail::must("bfc_destroy", [&](auto &ec) { destroy(ec); });
  }
  void destroy_forced() {
    detail::must("bfc_destroy_forced", [&](auto &ec) { destroy_forced(ec); });
  }
#endif
#if BFC_HAS_EXPECTED
  result<void> try_destroy() noexcept {
    return detail::attempt([&](auto &ec) { destroy(ec); });
  }
  result<void> try_destroy_forced() noexcept {
    return detail::attempt([&](auto &ec) { destroy_forced(ec); });
  }
#endif

  /* Gives up ownership; the allocator stays. */
  device release() noexcept { return std::exchange(static_cast<device &>(*this), device(detail::nowhere)); }

 private:
  explicit pool(device owned) noexcept : device(owned) {}
  static pool create(std::int32_t ordinal, const bfc_options_t *raw, std::error_code &ec) noexcept {
    return detail::set(ec, bfc_create(ordinal, raw)) ? pool(device(ordinal)) : pool();
  }
};

/* The operation that this thread allocates for in a block, for reports; see bfc_scope_begin. Destroy it in the thread
 * that made it, in the reverse order of construction. A scope that could not begin does nothing at its end. */
class scope {
 public:
  /* `operation` is UTF-8 and copied; `step` is the caller's count. */
  scope(const char *operation, std::uint64_t step, std::error_code &ec) noexcept
      : begun_(detail::set(ec, bfc_scope_begin(operation, step))) {}
#if BFC_HAS_EXCEPTIONS
  explicit scope(const char *operation, std::uint64_t step = 0) : begun_(true) {
    detail::must("bfc_scope_begin", [&](auto &ec) { detail::set(ec, bfc_scope_begin(operation, step)); });
  }
#endif
  scope(const scope &) = delete;
  scope &operator=(const scope &) = delete;
  ~scope() {
    if (begun_) bfc_scope_end();
  }

 private:
  bool begun_;
};

}  // namespace bfc

#endif  // BFC_POOL_HPP
