// Stream 0 of programs that are compiled for the per-thread default stream, beside units of the same program that are
// not, on the simulated driver: default_streams CASE.UNIT.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include "../onnxruntime/simulated.h"
#include "default_stream_unit.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t mib = 1 << 20;
constexpr std::size_t bytes = 20 * mib;

void *handle(std::uintptr_t number) { return reinterpret_cast<void *>(number); }

struct unit {
  std::string name;
  const default_stream_unit &functions;
  bool is_per_thread;
  // What its 0 means, as the driver's own functions name it in any unit.
  void *of_thread() const { return handle(is_per_thread ? 2 : 1); }
};

const unit units[] = {{"c-legacy", c_legacy, false},
                      {"c-per-thread", c_per_thread, true},
                      {"cpp-legacy", cpp_legacy, false},
                      {"cpp-per-thread", cpp_per_thread, true}};

void fill(const Simulated &driver, void *stream, const void *ptr, std::uint64_t pattern) {
  using queued = int(void *, std::uint64_t, std::uint64_t, std::uint64_t);
  CHECK(driver.call<queued>("simcuda_fill")(stream, reinterpret_cast<std::uintptr_t>(ptr), bytes, pattern) == 0);
}
void expect(const Simulated &driver, void *stream, const void *ptr, std::uint64_t pattern) {
  using queued = int(void *, std::uint64_t, std::uint64_t, std::uint64_t);
  CHECK(driver.call<queued>("simcuda_expect")(stream, reinterpret_cast<std::uintptr_t>(ptr), bytes, pattern) == 0);
}
std::uint64_t mismatches(const Simulated &driver) { return driver.call<std::uint64_t()>("simcuda_mismatches")(); }

template <class Work>
void in_another_thread(const Simulated &driver, Work work) {
  std::thread([&] {
    driver.enter(0);
    work();
  }).join();
}

// One thread frees memory that its queued kernel is still to write. Another thread, whose stream 0 is another stream,
// must not get it before that kernel is done.
void two_threads(const Simulated &driver, const unit &of) {
  for (const default_stream_way *way = of.functions.ways; way->name != nullptr; ++way) {
    bfc::pool pool(0, bfc::options::growing().memory_limit(256 * mib));
    // Known as a stream that others have to wait for.
    in_another_thread(driver, [&] { way->give(way->take(256)); });
    driver.hold(of.of_thread());
    void *const ours = way->take(bytes);
    fill(driver, of.of_thread(), ours, 1);
    way->give(ours);
    in_another_thread(driver, [&] {
      void *const theirs = way->take(bytes);
      if (!of.is_per_thread) {
        // One order for all threads: its work comes after ours.
        CHECK(theirs == ours);
        return way->give(theirs);
      }
      fill(driver, of.of_thread(), theirs, 2);
      driver.release_all();
      expect(driver, of.of_thread(), theirs, 2);
      if (mismatches(driver) != 0) check_failed(__FILE__, __LINE__, way->name, "gave one thread the other's memory");
      way->give(theirs);
    });
    driver.release_all();
    pool.check();
    CHECK(pool.stats().bytes_in_use == 0);
    pool.destroy();
  }
}

// 0 and what it stands for are one stream in every operation: what was freed on the one is at once the other's.
void same_stream(const Simulated &driver, const unit &of) {
  const bfc::pool pool(0, bfc::options::growing().memory_limit(256 * mib));
  void *const another = driver.stream();
  pool.deallocate_async(pool.allocate_async(256, another), another);
  driver.hold(of.of_thread());
  for (const default_stream_way *way = of.functions.ways; way->name != nullptr; ++way) {
    void *const ptr = way->take(bytes);
    fill(driver, of.of_thread(), ptr, 3);
    way->give(ptr);
    CHECK(pool.allocate_async(bytes, of.of_thread()) == ptr);
    pool.deallocate_async(ptr, of.of_thread());
    void *const other = pool.allocate_async(bytes, another);
    CHECK(other != ptr);
    pool.deallocate_async(other, another);
  }
}

// What the stream gets of the memory that the pool holds, without asking the driver for more.
void *take_held(void *stream) {
  bfc_request_t request = BFC_REQUEST_INIT;
  request.bytes = bytes;
  request.stream = stream;
  request.flags = BFC_REQUEST_ON_STREAM | BFC_REQUEST_NO_GROWTH;
  void *ptr = nullptr;
  CHECK_OK(bfc_alloc_ex(0, &request, &ptr));
  return ptr;
}

// A use on stream 0 of memory of another stream ends where the program says that the work of that stream is done. (The
// simulation knows better, but nothing touches the memory.)
void recorded(const Simulated &driver, const unit &of) {
  const bfc::pool pool(0, bfc::options::growing().memory_limit(30 * mib));
  void *const another = driver.stream();
  pool.deallocate_async(pool.allocate_async(256, of.of_thread()), of.of_thread());
  void *const ptr = pool.allocate_async(bytes, another);
  driver.hold(of.of_thread());
  fill(driver, of.of_thread(), ptr, 4);
  of.functions.record(ptr);
  pool.deallocate_async(ptr, another);
  pool.stream_synchronized(of.of_thread());
  CHECK(take_held(another) == ptr);
  pool.deallocate_async(ptr, another);
  driver.release_all();
}

// The same with bfc_stream_synchronized of 0, and then bfc_forget_stream.
void synchronized(const Simulated &driver, const unit &of) {
  const bfc::pool pool(0, bfc::options::growing().memory_limit(30 * mib));
  void *const another = driver.stream();
  pool.deallocate_async(pool.allocate_async(256, another), another);
  driver.hold(of.of_thread());
  void *const ptr = pool.allocate_async(bytes, of.of_thread());
  fill(driver, of.of_thread(), ptr, 5);
  pool.deallocate_async(ptr, of.of_thread());
  of.functions.synchronized();
  CHECK(take_held(another) == ptr);
  pool.deallocate_async(ptr, another);
  of.functions.forget();
  driver.release_all();
}

// What owns memory frees it on the stream of the allocation, also in another thread, whose own stream 0 has no such work.
void freed_in_another_thread(const Simulated &driver, const unit &of) {
  const auto check = [&](auto make) {
    const bfc::pool pool(0, bfc::options::growing().memory_limit(30 * mib));
    void *const another = driver.stream();
    pool.deallocate_async(pool.allocate_async(256, another), another);
    driver.hold(of.of_thread());
    auto [memory, ptr] = make(pool);
    fill(driver, of.of_thread(), ptr, 6);
    expect(driver, of.of_thread(), ptr, 6);
    in_another_thread(driver, [&, &memory = memory] { memory.reset(); });
    // There is no room for both, so that this one waits.
    void *const taken = pool.allocate_async(bytes, another);
    fill(driver, another, taken, 7);
    driver.release_all();
    expect(driver, another, taken, 7);
    CHECK(mismatches(driver) == 0);
    pool.deallocate_async(taken, another);
  };
  check([&](bfc::device device) {
    bfc::allocation memory(device, bytes, of.of_thread());
    void *const ptr = memory.data();
    return std::pair(std::move(memory), ptr);
  });
  check([&](bfc::device device) {
    auto memory = bfc::make_unique_for_overwrite<char[]>(device, bytes, of.of_thread());
    void *const ptr = memory.get();
    return std::pair(std::move(memory), ptr);
  });
}

// A private pool of stream 0 is that of what it stands for.
void private_pools(const Simulated &, const unit &of) {
  const bfc::pool pool(0, bfc::options::growing().memory_limit(256 * mib));
  of.functions.begin_pool(7);
  std::error_code ec;
  pool.begin_private_pool(8, of.of_thread(), ec);
  CHECK(ec == bfc::errc::invalid_argument);
  pool.begin_private_pool(8, handle(of.is_per_thread ? 1 : 2));
  pool.end_private_pool(8, handle(of.is_per_thread ? 1 : 2));
  of.functions.end_pool(7);
  pool.release_private_pool(7);
  pool.release_private_pool(8);
}

}  // namespace

// As RUN_CASE of check.h, with a name for each case with each kind of unit.
int main(int argc, char **argv) {
  alarm(HANG_SECONDS);
  const struct {
    const char *name;
    void (*run)(const Simulated &, const unit &);
  } cases[] = {{"two_threads", two_threads},
               {"same_stream", same_stream},
               {"recorded", recorded},
               {"synchronized", synchronized},
               {"freed_in_another_thread", freed_in_another_thread},
               {"private_pools", private_pools}};
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool is_list = !arguments.empty() && arguments.front() == "--only";
  for (const auto &one : cases) {
    for (const unit &of : units) {
      const std::string name = one.name + ("." + of.name);
      const bool is_named = std::find(arguments.begin(), arguments.end(), name) != arguments.end();
      if (is_list) {
        if (!is_named) check_failed(__FILE__, __LINE__, name.c_str(), "is in the program but not in CMakeLists.txt");
      } else if (is_named) {
        const Simulated driver;
        driver.enter(0);
        one.run(driver, of);
        driver.check_clean();
        return 0;
      }
    }
  }
  return is_list ? 0 : 2;
}
