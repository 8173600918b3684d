/* libbfc for ONNX Runtime: an OrtAllocator over an allocator of libbfc. Header-only; bfc.hpp does not include it.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 *     #include <onnxruntime_c_api.h>                   // ORT's, on the compiler's path; or its C++ header
 *     #include <bfc/onnxruntime.hpp>
 *
 *     bfc::pool pool(bfc::host_device, bfc::options::recommended());
 *     bfc::ort_allocator &memory = bfc::ort_allocator::cpu(*OrtGetApiBase(), pool);
 *     bfc::ort_registration shared(*OrtGetApiBase(), env, memory);   // env: an OrtEnv *
 *     // and in each session's options: AddSessionConfigEntry(options, "session.use_env_allocators", "1")
 *
 * Lifetime. ONNX Runtime does not own an OrtAllocator: its environment, every session made since and every value that
 * was allocated keep the pointer. An ort_allocator therefore cannot be destroyed: there is one for each device, kept
 * until the process ends (a few hundred bytes), so that late frees find it. The pool under it may be destroyed once
 * none of its memory is live. Before that bfc_destroy is BUSY, and the destructor of bfc::pool does not destroy it. The
 * code that includes this header must stay loaded as long.
 *
 * Out of memory. ONNX Runtime checks the result of Alloc in few places: after NULL the first kernel writes to address
 * 0. Its own allocators throw std::bad_alloc, and its API functions convert exceptions to an OrtStatus. Alloc and
 * Reserve therefore throw bfc::out_of_memory or bfc::status_error, each a std::exception, whose message is in the
 * status (its code is ORT_RUNTIME_EXCEPTION, or ORT_FAIL for a run that takes all of its memory at once). This requires
 * an ONNX Runtime linked with the program's own C++ library, as those on PyPI are with libstdc++.so.6. `returning_null`
 * is for callers that check the result, for example in C. Free never throws. Size 0 returns NULL.
 *
 * Every address is a multiple of 256. All functions may be called from any thread at any time.
 */

#ifndef BFC_ONNXRUNTIME_HPP
#define BFC_ONNXRUNTIME_HPP

#include "../bfc.hpp"
#include "../bfc_adapters.h"

#ifndef ORT_API_VERSION
#include <onnxruntime_c_api.h>
#endif

#if BFC_HAS_EXCEPTIONS

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace bfc {

/* A failure of ONNX Runtime; what() has its message. */
class ort_error final : public std::runtime_error {
 public:
  ort_error(OrtErrorCode code, const std::string &words) : std::runtime_error(words), code_(code) {}
  OrtErrorCode code() const noexcept { return code_; }

 private:
  OrtErrorCode code_;
};

class ort_registration;

/* How an ort_allocator reports that it is out of memory. */
enum class ort_failure {
  throwing,      /* std::bad_alloc, as ONNX Runtime's own allocators do */
  returning_null /* for callers that check; ONNX Runtime usually does not */
};

/* The order of device work in which the memory of an ort_allocator is used. */
enum class ort_order {
  any_stream, /* freed memory is not reusable until the device was idle, see bfc_adapters.h */
  by_stream   /* memory of AllocOnStream is in the order of that stream, as with bfc_alloc_async */
};

namespace detail {

/* The loaded ONNX Runtime: its functions, and their number. */
struct ort_runtime {
  const OrtApi *api = nullptr;
  std::uint32_t version = 0;

  /* Determined from the version number, because GetApi prints a message if it is asked for a version that is too new.
   * */
  explicit ort_runtime(const OrtApiBase &base) {
    const char *const dot = std::char_traits<char>::find(base.GetVersionString(), 2, '.');
    const unsigned long loaded = dot == nullptr ? 0 : std::strtoul(dot + 1, nullptr, 10);
    version = static_cast<std::uint32_t>(std::min<unsigned long>(loaded, ORT_API_VERSION));
    api = base.GetApi(version);
    if (api == nullptr) {
      throw ort_error(ORT_FAIL, std::string("bfc: no functions in ONNX Runtime ") + base.GetVersionString());
    }
  }

  bool operator==(const ort_runtime &other) const noexcept { return api == other.api && version == other.version; }

  void check(OrtStatus *status) const {
    if (status == nullptr) return;
    const std::unique_ptr<OrtStatus, decltype(api->ReleaseStatus)> owned(status, api->ReleaseStatus);
    throw ort_error(api->GetErrorCode(status), api->GetErrorMessage(status));
  }
};

}  // namespace detail

/* Memory of a device for ONNX Runtime; see the head of this file. An OrtAllocator of the newest version that both this
 * header and the loaded ONNX Runtime support: Reserve since 1.18, GetStats and AllocOnStream since 1.23, Shrink since
 * 1.25. */
class ort_allocator final : public OrtAllocator {
 public:
  /* Memory of the CPU, from an allocator of the HOST or HOST_VMM backend on any ordinal (or of a custom one whose
   * memory the CPU can use). If there is none, one of the HOST backend is created from the environment, as by
   * bfc_create with NULL. The same arguments return the same object. Throws ort_error, bfc::error, std::bad_alloc. */
  static ort_allocator &cpu(const OrtApiBase &base, device from = device(host_device),
                            ort_failure failure = ort_failure::throwing) {
    return get(base, from, ort_order::any_stream, failure, true);
  }

  /* Memory of a CUDA device, for a build of ONNX Runtime with the CUDA provider: the ordinal is ORT's device id. If
   * there is no allocator, the first request creates it.
   *
   * Not for a session with the CUDA provider's option enable_cuda_graph, which this class is not informed of: a
   * captured run frees memory that the graph writes again. Memory requested in a capture visible to libbfc is kept for
   * the graph, see BFC_POOL_OF_CAPTURES. This covers requests by AllocOnStream, but not others on ONNX Runtime's own
   * streams.
   *
   * With by_stream each stream that ONNX Runtime may use must exist until the pool has forgotten it: call
   * device::forget_stream before it is destroyed. ONNX Runtime does not report when it destroys its own streams, so
   * this is for streams of the program (the CUDA provider's option user_compute_stream). */
  static ort_allocator &cuda(const OrtApiBase &base, device from, ort_order order = ort_order::any_stream,
                             ort_failure failure = ort_failure::throwing) {
    return get(base, from, order, failure, false);
  }

  ort_allocator(const ort_allocator &) = delete;
  ort_allocator &operator=(const ort_allocator &) = delete;

  device get_device() const noexcept { return device_; }
  /* The description by which ONNX Runtime identifies the memory. */
  const OrtMemoryInfo *info() const noexcept { return info_; }
  /* Successful calls of Reserve: memory that a session keeps, for its initializers. */
  std::uint64_t reserved() const noexcept { return reserves_.load(std::memory_order_relaxed); }

 private:
  ort_allocator(const detail::ort_runtime &runtime, device from, ort_order order, ort_failure failure, bool is_cpu)
      : OrtAllocator(), runtime_(runtime), device_(from), order_(order), failure_(failure), is_cpu_(is_cpu) {
    /* The kind of its own (OrtArenaAllocator) is only for ONNX Runtime's arena, whatever this allocator is built on. */
    const auto create = runtime.api->CreateMemoryInfo;
    if (is_cpu) {
      runtime.check(create("Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault, &info_));
    } else {
      runtime.check(create("Cuda", OrtDeviceAllocator, from.ordinal(), OrtMemTypeDefault, &info_));
    }
    OrtAllocator::version = runtime.version;
    OrtAllocator::Alloc = [](OrtAllocator *self, std::size_t size) { return of(self).serve(size); };
    OrtAllocator::Free = [](OrtAllocator *self, void *ptr) { of(self).give_back(ptr); };
    OrtAllocator::Info = [](const OrtAllocator *self) { return of(self).info(); };
    /* Entries of this header that the loaded library does not know are not read by it. */
#if ORT_API_VERSION >= 18
    OrtAllocator::Reserve = [](OrtAllocator *self, std::size_t size) { return of(self).reserve(size); };
#endif
#if ORT_API_VERSION >= 23
    OrtAllocator::GetStats = [](const OrtAllocator *self, OrtKeyValuePairs **out) noexcept {
      return of(self).statistics(out);
    };
    if (!is_cpu) {
      OrtAllocator::AllocOnStream = [](OrtAllocator *self, std::size_t size, OrtSyncStream *stream) {
        return of(self).serve_on(size, stream);
      };
    }
#endif
#if ORT_API_VERSION >= 25
    OrtAllocator::Shrink = [](OrtAllocator *self) noexcept { return of(self).shrink(); };
#endif
  }
  ~ort_allocator() { runtime_.api->ReleaseMemoryInfo(info_); }
  friend std::default_delete<ort_allocator>;
  friend class ort_registration;

  static ort_allocator &of(OrtAllocator *self) noexcept { return *static_cast<ort_allocator *>(self); }
  static const ort_allocator &of(const OrtAllocator *self) noexcept {
    return *static_cast<const ort_allocator *>(self);
  }

  /* All objects that were made. They are never destroyed, and neither is the list, so that leak checkers find them. */
  struct all {
    std::mutex lock;
    std::vector<std::unique_ptr<ort_allocator>> made;
  };

  static ort_allocator &get(const OrtApiBase &base, device from, ort_order order, ort_failure failure, bool is_cpu) {
    static all &every = *new all;
    const detail::ort_runtime runtime(base);
    if (is_cpu) make_sure_of(from);
    const std::lock_guard<std::mutex> guard(every.lock);
    for (const auto &one : every.made) {
      if (one->runtime_ == runtime && one->device_ == from && one->order_ == order && one->failure_ == failure &&
          one->is_cpu_ == is_cpu) {
        return *one;
      }
    }
    every.made.reserve(every.made.size() + 1);
    every.made.emplace_back(new ort_allocator(runtime, from, order, failure, is_cpu));
    return *every.made.back();
  }

  /* The environment may name a backend. AUTO would be CUDA on the ordinal of a device. */
  static void make_sure_of(device from) {
    bfc_stats_t stats = BFC_STATS_INIT;
    std::error_code ec;
    if (detail::set(ec, bfc_stats(from.ordinal(), &stats))) return;
    if (ec != errc::no_allocator) detail::raise("bfc_stats", ec);
    if (from.ordinal() == host_device) {
      pool::create(from.ordinal(), ec).release();
    } else {
      pool::create(from.ordinal(), options::recommended().backend(backend::host), ec).release();
    }
    /* Another thread may have created it first. */
    if (ec && ec != errc::already_exists) detail::raise("bfc_create", ec);
  }

  void *serve(std::size_t size) {
    if (size == 0) return nullptr;
    void *ptr = nullptr;
    const bfc_status_t status = is_cpu_ ? bfc_alloc(device_.ordinal(), padded(size), &ptr) : on_any_stream(size, &ptr);
    return served(status, ptr);
  }

  /* bfc_cupy_malloc takes a device, and the memory may be used on any stream. */
  bfc_status_t on_any_stream(std::size_t size, void **out) noexcept {
    *out = bfc_cupy_malloc(nullptr, size, device_.ordinal());
    return *out == nullptr ? bfc_adapter_status() : BFC_OK;
  }

  void *reserve(std::size_t size) {
    void *const ptr = serve(size);
    if (ptr != nullptr) reserves_.fetch_add(1, std::memory_order_relaxed);
    return ptr;
  }

  void *served(bfc_status_t status, void *ptr) {
    if (status == BFC_OK || failure_ == ort_failure::returning_null) return ptr;
    std::error_code ec;
    detail::set(ec, status);
    detail::raise("bfc_alloc", ec);
  }

  /* bfc_free treats memory from bfc_cupy_malloc as possibly in use on any stream, and memory from bfc_alloc_async is
   * freed in the order of its stream. A destructor calls this and cannot report a failure. */
  void give_back(void *ptr) noexcept { bfc_free(device_.ordinal(), ptr); }

  /* On ARM64, kernels read up to 30 bytes past the end of a buffer, for which ORT's own CPU allocator leaves room. */
  static std::size_t padded(std::size_t size) noexcept {
#if defined(__aarch64__)
    constexpr std::size_t room = 32;
    return size > SIZE_MAX - room ? size : size + room;
#else
    return size;
#endif
  }

#if ORT_API_VERSION >= 23
  void *serve_on(std::size_t size, OrtSyncStream *stream) {
    if (stream == nullptr || is_cpu_) return serve(size);
    if (size == 0) return nullptr;
    void *ptr = nullptr;
    void *const handle = runtime_.api->SyncStream_GetHandle(stream);
    if (order_ == ort_order::any_stream) {
      ptr = bfc_ort_alloc_on_stream(device_.ordinal(), size, handle);
      return served(ptr == nullptr ? bfc_adapter_status() : BFC_OK, ptr);
    }
    /* Not through the macro of bfc.h: 0 in ONNX Runtime's library is the legacy default stream. */
    bfc_status_t status = (bfc_alloc_async)(device_.ordinal(), size, handle, &ptr);
    if (status == BFC_ERROR_NO_ALLOCATOR) {
      /* The first request creates the allocator here too. */
      void *first = nullptr;
      status = on_any_stream(1, &first);
      bfc_free(device_.ordinal(), first);
      if (status == BFC_OK) status = (bfc_alloc_async)(device_.ordinal(), size, handle, &ptr);
    }
    return served(status, ptr);
  }

  /* The keys of ORT's arena, which it reads as decimal numbers, and three more. libbfc does not count
   * NumArenaExtensions and NumArenaShrinkages. */
  OrtStatus *statistics(OrtKeyValuePairs **out) const noexcept {
    *out = nullptr;
    bfc_stats_t stats = BFC_STATS_INIT;
    const bfc_status_t status = bfc_stats(device_.ordinal(), &stats);
    if (status != BFC_OK) return failed(status);
    try {
      OrtKeyValuePairs *made = nullptr;
      runtime_.api->CreateKeyValuePairs(&made);
      *out = made;
      const auto add = [&](const char *key, std::uint64_t value) {
        /* ORT reads signed numbers; -1 is no limit. */
        const std::string text = value > INT64_MAX ? "-1" : std::to_string(value);
        runtime_.api->AddKeyValuePair(made, key, text.c_str());
      };
      add("Limit", stats.bytes_limit);
      add("InUse", stats.bytes_in_use);
      add("TotalAllocated", stats.pool_bytes);
      add("MaxInUse", stats.peak_bytes_in_use);
      add("NumAllocs", stats.num_allocs);
      add("NumReserves", reserved());
      add("MaxAllocSize", stats.largest_alloc_size);
      add("Requested", stats.bytes_requested);
      add("NumFailures", stats.num_failures);
      add("LargestFreeBlock", stats.largest_free_block_bytes);
      return nullptr;
    } catch (...) {
      runtime_.api->ReleaseKeyValuePairs(*out);
      *out = nullptr;
      return runtime_.api->CreateStatus(ORT_FAIL, "bfc: no memory for the statistics");
    }
  }
#endif

#if ORT_API_VERSION >= 25
  OrtStatus *shrink() noexcept {
    std::uint64_t released = 0;
    const bfc_status_t status = bfc_trim(device_.ordinal(), 0, &released);
    return status == BFC_OK ? nullptr : failed(status);
  }
#endif

#if ORT_API_VERSION >= 23
  OrtStatus *failed(bfc_status_t) const noexcept {
    char words[512];
    bfc_last_error(words, sizeof words);
    return runtime_.api->CreateStatus(ORT_FAIL, words);
  }
#endif

  detail::ort_runtime runtime_;
  device device_;
  ort_order order_;
  ort_failure failure_;
  bool is_cpu_;
  OrtMemoryInfo *info_ = nullptr;
  std::atomic<std::uint64_t> reserves_{0};
  /* Held while ONNX Runtime is called, so that the count matches the registrations there. */
  std::mutex registering_;
  std::uint64_t registrations_ = 0;
};

/* Registers an ort_allocator for sessions with "session.use_env_allocators", as long as this object lives. It replaces
 * the allocator that was registered for that memory before. After the last such object has ended, the environment has
 * no allocator: sessions created later allocate by themselves, and existing sessions and their values continue to use
 * libbfc. Keeps the environment alive. One object may be used by one thread at a time. */
class ort_registration {
 public:
  /* `env` is the program's environment, of which a process has one. NULL uses that one, which is created if it does not
   * exist. Throws ort_error. */
  ort_registration(const OrtApiBase &base, OrtEnv *env, ort_allocator &memory) : runtime_(base), memory_(&memory) {
    /* Returns the existing one and increments its count. */
    runtime_.check(runtime_.api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "bfc", &env_));
    const std::lock_guard<std::mutex> guard(memory_->registering_);
    OrtStatus *const status = runtime_.api->RegisterAllocator(env == nullptr ? env_ : env, memory_);
    if (status != nullptr) {
      runtime_.api->ReleaseEnv(env_);
      runtime_.check(status);
    }
    memory_->registrations_ += 1;
  }
  ort_registration(const ort_registration &) = delete;
  ort_registration &operator=(const ort_registration &) = delete;
  ort_registration(ort_registration &&other) noexcept
      : runtime_(other.runtime_), memory_(other.memory_), env_(std::exchange(other.env_, nullptr)) {}
  ort_registration &operator=(ort_registration &&other) noexcept {
    ort_registration taken(std::move(other));
    std::swap(runtime_, taken.runtime_);
    std::swap(memory_, taken.memory_);
    std::swap(env_, taken.env_);
    return *this;
  }
  ~ort_registration() { end(); }

  explicit operator bool() const noexcept { return env_ != nullptr; }
  ort_allocator &memory() const noexcept { return *memory_; }

  /* Ends the registration before the block does. Has no effect if it has ended. */
  void end() noexcept {
    if (env_ == nullptr) return;
    {
      const std::lock_guard<std::mutex> guard(memory_->registering_);
      memory_->registrations_ -= 1;
      if (memory_->registrations_ == 0 && is_ours()) {
        runtime_.api->ReleaseStatus(runtime_.api->UnregisterAllocator(env_, memory_->info()));
      }
    }
    runtime_.api->ReleaseEnv(std::exchange(env_, nullptr));
  }

 private:
  /* Another allocator may have been registered for that memory since. Before 1.23 this cannot be detected. */
  bool is_ours() const noexcept {
#if ORT_API_VERSION >= 23
    if (runtime_.version >= 23) {
      OrtAllocator *registered = nullptr;
      runtime_.api->ReleaseStatus(runtime_.api->GetSharedAllocator(env_, memory_->info(), &registered));
      return registered == memory_;
    }
#endif
    return true;
  }

  detail::ort_runtime runtime_;
  ort_allocator *memory_;
  OrtEnv *env_ = nullptr;
};

}  // namespace bfc

#endif  // BFC_HAS_EXCEPTIONS

#endif  // BFC_ONNXRUNTIME_HPP
