/* libbfc for TensorRT: an nvinfer1::IGpuAsyncAllocator. docs/tensorrt.md is the page for users.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 *     bfc::tensorrt_allocator allocator(bfc::device(0));   // declared before, destroyed after
 *     runtime->setGpuAllocator(&allocator);                // an IRuntime or an IBuilder
 *
 * Needs TensorRT's headers, of version 10 or newer or of TensorRT for RTX, and links nothing of CUDA. bfc.hpp does not
 * include this.
 */

#ifndef BFC_TENSORRT_HPP
#define BFC_TENSORRT_HPP

#include "../bfc.hpp"

#include <NvInferRuntime.h>

#include <cstddef>
#include <cstdint>

namespace bfc {

/* Device memory for TensorRT in the order of its streams, like bfc_alloc_async.
 *
 * - The device is fixed at construction: keep a runtime, a builder and their engines on one device, and use one
 *   allocator for each device. If the device has no allocator, the first request creates it from the environment.
 * - No function throws. A failure returns null or false, and TensorRT reports that it is out of memory. The reason is
 *   in bfc_last_error of that thread.
 * - All functions may be called from any thread at any time.
 * - deallocateAsync may name a stream other than that of allocateAsync: freed memory immediately belongs to that
 *   stream. Before a stream of the program is destroyed, call get_device().forget_stream(stream).
 * - Stream 0 is the legacy default stream, however the program is compiled: TensorRT's library queues the work.
 * - The deprecated functions without a stream are those of IGpuAsyncAllocator: they name the default stream, whose work
 *   orders them. */
class tensorrt_allocator final : public nvinfer1::IGpuAsyncAllocator {
 public:
  explicit tensorrt_allocator(device of) noexcept : device_(of) {}
  device get_device() const noexcept { return device_; }

  /* Alignment 0 accepts any, and every chunk has 256 anyway. The flags have no effect: any allocation may be resized. A
   * size of 0 returns null. */
  void *allocateAsync(std::uint64_t const size, std::uint64_t const alignment, nvinfer1::AllocatorFlags const,
                      cudaStream_t stream) noexcept override {
    std::error_code ec;
    void *ptr = allocate_on(size, alignment, stream, ec);
    if (ec == errc::no_allocator) {
      pool::create(device_.ordinal(), ec).release(); /* another thread may have created it first */
      if (!ec || ec == errc::already_exists) ptr = allocate_on(size, alignment, stream, ec);
    }
    return ptr;
  }

  /* Returns whether the memory is free now. True for null. An address that is not live returns false and changes
   * nothing. */
  bool deallocateAsync(void *const memory, cudaStream_t stream) noexcept override {
    return (bfc_free_async)(device_.ordinal(), memory, stream) == BFC_OK;
  }

  /* Resizes in place if the chunk has room. Returns null otherwise: the allocation is unchanged, and TensorRT moves it
   * itself. A copy would have to be in the order of a stream, and none is named here. The alignment is kept. */
  void *reallocate(void *const address, std::uint64_t, std::uint64_t size) noexcept override {
    std::error_code ec;
    const std::size_t room = address == nullptr ? 0 : device_.allocated_size(address, ec);
    return !ec && size <= room ? address : nullptr;
  }

 private:
  void *allocate_on(std::uint64_t size, std::uint64_t alignment, cudaStream_t stream, std::error_code &ec) noexcept {
    request wanted;
    wanted.bytes = size;
    wanted.alignment = alignment;
    wanted.stream = stream == nullptr ? stream_ref::legacy().get() : stream;
    return device_.allocate(wanted, ec);
  }

  device device_;
};

}  // namespace bfc

#endif  // BFC_TENSORRT_HPP
