/* The operations of a device's allocator. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_DEVICE_HPP
#define BFC_DEVICE_HPP

#include "error.hpp"
#include "stream.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

namespace bfc {

/* The ordinal of host memory. 0 to 255 are devices, 257 is pinned host memory, and 258 to 1023 are for the caller. */
inline constexpr std::int32_t host_device = BFC_HOST_DEVICE;

/* What happens to a region: BFC_REGION_... */
enum class region_event : std::int32_t {
  obtained = BFC_REGION_OBTAINED,  /* none of it is in use yet */
  returning = BFC_REGION_RETURNING /* none of it is in use. obtained follows if the backend does not accept it */
};

/* What contains a pointer: the live chunk, and the chunk's region. Addresses, and sizes in bytes. */
struct address_range {
  void *chunk = nullptr;
  std::size_t chunk_bytes = 0;
  void *region = nullptr;
  std::size_t region_bytes = 0;
};

/* The allocator of a device, not owned: a value as small as the ordinal, to copy and to pass on. It need not exist.
 * Every operation may be called from any thread at any time. Its errors are those of the function of bfc.h that it
 * calls. After a failure nothing has changed: live allocations and their contents are untouched.
 *
 * The first part has the forms with a std::error_code; see bfc.hpp for the other two. */
class device {
 public:
  constexpr explicit device(std::int32_t ordinal) noexcept : ordinal_(ordinal) {}

  constexpr std::int32_t ordinal() const noexcept { return ordinal_; }
  friend constexpr bool operator==(device a, device b) noexcept { return a.ordinal_ == b.ordinal_; }
  friend constexpr bool operator!=(device a, device b) noexcept { return a.ordinal_ != b.ordinal_; }

  /* Allocates `bytes` bytes without a stream. The memory belongs to the caller until deallocate; its contents are
   * undefined. 0 bytes are null without an error. */
  void *allocate(std::size_t bytes, std::error_code &ec) const noexcept {
    void *ptr = nullptr;
    detail::set(ec, bfc_alloc(ordinal_, bytes, &ptr));
    return ptr;
  }
  /* Allocates at a multiple of `alignment`, a power of two. */
  void *allocate(std::size_t bytes, std::size_t alignment, std::error_code &ec) const noexcept {
    void *ptr = nullptr;
    detail::set(ec, bfc_alloc_aligned(ordinal_, bytes, alignment, &ptr));
    return ptr;
  }
  /* Allocates with all optional parameters. */
  void *allocate(const request &wanted, std::error_code &ec) const noexcept {
    const bfc_request_t raw = wanted.raw();
    void *ptr = nullptr;
    detail::set(ec, (bfc_alloc_ex)(ordinal_, &raw, &ptr));
    return ptr;
  }
  /* Counts a failed request that no other call has counted: all of its attempts used request::attempt or
   * request::no_growth, and the caller could not serve it in another way either. */
  void allocation_failed(const request &wanted, std::error_code &ec) const noexcept {
    const bfc_request_t raw = wanted.raw();
    detail::set(ec, bfc_alloc_failed(ordinal_, &raw));
  }
  /* Allocates in the order of a stream: work queued there after the call may use the memory. */
  void *allocate_async(std::size_t bytes, stream_ref stream, std::error_code &ec) const noexcept {
    void *ptr = nullptr;
    detail::set(ec, (bfc_alloc_async)(ordinal_, bytes, stream.get(), &ptr));
    return ptr;
  }
  /* Frees what any of these returned, on the stream of the allocation if it has one. Null is accepted. A pointer that
   * is not the start of a live allocation is errc::invalid_pointer or errc::double_free. */
  void deallocate(void *ptr, std::error_code &ec) const noexcept { detail::set(ec, bfc_free(ordinal_, ptr)); }
  /* Frees in the order of a stream: work queued there so far may still use the memory. Does not wait for it. */
  void deallocate_async(void *ptr, stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_free_async)(ordinal_, ptr, stream.get()));
  }
  /* Declares that a live allocation is also used on a stream. Once freed, it is not reused until the work queued
   * there by then has completed. */
  void record_stream(void *ptr, stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_record_stream)(ordinal_, ptr, stream.get()));
  }
  /* Declares that a stream is about to be destroyed. Call it before the destruction. */
  void forget_stream(stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_forget_stream)(ordinal_, stream.get()));
  }
  /* Declares that all work queued on a stream so far has completed. Synchronizes nothing by itself. */
  void stream_synchronized(stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_stream_synchronized)(ordinal_, stream.get()));
  }

  /* Routes requests in the order of a stream to the private pool `name`, for memory that a captured graph uses, and
   * announces the capture: call it before the capture begins. Several streams may use one pool.
   * errc::invalid_argument if the stream is already routed to a private pool. bfc::private_pool manages this. */
  void begin_private_pool(std::uint64_t name, stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_pool_begin)(ordinal_, name, stream.get()));
  }
  /* Routes them to common memory again. Call it after the end of the capture. The pool keeps its memory. */
  void end_private_pool(std::uint64_t name, stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_pool_end)(ordinal_, name, stream.get()));
  }
  /* Declares that no graph uses the pool anymore. Its free memory becomes common memory once the context was
   * synchronized; live allocations stay valid. errc::busy while a stream is routed to it, errc::invalid_argument if
   * there is none. */
  void release_private_pool(std::uint64_t name, std::error_code &ec) const noexcept {
    detail::set(ec, bfc_pool_release(ordinal_, name));
  }

  /* Sets a function that is called after memory was obtained from the backend and before it is released; see
   * bfc_region_callback_t for what it must not do. Null removes it. errc::busy if the allocator already holds memory:
   * set it right after creation. `user_data` must stay valid until the allocator has ended or another call has
   * returned. */
  void set_region_callback(bfc_region_callback_t callback, void *user_data, std::error_code &ec) const noexcept {
    detail::set(ec, bfc_set_region_callback(ordinal_, callback, user_data));
  }
  void set_region_callback(std::nullptr_t, std::error_code &ec) const noexcept {
    set_region_callback(nullptr, nullptr, ec);
  }
  /* Sets an object that is called as listener(device, start, bytes, region_event), from any thread, and is noexcept. It
   * is not copied, and must live as long as `user_data` above. */
  template <class Listener>
  void set_region_callback(Listener &listener, std::error_code &ec) const noexcept {
    static_assert(std::is_nothrow_invocable_v<Listener &, device, void *, std::size_t, region_event>,
                  "the listener takes (bfc::device, void *, std::size_t, bfc::region_event) and is noexcept");
    const void *const address = std::addressof(listener);
    set_region_callback(&device::notify<Listener>, const_cast<void *>(address), ec);
  }

  /* Sets a function that is called before free memory of an idle allocator is released (BFC_TRIM_AFTER), and can
   * declare which work has completed; see bfc_idle_callback_t. Null removes it. errc::busy from the function itself.
   * `user_data` must stay valid until the allocator has ended or another call has succeeded. */
  void set_idle_callback(bfc_idle_callback_t callback, void *user_data, std::error_code &ec) const noexcept {
    detail::set(ec, bfc_set_idle_callback(ordinal_, callback, user_data));
  }

  /* Notifies the allocator that the context of its memory was reset or destroyed. Call it right afterwards. Live
   * allocations count as freed, their pointers are errc::invalid_pointer, and private pools are gone. The allocator
   * itself stays. Has no effect if the memory still exists. errc::unsupported on backends without a device. */
  void device_lost(std::error_code &ec) const noexcept { detail::set(ec, bfc_device_lost(ordinal_)); }

  /* With timestamps: returns the last stamp given to a free. */
  std::uint64_t timestamp(std::error_code &ec) const noexcept {
    std::uint64_t count = 0;
    detail::set(ec, bfc_timestamp(ordinal_, &count));
    return count;
  }
  /* Declares stamps below `count` safe: read timestamp(), synchronize the device, and pass it plus 1. */
  void set_safe_frontier(std::uint64_t count, std::error_code &ec) const noexcept {
    detail::set(ec, bfc_set_safe_frontier(ordinal_, count));
  }

  /* Return the requested bytes of a live allocation, the usable bytes of its chunk, and its number, which rises from
   * 1. */
  std::size_t requested_size(const void *ptr, std::error_code &ec) const noexcept {
    std::size_t bytes = 0;
    detail::set(ec, bfc_requested_size(ordinal_, ptr, &bytes));
    return bytes;
  }
  std::size_t allocated_size(const void *ptr, std::error_code &ec) const noexcept {
    std::size_t bytes = 0;
    detail::set(ec, bfc_allocated_size(ordinal_, ptr, &bytes));
    return bytes;
  }
  std::int64_t allocation_id(const void *ptr, std::error_code &ec) const noexcept {
    std::int64_t id = 0;
    detail::set(ec, bfc_allocation_id(ordinal_, ptr, &id));
    return id;
  }
  /* Returns the live chunk and the region that contain a pointer, which may be an interior one. */
  bfc::address_range address_range(const void *ptr, std::error_code &ec) const noexcept {
    bfc::address_range r;
    detail::set(ec, bfc_address_range(ordinal_, ptr, &r.chunk, &r.chunk_bytes, &r.region, &r.region_bytes));
    return r;
  }
  /* Returns the device whose allocator holds the memory that contains a pointer. On failure its ordinal is -1. */
  static device owner(const void *ptr, std::error_code &ec) noexcept {
    std::int32_t ordinal = 0;
    return device(detail::set(ec, bfc_owner(ptr, &ordinal)) ? ordinal : detail::nowhere);
  }

  /* Releases wholly free regions as long as `keep_bytes` stay held. Returns the bytes released. */
  std::uint64_t trim(std::uint64_t keep_bytes, std::error_code &ec) const noexcept {
    std::uint64_t released = 0;
    detail::set(ec, bfc_trim(ordinal_, keep_bytes, &released));
    return released;
  }
  /* Changes how many bytes may be held from the backend. 0 is a limit of 0. */
  void set_memory_limit(std::uint64_t bytes, std::error_code &ec) const noexcept {
    detail::set(ec, bfc_set_memory_limit(ordinal_, bytes));
  }
  /* Returns the current statistics. */
  bfc_stats_t stats(std::error_code &ec) const noexcept {
    bfc_stats_t result = BFC_STATS_INIT;
    detail::set(ec, bfc_stats(ordinal_, &result));
    return result;
  }
  /* Resets counts to 0 and peaks to the current values. */
  void reset_stats(std::error_code &ec) const noexcept { detail::set(ec, bfc_reset_stats(ordinal_)); }
  /* Checks every invariant of the allocator's metadata, in a time proportional to the number of chunks. */
  void check(std::error_code &ec) const noexcept { detail::set(ec, bfc_check(ordinal_)); }

  /* Returns the pool in 100 columns: '*' used, 'x' slack, '_' free. */
  std::string occupancy(std::error_code &ec) const noexcept { return text(bfc_occupancy, ec); }
  /* Returns regions, chunks, bins and statistics as JSON. */
  std::string memory_map(std::error_code &ec) const noexcept { return text(bfc_memory_map, ec); }
  /* Returns the out-of-memory report. */
  std::string report(std::error_code &ec) const noexcept { return text(bfc_report, ec); }

#if BFC_HAS_EXCEPTIONS
  /* The same operations, which throw bfc::out_of_memory or bfc::status_error. */
  void *allocate(std::size_t bytes) const {
    return detail::must("bfc_alloc", [&](auto &ec) { return allocate(bytes, ec); });
  }
  void *allocate(std::size_t bytes, std::size_t alignment) const {
    return detail::must("bfc_alloc_aligned", [&](auto &ec) { return allocate(bytes, alignment, ec); });
  }
  void *allocate(const request &wanted) const {
    return detail::must("bfc_alloc_ex", [&](auto &ec) { return allocate(wanted, ec); });
  }
  void allocation_failed(const request &wanted) const {
    detail::must("bfc_alloc_failed", [&](auto &ec) { allocation_failed(wanted, ec); });
  }
  void *allocate_async(std::size_t bytes, stream_ref stream) const {
    return detail::must("bfc_alloc_async", [&](auto &ec) { return allocate_async(bytes, stream, ec); });
  }
  void deallocate(void *ptr) const {
    detail::must("bfc_free", [&](auto &ec) { deallocate(ptr, ec); });
  }
  void deallocate_async(void *ptr, stream_ref stream) const {
    detail::must("bfc_free_async", [&](auto &ec) { deallocate_async(ptr, stream, ec); });
  }
  void record_stream(void *ptr, stream_ref stream) const {
    detail::must("bfc_record_stream", [&](auto &ec) { record_stream(ptr, stream, ec); });
  }
  void forget_stream(stream_ref stream) const {
    detail::must("bfc_forget_stream", [&](auto &ec) { forget_stream(stream, ec); });
  }
  void stream_synchronized(stream_ref stream) const {
    detail::must("bfc_stream_synchronized", [&](auto &ec) { stream_synchronized(stream, ec); });
  }
  void begin_private_pool(std::uint64_t name, stream_ref stream) const {
    detail::must("bfc_pool_begin", [&](auto &ec) { begin_private_pool(name, stream, ec); });
  }
  void end_private_pool(std::uint64_t name, stream_ref stream) const {
    detail::must("bfc_pool_end", [&](auto &ec) { end_private_pool(name, stream, ec); });
  }
  void release_private_pool(std::uint64_t name) const {
    detail::must("bfc_pool_release", [&](auto &ec) { release_private_pool(name, ec); });
  }
  void set_region_callback(bfc_region_callback_t callback, void *user_data) const {
    detail::must("bfc_set_region_callback", [&](auto &ec) { set_region_callback(callback, user_data, ec); });
  }
  void set_region_callback(std::nullptr_t) const { set_region_callback(nullptr, nullptr); }
  template <class Listener>
  void set_region_callback(Listener &listener) const {
    detail::must("bfc_set_region_callback", [&](auto &ec) { set_region_callback(listener, ec); });
  }
  void set_idle_callback(bfc_idle_callback_t callback, void *user_data) const {
    detail::must("bfc_set_idle_callback", [&](auto &ec) { set_idle_callback(callback, user_data, ec); });
  }
  void device_lost() const {
    detail::must("bfc_device_lost", [&](auto &ec) { device_lost(ec); });
  }
  std::uint64_t timestamp() const {
    return detail::must("bfc_timestamp", [&](auto &ec) { return timestamp(ec); });
  }
  void set_safe_frontier(std::uint64_t count) const {
    detail::must("bfc_set_safe_frontier", [&](auto &ec) { set_safe_frontier(count, ec); });
  }
  std::size_t requested_size(const void *ptr) const {
    return detail::must("bfc_requested_size", [&](auto &ec) { return requested_size(ptr, ec); });
  }
  std::size_t allocated_size(const void *ptr) const {
    return detail::must("bfc_allocated_size", [&](auto &ec) { return allocated_size(ptr, ec); });
  }
  std::int64_t allocation_id(const void *ptr) const {
    return detail::must("bfc_allocation_id", [&](auto &ec) { return allocation_id(ptr, ec); });
  }
  bfc::address_range address_range(const void *ptr) const {
    return detail::must("bfc_address_range", [&](auto &ec) { return address_range(ptr, ec); });
  }
  static device owner(const void *ptr) {
    return detail::must("bfc_owner", [&](auto &ec) { return owner(ptr, ec); });
  }
  std::uint64_t trim(std::uint64_t keep_bytes = 0) const {
    return detail::must("bfc_trim", [&](auto &ec) { return trim(keep_bytes, ec); });
  }
  void set_memory_limit(std::uint64_t bytes) const {
    detail::must("bfc_set_memory_limit", [&](auto &ec) { set_memory_limit(bytes, ec); });
  }
  bfc_stats_t stats() const {
    return detail::must("bfc_stats", [&](auto &ec) { return stats(ec); });
  }
  void reset_stats() const {
    detail::must("bfc_reset_stats", [&](auto &ec) { reset_stats(ec); });
  }
  void check() const {
    detail::must("bfc_check", [&](auto &ec) { check(ec); });
  }
  std::string occupancy() const {
    return detail::must("bfc_occupancy", [&](auto &ec) { return occupancy(ec); });
  }
  std::string memory_map() const {
    return detail::must("bfc_memory_map", [&](auto &ec) { return memory_map(ec); });
  }
  std::string report() const {
    return detail::must("bfc_report", [&](auto &ec) { return report(ec); });
  }
#endif  // BFC_HAS_EXCEPTIONS

#if BFC_HAS_EXPECTED
  /* The same operations, which return std::expected (C++23). */
  result<void *> try_allocate(std::size_t bytes) const noexcept {
    return detail::attempt([&](auto &ec) { return allocate(bytes, ec); });
  }
  result<void *> try_allocate(std::size_t bytes, std::size_t alignment) const noexcept {
    return detail::attempt([&](auto &ec) { return allocate(bytes, alignment, ec); });
  }
  result<void *> try_allocate(const request &wanted) const noexcept {
    return detail::attempt([&](auto &ec) { return allocate(wanted, ec); });
  }
  result<void> try_allocation_failed(const request &wanted) const noexcept {
    return detail::attempt([&](auto &ec) { allocation_failed(wanted, ec); });
  }
  result<void *> try_allocate_async(std::size_t bytes, stream_ref stream) const noexcept {
    return detail::attempt([&](auto &ec) { return allocate_async(bytes, stream, ec); });
  }
  result<void> try_deallocate(void *ptr) const noexcept {
    return detail::attempt([&](auto &ec) { deallocate(ptr, ec); });
  }
  result<void> try_deallocate_async(void *ptr, stream_ref stream) const noexcept {
    return detail::attempt([&](auto &ec) { deallocate_async(ptr, stream, ec); });
  }
  result<void> try_record_stream(void *ptr, stream_ref stream) const noexcept {
    return detail::attempt([&](auto &ec) { record_stream(ptr, stream, ec); });
  }
  result<void> try_forget_stream(stream_ref stream) const noexcept {
    return detail::attempt([&](auto &ec) { forget_stream(stream, ec); });
  }
  result<void> try_stream_synchronized(stream_ref stream) const noexcept {
    return detail::attempt([&](auto &ec) { stream_synchronized(stream, ec); });
  }
  result<void> try_begin_private_pool(std::uint64_t name, stream_ref stream) const noexcept {
    return detail::attempt([&](auto &ec) { begin_private_pool(name, stream, ec); });
  }
  result<void> try_end_private_pool(std::uint64_t name, stream_ref stream) const noexcept {
    return detail::attempt([&](auto &ec) { end_private_pool(name, stream, ec); });
  }
  result<void> try_release_private_pool(std::uint64_t name) const noexcept {
    return detail::attempt([&](auto &ec) { release_private_pool(name, ec); });
  }
  result<void> try_set_region_callback(bfc_region_callback_t callback, void *user_data) const noexcept {
    return detail::attempt([&](auto &ec) { set_region_callback(callback, user_data, ec); });
  }
  result<void> try_set_region_callback(std::nullptr_t) const noexcept {
    return try_set_region_callback(nullptr, nullptr);
  }
  template <class Listener>
  result<void> try_set_region_callback(Listener &listener) const noexcept {
    return detail::attempt([&](auto &ec) { set_region_callback(listener, ec); });
  }
  result<void> try_set_idle_callback(bfc_idle_callback_t callback, void *user_data) const noexcept {
    return detail::attempt([&](auto &ec) { set_idle_callback(callback, user_data, ec); });
  }
  result<void> try_device_lost() const noexcept {
    return detail::attempt([&](auto &ec) { device_lost(ec); });
  }
  result<std::uint64_t> try_timestamp() const noexcept {
    return detail::attempt([&](auto &ec) { return timestamp(ec); });
  }
  result<void> try_set_safe_frontier(std::uint64_t count) const noexcept {
    return detail::attempt([&](auto &ec) { set_safe_frontier(count, ec); });
  }
  result<std::size_t> try_requested_size(const void *ptr) const noexcept {
    return detail::attempt([&](auto &ec) { return requested_size(ptr, ec); });
  }
  result<std::size_t> try_allocated_size(const void *ptr) const noexcept {
    return detail::attempt([&](auto &ec) { return allocated_size(ptr, ec); });
  }
  result<std::int64_t> try_allocation_id(const void *ptr) const noexcept {
    return detail::attempt([&](auto &ec) { return allocation_id(ptr, ec); });
  }
  result<bfc::address_range> try_address_range(const void *ptr) const noexcept {
    return detail::attempt([&](auto &ec) { return address_range(ptr, ec); });
  }
  static result<device> try_owner(const void *ptr) noexcept {
    return detail::attempt([&](auto &ec) { return owner(ptr, ec); });
  }
  result<std::uint64_t> try_trim(std::uint64_t keep_bytes = 0) const noexcept {
    return detail::attempt([&](auto &ec) { return trim(keep_bytes, ec); });
  }
  result<void> try_set_memory_limit(std::uint64_t bytes) const noexcept {
    return detail::attempt([&](auto &ec) { set_memory_limit(bytes, ec); });
  }
  result<bfc_stats_t> try_stats() const noexcept {
    return detail::attempt([&](auto &ec) { return stats(ec); });
  }
  result<void> try_reset_stats() const noexcept {
    return detail::attempt([&](auto &ec) { reset_stats(ec); });
  }
  result<void> try_check() const noexcept {
    return detail::attempt([&](auto &ec) { check(ec); });
  }
  result<std::string> try_occupancy() const noexcept {
    return detail::attempt([&](auto &ec) { return occupancy(ec); });
  }
  result<std::string> try_memory_map() const noexcept {
    return detail::attempt([&](auto &ec) { return memory_map(ec); });
  }
  result<std::string> try_report() const noexcept {
    return detail::attempt([&](auto &ec) { return report(ec); });
  }
#endif  // BFC_HAS_EXPECTED

 private:
  using writer = bfc_status_t(std::int32_t, char *, std::size_t, std::size_t *);
  std::string text(writer *write, std::error_code &ec) const noexcept {
    return detail::text(ec, [this, write](char *buffer, std::size_t capacity, std::size_t *length) {
      return write(ordinal_, buffer, capacity, length);
    });
  }

  /* The bfc_region_callback_t of an object. */
  template <class Listener>
  static void notify(void *listener, std::int32_t ordinal, void *start, std::size_t bytes,
                     std::int32_t event) noexcept {
    (*static_cast<Listener *>(listener))(device(ordinal), start, bytes, static_cast<region_event>(event));
  }

  std::int32_t ordinal_;
};

}  // namespace bfc

#endif  // BFC_DEVICE_HPP
