// libbfc in place of TensorFlow's BFC allocator, for bfc/tensorflow.py; compiled against the installed TensorFlow.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "bfc/tensorflow.hpp"

#include <cstring>

#define SHOWN __attribute__((visibility("default")))

extern "C" {

// The first allocator's ordinal; the milliseconds that a request for a tensor waits for memory; and whether reports
// name operations.
SHOWN void bfc_tensorflow_use(std::int32_t device, int retry_timeout_ms, int is_named) {
  bfc::tensorflow::use_device(device);
  bfc::tensorflow::set_retry(retry_timeout_ms);
  bfc::tensorflow::name_operations(is_named != 0);
}

// The function that libraries loaded later find under the name of TensorFlow's allocating function.
SHOWN void *bfc_tensorflow_in_front(void) { return dlsym(RTLD_DEFAULT, bfc::tensorflow::detail::allocate_raw); }

// Whether that function is this library's.
SHOWN int bfc_tensorflow_is_in_front(void) {
  Dl_info here;
  Dl_info found;
  return dladdr(bfc_tensorflow_in_front(), &found) != 0 &&
         dladdr(reinterpret_cast<void *>(&bfc_tensorflow_use), &here) != 0 && here.dli_fbase == found.dli_fbase;
}

// One of TensorFlow's allocators seen so far. 0 if there is none with that index. The name is truncated to fit.
SHOWN int bfc_tensorflow_allocator(std::size_t index, char *name, std::size_t capacity, std::int32_t *device,
                                   std::int64_t *own_allocations, std::int64_t *own_bytes) {
  const auto all = bfc::tensorflow::allocators();
  if (index >= all.size() || capacity == 0) return 0;
  std::strncpy(name, all[index].name.c_str(), capacity - 1);
  name[capacity - 1] = '\0';
  *device = all[index].ordinal;
  *own_allocations = all[index].own_allocations;
  *own_bytes = all[index].own_bytes;
  return 1;
}

}  // extern "C"
