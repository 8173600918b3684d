// Streams of a small runtime: on a GPU those of the driver, and without one queues whose work is done at once.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#ifndef EXAMPLE_RUNTIME_STREAM_HPP
#define EXAMPLE_RUNTIME_STREAM_HPP

#include "driver.hpp"

#include <bfc.hpp>

#include <cstdint>
#include <functional>
#include <vector>

namespace runtime {

// An order of work. Not for two threads at once. Create it in a thread that has entered the device.
class Stream {
 public:
  explicit Stream(bfc::device memory);
  Stream(const Stream &) = delete;
  Stream &operator=(const Stream &) = delete;
  // Waits for the work, and tells the allocator before the handle becomes invalid.
  ~Stream();

  bfc::device memory() const { return memory_; }
  // On the host backend a stream is any token, here this object's address.
  bfc::stream_ref ref() const { return handle_; }

  // Queue work. Sizes are in elements of 4 bytes.
  void fill(std::uint32_t *to, std::uint32_t value, std::size_t count);
  void copy(std::uint32_t *to, const std::uint32_t *from, std::size_t count);
  // Later work of this stream comes behind what is queued on the other one.
  void wait_for(const Stream &other);

  // Waits for all work, and says so to the allocator: what was freed here is then reusable by every stream.
  void synchronize();
  // Copies memory to the host, and waits.
  std::vector<std::uint32_t> read(const std::uint32_t *from, std::size_t count);

 private:
  friend class Graph;
  using work = std::function<void()>;
  void queue(work item);

  const Driver *driver_ = Driver::load();
  bfc::device memory_;
  void *handle_ = this;
  std::vector<work> *recording_ = nullptr;  // of a capture without a driver
};

// Work that is captured once and launched as often as needed. Its memory is a private pool, which no other request may
// use while the graph lives.
class Graph {
 public:
  // Captures what `body` queues on the stream. `name` is that of the private pool.
  Graph(Stream &stream, std::uint64_t name, const std::function<void()> &body);
  Graph(const Graph &) = delete;
  Graph &operator=(const Graph &) = delete;
  // To be called when no launch is pending.
  ~Graph();

  void launch(Stream &stream);

 private:
  void capture(Stream &stream, const std::function<void()> &body);

  const Driver *driver_ = Driver::load();
  bfc::private_pool memory_;  // released after ~Graph has destroyed what uses it
  void *executable_ = nullptr;
  std::vector<Stream::work> recorded_;
};

}  // namespace runtime

#endif
