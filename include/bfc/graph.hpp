/* Private pools for captured graphs. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_GRAPH_HPP
#define BFC_GRAPH_HPP

#include "device.hpp"
#include "stream.hpp"

#include <cstdint>
#include <utility>

namespace bfc {

class private_pool;

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline namespace per_thread_default_stream {
#else
inline namespace legacy_default_stream {
#endif

/* Routes a stream's requests to a private pool in a block; see device::begin_private_pool. The block goes around the
 * capture: made before cudaStreamBeginCapture, ended after cudaStreamEndCapture. The pool keeps its memory for the
 * graph afterwards, until device::release_private_pool, which bfc::private_pool calls. It may be ended and destroyed in
 * any thread, unless the stream is the thread's default stream. One that could not begin does nothing. */
class private_pool_scope {
 public:
  /* Errors are those of bfc_pool_begin: errc::invalid_argument if the stream is already routed to a private pool. */
  private_pool_scope(device of, std::uint64_t name, stream_ref stream, std::error_code &ec) noexcept
      : device_(of), name_(name), stream_(stream.get()) {
    device_.begin_private_pool(name_, stream_, ec);
    begun_ = !ec;
  }
#if BFC_HAS_EXCEPTIONS
  private_pool_scope(device of, std::uint64_t name, stream_ref stream)
      : device_(of), name_(name), stream_(stream.get()), begun_(true) {
    device_.begin_private_pool(name_, stream_);
  }
#endif
  private_pool_scope(const private_pool_scope &) = delete;
  private_pool_scope &operator=(const private_pool_scope &) = delete;
  /* Ends the routing without reporting. This fails if the allocator or its memory is gone, and then there is nothing
   * to end. */
  ~private_pool_scope() {
    if (begun_) (bfc_pool_end)(device_.ordinal(), name_, stream_);
  }

  std::uint64_t name() const noexcept { return name_; }
  /* Whether the stream is routed to the pool because of this object. */
  explicit operator bool() const noexcept { return begun_; }

  /* Ends the routing before the block does. Has no effect if it has ended. On failure it is as before. */
  void end(std::error_code &ec) noexcept {
    ec.clear();
    if (begun_) detail::set(ec, (bfc_pool_end)(device_.ordinal(), name_, stream_));
    begun_ = begun_ && ec;
  }
#if BFC_HAS_EXCEPTIONS
  void end() {
    detail::must("bfc_pool_end", [&](auto &ec) { end(ec); });
  }
#endif
#if BFC_HAS_EXPECTED
  result<void> try_end() noexcept {
    return detail::attempt([&](auto &ec) { end(ec); });
  }
#endif

 private:
  friend class bfc::private_pool;
  /* `begun` becomes true if it could begin, and stays as it is otherwise. */
  private_pool_scope(device of, std::uint64_t name, stream_ref stream, bool &begun, std::error_code &ec) noexcept
      : private_pool_scope(of, name, stream, ec) {
    begun = begun || begun_;
  }
#if BFC_HAS_EXCEPTIONS
  private_pool_scope(device of, std::uint64_t name, stream_ref stream, bool &begun)
      : private_pool_scope(of, name, stream) {
    begun = true;
  }
#endif

  device device_;
  std::uint64_t name_;
  bfc_stream_t stream_;
  bool begun_ = false;
};

}  // inline namespace

/* Announces a stream capture on any stream and device for a block; see bfc_capture_begin. Construct it before the
 * capture begins and destroy it after the capture has ended. Until then no call synchronizes a device or releases device
 * memory. For programs that intercept captures of others: private_pool::capture announces its own. Announcements are
 * counted, so blocks may overlap, in any threads. */
class capture_scope {
 public:
  capture_scope() noexcept { bfc_capture_begin(); }
  capture_scope(const capture_scope &) = delete;
  capture_scope &operator=(const capture_scope &) = delete;
  ~capture_scope() { bfc_capture_end(); }
};

/* The memory of a captured graph, owned: a private pool that is released with this object.
 *
 *     bfc::private_pool memory(pool, 1);       // declared before the graph, so that it is destroyed after it
 *     {
 *       const auto routed = memory.capture(stream);
 *       cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
 *       ...                                    // allocations on the stream come from the private pool
 *       cudaStreamEndCapture(stream, &graph);
 *     }
 *     // launch the graph as often as needed
 *
 * Release declares that no graph uses the memory anymore: destroy the graphs first, after their last launch has
 * completed or on a stream that the context's synchronization covers. Live allocations stay valid. The object must not
 * outlive the allocator. Like a standard container it may not be changed by two threads at once. */
class private_pool {
 public:
  /* Owns nothing. */
  private_pool() noexcept = default;
  /* Names a pool, which the first capture creates. `name` is the caller's, and must be different for each private
   * pool of a device that exists at the same time. */
  private_pool(device of, std::uint64_t name) noexcept : device_(of), name_(name) {}

  private_pool(const private_pool &) = delete;
  private_pool &operator=(const private_pool &) = delete;
  /* Moving leaves an object that owns nothing. A private_pool_scope does not refer to this object. */
  private_pool(private_pool &&other) noexcept
      : device_(other.device_), name_(other.name_), created_(std::exchange(other.created_, false)) {}
  private_pool &operator=(private_pool &&other) noexcept {
    private_pool taken(std::move(other));
    swap(taken);
    return *this;
  }
  /* Releases the pool without reporting. If a stream is still routed to it (errc::busy) the pool keeps its memory:
   * end scopes first. */
  ~private_pool() {
    if (created_) bfc_pool_release(device_.ordinal(), name_);
  }

  void swap(private_pool &other) noexcept {
    std::swap(device_, other.device_);
    std::swap(name_, other.name_);
    std::swap(created_, other.created_);
  }
  friend void swap(private_pool &a, private_pool &b) noexcept { a.swap(b); }

  bfc::device get_device() const noexcept { return device_; }
  std::uint64_t name() const noexcept { return name_; }
  /* Whether there is a pool to release. */
  explicit operator bool() const noexcept { return created_; }

  /* Routes the requests of a stream to the pool until the result is ended or destroyed. Errors are those of
   * bfc_pool_begin, and then the result does nothing. */
  [[nodiscard]] private_pool_scope capture(stream_ref stream, std::error_code &ec) noexcept {
    return private_pool_scope(device_, name_, stream, created_, ec);
  }
#if BFC_HAS_EXCEPTIONS
  [[nodiscard]] private_pool_scope capture(stream_ref stream) {
    return private_pool_scope(device_, name_, stream, created_);
  }
#endif

  /* Releases the pool before the destructor does. Has no effect if there is none. errc::busy while a stream is routed
   * to it, and then nothing has changed. */
  void release(std::error_code &ec) noexcept {
    if (detail::set(ec, created_ ? bfc_pool_release(device_.ordinal(), name_) : BFC_OK)) created_ = false;
  }
#if BFC_HAS_EXCEPTIONS
  void release() {
    detail::must("bfc_pool_release", [&](auto &ec) { release(ec); });
  }
#endif
#if BFC_HAS_EXPECTED
  result<void> try_release() noexcept {
    return detail::attempt([&](auto &ec) { release(ec); });
  }
#endif

 private:
  device device_ = device(detail::nowhere);
  std::uint64_t name_ = 0;
  bool created_ = false;
};

}  // namespace bfc

#endif  // BFC_GRAPH_HPP
