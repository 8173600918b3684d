/* libbfc as PyTorch's allocator for memory of the CPU: a c10::Allocator for c10::SetCPUAllocator.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 *     bfc::torch_cpu_allocator<>::use();                 // all new CPU tensors use libbfc
 *     at::Tensor ours = at::empty({1000});
 *
 * In Python, bfc.torch_cpu.use() does this. Compile it as the wheel was compiled: C++17, -D_GLIBCXX_USE_CXX11_ABI=1
 * (see torch.compiled_with_cxx11_abi()), -isystem site-packages/torch/include. Link with libc10.so and libbfc.
 *
 * - The pool is that of the ordinal, 256 unless another is named. If the program has called bfc_create before, it is
 *   the program's own. Otherwise the first request creates it, from the environment. It must not be destroyed while
 *   tensors live.
 * - Running out of memory is c10::OutOfMemoryError, in Python torch.OutOfMemoryError, a RuntimeError like that of
 *   PyTorch's own CPU allocator. Its message has that allocator's "DefaultCPUAllocator: can't allocate memory: you
 *   tried to allocate N bytes", by which programs recognize it, the reason, and libbfc's report. No other failure has
 *   that text.
 * - 0 bytes return a null pointer. Everything else is aligned to 256 bytes (PyTorch wants 64).
 * - Any thread may allocate and free at any time. Tensors may outlive everything: the allocator is never destroyed, and
 *   memory may be freed even at the very end of the program. In a forked child it works like malloc.
 * - torch.profiler with profile_memory=True records it like PyTorch's own allocator.
 *
 * Needs PyTorch 2.3 or newer.
 */

#ifndef BFC_TORCH_HPP
#define BFC_TORCH_HPP

#include "../bfc.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace bfc {

namespace detail {

/* This thread's last failure. */
inline std::string torch_reason() {
  char why[256];
  bfc_last_error(why, sizeof why);
  return why;
}

/* The message of a c10::OutOfMemoryError: programs recognize CPU memory by PyTorch's own text. */
inline std::string torch_out_of_memory(std::int32_t ordinal, std::size_t bytes) {
  const std::string message = "libbfc in place of DefaultCPUAllocator: can't allocate memory: you tried to allocate " +
                              std::to_string(bytes) + " bytes. " + torch_reason() + "\n";
  // The pool may change between the two calls: then the end of the report is truncated.
  std::size_t length = 0;
  bfc_report(ordinal, nullptr, 0, &length);
  std::string report(length + 1, '\0');
  bfc_report(ordinal, &report[0], report.size(), &length);
  return message + report.c_str();
}

}  // namespace detail

/* The allocator of an ordinal, which is known at compile time because PyTorch passes only the address to deleters. */
template <std::int32_t Ordinal = 256>
class torch_cpu_allocator final : public c10::Allocator {
 public:
  /* Returns the only instance, which is never destroyed. */
  static torch_cpu_allocator &instance() {
    static torch_cpu_allocator *const only = new torch_cpu_allocator;
    return *only;
  }

  /* Makes it the allocator of all later allocations on the CPU. Call it while no other thread allocates there, as
   * c10::SetCPUAllocator requires. An allocator that was set with a higher priority stays. */
  static void use(std::uint8_t priority = 100) { c10::SetCPUAllocator(&instance(), priority); }

  /* Throws c10::OutOfMemoryError, and c10::Error for everything else. */
  c10::DataPtr allocate(std::size_t bytes) override {
    void *const data = take(bytes);
    if (data != nullptr) c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

  void copy_data(void *to, const void *from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  torch_cpu_allocator() = default;

  static void *take(std::size_t bytes) {
    void *data = nullptr;
    bfc_status_t status = bfc_alloc(Ordinal, bytes, &data);
    if (status == BFC_ERROR_NO_ALLOCATOR) {
      // Another thread may have created it first.
      status = bfc_create(Ordinal, nullptr);
      if (status == BFC_OK || status == BFC_ERROR_ALREADY_EXISTS) status = bfc_alloc(Ordinal, bytes, &data);
    }
    if (status == BFC_ERROR_OUT_OF_MEMORY) {
      c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
      C10_THROW_ERROR(OutOfMemoryError, detail::torch_out_of_memory(Ordinal, bytes));
    }
    TORCH_CHECK(status == BFC_OK, "libbfc: cannot allocate ", bytes, " bytes: ", bfc_status_string(status), ": ",
                detail::torch_reason());
    return data;
  }

  /* The caller cannot receive a failure. A definite misuse ends the program, as free() does. */
  static void give_back(void *data) {
    if (data == nullptr) return;
    c10::profiledCPUMemoryReporter().Delete(data);
    const bfc_status_t status = bfc_free(Ordinal, data);
    if (status != BFC_ERROR_INVALID_POINTER && status != BFC_ERROR_DOUBLE_FREE) return;
    char words[256];
    bfc_last_error(words, sizeof words);
    std::fprintf(stderr, "libbfc: a tensor's memory at %p: %s\n", data, words);
    std::abort();
  }
};

}  // namespace bfc

#endif  // BFC_TORCH_HPP
