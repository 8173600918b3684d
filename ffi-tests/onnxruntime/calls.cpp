/* The functions of bfc::ort_allocator, called as ONNX Runtime calls them. Each case is a process of its own:
 * calls LIBRARY MODEL CASE (the model is not used). Those of CUDA memory are on the simulated driver.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "ort.h"
#include "shadow.h"
#include "simulated.h"

#include <atomic>
#include <functional>
#include <map>
#include <thread>

namespace {

bfc::options on_host(std::uint64_t limit) {
  return bfc::options::growing().backend(bfc::backend::host).memory_limit(limit).name("ort");
}

/* An ONNX Runtime of another version, with the functions of the real one; and streams that are the program's. */
struct Pretended : OrtApiBase {
  static inline const OrtApi *real;
  static inline OrtApi changed;
  static inline const char *version;
  static inline std::uint32_t asked;

  Pretended(const Ort &ort, const char *as) : OrtApiBase() {
    real = &ort.api;
    std::memcpy(static_cast<void *>(&changed), real, sizeof changed);
#if ORT_API_VERSION >= 23
    changed.SyncStream_GetHandle = [](OrtSyncStream *stream) noexcept { return reinterpret_cast<void *>(stream); };
#endif
    version = as;
    GetVersionString = []() noexcept { return version; };
    GetApi = [](std::uint32_t wanted) noexcept {
      asked = wanted;
      return wanted == 0 ? nullptr : static_cast<const OrtApi *>(&changed);
    };
  }
};

/* The error that a call throws. */
std::error_code thrown(const std::function<void()> &call) {
  try {
    call();
  } catch (const std::exception &any) {
    const auto *const ours = dynamic_cast<const bfc::error *>(&any);
    CHECK(ours != nullptr && std::string(any.what()).rfind("bfc_alloc: ", 0) == 0);
    CHECK((ours->code() == bfc::errc::out_of_memory) == (dynamic_cast<const std::bad_alloc *>(&any) != nullptr));
    return ours->code();
  }
  return {};
}

/* The struct is of the version that both sides know, and older libraries get older structs. */
void versions(const char *library, const char *) {
  const Ort ort(library);
  bfc::pool pool(bfc::host_device, on_host(1 << 20));
  bfc::ort_allocator &memory = bfc::ort_allocator::cpu(ort.base, pool);
  const unsigned long loaded = std::strtoul(ort.base.GetVersionString() + 2, nullptr, 10);
  CHECK(memory.version == std::min<unsigned long>(loaded, ORT_API_VERSION));
  CHECK(memory.Info(&memory) == memory.info());
  OrtAllocatorType type = OrtInvalidAllocator;
  ort.must(ort.api.MemoryInfoGetType(memory.info(), &type));
  int equal = -1;
  ort.must(ort.api.CompareMemoryInfo(memory.info(), ort.cpu, &equal));
  CHECK(type == OrtDeviceAllocator && equal == 0);
  CHECK(&memory == &bfc::ort_allocator::cpu(ort.base, pool));
  CHECK(&memory != &bfc::ort_allocator::cpu(ort.base, pool, bfc::ort_failure::returning_null));
  CHECK(&memory != &bfc::ort_allocator::cuda(ort.base, bfc::device(0)));

  const Pretended old(ort, "1.17.3");
  CHECK(bfc::ort_allocator::cpu(old, pool).version == 17 && Pretended::asked == 17);
  const Pretended newer(ort, "1.99.0");
  CHECK(bfc::ort_allocator::cpu(newer, pool).version == ORT_API_VERSION && Pretended::asked == ORT_API_VERSION);
  const Pretended strange(ort, "main");
  try {
    bfc::ort_allocator::cpu(strange, pool);
    CHECK(false);
  } catch (const bfc::ort_error &error) { CHECK(error.code() == ORT_FAIL); }
#if ORT_API_VERSION >= 18
  CHECK(memory.Reserve != nullptr);
#endif
#if ORT_API_VERSION >= 23
  /* Without it ONNX Runtime takes Alloc, and does not think that the memory is in a stream's order. */
  CHECK(memory.GetStats != nullptr && memory.AllocOnStream == nullptr);
  auto &by_stream = bfc::ort_allocator::cuda(ort.base, bfc::device(0), bfc::ort_order::by_stream);
  CHECK(by_stream.AllocOnStream != nullptr);
#endif
#if ORT_API_VERSION >= 25
  CHECK(memory.Shrink != nullptr);
#endif
}

/* Size 0, NULL, alignment, what fails and how. */
void contract(const char *library, const char *) {
  const Ort ort(library);
  bfc::pool pool(bfc::host_device, on_host(1 << 20));
  bfc::ort_allocator &memory = bfc::ort_allocator::cpu(ort.base, pool);
  bfc::ort_allocator &silent = bfc::ort_allocator::cpu(ort.base, pool, bfc::ort_failure::returning_null);
  CHECK(memory.Alloc(&memory, 0) == nullptr && memory.Reserve(&memory, 0) == nullptr && memory.reserved() == 0);
  memory.Free(&memory, nullptr);
  void *const one = memory.Reserve(&memory, 1000);
  CHECK(one != nullptr && memory.reserved() == 1);
  CHECK(thrown([&] { memory.Alloc(&memory, 2 << 20); }) == bfc::errc::out_of_memory);
  CHECK(thrown([&] { memory.Alloc(&memory, SIZE_MAX); }) == bfc::errc::out_of_memory);
  CHECK(thrown([&] { memory.Reserve(&memory, 2 << 20); }) == bfc::errc::out_of_memory);
  CHECK(silent.Alloc(&silent, 2 << 20) == nullptr && silent.Reserve(&silent, 2 << 20) == nullptr);
  CHECK(memory.reserved() == 1 && silent.reserved() == 0);
  /* One pool: what the one gave the other may free. A free that fails says nothing, and loses nothing. */
  silent.Free(&silent, one);
  silent.Free(&silent, one);
  CHECK(pool.stats().bytes_in_use == 0);
  pool.destroy();
  CHECK(thrown([&] { memory.Alloc(&memory, 1); }) == bfc::errc::no_allocator);
#if ORT_API_VERSION >= 23
  OrtKeyValuePairs *pairs = nullptr;
  CHECK(ort.failure(memory.GetStats(&memory, &pairs)).code == ORT_FAIL && pairs == nullptr);
#endif
#if ORT_API_VERSION >= 25
  CHECK(ort.failure(memory.Shrink(&memory)).code == ORT_FAIL);
#endif
  try {
    bfc::ort_allocator::cpu(ort.base, bfc::device(5000));
    CHECK(false);
  } catch (const bfc::error &error) { CHECK(error.code() == bfc::errc::invalid_argument); }
  /* If there is none it is created, with host memory on every ordinal. */
  bfc::ort_allocator &made = bfc::ort_allocator::cpu(ort.base, bfc::device(3));
  void *const there = made.Alloc(&made, 100);
  std::memset(there, 1, 100);
  made.Free(&made, there);
  bfc::pool::adopt(bfc::device(3)).destroy();
}

#if ORT_API_VERSION >= 25

/* By the keys of ONNX Runtime's own arena. */
void statistics(const char *library, const char *) {
  const Ort ort(library);
  bfc::pool pool(bfc::host_device, on_host(8 << 20));
  bfc::ort_allocator &memory = bfc::ort_allocator::cpu(ort.base, pool);
  void *const some[] = {memory.Alloc(&memory, 1000), memory.Reserve(&memory, 70000), memory.Alloc(&memory, 5 << 20)};
  memory.Free(&memory, some[2]);
  OrtKeyValuePairs *pairs = nullptr;
  ort.must(memory.GetStats(&memory, &pairs));
  const char *const *keys = nullptr;
  const char *const *values = nullptr;
  std::size_t count = 0;
  ort.api.GetKeyValuePairs(pairs, &keys, &values, &count);
  std::map<std::string, std::uint64_t> said;
  for (std::size_t index = 0; index < count; ++index) said[keys[index]] = std::strtoull(values[index], nullptr, 10);
  ort.api.ReleaseKeyValuePairs(pairs);
  const bfc_stats_t stats = pool.stats();
  CHECK(said.at("Limit") == 8 << 20 && said.at("InUse") == stats.bytes_in_use && stats.bytes_in_use > 71000);
  CHECK(said.at("TotalAllocated") == stats.pool_bytes && said.at("MaxInUse") == stats.peak_bytes_in_use);
  CHECK(said.at("NumAllocs") == 3 && said.at("NumReserves") == 1 && said.at("MaxAllocSize") >= 5 << 20);
  CHECK(said.at("Requested") == 71000 && said.at("NumFailures") == 0);
  CHECK(said.at("LargestFreeBlock") == stats.largest_free_block_bytes);
  CHECK(said.count("NumArenaExtensions") == 0 && said.count("NumArenaShrinkages") == 0);
  /* The region of the large one is wholly free. */
  ort.must(memory.Shrink(&memory));
  CHECK(pool.stats().pool_bytes < stats.pool_bytes && pool.stats().bytes_requested == 71000);
  for (void *ptr : {some[0], some[1]}) memory.Free(&memory, ptr);
  ort.must(memory.Shrink(&memory));
  CHECK(pool.stats().pool_bytes == 0);
}

#endif

/* Requests of random sizes by a function of the struct, and frees; some fail. How many of each. */
struct Count {
  int served = 0;
  int failed = 0;
};
Count random_calls(Shadow &shadow, std::mt19937 &random, int calls, const std::function<void *(std::size_t)> &take,
                   const std::function<void(void *, std::size_t)> &give) {
  const auto give_one = [&] {
    const auto [ptr, bytes] = shadow.pick(random);
    give(ptr, bytes);
  };
  Count count;
  for (int call = 0; call < calls; ++call) {
    const std::size_t bytes = random_size(random);
    try {
      void *const ptr = take(bytes);
      CHECK((ptr == nullptr) == (bytes == 0));
      if (ptr != nullptr) shadow.took(ptr, bytes);
      count.served += 1;
    } catch (const bfc::out_of_memory &error) {
      CHECK(std::string(error.what()).find("no memory for") != std::string::npos);
      count.failed += 1;
    }
    while (!shadow.empty() && random() % 100 < (shadow.size() > 40 ? 95 : 45)) give_one();
  }
  while (!shadow.empty()) give_one();
  return count;
}

/* Host memory that is too little, in four threads. */
void random_host(const char *library, const char *) {
  const Ort ort(library);
  bfc::pool pool(bfc::host_device, on_host(12 << 20));
  bfc::ort_allocator &memory = bfc::ort_allocator::cpu(ort.base, pool);
  std::atomic<int> served{0}, failed{0};
  std::vector<std::thread> workers;
  for (unsigned worker = 0; worker < 4; ++worker) {
    workers.emplace_back([&, worker] {
      std::mt19937 random(worker);
      Shadow shadow(true);
      const auto take = [&](std::size_t bytes) {
        return random() % 4 == 0 ? memory.Reserve(&memory, bytes) : memory.Alloc(&memory, bytes);
      };
      const auto give = [&](void *ptr, std::size_t) { memory.Free(&memory, ptr); };
      const Count count = random_calls(shadow, random, 1000, take, give);
      served += count.served;
      failed += count.failed;
    });
  }
  for (std::thread &worker : workers) worker.join();
  std::printf("%d requests served, %d failed\n", served.load(), failed.load());
  CHECK(served > 1000 && failed > 50 && memory.reserved() > 100);
  pool.check();
  CHECK(pool.stats().bytes_requested == 0 && pool.stats().num_allocs == pool.stats().num_frees);
  pool.destroy();
}

/* A thousand requests for the memory of simulated device 0, with a driver that fails now and then. Work of three streams
 * is under way: it fills what was allocated, and still finds it so at the free, whatever ran meanwhile. */
using Take = std::function<void *(std::size_t bytes, void *stream)>;
void random_device(const Simulated &driver, bfc::ort_allocator &memory, const Take &take) {
  bfc::pool pool(0, bfc::options::growing().memory_limit(8 << 20).initial_region_bytes(64 << 10).name("ort"));
  void *const streams[] = {driver.stream(), driver.stream(), driver.stream()};
  for (void *stream : streams) driver.hold(stream);
  std::mt19937 random(7);
  Shadow shadow(false);
  std::map<void *, void *> users;
  const auto taken = [&](std::size_t bytes) {
    /* What was given back is asked for again, and that may fail. */
    if (random() % 20 == 0) pool.trim();
    if (random() % 8 == 0) driver.fail_alloc(1);
    driver.step(streams[random() % 3], random() % 6);
    void *const stream = streams[random() % 3];
    void *const ptr = take(bytes, stream);
    if (ptr != nullptr) {
      users[ptr] = stream;
      driver.fill(stream, ptr, bytes);
    }
    return ptr;
  };
  const auto given = [&](void *ptr, std::size_t bytes) {
    driver.expect(users.at(ptr), ptr, bytes);
    memory.Free(&memory, ptr);
  };
  const Count count = random_calls(shadow, random, 1000, taken, given);
  std::printf("%d requests served, %d failed; %llu failures of the driver\n", count.served, count.failed,
              static_cast<unsigned long long>(driver.struck()));
  CHECK(count.served > 500 && count.failed > 5 && driver.struck() > 5);
  driver.clear_faults();
  driver.release_all();
  for (void *stream : streams) pool.forget_stream(stream);
  CHECK(pool.stats().bytes_requested == 0);
  pool.destroy();
  driver.check_clean();
}

/* Memory that any stream may touch. */
void random_cuda(const char *library, const char *) {
  const Ort ort(library);
  const Simulated driver;
  driver.enter(0);
  bfc::ort_allocator &memory = bfc::ort_allocator::cuda(ort.base, bfc::device(0));
  random_device(driver, memory, [&](std::size_t bytes, void *) {
    return bytes % 4 == 0 ? memory.Reserve(&memory, bytes) : memory.Alloc(&memory, bytes);
  });
}

#if ORT_API_VERSION >= 23

OrtSyncStream *token(void *stream) { return reinterpret_cast<OrtSyncStream *>(stream); }

/* With AllocOnStream: at once again on that stream, and not on another before its work is done. */
void stream_order(const char *library, const char *) {
  const Ort ort(library);
  const Pretended base(ort, "1.29.0");
  const Simulated driver;
  driver.enter(0);
  void *const a = driver.stream();
  void *const b = driver.stream();
  driver.hold(a);
  driver.hold(b);
  auto &memory = bfc::ort_allocator::cuda(base, bfc::device(0), bfc::ort_order::by_stream);
  /* Nobody has made an allocator for the device: this does. */
  CHECK(memory.AllocOnStream(&memory, 0, token(a)) == nullptr);
  void *const first = memory.AllocOnStream(&memory, 1 << 20, token(a));
  driver.work(a, first, 1 << 20);
  memory.Free(&memory, first);
  void *const again = memory.AllocOnStream(&memory, 1 << 20, token(a));
  CHECK(again == first);
  driver.work(a, again, 1 << 20);
  memory.Free(&memory, again);
  void *const other = memory.AllocOnStream(&memory, 1 << 20, token(b));
  CHECK(other != first);
  driver.work(b, other, 1 << 20);
  memory.Free(&memory, other);
  /* Without a stream it may be used on any stream at once, so no work may still use it. */
  void *const common = memory.AllocOnStream(&memory, 1 << 20, nullptr);
  CHECK(common != first && common != other);
  driver.work(b, common, 1 << 20);
  memory.Free(&memory, common);
  void *const after = memory.Alloc(&memory, 1 << 20);
  CHECK(after != common);
  memory.Free(&memory, after);
  CHECK(memory.AllocOnStream(&memory, 1 << 20, token(b)) == other);
  memory.Free(&memory, other);
  CHECK(thrown([&] { memory.AllocOnStream(&memory, std::size_t{2} << 30, token(a)); }) == bfc::errc::out_of_memory);
  driver.release_all();
  bfc::device(0).forget_stream(a);
  bfc::device(0).forget_stream(b);
  bfc::pool::adopt(bfc::device(0)).destroy();
  driver.check_clean();
}

/* A run that the CUDA provider captures on a stream of its own, which libbfc was never told of: its scratch stays the
 * graph's, and the capture is valid. */
void captured(const char *library, const char *) {
  const Ort ort(library);
  const Pretended base(ort, "1.29.0");
  const Simulated driver;
  driver.enter(0);
  bfc::pool pool(0, bfc::options::growing().memory_limit(8 << 20));
  auto &memory = bfc::ort_allocator::cuda(base, bfc::device(0));
  void *const stream = driver.stream();
  void *const warm = memory.AllocOnStream(&memory, 1 << 20, token(stream));
  driver.work(stream, warm, 1 << 20);
  memory.Free(&memory, warm);
  CHECK(driver.call<int(void *)>("cuStreamSynchronize")(stream) == 0);
  CHECK(driver.call<int(void *, int)>("cuStreamBeginCapture_v2")(stream, 0) == 0);
  void *const scratch = memory.AllocOnStream(&memory, 1 << 20, token(stream));
  driver.work(stream, scratch, 1 << 20);
  memory.Free(&memory, scratch);
  void *graph = nullptr, *executable = nullptr;
  CHECK(driver.call<int(void *, void **)>("cuStreamEndCapture")(stream, &graph) == 0 && graph != nullptr);
  CHECK(driver.call<int(void **, void *, unsigned long long)>("cuGraphInstantiateWithFlags")(&executable, graph, 0) ==
        0);
  const auto launch = [&] {
    CHECK(driver.call<int(void *, void *)>("cuGraphLaunch")(executable, stream) == 0);
    CHECK(driver.call<int(void *)>("cuStreamSynchronize")(stream) == 0);
  };
  launch();
  /* Another session gets all that there is. */
  std::vector<void *> others;
  CHECK(thrown([&] {
          for (;;) others.push_back(memory.AllocOnStream(&memory, 256 << 10, nullptr));
        }) == bfc::errc::out_of_memory);
  CHECK(others.size() > 20);
  for (void *other : others) driver.fill(nullptr, other, 256 << 10);
  launch();
  for (void *other : others) driver.expect(nullptr, other, 256 << 10);
  for (void *other : others) memory.Free(&memory, other);
  CHECK(driver.call<int(void *)>("cuGraphExecDestroy")(executable) == 0);
  CHECK(driver.call<int(void *)>("cuGraphDestroy")(graph) == 0);
  pool.release_private_pool(BFC_POOL_OF_CAPTURES);
  pool.destroy();
  driver.check_clean();
}

/* In the order of streams, and some for any. */
void random_streams(const char *library, const char *) {
  const Ort ort(library);
  const Pretended base(ort, "1.29.0");
  const Simulated driver;
  driver.enter(0);
  auto &memory = bfc::ort_allocator::cuda(base, bfc::device(0), bfc::ort_order::by_stream);
  random_device(driver, memory, [&](std::size_t bytes, void *stream) {
    return memory.AllocOnStream(&memory, bytes, bytes % 5 == 0 ? nullptr : token(stream));
  });
}

#endif

constexpr Case cases[] = {
    {"versions", versions},         {"contract", contract}, {"random_host", random_host},
    {"random_cuda", random_cuda},
#if ORT_API_VERSION >= 23
    {"stream_order", stream_order}, {"captured", captured}, {"random_streams", random_streams},
#endif
#if ORT_API_VERSION >= 25
    {"statistics", statistics},
#endif
};

}  // namespace

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
