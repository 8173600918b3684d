// RMM's pool, or with PEER_ARENA its arena, over the simulated runtime, on the default stream.
#include <exception>
#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/device/arena_memory_resource.hpp>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>
#include <string>

#include "peer.h"

namespace {

#ifdef PEER_ARENA
using Resource = rmm::mr::arena_memory_resource<rmm::mr::cuda_memory_resource>;
#else
using Resource = rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>;
#endif

Resource *resource = nullptr;

}  // namespace

const char *peer_open(uint64_t capacity, int touched) {
  static std::string why;
  if (touched != 0) return "the simulated device has no memory to write to";
  try {
    resource = new Resource(new rmm::mr::cuda_memory_resource, capacity);
    return nullptr;
  } catch (const std::exception &error) {
    why = error.what();
    return why.c_str();
  }
}

#ifndef PEER_ARENA  // An arena takes half of the device by default.
static uint64_t free_bytes() {
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
}

static uint64_t free_at_first = 0;

const char *peer_open_on_demand() {
  free_at_first = free_bytes();
  return peer_open(0, 0);
}

uint64_t peer_held() { return free_at_first - free_bytes(); }
#endif

void *peer_alloc(size_t bytes) {
  try {
    return resource->allocate_async(bytes, rmm::cuda_stream_view{});
  } catch (const std::exception &) { return nullptr; }
}

void peer_free(void *ptr, size_t bytes) { resource->deallocate_async(ptr, bytes, rmm::cuda_stream_view{}); }
