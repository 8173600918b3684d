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

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline namespace per_thread_default_stream {
#else
inline namespace legacy_default_stream {
#endif

/* Routes a stream's requests to a private pool in a block; see device::begin_private_pool. The block goes around the
 * capture: made before cudaStreamBeginCapture, ended after cudaStreamEndCapture. The pool keeps its memory for the
 * graph afterwards, until device::release_private_pool. May be ended and destroyed in
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
  device device_;
  std::uint64_t name_;
  bfc_stream_t stream_;
  bool begun_ = false;
};

}  // inline namespace

}  // namespace bfc

#endif  // BFC_GRAPH_HPP
