// The operations of bfc.hpp with a stream of 0, for default_streams.cpp.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include "default_stream_unit.h"

#include <map>
#include <memory>

namespace {

const bfc::device device(0);

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
static_assert(bfc::default_stream == bfc::per_thread_stream);
#else
static_assert(bfc::default_stream == bfc::legacy_stream);
#endif

void *take_by_request(std::size_t bytes) {
  bfc::request wanted;
  wanted.bytes = bytes;
  wanted.stream = nullptr;
  return device.allocate(wanted);
}

void *take_in_place(std::size_t bytes) {
  std::error_code ec;
  return device.allocate(bfc::request{bytes, 0, 0, bfc_stream_t{nullptr}}, ec);
}

// 0 is named at the allocation, and again at the free. The functions of bfc::allocation are shared by all units.
void *take_owned(std::size_t bytes) { return bfc::allocation(device, bytes, nullptr).release(); }
void give_owned(void *ptr) { bfc::allocation::adopt(device, ptr, 1, nullptr).reset(); }

void *take_array(std::size_t bytes) { return bfc::make_unique_for_overwrite<char[]>(device, bytes, nullptr).release(); }
void give_array(void *ptr) {
  bfc::unique_ptr<char[]>(static_cast<char *>(ptr), bfc::deleter<char[]>(device, nullptr)).reset();
}

std::map<unsigned long long, std::unique_ptr<bfc::private_pool_scope>> &scopes() {
  static std::map<unsigned long long, std::unique_ptr<bfc::private_pool_scope>> all;
  return all;
}

}  // namespace

extern const default_stream_unit UNIT;
const default_stream_unit UNIT = {
    {{"allocate_async", [](std::size_t bytes) { return device.allocate_async(bytes, nullptr); },
      [](void *ptr) { device.deallocate_async(ptr, nullptr); }},
     {"a request and deallocate", take_by_request, [](void *ptr) { device.deallocate(ptr); }},
     {"a request in place", take_in_place, [](void *ptr) { device.deallocate_async(ptr, nullptr); }},
     {"an allocation", take_owned, give_owned},
     {"an array", take_array, give_array},
     {nullptr, nullptr, nullptr}},
    [](void *ptr) { device.record_stream(ptr, nullptr); },
    [] { device.forget_stream(nullptr); },
    [] { device.stream_synchronized(nullptr); },
    [](unsigned long long name) { scopes()[name] = std::make_unique<bfc::private_pool_scope>(device, name, nullptr); },
    [](unsigned long long name) {
      scopes().at(name)->end();
      scopes().erase(name);
    }};
