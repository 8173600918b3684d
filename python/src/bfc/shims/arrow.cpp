// libbfc as pyarrow's memory pool, for bfc/arrow.py; compiled against the installed pyarrow.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "bfc/arrow.hpp"

// As in arrow/python/common.h, which includes Python.h; it may not be installed.
namespace arrow {
namespace py {
void set_default_memory_pool(MemoryPool *pool);
MemoryPool *get_memory_pool();
}  // namespace py
}  // namespace arrow

#define SHOWN __attribute__((visibility("default")))

extern "C" {

// Makes it pyarrow's pool for later allocations. Returns the previous one.
SHOWN void *bfc_arrow_use() {
  // Never destroyed: buffers may outlive everything.
  static auto *const only = new bfc::arrow_memory_pool;
  arrow::MemoryPool *const before = arrow::py::get_memory_pool();
  arrow::py::set_default_memory_pool(only);
  return before;
}

SHOWN void bfc_arrow_restore(void *before) {
  arrow::py::set_default_memory_pool(static_cast<arrow::MemoryPool *>(before));
}

}  // extern "C"
