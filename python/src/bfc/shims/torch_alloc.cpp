// PyTorch's allocator functions where a failure has to be an exception: PyTorch does not look at the address that a
// pluggable allocator gives, and the tensor would be at address 0.
//
// With BFC_WITH_TORCH it is compiled against the installed PyTorch: memory that ran out is c10::OutOfMemoryError, which
// is torch.OutOfMemoryError in Python, and anything else a c10::Error, RuntimeError in Python. Without, either is what
// PyTorch calls torch::PyTorchError: an exception that knows its type in Python, which the package has said. That variant
// needs no header of PyTorch or of C++, so it is compiled with the wheel, for machines without a compiler.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc_adapters.h>

#include <string.h>

#ifdef BFC_WITH_TORCH
#include <c10/util/Exception.h>
#else
// As libstdc++, which PyTorch is compiled with, has it in its binary interface: the compiler that makes the wheel may
// have headers of another library.
namespace std {
class exception {
 public:
  exception() noexcept {}
  exception(const exception &) noexcept {}
  virtual ~exception() noexcept;
  virtual const char *what() const noexcept;
};
}  // namespace std

// Of Python's own only the name is needed.
struct _object;

// As torch/csrc/Exceptions.h has it; PyTorch catches it by its name and calls the two virtual functions. Its text is ours
// to keep: nothing but they look at it.
namespace torch {
struct PyTorchError : std::exception {
  const char *what() const noexcept override = 0;
  virtual _object *python_type() = 0;
};
}  // namespace torch
#endif

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

// Text of a failure, cut where it gets too long. A report has some kilobytes.
class Words {
 public:
  explicit Words(const char *begin) noexcept { put(begin); }

  void put(const char *part) noexcept {
    const size_t length = strlen(part), room = sizeof text_ - 1 - length_;
    memcpy(text_ + length_, part, length < room ? length : room);
    advance(length);
  }

  void put_last_error() noexcept { advance(bfc_last_error(text_ + length_, sizeof text_ - length_)); }

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
  char text_[16 * 1024];
};

#ifdef BFC_WITH_TORCH

[[noreturn]] void raise(bool out_of_memory, const Words &words) {
  if (out_of_memory) TORCH_CHECK_WITH(OutOfMemoryError, false, words.text());
  TORCH_CHECK(false, words.text());
  __builtin_unreachable();
}

#else

// Types in Python. Said before PyTorch knows the functions below, and never deleted.
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

// Raises what has just failed in this thread.
[[noreturn]] void failed(int device, bfc_status_t status) {
  // Programs that try again with less look for PyTorch's words.
  Words words(status == BFC_ERROR_OUT_OF_MEMORY ? "CUDA out of memory. " : "libbfc: ");
  words.put_last_error();
  if (status == BFC_ERROR_OUT_OF_MEMORY) {
    words.put("\n\n");
    words.put_report(device);
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

// For CUDAPluggableAllocator's alloc_fn: bfc_torch_alloc, and an exception in the place of NULL.
EXPORTED void *bfc_shim_torch_alloc(size_t size, int device, bfc_stream_t stream) {
  void *const address = bfc_torch_alloc(size, device, stream);
  if (!address && size) failed(device, bfc_adapter_status());
  return address;
}
