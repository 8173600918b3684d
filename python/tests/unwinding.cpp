// A C++ exception that passes through libbfc: PyTorch's filter may throw, and PyTorch is to catch it. The library's
// frames are unwound by the code that raised it, which is libgcc_s.

#include <bfc_adapters.h>

#include <cstring>
#include <functional>
#include <stdexcept>

int main() {
  std::function<bool(void *)> filter = [](void *) -> bool { throw std::runtime_error("from the filter"); };
  bfc_torch_begin_allocate_to_pool(0, 1, 2, &filter);
  try {
    bfc_torch_alloc(1000, 0, nullptr);
    return 1;
  } catch (const std::runtime_error &error) {
    if (std::strcmp(error.what(), "from the filter") != 0) return 2;
  }
  bfc_torch_end_allocate_to_pool(0, 1, 2);
  return bfc_torch_alloc(1000, 0, nullptr) ? 0 : 3;
}
