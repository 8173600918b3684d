// bfc/torch.hpp by itself, in a C++ program that is linked with libc10 alone. Each test is about one promise at the head
// of that file.

#include "bfc/torch.hpp"

#include "../check_that.h"

#include <cstring>
#include <thread>
#include <vector>

namespace {

using on_host = bfc::torch_cpu_allocator<>;
using on_another = bfc::torch_cpu_allocator<300>;

bfc_stats_t stats(std::int32_t device) {
  bfc_stats_t found = BFC_STATS_INIT;
  CHECK_THAT(bfc_stats(device, &found) == BFC_OK);
  return found;
}

std::int32_t owner(const void *ptr) {
  std::int32_t device = 0;
  return bfc_owner(ptr, &device) == BFC_OK ? device : -1;
}

// The pool comes with the first request, and 0 bytes are none.
void first_request() {
  bfc_stats_t none = BFC_STATS_INIT;
  CHECK_THAT(bfc_stats(256, &none) == BFC_ERROR_NO_ALLOCATOR);
  c10::DataPtr data = on_host::instance().allocate(1000);
  CHECK_THAT(owner(data.get()) == 256 && reinterpret_cast<std::uintptr_t>(data.get()) % 256 == 0);
  CHECK_THAT(data.get() == data.get_context() && data.device().is_cpu());
  CHECK_THAT(data.get_deleter() == on_host::instance().raw_deleter());
  CHECK_THAT(on_host::instance().is_simple_data_ptr(data));
  const c10::DataPtr empty = on_host::instance().allocate(0);
  CHECK_THAT(!empty && empty.device().is_cpu());
  CHECK_THAT(stats(256).num_allocs == 1 && stats(256).bytes_requested == 1000);
  std::memset(data.get(), 7, 1000);
  const c10::DataPtr copy = on_host::instance().clone(data.get(), 1000);
  CHECK_THAT(copy.get() != data.get() && std::memcmp(copy.get(), data.get(), 1000) == 0);
  void *const raw = on_host::instance().raw_allocate(500);
  CHECK_THAT(owner(raw) == 256);
  on_host::instance().raw_deallocate(raw);
  data.clear();
  CHECK_THAT(stats(256).num_frees == 2 && stats(256).bytes_requested == 1000);
}

// PyTorch takes the one with the higher priority.
void priorities() {
  on_host::use();
  CHECK_THAT(c10::GetCPUAllocator() == &on_host::instance());
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  CHECK_THAT(c10::GetCPUAllocator() == &on_host::instance());
  on_another::use(101);
  CHECK_THAT(c10::GetCPUAllocator() == &on_another::instance());
  on_host::use();
  CHECK_THAT(c10::GetCPUAllocator() == &on_another::instance());
}

// An ordinal of the caller's needs the caller's pool; running out is PyTorch's own error.
void failures() {
  try {
    on_another::instance().allocate(1);
    CHECK_THAT(!"an allocator of ordinal 300 by itself");
  } catch (const c10::OutOfMemoryError &) {
    CHECK_THAT(!"that is no lack of memory");
  } catch (const c10::Error &error) {
    const std::string words = error.what_without_backtrace();
    CHECK_THAT(words.find("libbfc: cannot allocate 1 bytes: ") == 0);
    // By this programs know that memory ran out, and try again with less.
    CHECK_THAT(words.find("can't allocate memory") == std::string::npos);
  }
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.backend = BFC_BACKEND_HOST;
  options.memory_limit = 1 << 20;
  options.name = "small";
  CHECK_THAT(bfc_create(300, &options) == BFC_OK);
  c10::DataPtr most = on_another::instance().allocate(1 << 20);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1} << 40, ~std::size_t{0}}) {
    try {
      on_another::instance().allocate(bytes);
      CHECK_THAT(!"there is no memory");
    } catch (const c10::OutOfMemoryError &error) {
      const std::string words = error.what_without_backtrace();
      const std::string known = "DefaultCPUAllocator: can't allocate memory: you tried to allocate ";
      CHECK_THAT(words.find(known + std::to_string(bytes) + " bytes. ") != std::string::npos);
      CHECK_THAT(words.find("allocator \"small\"") != std::string::npos);
    }
  }
  most.clear();
  CHECK_THAT(stats(300).bytes_in_use == 0 && stats(300).num_failures == 3);
  CHECK_THAT(bfc_destroy(300) == BFC_OK);
}

// Threads that come at once share the pool that one of them makes.
void threads() {
  CHECK_THAT(bfc_destroy(256) == BFC_OK);
  std::vector<std::thread> all;
  for (int number = 0; number < 8; ++number) {
    all.emplace_back([number] {
      for (std::size_t step = 1; step < 2000; ++step) {
        const c10::DataPtr data = on_host::instance().allocate(step * 7);
        std::memset(data.get(), number, step * 7);
        const c10::DataPtr copy = on_host::instance().clone(data.get(), step * 7);
        CHECK_THAT(static_cast<char *>(copy.get())[step * 7 - 1] == number);
      }
    });
  }
  for (std::thread &thread : all) thread.join();
  CHECK_THAT(stats(256).num_allocs == 8 * 2 * 1999 && stats(256).bytes_in_use == 0 && bfc_check(256) == BFC_OK);
}

}  // namespace

int main() {
  first_request();
  priorities();
  failures();
  threads();
  // Freed by PyTorch's and the program's destructors, at the very end.
  static const c10::DataPtr until_the_end = on_host::instance().allocate(1000);
  std::printf("ok\n");
}
