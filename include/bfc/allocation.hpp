/* Memory, owned, with or without a stream. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_ALLOCATION_HPP
#define BFC_ALLOCATION_HPP

#include "device.hpp"
#include "stream.hpp"

#include <cstddef>
#include <utility>

namespace bfc {

/* Memory of a device, owned: freed with this object. With a stream it is allocated in the order of the stream, and
 * freed in the order of its stream at that time.
 *
 * The object must not outlive the allocator, and its stream must exist until it is freed (or see
 * device::forget_stream, after which set_stream names another). After pool::destroy_forced the address may belong to
 * another allocation: call release() before.
 *
 * Threads: like a standard container. Different objects may be used in different threads, also to free in a thread
 * other than the one that allocated. Memory that was allocated on a default stream is freed on that stream, in whichever
 * thread and with whichever context current. A default stream that adopt or set_stream names is that of the free.
 *
 * The destructor and the move assignment free without reporting. A free can fail if the allocator is gone, if another
 * free took the pointer, or in a forked child on all backends but the host; it then changes nothing, and
 * bfc::last_error has the message. reset() reports. */
class allocation {
 public:
  /* Owns nothing. */
  allocation() noexcept = default;

  /* Allocates `bytes` bytes without a stream, at a multiple of `alignment` (0 is 256, else a power of two). Errors
   * are those of bfc_alloc_ex. On failure the result is empty; so is an allocation of 0 bytes. */
  static allocation create(device from, std::size_t bytes, std::error_code &ec) noexcept {
    return create(from, bytes, std::size_t{0}, ec);
  }
  static allocation create(device from, std::size_t bytes, std::size_t alignment, std::error_code &ec) noexcept {
    bfc_request_t raw = BFC_REQUEST_INIT;
    raw.bytes = bytes;
    raw.alignment = alignment;
    return create(from, raw, ec);
  }
  /* Allocates in the order of a stream. */
  static allocation create(device from, std::size_t bytes, stream_ref stream, std::error_code &ec) noexcept {
    request wanted;
    wanted.bytes = bytes;
    wanted.stream = stream;
    return create(from, wanted.raw(), ec);
  }
  /* Allocates with all optional parameters. */
  static allocation create(device from, const request &wanted, std::error_code &ec) noexcept {
    return create(from, wanted.raw(), ec);
  }
  /* Takes ownership of memory that was allocated already, of which `size` bytes are in use. It is freed in the order
   * of the stream, or without a stream, in which case memory of bfc_alloc_async is freed on the stream of its
   * allocation. */
  static allocation adopt(device from, void *data, std::size_t size) noexcept { return {from, data, size, nullptr}; }
  static allocation adopt(device from, void *data, std::size_t size, stream_ref stream) noexcept {
    allocation adopted(from, data, size, nullptr);
    adopted.set_stream(stream);
    return adopted;
  }

#if BFC_HAS_EXCEPTIONS
  /* Like create, but throws bfc::out_of_memory or bfc::status_error, and leaves nothing behind. */
  allocation(device from, std::size_t bytes, std::size_t alignment = 0)
      : allocation(detail::must("bfc_alloc_ex", [&](auto &ec) { return create(from, bytes, alignment, ec); })) {}
  allocation(device from, std::size_t bytes, stream_ref stream)
      : allocation(detail::must("bfc_alloc_ex", [&](auto &ec) { return create(from, bytes, stream, ec); })) {}
  allocation(device from, const request &wanted)
      : allocation(detail::must("bfc_alloc_ex", [&](auto &ec) { return create(from, wanted, ec); })) {}
#endif
#if BFC_HAS_EXPECTED
  static result<allocation> try_create(device from, std::size_t bytes, std::size_t alignment = 0) noexcept {
    return detail::attempt([&](auto &ec) { return create(from, bytes, alignment, ec); });
  }
  static result<allocation> try_create(device from, std::size_t bytes, stream_ref stream) noexcept {
    return detail::attempt([&](auto &ec) { return create(from, bytes, stream, ec); });
  }
  static result<allocation> try_create(device from, const request &wanted) noexcept {
    return detail::attempt([&](auto &ec) { return create(from, wanted, ec); });
  }
#endif

  allocation(const allocation &) = delete;
  allocation &operator=(const allocation &) = delete;
  /* Moving leaves an object that owns nothing. */
  allocation(allocation &&other) noexcept
      : device_(other.device_),
        is_restreamed_(other.is_restreamed_),
        size_(std::exchange(other.size_, 0)),
        data_(std::exchange(other.data_, nullptr)),
        stream_(other.stream_) {}
  allocation &operator=(allocation &&other) noexcept {
    allocation taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~allocation() {
    if (data_ != nullptr) free();
  }

  void swap(allocation &other) noexcept {
    std::swap(device_, other.device_);
    std::swap(is_restreamed_, other.is_restreamed_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(stream_, other.stream_);
  }
  friend void swap(allocation &a, allocation &b) noexcept { a.swap(b); }

  /* Returns the address, which belongs to the backend's memory: the CPU must not access that of a CUDA device. */
  void *data() const noexcept { return data_; }
  /* Returns the requested bytes; the chunk may have more. */
  std::size_t size() const noexcept { return size_; }
  bfc::device get_device() const noexcept { return device_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }
  friend bool operator==(const allocation &a, std::nullptr_t) noexcept { return a.data_ == nullptr; }
  friend bool operator!=(const allocation &a, std::nullptr_t) noexcept { return a.data_ != nullptr; }
  friend bool operator==(std::nullptr_t, const allocation &a) noexcept { return a.data_ == nullptr; }
  friend bool operator!=(std::nullptr_t, const allocation &a) noexcept { return a.data_ != nullptr; }

  /* Returns the handle of the stream on which the memory is freed (see stream_ref::get), or null if it has none. */
  bfc_stream_t stream() const noexcept { return stream_; }
  /* Changes the stream on which the memory is freed. The new stream must be ordered after all work that uses the memory
   * elsewhere (cudaStreamWaitEvent), unless record_stream declares it. Calls nothing. */
  void set_stream(stream_ref stream) noexcept {
    stream_ = stream.get();
    is_restreamed_ = true;
  }

  /* Declares that the memory is also used on a stream. Once freed, it is not reused until the work queued there by
   * then has completed. Fails without memory. */
  void record_stream(stream_ref stream, std::error_code &ec) const noexcept {
    device_.record_stream(data_, stream, ec);
  }
  /* Frees the memory now. On failure it is still owned. Without memory it does nothing. */
  void reset(std::error_code &ec) noexcept {
    if (detail::set(ec, data_ == nullptr ? BFC_OK : free())) release();
  }
#if BFC_HAS_EXCEPTIONS
  void record_stream(stream_ref stream) const { device_.record_stream(data_, stream); }
  void reset() {
    detail::must("bfc_free", [&](auto &ec) { reset(ec); });
  }
#endif
#if BFC_HAS_EXPECTED
  result<void> try_record_stream(stream_ref stream) const noexcept { return device_.try_record_stream(data_, stream); }
  result<void> try_reset() noexcept {
    return detail::attempt([&](auto &ec) { reset(ec); });
  }
#endif

  /* Gives up ownership and returns the address, which the caller frees on the device. */
  void *release() noexcept {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }

 private:
  allocation(device from, void *data, std::size_t size, bfc_stream_t stream) noexcept
      : device_(from), size_(size), data_(data), stream_(stream) {}

  /* Takes no type of the unit, because units share this function. */
  static allocation create(device from, const bfc_request_t &raw, std::error_code &ec) noexcept {
    void *data = nullptr;
    const bool done = detail::set(ec, (bfc_alloc_ex)(from.ordinal(), &raw, &data));
    return done ? allocation(from, data, raw.bytes, raw.stream) : allocation();
  }

  /* For memory that was allocated on a stream, bfc_free is a free on that stream. The handle of a default stream may
   * mean another stream here: each thread and each context has its own. */
  bfc_status_t free() const noexcept {
    return is_restreamed_ ? (bfc_free_async)(device_.ordinal(), data_, stream_) : bfc_free(device_.ordinal(), data_);
  }

  device device_ = device(detail::nowhere);
  /* Whether stream_ differs from the stream of the allocation. */
  bool is_restreamed_ = false;
  std::size_t size_ = 0;
  void *data_ = nullptr;
  bfc_stream_t stream_ = nullptr;
};

}  // namespace bfc

#endif  // BFC_ALLOCATION_HPP
