// The status half of the header in a program without exceptions.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include "../c/check.h"

#if BFC_HAS_EXCEPTIONS
#error "to be compiled with -fno-exceptions"
#endif

int main() {
  std::error_code ec;
  bfc::pool pool = bfc::pool::create(bfc::host_device, bfc::options::growing().memory_limit(1 << 20), ec);
  CHECK(!ec && pool);
  bfc::allocation first = bfc::allocation::create(pool, 1000, ec);
  CHECK(!ec && first && first.size() == 1000);
  CHECK(pool.allocated_size(first.data(), ec) == 1024 && !ec);
  CHECK(pool.allocate(2 << 20, ec) == nullptr);
  CHECK(ec == bfc::errc::out_of_memory && ec == std::errc::not_enough_memory);
  CHECK(bfc::last_error().find("no memory for 2.00 MiB") != std::string::npos);
  CHECK(pool.report(ec).find("1 failure\n") != std::string::npos && !ec);
  {
    const bfc::scope scope("layer", 1, ec);
    CHECK(!ec);
  }
  {
    const bfc::private_pool_scope capturing(pool, 1, &ec, ec);
    CHECK(!ec && capturing);
    pool.release_private_pool(1, ec);
    CHECK(ec == bfc::errc::busy);
  }
  pool.release_private_pool(1, ec);
  CHECK(!ec);
  CHECK(bfc::make_unique_for_overwrite<int[]>(pool, 10, ec) != nullptr && !ec);
  {
    bfc::private_pool memory(pool, 2);
    CHECK(memory.capture(&ec, ec) && !ec && memory);
    memory.release(ec);
    CHECK(!ec && !memory);
  }
  auto listener = [](bfc::device, void *, std::size_t, bfc::region_event) noexcept {};
  pool.set_region_callback(listener, ec);
  CHECK(ec == bfc::errc::busy);
  pool.device_lost(ec);
  CHECK(ec == bfc::errc::unsupported);
  pool.destroy(ec);
  CHECK(ec == bfc::errc::busy && pool);
  first.reset(ec);
  CHECK(!ec && !first);
  pool.destroy(ec);
  CHECK(!ec && !pool);
  return 0;
}
