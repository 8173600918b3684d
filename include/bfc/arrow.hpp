/* libbfc for Apache Arrow: an arrow::MemoryPool over an allocator of libbfc. Header-only; bfc.hpp does not include it.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 *     #include <bfc/arrow.hpp>
 *
 *     bfc::arrow_memory_pool memory;                       // the host's memory: ordinal 256
 *     arrow::Int64Builder numbers(&memory);
 *
 * In Python, bfc.arrow.use() does this for all of pyarrow.
 *
 * - The allocator is that of the ordinal. If there is none, the first request creates it, from the environment. It must
 *   not be destroyed while buffers live. Its memory must be accessible from the host.
 * - The pool must outlive its buffers. Several pools may share an allocator; each counts its own allocations.
 * - Addresses are multiples of 256, or of a larger alignment on request. A request for 0 bytes returns an address that
 *   is not null.
 * - A failure is an arrow::Status: OutOfMemory if no memory is available, Invalid for a negative size or an alignment
 *   that is no power of two, and UnknownError for all others. Its message has libbfc's reason. Nothing else changes: a
 *   buffer that could not be resized is as before.
 * - All functions may be called from any thread at any time. In a forked child host memory works as with malloc.
 */

#ifndef BFC_ARROW_HPP
#define BFC_ARROW_HPP

#include "../bfc.hpp"

#include <arrow/memory_pool.h>
#include <arrow/status.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

namespace bfc {

/* See above. */
class arrow_memory_pool final : public arrow::MemoryPool {
 public:
  explicit arrow_memory_pool(device from = device(host_device)) noexcept : device_(from) {}
  device get_device() const noexcept { return device_; }

  using arrow::MemoryPool::Allocate;
  using arrow::MemoryPool::Free;
  using arrow::MemoryPool::Reallocate;

  arrow::Status Allocate(std::int64_t size, std::int64_t alignment, std::uint8_t **out) override {
    ARROW_RETURN_NOT_OK(take(size, alignment, out));
    count(size, 1, size);
    return arrow::Status::OK();
  }

  /* Resizes in place if the chunk has room for more, and if a smaller size would need a chunk as large. Copies
   * otherwise. */
  arrow::Status Reallocate(std::int64_t old_size, std::int64_t new_size, std::int64_t alignment,
                           std::uint8_t **ptr) override {
    ARROW_RETURN_NOT_OK(check(new_size, alignment));
    if (!fits(*ptr, old_size, new_size, alignment)) {
      std::uint8_t *moved = nullptr;
      ARROW_RETURN_NOT_OK(take(new_size, alignment, &moved));
      std::memcpy(moved, *ptr, static_cast<std::size_t>(std::min(old_size, new_size)));
      give_back(*ptr);
      *ptr = moved;
    }
    count(new_size - old_size, 1, std::max<std::int64_t>(new_size - old_size, 0));
    return arrow::Status::OK();
  }

  void Free(std::uint8_t *buffer, std::int64_t size, std::int64_t) override {
    if (give_back(buffer)) count(-size, 0, 0);
  }

  /* Returns free memory of the allocator to the system, including memory that other users of it freed. */
  void ReleaseUnused() override {
    std::error_code ignored;
    device_.trim(0, ignored);
  }

  /* Prints the report of the allocator to stderr. */
  void PrintStats() override {
    std::error_code ignored;
    std::fprintf(stderr, "%s\n", device_.report(ignored).c_str());
  }

  std::int64_t bytes_allocated() const override { return live_.load(std::memory_order_relaxed); }
  std::int64_t max_memory() const override { return peak_.load(std::memory_order_relaxed); }
  std::int64_t total_bytes_allocated() const override { return total_.load(std::memory_order_relaxed); }
  std::int64_t num_allocations() const override { return calls_.load(std::memory_order_relaxed); }
  std::string backend_name() const override { return "bfc"; }

 private:
  /* The alignment of every address, to which sizes are rounded. */
  static constexpr std::int64_t unit = 256;

  /* The address of all buffers without bytes. */
  static std::uint8_t *nothing() noexcept {
    alignas(unit) static std::uint8_t area[unit];
    return area;
  }

  bfc_status_t allocate(std::int64_t size, std::int64_t alignment, void **out) const noexcept {
    const auto bytes = static_cast<std::size_t>(size);
    return alignment <= unit ? bfc_alloc(device_.ordinal(), bytes, out)
                             : bfc_alloc_aligned(device_.ordinal(), bytes, static_cast<std::size_t>(alignment), out);
  }

  static arrow::Status check(std::int64_t size, std::int64_t alignment) {
    if (size < 0) return arrow::Status::Invalid("a size must not be negative, and is ", size);
    if (alignment <= 0 || (alignment & (alignment - 1)) != 0)
      return arrow::Status::Invalid("an alignment must be a power of two, and is ", alignment);
    return arrow::Status::OK();
  }

  arrow::Status take(std::int64_t size, std::int64_t alignment, std::uint8_t **out) const {
    ARROW_RETURN_NOT_OK(check(size, alignment));
    if (size == 0) {
      *out = nothing();
      return arrow::Status::OK();
    }
    void *memory = nullptr;
    bfc_status_t status = allocate(size, alignment, &memory);
    if (status == BFC_ERROR_NO_ALLOCATOR) {
      /* Another thread may have created it first. */
      status = bfc_create(device_.ordinal(), nullptr);
      if (status == BFC_OK || status == BFC_ERROR_ALREADY_EXISTS) status = allocate(size, alignment, &memory);
    }
    if (status != BFC_OK) return failure(status, size);
    *out = static_cast<std::uint8_t *>(memory);
    return arrow::Status::OK();
  }

  static arrow::Status failure(bfc_status_t status, std::int64_t size) {
    char why[1024];
    bfc_last_error(why, sizeof why);
    const bool is_exhausted = status == BFC_ERROR_OUT_OF_MEMORY;
    return arrow::Status::FromArgs(is_exhausted ? arrow::StatusCode::OutOfMemory : arrow::StatusCode::UnknownError,
                                   "libbfc cannot allocate ", size, " bytes: ", bfc_status_string(status), ": ", why);
  }

  bool fits(const std::uint8_t *ptr, std::int64_t old_size, std::int64_t new_size,
            std::int64_t alignment) const noexcept {
    if (old_size == 0 || new_size == 0) return old_size == new_size;
    if (reinterpret_cast<std::uintptr_t>(ptr) % static_cast<std::uintptr_t>(alignment) != 0) return false;
    const auto units = [](std::int64_t size) { return size / unit + (size % unit != 0); };
    if (new_size <= old_size) return units(new_size) == units(old_size);
    std::size_t room = 0;
    return bfc_allocated_size(device_.ordinal(), ptr, &room) == BFC_OK && static_cast<std::size_t>(new_size) <= room;
  }

  /* Arrow cannot receive an error of a free. On an error nothing is freed, and the message gives the reason. */
  bool give_back(std::uint8_t *buffer) const noexcept {
    if (buffer == nothing() || bfc_free(device_.ordinal(), buffer) == BFC_OK) return true;
    char why[256];
    bfc_last_error(why, sizeof why);
    std::fprintf(stderr, "libbfc: a buffer of Arrow's at %p could not be freed: %s\n", static_cast<void *>(buffer),
                 why);
    return false;
  }

  void count(std::int64_t bytes, std::int64_t calls, std::int64_t total) noexcept {
    const std::int64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::int64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < live && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {}
    if (calls != 0) calls_.fetch_add(calls, std::memory_order_relaxed);
    if (total != 0) total_.fetch_add(total, std::memory_order_relaxed);
  }

  device device_;
  std::atomic<std::int64_t> live_{0}, peak_{0}, total_{0}, calls_{0};
};

}  // namespace bfc

#endif  // BFC_ARROW_HPP
