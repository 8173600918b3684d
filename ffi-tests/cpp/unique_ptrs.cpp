// std::unique_ptr over a pool: objects and arrays on host memory, arrays that nothing touches, streams, and failures.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include "../c/check.h"

#include <memory>
#include <utility>

namespace {

constexpr std::size_t mib = 1 << 20;

bfc::options small() { return bfc::options::growing().backend(bfc::backend::host).memory_limit(4 * mib); }

std::uint64_t in_use(bfc::device device) { return device.stats().bytes_in_use; }

// Counts those that live, and may refuse to be made.
struct counted {
  static inline int live = 0;
  int value;
  explicit counted(int of) : value(of) {
    if (of < 0) throw of;
    live++;
  }
  counted(const counted &) = delete;
  counted &operator=(const counted &) = delete;
  ~counted() { live--; }
};

struct alignas(1024) wide {
  char bytes[1024];
};

static_assert(std::is_nothrow_move_constructible_v<bfc::unique_ptr<counted>>);
// A pointer to the second base lies inside of the allocation.
struct first_base {};
struct second_base {};
struct derived : first_base, second_base {};
static_assert(!std::is_convertible_v<bfc::unique_ptr<derived>, bfc::unique_ptr<second_base>>);
static_assert(!std::is_convertible_v<bfc::deleter<derived>, bfc::deleter<second_base>>);

void objects() {
  const bfc::pool pool(bfc::host_device, small());
  {
    const bfc::unique_ptr<counted> object = bfc::make_unique<counted>(pool, 7);
    CHECK(object->value == 7 && counted::live == 1 && in_use(pool) == 256);
    CHECK(object.get_deleter().get_device() == pool && object.get_deleter().stream() == nullptr);
    bfc::unique_ptr<counted> moved = bfc::make_unique<counted>(pool, 8);
    moved = bfc::make_unique<counted>(pool, 9);
    CHECK(counted::live == 2 && in_use(pool) == 512);
    const bfc::unique_ptr<wide> aligned = bfc::make_unique<wide>(pool);
    CHECK(reinterpret_cast<std::uintptr_t>(aligned.get()) % 1024 == 0);
  }
  CHECK(counted::live == 0 && in_use(pool) == 0);
  const bfc::unique_ptr<counted> nothing;
  CHECK(nothing == nullptr);
}

void what_a_constructor_throws() {
  const bfc::pool pool(bfc::host_device, small());
  try {
    bfc::make_unique<counted>(pool, -3);
    CHECK(false);
  } catch (int thrown) { CHECK(thrown == -3); }
  CHECK(counted::live == 0 && in_use(pool) == 0);
}

void arrays() {
  const bfc::pool pool(bfc::host_device, small());
  const bfc::unique_ptr<int[]> numbers = bfc::make_unique<int[]>(pool, 1000);
  for (int at = 0; at < 1000; at++) CHECK(numbers[static_cast<std::size_t>(at)] == 0);
  CHECK(in_use(pool) == 4096);
  const auto wides = bfc::make_unique_for_overwrite<wide[]>(pool, 2);
  CHECK(reinterpret_cast<std::uintptr_t>(wides.get()) % 1024 == 0);
  CHECK(bfc::make_unique<int[]>(pool, 0) == nullptr && bfc::make_unique_for_overwrite<int[]>(pool, 0) == nullptr);
}

void no_memory() {
  const bfc::pool pool(bfc::host_device, small());
  std::error_code ec;
  CHECK(bfc::make_unique_for_overwrite<int[]>(pool, 2 * mib, ec) == nullptr && ec == bfc::errc::out_of_memory);
  // The size in bytes is beyond std::size_t, and not what is left of it.
  constexpr std::size_t too_many = SIZE_MAX / sizeof(int) + 2;
  CHECK(bfc::make_unique_for_overwrite<int[]>(pool, too_many, ec) == nullptr && ec == bfc::errc::out_of_memory);
  int stream, refused = 0;
  try {
    bfc::make_unique_for_overwrite<int[]>(pool, too_many, &stream);
  } catch (const std::bad_alloc &) { refused++; }
  try {
    bfc::make_unique<int[]>(pool, too_many);
  } catch (const bfc::out_of_memory &) { refused++; }
  try {
    bfc::make_unique<counted>(bfc::device(300), 1);
  } catch (const bfc::error &error) { refused += error.code() == bfc::errc::no_allocator; }
  CHECK(refused == 3 && in_use(pool) == 0);
  const auto numbers = bfc::make_unique_for_overwrite<int[]>(pool, 100, ec);
  CHECK(!ec && numbers != nullptr && in_use(pool) == 512);
}

// Freed on the stream of the allocation: at once reusable there, and by no other stream.
void arrays_in_the_order_of_a_stream() {
  const bfc::pool pool(bfc::host_device, small().memory_limit(2 * mib).split_always());
  int first, second;
  std::error_code ec;
  for (int *const stream : {&first, &second}) bfc::make_unique_for_overwrite<char[]>(pool, 1, stream).reset();
  constexpr std::size_t most = 3 * mib / 2;
  const void *const freed = bfc::make_unique_for_overwrite<char[]>(pool, most, &first, ec).get();
  CHECK(!ec && freed != nullptr && in_use(pool) == 0);
  bfc::request request;
  request.bytes = most;
  request.no_growth = true;
  request.stream = &second;
  CHECK(pool.allocate(request, ec) == nullptr && ec == bfc::errc::out_of_memory);
  const auto again = bfc::make_unique_for_overwrite<char[]>(pool, most, &first);
  CHECK(again.get() == freed && again.get_deleter().stream() == &first);
}

}  // namespace

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(objects),   CASE(what_a_constructor_throws),       CASE(arrays),
      CASE(no_memory), CASE(arrays_in_the_order_of_a_stream),
  };
  return RUN_CASE(cases, argc, argv);
}
