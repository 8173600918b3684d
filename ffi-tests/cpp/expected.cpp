// The operations that return std::expected, in C++23.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include "../c/check.h"

#if !BFC_HAS_EXPECTED
#error "to be compiled with a standard library that has std::expected"
#endif

namespace {

constexpr std::size_t mib = 1 << 20;

bfc::options small() { return bfc::options::growing().backend(bfc::backend::host).memory_limit(4 * mib); }

template <class T>
bool is(const bfc::result<T> &result, bfc::errc expected) {
  return !result && result.error() == expected;
}

// Values, where there is one.
void values() {
  bfc::result<bfc::pool> created = bfc::pool::try_create(bfc::host_device, small());
  CHECK(created && *created);
  bfc::pool pool = std::move(*created);
  int first, second;
  bfc::request request;
  request.bytes = 10;
  void *const ptr = pool.try_allocate(1000).value();
  CHECK(reinterpret_cast<std::uintptr_t>(*pool.try_allocate(1000, 4096)) % 4096 == 0);
  CHECK(*pool.try_allocate(request) != nullptr && *pool.try_allocate(0) == nullptr);
  CHECK(pool.try_allocation_failed(request) && pool.try_stats()->num_failures == 1);
  void *const ordered = *pool.try_allocate_async(1000, &first);
  CHECK(pool.try_record_stream(ordered, &second) && pool.try_deallocate_async(ordered, &first));
  CHECK(pool.try_forget_stream(&second) && pool.try_stream_synchronized(&second));
  CHECK(pool.try_begin_private_pool(1, &first) && pool.try_end_private_pool(1, &first));
  CHECK(pool.try_release_private_pool(1));
  CHECK(*pool.try_requested_size(ptr) == 1000 && *pool.try_allocated_size(ptr) == 1024);
  CHECK(*pool.try_allocation_id(ptr) == 1 && pool.try_address_range(ptr)->chunk == ptr);
  CHECK(*bfc::device::try_owner(ptr) == pool);
  CHECK(pool.try_stats()->num_allocs == 4 && pool.try_reset_stats() && pool.try_stats()->num_allocs == 0);
  CHECK(pool.try_check() && pool.try_occupancy()->size() == 100);
  CHECK(pool.try_memory_map()->front() == '{' && !pool.try_report()->empty());
  CHECK(pool.try_deallocate(ptr) && pool.try_set_memory_limit(8 * mib) && pool.try_trim());
  CHECK(pool.try_destroy_forced() && !pool);
}

void memory_and_pools() {
  bfc::pool pool = *bfc::pool::try_create(bfc::host_device);
  auto listener = [](bfc::device, void *, std::size_t, bfc::region_event) noexcept {};
  CHECK(pool.try_set_region_callback(listener) && pool.try_set_region_callback(nullptr));
  CHECK(pool.try_set_idle_callback(nullptr, nullptr));
  int stream;
  bfc::request request;
  request.bytes = 10;
  bfc::result<bfc::allocation> memory = bfc::allocation::try_create(pool, 1000, &stream);
  CHECK(memory && memory->size() == 1000 && memory->stream() == &stream && memory->try_record_stream(nullptr));
  CHECK(bfc::allocation::try_create(pool, request)->size() == 10);
  CHECK(bfc::allocation::try_create(pool, 1000, 4096)->stream() == nullptr);
  CHECK(is(pool.try_destroy(), bfc::errc::busy) && pool);
  CHECK(memory->try_reset() && !*memory && memory->try_reset());
  std::error_code ec;
  bfc::private_pool_scope routed(pool, 3, &stream, ec);
  CHECK(routed.try_end() && pool.try_release_private_pool(3));
  CHECK(bfc::try_make_unique_for_overwrite<int[]>(pool, 10).value() != nullptr);
  CHECK(bfc::try_make_unique_for_overwrite<int[]>(pool, 10, &stream)->get_deleter().stream() == &stream);
  bfc::private_pool graph_memory(pool, 4);
  bfc::private_pool_scope capturing = graph_memory.capture(&stream, ec);
  CHECK(is(graph_memory.try_release(), bfc::errc::busy) && capturing.try_end() && graph_memory.try_release());
  CHECK(pool.try_destroy() && !pool);
}

void options_and_messages() {
  CHECK(small().try_resolve(bfc::host_device)->find("4194304") != std::string::npos);
  CHECK(is(small().try_resolve(-1), bfc::errc::invalid_argument));
  CHECK(bfc::try_metrics()->find("# EOF\n") != std::string::npos);
  auto listener = [](bfc::log_level, std::string_view) noexcept {};
  CHECK(bfc::try_set_log_callback(listener) && bfc::try_set_log_callback(nullptr));
}

// Errors, and that nothing has changed.
void errors() {
  bfc::pool pool = *bfc::pool::try_create(bfc::host_device, small());
  const bfc::device nothing(300);
  int stream;
  CHECK(is(bfc::pool::try_create(bfc::host_device, small()), bfc::errc::already_exists));
  CHECK(is(bfc::pool::try_create(bfc::host_device), bfc::errc::already_exists));
  CHECK(is(pool.try_allocate(8 * mib), bfc::errc::out_of_memory));
  CHECK(bfc::last_error().find("no memory for 8.00 MiB") != std::string::npos);
  CHECK(pool.try_allocate(8 * mib).error() == std::errc::not_enough_memory);
  CHECK(is(pool.try_allocate(1, 3), bfc::errc::invalid_argument));
  CHECK(is(bfc::allocation::try_create(pool, 8 * mib), bfc::errc::out_of_memory));
  CHECK(is(bfc::allocation::try_create(pool, 8 * mib, &stream), bfc::errc::out_of_memory));
  CHECK(is(bfc::try_make_unique_for_overwrite<int[]>(pool, 8 * mib), bfc::errc::out_of_memory));
  CHECK(is(bfc::allocation().try_record_stream(&stream), bfc::errc::invalid_argument));
  CHECK(is(pool.try_deallocate(&stream), bfc::errc::invalid_pointer));
  CHECK(is(pool.try_end_private_pool(1, &stream), bfc::errc::invalid_argument));
  CHECK(is(pool.try_timestamp(), bfc::errc::unsupported) && is(pool.try_set_safe_frontier(1), bfc::errc::unsupported));
  CHECK(is(pool.try_device_lost(), bfc::errc::unsupported));
  CHECK(is(nothing.try_stats(), bfc::errc::no_allocator) && is(nothing.try_report(), bfc::errc::no_allocator));
  CHECK(is(bfc::device::try_owner(&stream), bfc::errc::invalid_pointer));
  CHECK(pool.try_check() && pool.try_stats()->bytes_in_use == 0);
}

}  // namespace

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {CASE(values), CASE(memory_and_pools), CASE(options_and_messages), CASE(errors)};
  return RUN_CASE(cases, argc, argv);
}
