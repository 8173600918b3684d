// RAII and moves: what owns what, what is given back when, and the state after failures.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include "../c/check.h"

#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr std::int32_t other = 400;

bfc::options small() { return bfc::options::growing().backend(bfc::backend::host).memory_limit(4u << 20); }

bool exists(bfc::device device) {
  std::error_code ec;
  device.stats(ec);
  CHECK(!ec || ec == bfc::errc::no_allocator);
  return !ec;
}

std::uint64_t in_use(bfc::device device) { return device.stats().bytes_in_use; }

void a_pool_ends_with_its_block() {
  const bfc::device host(bfc::host_device);
  CHECK(!exists(host));
  {
    const bfc::pool pool(bfc::host_device, small());
    CHECK(pool && pool == host && exists(host) && host.stats().bytes_limit == 4u << 20);
  }
  CHECK(!exists(host));
  // Without options: growth, garbage collection, the environment.
  {
    const bfc::pool pool(bfc::host_device);
    void *const ptr = pool.allocate(1);
    CHECK(pool.stats().pool_bytes == 2u << 20);
    pool.deallocate(ptr);
  }
  CHECK(!exists(host));
}

// Pointers in use are worth more than tidiness.
void a_pool_with_live_memory_stays() {
  void *left = nullptr;
  {
    const bfc::pool pool(bfc::host_device, small());
    left = pool.allocate(1000);
    std::memset(left, 'l', 1000);
  }
  const bfc::device host(bfc::host_device);
  CHECK(exists(host) && is_filled(static_cast<char *>(left), 1000, 'l'));
  bfc::pool again = bfc::pool::adopt(host);
  again.deallocate(left);
  again.destroy();
  CHECK(!again && !exists(host));
}

void pools_move() {
  bfc::pool first(bfc::host_device, small());
  bfc::pool second(std::move(first));
  CHECK(!first && second && second.ordinal() == bfc::host_device);  // NOLINT: that is what is tested
  std::error_code ec;
  CHECK(first.allocate(1, ec) == nullptr && ec == bfc::errc::invalid_argument);
  CHECK(bfc::last_error().find("moved from") != std::string::npos);
  first.destroy(ec);
  CHECK(ec == bfc::errc::invalid_argument);
  // Assignment ends what was owned.
  bfc::pool third(other, small());
  CHECK(exists(bfc::device(other)));
  third = std::move(second);
  CHECK(!exists(bfc::device(other)) && third.ordinal() == bfc::host_device && exists(third));
  // To oneself it does nothing.
  bfc::pool &same = third;
  third = std::move(same);
  CHECK(third && exists(third));
  const bfc::device released = third.release();
  CHECK(!third && exists(released));
  bfc::pool empty;
  CHECK(!empty && empty.release() == third);
  empty = bfc::pool::adopt(released);
  empty.destroy_forced();
  CHECK(!exists(released));
}

void a_failed_creation_owns_nothing() {
  bfc::pool pool(bfc::host_device, small());
  void *const ptr = pool.allocate(1);
  std::error_code ec;
  {
    const bfc::pool twin = bfc::pool::create(bfc::host_device, small(), ec);
    CHECK(ec == bfc::errc::already_exists && !twin);
    const bfc::pool another = bfc::pool::create(bfc::host_device, ec);
    CHECK(ec == bfc::errc::already_exists && !another);
  }
  CHECK(exists(pool) && in_use(pool) == 256);
  pool.destroy(ec);
  CHECK(ec == bfc::errc::busy && pool && exists(pool));
  pool.deallocate(ptr);
  pool.destroy(ec);
  CHECK(!ec && !pool);
}

void an_allocation_ends_with_its_block() {
  const bfc::pool pool(bfc::host_device, small());
  {
    const bfc::allocation memory(pool, 1000);
    CHECK(memory && memory.size() == 1000 && memory.get_device() == pool && in_use(pool) == 1024);
    const bfc::allocation aligned(pool, 10, 4096);
    // An alignment does not round the size.
    CHECK(reinterpret_cast<std::uintptr_t>(aligned.data()) % 4096 == 0 && in_use(pool) == 1024 + 256);
    const bfc::allocation nothing(pool, 0);
    CHECK(!nothing && nothing.data() == nullptr && nothing.size() == 0);
  }
  CHECK(in_use(pool) == 0);
  const bfc::allocation empty;
  CHECK(!empty && empty.size() == 0);
}

void allocations_move() {
  const bfc::pool pool(bfc::host_device, small());
  bfc::allocation first(pool, 1000);
  void *const data = first.data();
  bfc::allocation second(std::move(first));
  CHECK(!first && first.size() == 0 && second.data() == data && second.size() == 1000);  // NOLINT
  bfc::allocation third(pool, 5000);
  third = std::move(second);
  CHECK(third.data() == data && !second && in_use(pool) == 1024);  // NOLINT
  bfc::allocation &same = third;
  third = std::move(same);
  CHECK(third.data() == data && in_use(pool) == 1024);
  bfc::allocation fourth(pool, 2000);
  fourth.swap(third);
  CHECK(fourth.data() == data && fourth.size() == 1000 && third.size() == 2000);
  third.reset();
  third.reset();
  CHECK(!third && in_use(pool) == 1024);
  CHECK(fourth.release() == data && !fourth && in_use(pool) == 1024);
  fourth = bfc::allocation::adopt(pool, data, 1000);
  CHECK(fourth.size() == 1000);
  // As elements of a container, which moves them about.
  std::vector<bfc::allocation> many;
  for (std::size_t at = 1; at <= 100; at++) many.emplace_back(pool, at * 10);
  many.erase(many.begin() + 10, many.begin() + 60);
  many.shrink_to_fit();
  CHECK(pool.stats().num_chunks - pool.stats().num_free_chunks == 51);
  many.clear();
  CHECK(in_use(pool) == 1024);
}

void what_cannot_be_given_back() {
  bfc::pool pool(bfc::host_device, small());
  bfc::allocation memory(pool, 1000);
  void *const data = memory.data();
  pool.deallocate(data);  // by code that does not own it
  std::error_code ec;
  memory.reset(ec);
  CHECK(ec && memory.data() == data);  // still owned
  bfc::allocation outlives(pool, 1000);
  pool.destroy_forced();
  outlives.reset(ec);
  CHECK(ec == bfc::errc::no_allocator && outlives);
  // The ends of both say nothing and harm nobody.
}

// Whether requests of the stream are for a private pool.
bool is_in_private_pool(bfc::device device, bfc_stream_t stream, std::uint64_t name) {
  std::error_code ec;
  device.end_private_pool(name, stream, ec);
  if (!ec) device.begin_private_pool(name, stream);
  return !ec;
}

void a_private_pool_is_for_a_block() {
  const bfc::pool pool(bfc::host_device, small());
  const bfc::device device = pool;
  int stream;
  std::error_code ec;
  {
    const bfc::private_pool_scope scope(pool, 3, &stream);
    CHECK(scope && scope.name() == 3 && is_in_private_pool(device, &stream, 3));
    // One that could not begin ends nothing of another's.
    {
      const bfc::private_pool_scope twice(pool, 3, &stream, ec);
      CHECK(!twice && ec == bfc::errc::invalid_argument);
    }
    try {
      const bfc::private_pool_scope thrice(pool, 4, &stream);
      CHECK(false);
    } catch (const bfc::error &error) { CHECK(error.code() == bfc::errc::invalid_argument); }
    CHECK(is_in_private_pool(device, &stream, 3));
  }
  CHECK(!is_in_private_pool(device, &stream, 3));
  device.release_private_pool(3);  // which the block did not
  // An exception ends it too.
  try {
    const bfc::private_pool_scope scope(pool, 3, &stream, ec);
    CHECK(scope && !ec);
    throw 1;
  } catch (int) {}
  CHECK(!is_in_private_pool(device, &stream, 3));
  // Ended in another thread, and before the block does.
  bfc::private_pool_scope scope(pool, 3, &stream);
  std::thread([&] { scope.end(); }).join();
  CHECK(!scope && !is_in_private_pool(device, &stream, 3));
  scope.end(ec);
  CHECK(!ec);
  device.begin_private_pool(3, &stream);
  scope.end();
  CHECK(is_in_private_pool(device, &stream, 3));  // the object has no part in it any more
}

void a_private_pool_that_is_gone() {
  bfc::pool pool(bfc::host_device, small());
  int stream;
  std::error_code ec;
  bfc::private_pool_scope scope(pool, 3, &stream), another(pool, 4, &ec);
  pool.end_private_pool(3, &stream);  // by code that does not own it
  scope.end(ec);
  CHECK(ec == bfc::errc::invalid_argument && scope);  // still begun
  pool.destroy();
  another.end(ec);
  CHECK(ec == bfc::errc::no_allocator && another);
  // The ends of both say nothing and harm nobody.
}

// The memory of a graph: kept from the first capture to the end of the object, and private all the time.
void a_private_pool_is_released_at_its_end() {
  const bfc::pool pool(bfc::host_device, small());
  int stream, second;
  std::error_code ec;
  void *data = nullptr;
  {
    bfc::private_pool memory(pool, 5);
    CHECK(!memory && memory.name() == 5 && memory.get_device() == pool);
    memory.release();  // there is none yet
    {
      const bfc::private_pool_scope capturing = memory.capture(&stream);
      const bfc::private_pool_scope another = memory.capture(&second, ec);
      CHECK(memory && capturing && another && !ec && is_in_private_pool(pool, &stream, 5));
      bfc::allocation used(pool, 1000, &stream);
      data = used.data();
      memory.release(ec);
      CHECK(ec == bfc::errc::busy && memory);  // nothing has changed
    }
    CHECK(!is_in_private_pool(pool, &stream, 5));
    CHECK(bfc::allocation(pool, 1000, &stream).data() != data);
    // A second capture has the memory of the first.
    const bfc::private_pool_scope again = memory.capture(&stream);
    CHECK(bfc::allocation(pool, 1000, &stream).data() == data);
  }
  pool.release_private_pool(5, ec);
  CHECK(ec == bfc::errc::invalid_argument);  // the object did it
}

void private_pools_of_graphs_move() {
  const bfc::pool pool(bfc::host_device, small());
  int stream;
  std::error_code ec;
  bfc::private_pool first(pool, 1), second(pool, 2);
  first.capture(&stream).end();
  second.capture(&stream).end();
  bfc::private_pool moved(std::move(first));
  CHECK(!first && moved && moved.name() == 1);   // NOLINT: that is what is tested
  moved = std::move(second);                     // which releases pool 1
  CHECK(moved && moved.name() == 2 && !second);  // NOLINT
  pool.release_private_pool(1, ec);
  CHECK(ec == bfc::errc::invalid_argument);
  swap(moved, second);
  CHECK(!moved && second && second.name() == 2);
  second.release();
  second.release(ec);
  CHECK(!ec && !second);
  pool.release_private_pool(2, ec);
  CHECK(ec == bfc::errc::invalid_argument);
}

// A capture that cannot begin leaves nothing to release, and what another has made is not released for it.
void a_private_pool_without_a_capture() {
  const bfc::pool pool(bfc::host_device, small());
  int stream;
  std::error_code ec;
  pool.begin_private_pool(6, &stream);
  {
    bfc::private_pool memory(pool, 6);
    CHECK(!memory.capture(&stream, ec) && ec == bfc::errc::invalid_argument && !memory);
    try {
      const bfc::private_pool_scope never = memory.capture(&stream);
      CHECK(false);
    } catch (const bfc::error &error) { CHECK(error.code() == bfc::errc::invalid_argument); }
    CHECK(!memory);
  }
  pool.end_private_pool(6, &stream);
  pool.release_private_pool(6, ec);
  CHECK(!ec);
  bfc::private_pool nothing;
  CHECK(!nothing.capture(&stream, ec));
  CHECK(ec == bfc::errc::invalid_argument && !nothing);
}

void threads_share_a_device() {
  bfc::pool pool(bfc::host_device, small());
  std::vector<std::thread> threads;
  for (char mark = 'a'; mark < 'i'; mark++) {
    threads.emplace_back([device = bfc::device(pool), mark] {
      for (int round = 0; round < 500; round++) {
        const bfc::scope scope("thread", static_cast<std::uint64_t>(round));
        const bfc::allocation memory(device, 1000);
        std::memset(memory.data(), mark, 1000);
        CHECK(is_filled(static_cast<char *>(memory.data()), 1000, mark));
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  pool.check();
  CHECK(in_use(pool) == 0 && pool.stats().num_allocs == 4000);
}

}  // namespace

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(a_pool_ends_with_its_block),
      CASE(a_pool_with_live_memory_stays),
      CASE(pools_move),
      CASE(a_failed_creation_owns_nothing),
      CASE(an_allocation_ends_with_its_block),
      CASE(allocations_move),
      CASE(what_cannot_be_given_back),
      CASE(a_private_pool_is_for_a_block),
      CASE(a_private_pool_that_is_gone),
      CASE(a_private_pool_is_released_at_its_end),
      CASE(private_pools_of_graphs_move),
      CASE(a_private_pool_without_a_capture),
      CASE(threads_share_a_device),
  };
  return RUN_CASE(cases, argc, argv);
}
