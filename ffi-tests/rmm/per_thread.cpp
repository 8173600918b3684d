// A program whose stream 0 is the thread's, as with nvcc's --default-stream per-thread. The simulated runtime has no
// functions for that, so nothing of it that knows streams is called here.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#define CUDA_API_PER_THREAD_DEFAULT_STREAM 1

#include <bfc/rmm.hpp>

#include "../c/check.h"
#include "../../crates/simcuda/simcuda.h"

#include <cstddef>
#include <cstdint>

int main() {
  constexpr std::size_t bytes = 20u << 20;
  // The simulation names default streams by the current context.
  CHECK(cudaSetDevice(0) == cudaSuccess);
  bfc::rmm_resource resource(bfc::device(0));
  const cuda::stream_ref zero{cudaStream_t{nullptr}}, of_thread{cudaStreamPerThread};
  void *const ptr = resource.allocate(zero, bytes);
  CHECK(simcuda_hold(cudaStreamPerThread) == 0);
  CHECK(simcuda_fill(cudaStreamPerThread, reinterpret_cast<std::uintptr_t>(ptr), bytes, 1) == 0);
  resource.deallocate(zero, ptr, bytes);
  // With the work pending: only the stream that it was freed on may have it, and 0 is that one.
  CHECK(simcuda_pending(cudaStreamPerThread) != 0);
  CHECK(resource.allocate(of_thread, bytes) == ptr);
  resource.deallocate(of_thread, ptr, bytes);
  void *const other = resource.allocate(cuda::stream_ref{cudaStreamLegacy}, bytes);
  CHECK(other != ptr);
  resource.deallocate(cuda::stream_ref{cudaStreamLegacy}, other, bytes);
  simcuda_release_all();
  CHECK_OK(bfc_destroy(0));
  CHECK(simcuda_misuses() == 0 && simcuda_used(0) == 0);
  return 0;
}
