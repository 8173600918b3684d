// Tensors of a small runtime, whose memory is freed in the order of a stream.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#ifndef EXAMPLE_RUNTIME_TENSOR_HPP
#define EXAMPLE_RUNTIME_TENSOR_HPP

#include "stream.hpp"

#include <bfc.hpp>

#include <algorithm>
#include <cstdint>

namespace runtime {

// Elements of 4 bytes. Destroying a tensor never waits: the memory is reused once the work that is queued by then is
// done.
class Tensor {
 public:
  Tensor(Stream &stream, std::size_t count)
      : memory_(stream.memory(), count * sizeof(std::uint32_t), stream.ref()), count_(count) {}

  // Queue work on any stream, which the caller has ordered behind earlier work by Stream::wait_for.
  void fill(Stream &on, std::uint32_t value) { on.fill(used_on(on), value, count_); }
  void copy_from(Stream &on, const Tensor &other) {
    on.copy(used_on(on), other.used_on(on), std::min(count_, other.count_));
  }
  // Whether all elements have a value. Waits for the stream.
  bool is(Stream &on, std::uint32_t value) const {
    const std::vector<std::uint32_t> values = on.read(used_on(on), count_);
    return std::count(values.begin(), values.end(), value) == static_cast<std::ptrdiff_t>(count_);
  }

 private:
  // On another stream than its own, the allocator has to know of the use.
  std::uint32_t *used_on(const Stream &stream) const {
    if (stream.ref() != bfc::stream_ref(memory_.stream())) memory_.record_stream(stream.ref());
    return static_cast<std::uint32_t *>(memory_.data());
  }

  bfc::allocation memory_;
  std::size_t count_;
};

}  // namespace runtime

#endif
