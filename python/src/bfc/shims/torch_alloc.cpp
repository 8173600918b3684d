// PyTorch's allocator functions for use where a failure must be an exception: PyTorch does not check the address that a
// pluggable allocator returns, and the tensor would be at address 0.
//
// With BFC_WITH_TORCH it is compiled against the installed PyTorch: out of memory is c10::OutOfMemoryError, which
// is torch.OutOfMemoryError in Python, and anything else a c10::Error, RuntimeError in Python; the profiler and the trace
// of GPU memory get the events that PyTorch's own allocator sends. Without it, either failure is what PyTorch calls
// torch::PyTorchError: an exception that holds its Python type, which the package has set. That variant needs no header
// of PyTorch or of C++, so it is compiled with the wheel, for machines without a compiler.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc_adapters.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef BFC_WITH_TORCH
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
// These headers may not compile with an older compiler.
#if __cplusplus >= 202002L
#include <c10/core/impl/GPUTrace.h>
#endif
#else
// Declared as in the binary interface of libstdc++, with which PyTorch is compiled, because the compiler that builds
// the wheel may have headers of another library.
namespace std {
class exception {
 public:
  exception() noexcept {}
  exception(const exception &) noexcept {}
  virtual ~exception() noexcept;
  virtual const char *what() const noexcept;
};
}  // namespace std

// Only the name of Python's type is needed.
struct _object;

// As in torch/csrc/Exceptions.h. PyTorch catches it by its name and calls the two virtual functions. The storage of its
// text is private, because only these functions access it.
namespace torch {
struct PyTorchError : std::exception {
  const char *what() const noexcept override = 0;
  virtual _object *python_type() = 0;
};
}  // namespace torch
#endif

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// Text of a failure, truncated if it is too long. A report has a few kilobytes.
class Words {
 public:
  void put(const char *part) noexcept {
    const size_t length = strlen(part), room = sizeof text_ - 1 - length_;
    memcpy(text_ + length_, part, length < room ? length : room);
    advance(length);
  }

  void put_number(uint64_t number) noexcept {
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", static_cast<unsigned long long>(number));
    put(digits);
  }

  // Formats like c10's format_size, which rounds halves to even. Uses integers, because a locale may use a comma.
  void put_size(uint64_t bytes) noexcept {
    static const char *const names[] = {" KiB", " MiB", " GiB"};
    if (bytes <= 1024) {
      put_number(bytes);
      put(" bytes");
      return;
    }
    int unit = 0;
    while (unit < 2 && bytes > uint64_t{1} << (unit + 2) * 10) unit++;
    const int bits = (unit + 1) * 10;
    const uint64_t one = uint64_t{1} << bits, rest = (bytes & (one - 1)) * 100, over = rest & (one - 1);
    uint64_t hundredths = rest >> bits;
    if (over > one / 2 || (over == one / 2 && hundredths % 2 == 1)) hundredths++;
    put_number((bytes >> bits) + hundredths / 100);
    const char digits[] = {'.', static_cast<char>('0' + hundredths / 10 % 10), static_cast<char>('0' + hundredths % 10),
                           0};
    put(digits);
    put(names[unit]);
  }

  void put_report(int device) noexcept {
    size_t length = 0;
    bfc_report(device, text_ + length_, sizeof text_ - length_, &length);
    advance(length);
  }

  const char *text() const noexcept { return text_; }

 private:
  void advance(size_t length) noexcept {
    const size_t room = sizeof text_ - 1 - length_;
    length_ += length < room ? length : room;
    text_[length_] = '\0';
  }

  size_t length_ = 0;
  char text_[16 * 1024] = "";
};

// Gets the bytes of the current device, which is the one that PyTorch allocates on, from the CUDA runtime that PyTorch has
// loaded for all libraries. The driver itself would require a current context, which a thread may not have yet.
bool device_memory(size_t *free, size_t *total) noexcept {
  const auto ask = reinterpret_cast<int (*)(size_t *, size_t *)>(dlsym(RTLD_DEFAULT, "cudaMemGetInfo"));
  if (ask && ask(free, total) == 0) return true;
  // Otherwise PyTorch would find the error after its next kernel.
  const auto clear = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "cudaGetLastError"));
  if (ask && clear) clear();
  return false;
}

// The sentence of PyTorch's own allocator, with libbfc's figures: programs search for parts of it.
void put_refusal(Words &words, size_t size, int device) noexcept {
  words.put("CUDA out of memory. Tried to allocate ");
  words.put_size(size);
  words.put(". ");
  size_t free = 0, total = 0;
  if (device_memory(&free, &total)) {
    words.put("GPU ");
    words.put_number(static_cast<uint64_t>(device));
    words.put(" has a total capacity of ");
    words.put_size(total);
    words.put(" of which ");
    words.put_size(free);
    words.put(" is free. ");
  }
  bfc_stats_t stats = BFC_STATS_INIT;
  if (bfc_stats(device, &stats) != BFC_OK) return;
  words.put_size(stats.bytes_limit);
  words.put(" allowed; Of the allocated memory ");
  words.put_size(stats.bytes_in_use);
  words.put(" is allocated by PyTorch, and ");
  words.put_size(stats.pool_bytes - stats.bytes_in_use);
  words.put(" is reserved by PyTorch but unallocated. ");
}

#ifdef BFC_WITH_TORCH

c10::Device gpu(int device) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)}; }

// For torch.profiler: the bytes of an event, and the bytes in use and held after it. The size of a chunk, which
// bfc.torch.memory_allocated() counts too. A failure of the profiler does not fail the allocation.
void profile(void *address, int device, bool freed) noexcept try {
  if (!c10::memoryProfilingEnabled()) return;
  size_t bytes = 0;
  bfc_stats_t stats = BFC_STATS_INIT;
  if (bfc_allocated_size(device, address, &bytes) != BFC_OK || bfc_stats(device, &stats) != BFC_OK) return;
  const int64_t change = static_cast<int64_t>(bytes);
  const size_t in_use = stats.bytes_in_use - (freed ? bytes : 0);
  c10::reportMemoryUsageToProfiler(address, freed ? -change : change, in_use, stats.pool_bytes, gpu(device));
} catch (...) {}

void profile_out_of_memory(size_t size, int device) noexcept try {
  if (!c10::memoryProfilingEnabled()) return;
  bfc_stats_t stats = BFC_STATS_INIT;
  bfc_stats(device, &stats);
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size), stats.bytes_in_use, stats.pool_bytes, gpu(device));
} catch (...) {}

// For the trace of GPU memory, by which PyTorch's sanitizer (TORCH_CUDA_SANITIZER) learns of allocations.
#if __cplusplus >= 202002L
template <class Interpreter>
void trace(const Interpreter *to, void *address, bool freed) {
  const auto place = reinterpret_cast<uintptr_t>(address);
  constexpr c10::DeviceType cuda = c10::DeviceType::CUDA;
  // Releases that trace CUDA only, without a type of device, get no events.
  if constexpr (requires { (*to)->trace_gpu_memory_allocation(cuda, place); }) {
    if (!to) return;
    freed ? (*to)->trace_gpu_memory_deallocation(cuda, place) : (*to)->trace_gpu_memory_allocation(cuda, place);
  }
}
#endif

// After an allocation and before a free: in between, no other thread has the address.
void report(void *address, int device, bool freed) noexcept {
  profile(address, device, freed);
#if __cplusplus >= 202002L
  try {
    trace(c10::impl::GPUTrace::get_trace(), address, freed);
  } catch (...) {}
#endif
}

[[noreturn]] void raise(bool out_of_memory, const Words &words) {
  if (out_of_memory) TORCH_CHECK_WITH(OutOfMemoryError, false, words.text());
  TORCH_CHECK(false, words.text());
  __builtin_unreachable();
}

#else

void report(void *, int, bool) noexcept {}
void profile_out_of_memory(size_t, int) noexcept {}

// Types in Python. Set before PyTorch gets the functions below, and never deleted.
_object *out_of_memory_error = nullptr, *other_error = nullptr;

class Failed final : public torch::PyTorchError {
 public:
  Failed(_object *type, const Words &words) noexcept : type_(type), words_(words) {}
  const char *what() const noexcept override { return words_.text(); }
  _object *python_type() override { return type_; }

 private:
  _object *const type_;
  Words words_;
};

[[noreturn]] void raise(bool out_of_memory, const Words &words) {
  throw Failed(out_of_memory ? out_of_memory_error : other_error, words);
}

#endif

// Raises the exception for this thread's last failure.
[[noreturn]] void failed(size_t size, int device, bfc_status_t status) {
  // Functions called here may fail too, and would overwrite the message.
  char why[2048];
  bfc_last_error(why, sizeof why);
  Words words;
  if (status == BFC_ERROR_OUT_OF_MEMORY) {
    profile_out_of_memory(size, device);
    put_refusal(words, size, device);
    words.put(why);
    words.put("\n\n");
    words.put_report(device);
  } else {
    words.put("libbfc: ");
    words.put(why);
  }
  raise(status == BFC_ERROR_OUT_OF_MEMORY, words);
}

}  // namespace

#ifndef BFC_WITH_TORCH
EXPORTED void bfc_shim_torch_raises(_object *out_of_memory, _object *other) {
  out_of_memory_error = out_of_memory;
  other_error = other;
}
#endif

// For CUDAPluggableAllocator's alloc_fn: bfc_torch_alloc, and an exception instead of NULL.
EXPORTED void *bfc_shim_torch_alloc(size_t size, int device, bfc_stream_t stream) {
  void *const address = bfc_torch_alloc(size, device, stream);
  if (address) {
    report(address, device, false);
  } else if (size) {
    failed(size, device, bfc_adapter_status());
  }
  return address;
}

// For its free_fn: bfc_torch_free.
EXPORTED void bfc_shim_torch_free(void *address, size_t size, int device, bfc_stream_t stream) {
  if (address) report(address, device, true);
  bfc_torch_free(address, size, device, stream);
}
