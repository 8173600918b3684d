// For RMM 25.8 and newer, whose library has NVIDIA's runtime inside: that runtime does not start on the simulated driver,
// and nothing can be put in its place. So what of RMM calls it is here once more, over the simulated runtime. librmm.so
// calls these functions through its table of symbols, and the loader takes the program's: the rest of it is RMM's own.
// For Python this file is a library of its own, in LD_PRELOAD.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <rmm/cuda_device.hpp>
#include <rmm/cuda_stream.hpp>
#include <rmm/cuda_stream_view.hpp>
#include <rmm/detail/cuda_memcpy.hpp>
#include <rmm/detail/error.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

RMM_NAMESPACE_BEGIN

cuda_device_id get_current_cuda_device() {
  int device = 0;
  RMM_CUDA_TRY(cudaGetDevice(&device));
  return cuda_device_id(device);
}

int get_num_cuda_devices() {
  int count = 0;
  RMM_CUDA_TRY(cudaGetDeviceCount(&count));
  return count;
}

std::pair<std::size_t, std::size_t> available_device_memory() {
  std::size_t free = 0, total = 0;
  RMM_CUDA_TRY(cudaMemGetInfo(&free, &total));
  return {free, total};
}

cuda_set_device_raii::cuda_set_device_raii(cuda_device_id device)
    : old_device_(get_current_cuda_device()), needs_reset_(device.value() >= 0 && old_device_ != device) {
  if (needs_reset_) RMM_CUDA_TRY(cudaSetDevice(device.value()));
}
cuda_set_device_raii::~cuda_set_device_raii() noexcept {
  if (needs_reset_) cudaSetDevice(old_device_.value());
}

cudaError_t detail::memcpy_async(void *to, const void *from, std::size_t bytes, cuda::stream_ref stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get());
}

cuda_stream::cuda_stream(flags kind)
    : stream_(new cudaStream_t{}, [](cudaStream_t *made) {
        cudaStreamDestroy(*made);
        delete made;
      }) {
  RMM_CUDA_TRY(cudaStreamCreateWithFlags(stream_.get(), static_cast<unsigned>(kind)));
}
void cuda_stream::synchronize() const { RMM_CUDA_TRY(cudaStreamSynchronize(value())); }
void cuda_stream_view::synchronize() const { RMM_CUDA_TRY(cudaStreamSynchronize(value())); }

// What a program has before it sets a resource of its own.
void *mr::cuda_memory_resource::allocate_sync(std::size_t bytes, std::size_t) {
  void *ptr = nullptr;
  RMM_CUDA_TRY_ALLOC(cudaMalloc(&ptr, bytes), bytes);
  return ptr;
}
void mr::cuda_memory_resource::deallocate_sync(void *ptr, std::size_t, std::size_t) noexcept { cudaFree(ptr); }
void *mr::cuda_memory_resource::allocate(cuda::stream_ref, std::size_t bytes, std::size_t alignment) {
  return allocate_sync(bytes, alignment);
}
void mr::cuda_memory_resource::deallocate(cuda::stream_ref, void *ptr, std::size_t bytes,
                                          std::size_t alignment) noexcept {
  deallocate_sync(ptr, bytes, alignment);
}

RMM_NAMESPACE_END
