// PyTorch's allocator functions where a failure has to be an exception: PyTorch does not look at the address that a
// pluggable allocator gives, and the tensor would be at address 0.
//
// With BFC_WITH_TORCH it is compiled against the installed PyTorch: memory that ran out is c10::OutOfMemoryError, which
// is torch.OutOfMemoryError in Python, and anything else a c10::Error, RuntimeError in Python. Without, either is a
// std::bad_alloc with the words, of which PyTorch's operators make a RuntimeError. That variant has nothing of PyTorch in
// it, and no header of C++, so it is compiled with the wheel, for machines without a compiler.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc_adapters.h>

#include <string.h>

#ifdef BFC_WITH_TORCH
#include <c10/util/Exception.h>
#else
// As libstdc++, which PyTorch is compiled with, has them in its binary interface: the compiler that makes the wheel may
// have headers of another library.
namespace std {
class exception {
 public:
  exception() noexcept {}
  exception(const exception &) noexcept {}
  virtual ~exception() noexcept;
  virtual const char *what() const noexcept;
};
class bad_alloc : public exception {
 public:
  bad_alloc() noexcept {}
  bad_alloc(const bad_alloc &) noexcept {}
  ~bad_alloc() noexcept override;
  const char *what() const noexcept override;
};
}  // namespace std
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

class Failed : public std::bad_alloc {
 public:
  explicit Failed(const Words &words) noexcept : words_(words) {}
  const char *what() const noexcept override { return words_.text(); }

 private:
  Words words_;
};

[[noreturn]] void raise(bool, const Words &words) { throw Failed(words); }

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

// For CUDAPluggableAllocator's alloc_fn: bfc_torch_alloc, and an exception in the place of NULL.
EXPORTED void *bfc_shim_torch_alloc(size_t size, int device, bfc_stream_t stream) {
  void *const address = bfc_torch_alloc(size, device, stream);
  if (!address && size) failed(device, bfc_adapter_status());
  return address;
}
