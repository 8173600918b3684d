// libbfc as PyTorch's allocator for memory of the CPU, for bfc/torch_cpu.py; compiled against the installed torch.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "bfc/torch.hpp"

#define SHOWN __attribute__((visibility("default")))

extern "C" {

// Makes it the allocator. Returns whether it then is, because another one may have been set with a higher priority.
SHOWN int bfc_torch_cpu_use(int priority) {
  using ours = bfc::torch_cpu_allocator<256>;
  ours::use(static_cast<std::uint8_t>(priority));
  return c10::GetCPUAllocator() == &ours::instance();
}

// Restores PyTorch's own allocator. Returns whether that worked. Existing allocations stay with libbfc until freed.
SHOWN int bfc_torch_cpu_unuse(int priority) {
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), static_cast<std::uint8_t>(priority));
  return c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator();
}

}  // extern "C"
