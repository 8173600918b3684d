// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "stream.hpp"

#include <algorithm>
#include <utility>

namespace runtime {

namespace {

address device_address(const void *ptr) { return reinterpret_cast<std::uintptr_t>(ptr); }

constexpr unsigned non_blocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr unsigned without_timing = 2;  // CU_EVENT_DISABLE_TIMING
constexpr int thread_local_mode = 1;    // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

}  // namespace

Stream::Stream(bfc::device memory) : memory_(memory) {
  if (driver_ != nullptr) Driver::must(driver_->cuStreamCreate(&handle_, non_blocking), "cuStreamCreate");
}

Stream::~Stream() {
  std::error_code ignored;  // nothing can be done about an error here
  if (driver_ != nullptr) driver_->cuStreamSynchronize(handle_);
  memory_.stream_synchronized(ref(), ignored);
  memory_.forget_stream(ref(), ignored);
  if (driver_ != nullptr) driver_->cuStreamDestroy(handle_);
}

void Stream::queue(work item) {
  if (recording_ != nullptr) {
    recording_->push_back(std::move(item));
  } else {
    item();
  }
}

void Stream::fill(std::uint32_t *to, std::uint32_t value, std::size_t count) {
  if (driver_ == nullptr) return queue([=] { std::fill_n(to, count, value); });
  Driver::must(driver_->cuMemsetD32Async(device_address(to), value, count, handle_), "cuMemsetD32Async");
}

void Stream::copy(std::uint32_t *to, const std::uint32_t *from, std::size_t count) {
  if (driver_ == nullptr) return queue([=] { std::copy_n(from, count, to); });
  const std::size_t bytes = count * sizeof(*to);
  Driver::must(driver_->cuMemcpyDtoDAsync(device_address(to), device_address(from), bytes, handle_),
               "cuMemcpyDtoDAsync");
}

void Stream::wait_for(const Stream &other) {
  if (driver_ == nullptr) return;  // its work is done already
  void *event = nullptr;
  Driver::must(driver_->cuEventCreate(&event, without_timing), "cuEventCreate");
  int result = driver_->cuEventRecord(event, other.handle_);
  if (result == 0) result = driver_->cuStreamWaitEvent(handle_, event, 0);
  driver_->cuEventDestroy(event);  // the wait goes on without the handle
  Driver::must(result, "cuStreamWaitEvent");
}

void Stream::synchronize() {
  if (driver_ != nullptr) Driver::must(driver_->cuStreamSynchronize(handle_), "cuStreamSynchronize");
  memory_.stream_synchronized(ref());
}

std::vector<std::uint32_t> Stream::read(const std::uint32_t *from, std::size_t count) {
  std::vector<std::uint32_t> values(count);
  if (driver_ == nullptr) {
    std::copy_n(from, count, values.begin());
  } else {
    const std::size_t bytes = count * sizeof(*from);
    Driver::must(driver_->cuMemcpyDtoHAsync(values.data(), device_address(from), bytes, handle_), "cuMemcpyDtoHAsync");
  }
  synchronize();
  return values;
}

Graph::Graph(Stream &stream, std::uint64_t name, const std::function<void()> &body) : memory_(stream.memory(), name) {
  // The scope begins before the capture and ends after it, also if the body throws.
  const bfc::private_pool_scope routed = memory_.capture(stream.ref());
  capture(stream, body);
}

void Graph::capture(Stream &stream, const std::function<void()> &body) {
  if (driver_ == nullptr) {
    stream.recording_ = &recorded_;
    try {
      body();
    } catch (...) {
      stream.recording_ = nullptr;
      throw;
    }
    stream.recording_ = nullptr;
    return;
  }
  void *graph = nullptr;
  Driver::must(driver_->cuStreamBeginCapture(stream.handle_, thread_local_mode), "cuStreamBeginCapture");
  try {
    body();
  } catch (...) {
    if (driver_->cuStreamEndCapture(stream.handle_, &graph) == 0) driver_->cuGraphDestroy(graph);
    throw;
  }
  Driver::must(driver_->cuStreamEndCapture(stream.handle_, &graph), "cuStreamEndCapture");
  const int result = driver_->cuGraphInstantiate(&executable_, graph, 0);
  driver_->cuGraphDestroy(graph);
  Driver::must(result, "cuGraphInstantiateWithFlags");
}

Graph::~Graph() {
  if (executable_ != nullptr) driver_->cuGraphExecDestroy(executable_);
}

void Graph::launch(Stream &stream) {
  if (driver_ != nullptr) return Driver::must(driver_->cuGraphLaunch(executable_, stream.handle_), "cuGraphLaunch");
  for (const Stream::work &item : recorded_) item();
}

}  // namespace runtime
