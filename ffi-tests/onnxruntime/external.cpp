/* bfc_ort_alloc, bfc_ort_free and bfc_ort_empty_cache, called as ONNX Runtime's CUDA provider calls them, on the simulated
 * driver: external CASE. The provider itself needs a GPU's libraries and is not here; `Provider` does what its
 * CUDAExternalAllocator does: no call for size 0, an exception for NULL, and an empty_cache after each free of
 * what was reserved.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include <bfc.hpp>
#include <bfc_adapters.h>

#include "shadow.h"
#include "simulated.h"

#include <atomic>
#include <cinttypes>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

/* From the numbers that its options are, as text. */
template <class Function>
Function *named(Function *function) {
  const std::string option = std::to_string(reinterpret_cast<std::uintptr_t>(function));
  return reinterpret_cast<Function *>(static_cast<std::uintptr_t>(std::stoull(option)));
}

class Provider {
 public:
  void *alloc(std::size_t size) const {
    if (size == 0) return nullptr;
    void *const ptr = alloc_(size);
    if (ptr == nullptr) throw std::runtime_error("p != nullptr was false");
    return ptr;
  }
  void *reserve(std::size_t size) {
    void *const ptr = alloc(size);
    if (ptr == nullptr) return nullptr;
    const std::lock_guard<std::mutex> guard(lock_);
    CHECK(reserved_.insert(ptr).second);
    return ptr;
  }
  /* Also of NULL, which it hands on. */
  void free(void *ptr) {
    free_(ptr);
    const std::lock_guard<std::mutex> guard(lock_);
    if (reserved_.erase(ptr) != 0) empty_cache_();
  }

 private:
  decltype(&bfc_ort_alloc) alloc_ = named(bfc_ort_alloc);
  decltype(&bfc_ort_free) free_ = named(bfc_ort_free);
  decltype(&bfc_ort_empty_cache) empty_cache_ = named(bfc_ort_empty_cache);
  std::mutex lock_;
  std::set<void *> reserved_;
};

bfc::options small_options() {
  return bfc::options::growing().memory_limit(8 << 20).initial_region_bytes(64 << 10).name("ort");
}

/* A thousand random sizes in each of two threads, each with two streams, whose work finds at the free what it wrote before;
 * and a driver that fails. Shadows of two threads do not know each other: an overlap is found by that work. */
void random_sizes() {
  const Simulated driver;
  driver.enter(0);
  bfc::pool pool(0, small_options());
  Provider provider;
  std::atomic<int> served{0}, failed{0};
  std::vector<std::thread> workers;
  for (unsigned worker = 0; worker < 2; ++worker) {
    workers.emplace_back([&, worker] {
      driver.enter(0);
      void *const streams[] = {driver.stream(), driver.stream()};
      for (void *stream : streams) driver.hold(stream);
      std::map<void *, void *> users;
      std::mt19937 random(worker);
      Shadow shadow(false);
      const auto free_one = [&] {
        const auto [ptr, bytes] = shadow.pick(random);
        driver.expect(users.at(ptr), ptr, bytes);
        provider.free(ptr);
      };
      for (int call = 0; call < 1000; ++call) {
        if (random() % 8 == 0) driver.fail_alloc(1);
        const std::size_t bytes = random_size(random);
        try {
          void *const ptr = random() % 20 == 0 ? provider.reserve(bytes) : provider.alloc(bytes);
          served += 1;
          if (ptr != nullptr) {
            shadow.took(ptr, bytes);
            users[ptr] = streams[random() % 2];
            driver.fill(users[ptr], ptr, bytes);
          }
        } catch (const std::runtime_error &) {
          CHECK(bfc::last_error().find("no memory for") != std::string::npos);
          failed += 1;
        }
        driver.step(streams[random() % 2], random() % 6);
        while (!shadow.empty() && random() % 100 < (shadow.size() > 20 ? 95 : 45)) free_one();
      }
      while (!shadow.empty()) free_one();
      provider.free(nullptr);
    });
  }
  for (std::thread &worker : workers) worker.join();
  std::printf("%d requests served, %d failed; %" PRIu64 " failures of the driver\n", served.load(), failed.load(),
              driver.struck());
  CHECK(served > 1000 && failed > 20 && driver.struck() > 20);
  driver.clear_faults();
  driver.release_all();
  pool.check();
  CHECK(pool.stats().bytes_requested == 0);
  pool.destroy();
  driver.check_clean();
}

/* The provider names no device: it is the current one, and may be another one at the free. */
void current_device() {
  const Simulated driver;
  Provider provider;
  driver.enter(1);
  void *const there = provider.reserve(1 << 20);
  CHECK(bfc::device::owner(there).ordinal() == 1 && driver.used(1) > 0 && driver.used(0) == 0);
  driver.enter(0);
  void *const here = provider.alloc(1 << 20);
  CHECK(bfc::device::owner(here).ordinal() == 0);
  /* Its empty_cache is that of device 0, so device 1 keeps the region. */
  provider.free(there);
  provider.free(here);
  CHECK(driver.used(1) > 0);
  bfc_ort_empty_cache();
  CHECK(driver.used(0) == 0);
  driver.enter(1);
  bfc_ort_empty_cache();
  CHECK(driver.used(1) == 0);
  for (int device : {0, 1}) bfc::pool::adopt(bfc::device(device)).destroy();
  driver.check_clean();
}

/* What the provider frees, work of any stream may still touch. */
void work_under_way() {
  const Simulated driver;
  driver.enter(0);
  Provider provider;
  void *const stream = driver.stream();
  driver.hold(stream);
  void *const first = provider.alloc(1 << 20);
  driver.work(stream, first, 1 << 20);
  provider.free(first);
  void *const second = provider.alloc(1 << 20);
  CHECK(second != first);
  driver.work(stream, second, 1 << 20);
  provider.free(second);
  driver.release_all();
  bfc::pool::adopt(bfc::device(0)).destroy();
  driver.check_clean();
}

/* Without a driver, and with a limit: NULL, which the provider throws for. */
void failures() {
  {
    const Simulated driver(1u << 30, 0);
    CHECK(bfc_ort_alloc(1000) == nullptr);
    CHECK(!bfc::last_error().empty());
    bfc_ort_free(nullptr);
    bfc_ort_empty_cache();
  }
  const Simulated driver;
  driver.enter(0);
  bfc::pool pool(0, small_options());
  Provider provider;
  for (std::size_t bytes : {std::size_t{9} << 20, SIZE_MAX}) {
    bool is_thrown = false;
    try {
      provider.reserve(bytes);
    } catch (const std::runtime_error &) { is_thrown = true; }
    CHECK(is_thrown);
  }
  CHECK(provider.alloc(0) == nullptr && bfc_ort_alloc(0) == nullptr);
  void *const fits = provider.reserve(7 << 20);
  provider.free(fits);
  CHECK(driver.used(0) == 0);
  /* A wrong pointer changes nothing. */
  int local = 0;
  bfc_ort_free(&local);
  pool.check();
  pool.destroy();
  driver.check_clean();
}

}  // namespace

int main(int argc, char **argv) {
  alarm(HANG_SECONDS);
  const struct {
    const char *name;
    void (*run)();
  } cases[] = {{"random_sizes", random_sizes},
               {"current_device", current_device},
               {"work_under_way", work_under_way},
               {"failures", failures}};
  for (const auto &one : cases) {
    if (argc == 2 && one.name == std::string(argv[1])) {
      one.run();
      return 0;
    }
  }
  for (const auto &one : cases) std::printf("%s\n", one.name);
  return argc == 2 && argv[1] == std::string("--list") ? 0 : 2;
}
