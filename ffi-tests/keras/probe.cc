// What TensorFlow's allocators other than its BFC one have served: the malloc of tsl::cpu_allocator_base, and the
// host's in ProcessState, which is that of tensors. Compiled against its headers and linked with its framework library.

#include <cstdint>

#include "tensorflow/core/common_runtime/process_state.h"
#include "xla/tsl/framework/allocator.h"

extern "C" {

// Makes the base allocator count. Before the first tensor.
void probe_begin() { tsl::EnableCPUAllocatorStats(); }

// How many requests it has served.
std::int64_t probe_base_allocations() {
  const auto stats = tsl::cpu_allocator_base()->GetStats();
  return stats ? stats->num_allocs : -1;
}

// How many the allocator of tensors has served, by its own account; -1 if it keeps none.
std::int64_t probe_tensor_allocations() {
  const auto stats = tensorflow::ProcessState::singleton()->GetCPUAllocator(0)->GetStats();
  return stats ? stats->num_allocs : -1;
}

const char *probe_tensor_allocator() {
  static const std::string name = tensorflow::ProcessState::singleton()->GetCPUAllocator(0)->Name();
  return name.c_str();
}

}  // extern "C"
