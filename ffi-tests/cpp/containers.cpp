// std::pmr over a pool, and a pool over std::pmr.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc/pmr.hpp>

#include "../c/check.h"

#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t mib = 1u << 20;

bfc::options small() { return bfc::options::growing().backend(bfc::backend::host).memory_limit(64 * mib); }

void containers() {
  const bfc::pool pool(bfc::host_device, small());
  bfc::memory_resource resource(pool);
  CHECK(resource.get_device() == pool);
  {
    std::pmr::vector<int> numbers(&resource);
    for (int at = 0; at < 100000; at++) numbers.push_back(at);
    std::pmr::map<int, std::pmr::string> words(&resource);
    for (int at = 0; at < 1000; at++) words[at] = "a string too long to be kept inside of the object itself";
    std::pmr::unordered_map<int, int> squares(&resource);
    for (int at = 0; at < 1000; at++) squares[at] = at * at;
    std::pmr::list<std::pmr::vector<int>> nested(&resource);
    nested.emplace_back(1000, 7);
    CHECK(nested.front().get_allocator().resource() == &resource);
    for (int at = 0; at < 100000; at++) CHECK(numbers[static_cast<std::size_t>(at)] == at);
    CHECK(words.at(999).size() == 56 && squares.at(999) == 999 * 999 && nested.front()[999] == 7);
    CHECK(pool.stats().bytes_in_use > 400000);
    pool.check();
  }
  CHECK(pool.stats().bytes_in_use == 0 && pool.stats().num_allocs == pool.stats().num_frees);
}

void alignments_are_honoured() {
  const bfc::pool pool(bfc::host_device, small());
  bfc::memory_resource resource(pool);
  // The region's own address may be a multiple of anything. The address after this allocation is not.
  const bfc::allocation odd(pool, 1);
  for (std::size_t alignment = 1; alignment <= mib; alignment *= 2) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{255}, std::size_t{10000}}) {
      void *const ptr = resource.allocate(bytes, alignment);
      CHECK(reinterpret_cast<std::uintptr_t>(ptr) % alignment == 0);
      std::memset(ptr, 1, bytes);
      resource.deallocate(ptr, bytes, alignment);
    }
  }
  struct alignas(4096) page {
    char bytes[4096];
  };
  {
    std::pmr::vector<page> pages(10, &resource);
    CHECK(reinterpret_cast<std::uintptr_t>(pages.data()) % 4096 == 0);
  }
  CHECK(pool.stats().bytes_in_use == 256);
}

void nothing_is_not_null() {
  const bfc::pool pool(bfc::host_device, small());
  bfc::memory_resource resource(pool);
  void *const first = resource.allocate(0, 1);
  void *const second = resource.allocate(0, 1);
  CHECK(first != nullptr && second != nullptr && first != second);
  resource.deallocate(first, 0, 1);
  resource.deallocate(second, 0, 1);
  CHECK(pool.stats().bytes_in_use == 0);
}

void equal_by_device() {
  const bfc::memory_resource first(bfc::device(1)), same(bfc::device(1)), another(bfc::device(2));
  CHECK(first == first && first == same && first != another);
  CHECK(first != *std::pmr::new_delete_resource() && *std::pmr::new_delete_resource() != first);
  // So containers of one device exchange their memory instead of copying.
  const bfc::pool pool(bfc::host_device, small());
  bfc::memory_resource left(pool), right(pool);
  std::pmr::vector<int> from(1000, 7, &left), to(&right);
  const int *const data = from.data();
  to = std::move(from);
  CHECK(to.data() == data);
}

void exhaustion_is_bad_alloc() {
  const bfc::pool pool(bfc::host_device, small());
  bfc::memory_resource resource(pool);
  std::pmr::vector<char> kept(1000, 'k', &resource);
  bool caught = false;
  try {
    kept.resize(65 * mib);
  } catch (const std::bad_alloc &error) {
    caught = true;
    CHECK(dynamic_cast<const bfc::error *>(&error) != nullptr);
  }
  CHECK(caught && kept.size() == 1000 && is_filled(kept.data(), 1000, 'k'));
  pool.check();
}

// Regions from another memory resource, which is also notified of their end.
class counting final : public std::pmr::memory_resource {
 public:
  std::size_t held = 0, most = 0, limit = 8 * mib;
  std::function<bool()> fails = [] { return false; };

 private:
  void *do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes > limit - held || fails()) throw std::bad_alloc();
    held += bytes;
    most = held > most ? held : most;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void *ptr, std::size_t bytes, std::size_t alignment) override {
    held -= bytes;
    std::pmr::new_delete_resource()->deallocate(ptr, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }
};

void a_pool_over_a_resource() {
  counting upstream;
  {
    const bfc::pool pool(500, bfc::options::growing().upstream(upstream));
    CHECK(upstream.held == 0);
    {
      const bfc::allocation memory(pool, 3 * mib, 65536);
      CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % 65536 == 0);
      std::memset(memory.data(), 1, 3 * mib);
      CHECK(upstream.held >= 3 * mib && upstream.held == pool.stats().pool_bytes);
      // What it throws stays in the callback, and is out of memory here.
      std::error_code ec;
      CHECK(pool.allocate(16 * mib, ec) == nullptr && ec == bfc::errc::out_of_memory);
    }
    // A pool over a pool, by way of a resource.
    bfc::memory_resource between(pool);
    const bfc::pool inner(501, bfc::options::growing().memory_limit(2 * mib).upstream(between));
    const bfc::allocation memory(inner, 1000);
    CHECK(pool.stats().bytes_in_use >= 2 * mib);
  }
  CHECK(upstream.held == 0 && upstream.most >= 3 * mib && upstream.most <= upstream.limit);
}

// A thousand requests, for which the limit is too small, while the pool's own source fails too.
void random_sizes_with_failures() {
  struct piece {
    void *at;
    std::size_t bytes, alignment;
    char filling;
  };
  std::mt19937_64 random(20261121);
  int failures = 0, refused = 0;
  counting upstream;
  upstream.limit = mib;
  upstream.fails = [&] { return random() % 2 == 0 && ++failures; };
  {
    const bfc::pool pool(503, bfc::options::growing().upstream(upstream));
    bfc::memory_resource resource(pool);
    std::vector<piece> kept;
    const auto drop = [&](std::size_t which) {
      const piece gone = std::exchange(kept[which], kept.back());
      kept.pop_back();
      CHECK(is_filled(static_cast<char *>(gone.at), gone.bytes, gone.filling));
      resource.deallocate(gone.at, gone.bytes, gone.alignment);
    };
    for (int times = 0; times < 1000; times++) {
      const std::size_t bytes = random() % (std::size_t{1} << random() % 22),
                        alignment = std::size_t{1} << random() % 13;
      try {
        void *const at = resource.allocate(bytes, alignment);
        CHECK(at != nullptr && reinterpret_cast<std::uintptr_t>(at) % alignment == 0);
        kept.push_back({at, bytes, alignment, static_cast<char>(times % 128)});
        std::memset(at, times % 128, bytes);
      } catch (const std::bad_alloc &) { refused++; }
      if (!kept.empty() && random() % 5 < 2) drop(random() % kept.size());
      // So that the source is asked again.
      if (random() % 20 == 0) {
        while (!kept.empty()) drop(0);
        pool.trim();
      }
      pool.check();
    }
    CHECK(refused > 50 && refused < 500 && failures > 50);
    CHECK(pool.stats().num_allocs == 1000u - static_cast<unsigned>(refused));
    while (!kept.empty()) drop(0);
    CHECK(pool.stats().bytes_in_use == 0);
  }
  CHECK(upstream.held == 0);
}

// The functions of bfc_suballocator_t, from C++.
void a_pool_over_functions() {
  struct arena {
    alignas(4096) char bytes[1 << 16];
    bool given = false;
    static void *give(void *self, std::size_t, std::size_t bytes, std::size_t *received) {
      auto *const mine = static_cast<arena *>(self);
      if (mine->given || bytes > sizeof(mine->bytes)) return nullptr;
      mine->given = true;
      *received = sizeof(mine->bytes);
      return mine->bytes;
    }
    static void take(void *self, void *, std::size_t) { static_cast<arena *>(self)->given = false; }
  };
  static arena one;
  {
    const bfc::pool pool(502, bfc::options::growing().suballocator(arena::give, arena::take, &one));
    const bfc::allocation memory(pool, 1000);
    CHECK(memory.data() == one.bytes && one.given && pool.stats().pool_bytes == sizeof(one.bytes));
  }
  CHECK(!one.given);
}

}  // namespace

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(containers),
      CASE(alignments_are_honoured),
      CASE(nothing_is_not_null),
      CASE(equal_by_device),
      CASE(exhaustion_is_bad_alloc),
      CASE(a_pool_over_a_resource),
      CASE(a_pool_over_functions),
      CASE(random_sizes_with_failures),
  };
  return RUN_CASE(cases, argc, argv);
}
