// bfc/arrow.hpp with the Arrow library of pyarrow. Prints nothing on stdout if all is as it should be.

#include <arrow/api.h>
#include <bfc/arrow.hpp>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <thread>
#include <vector>

#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) {                                            \
      std::cout << __LINE__ << ": " #condition " does not hold\n"; \
      std::exit(1);                                                \
    }                                                              \
  } while (0)

namespace {

using pool = bfc::arrow_memory_pool;

// What bfc_stats says is in use.
std::uint64_t in_use() {
  bfc_stats_t stats{};
  stats.struct_size = sizeof stats;
  return bfc_stats(256, &stats) == BFC_OK ? stats.bytes_in_use : 0;
}

bool is_filled(const std::uint8_t *memory, std::int64_t bytes, int value) {
  for (std::int64_t i = 0; i < bytes; i++)
    if (memory[i] != value) return false;
  return true;
}

void first_call_creates_the_allocator() {
  pool memory;
  std::uint8_t *ptr = nullptr;
  CHECK(memory.Allocate(1000, &ptr).ok() && ptr != nullptr);
  CHECK(memory.bytes_allocated() == 1000 && memory.num_allocations() == 1 && in_use() == 1024);
  memory.Free(ptr, 1000);
  CHECK(memory.bytes_allocated() == 0 && memory.max_memory() == 1000 && memory.total_bytes_allocated() == 1000 &&
        in_use() == 0);
  CHECK(memory.backend_name() == "bfc" && memory.get_device().ordinal() == 256);
}

void alignments_and_sizes() {
  pool memory;
  for (std::int64_t alignment = 1; alignment <= 1 << 20; alignment *= 2) {
    std::uint8_t *ptr = nullptr;
    CHECK(memory.Allocate(4097, alignment, &ptr).ok());
    CHECK(reinterpret_cast<std::uintptr_t>(ptr) % static_cast<std::uintptr_t>(std::max<std::int64_t>(alignment, 256)) ==
          0);
    std::memset(ptr, 1, 4097);
    CHECK(memory.Reallocate(4097, 100000, alignment, &ptr).ok() && is_filled(ptr, 4097, 1));
    CHECK(reinterpret_cast<std::uintptr_t>(ptr) % static_cast<std::uintptr_t>(alignment) == 0);
    memory.Free(ptr, 100000, alignment);
  }
  std::uint8_t *none = nullptr, *again = nullptr;
  CHECK(memory.Allocate(0, &none).ok() && memory.Allocate(0, &again).ok() && none != nullptr && none == again);
  CHECK(memory.Reallocate(0, 5000, &none).ok() && none != again);
  std::memset(none, 7, 5000);
  CHECK(memory.Reallocate(5000, 0, &none).ok() && none == again);
  memory.Free(none, 0);
  CHECK(memory.bytes_allocated() == 0 && in_use() == 0);
  std::uint8_t *untouched = again;
  for (std::int64_t size : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()})
    CHECK(memory.Allocate(size, &untouched).IsInvalid());
  for (std::int64_t alignment : {0, -64, 96}) CHECK(memory.Allocate(10, alignment, &untouched).IsInvalid());
  CHECK(memory.Allocate(std::numeric_limits<std::int64_t>::max(), &untouched).IsOutOfMemory());
  CHECK(memory.Allocate(std::numeric_limits<std::int64_t>::max(), 1 << 20, &untouched).IsOutOfMemory());
  CHECK(untouched == again && in_use() == 0);
}

void a_resize_that_fails_keeps_the_buffer() {
  pool memory;
  std::uint8_t *ptr = nullptr;
  CHECK(memory.Allocate(3000, &ptr).ok());
  std::memset(ptr, 3, 3000);
  std::uint8_t *const before = ptr;
  CHECK(memory.Reallocate(3000, -1, &ptr).IsInvalid());
  const arrow::Status status = memory.Reallocate(3000, std::int64_t{1} << 50, &ptr);
  CHECK(status.IsOutOfMemory() &&
        status.message().find("libbfc cannot allocate 1125899906842624 bytes: out of memory") == 0);
  CHECK(ptr == before && is_filled(ptr, 3000, 3) && memory.bytes_allocated() == 3000);
  // In place: within the chunk, and to a size that would need the same.
  CHECK(memory.Reallocate(3000, 3072, &ptr).ok() && ptr == before);
  CHECK(memory.Reallocate(3072, 2900, &ptr).ok() && ptr == before && memory.bytes_allocated() == 2900);
  CHECK(memory.Reallocate(2900, 2901, 96, &ptr).IsInvalid() && memory.bytes_allocated() == 2900);
  // To a stricter alignment in place only where the address has it.
  CHECK(memory.Reallocate(2900, 2901, 1 << 20, &ptr).ok() && is_filled(ptr, 2900, 3));
  CHECK(reinterpret_cast<std::uintptr_t>(ptr) % (1 << 20) == 0);
  CHECK(memory.Reallocate(2901, 2900, 1 << 20, &ptr).ok());
  // Less moves, so that the rest is not held.
  CHECK(memory.Reallocate(2900, 100, &ptr).ok() && is_filled(ptr, 100, 3) && in_use() == 256);
  memory.Free(ptr, 100);
  CHECK(memory.bytes_allocated() == 0);
}

void foreign_buffers_are_refused() {
  pool memory;
  std::uint8_t foreign[64], *ptr = nullptr;
  CHECK(memory.Allocate(64, &ptr).ok());
  memory.Free(foreign, 64);
  memory.Free(ptr + 8, 64);
  CHECK(in_use() == 256 && memory.bytes_allocated() == 64);
  memory.Free(ptr, 64);
  CHECK(in_use() == 0 && memory.bytes_allocated() == 0);
}

void builders_and_threads() {
  pool memory;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; thread++) {
    threads.emplace_back([&memory, thread] {
      for (int round = 0; round < 20; round++) {
        arrow::Int64Builder builder(&memory);
        for (std::int64_t i = 0; i < 20000; i++) CHECK(builder.Append(i * thread).ok());
        const auto array = builder.Finish().ValueOrDie();
        const auto &numbers = static_cast<const arrow::Int64Array &>(*array);
        for (std::int64_t i = 0; i < numbers.length(); i += 97) CHECK(numbers.Value(i) == i * thread);
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  CHECK(memory.bytes_allocated() == 0 && in_use() == 0 && memory.num_allocations() > 4 * 20);
  bfc_stats_t stats{};
  stats.struct_size = sizeof stats;
  CHECK(bfc_stats(256, &stats) == BFC_OK && stats.pool_bytes > 0);
  memory.ReleaseUnused();
  CHECK(bfc_stats(256, &stats) == BFC_OK && stats.pool_bytes == 0);
  memory.PrintStats();
}

}  // namespace

int main() {
  first_call_creates_the_allocator();
  alignments_and_sizes();
  a_resize_that_fails_keeps_the_buffer();
  foreign_buffers_are_refused();
  builders_and_threads();
  return 0;
}
