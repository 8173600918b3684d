/* libbfc for C++17: bfc.h with ownership, with exceptions or error codes, and for std::pmr. Header-only.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 *     bfc::pool pool(256, bfc::options::growing().memory_limit(1u << 30));
 *     bfc::allocation weights(pool, 4096);             // given back at the end of the block
 *     void *scratch = pool.allocate(100, 512);         // bytes, alignment; pool.deallocate(scratch)
 *     bfc::memory_resource resource(pool);
 *     std::pmr::vector<float> values(1000, &resource);
 *     bfc::private_pool_scope capturing(pool, 1, stream); // for what a captured graph uses
 *
 * Every operation has two forms, as in std::filesystem:
 * - With a std::error_code& as its last argument it is noexcept and says there how it went; on failure it
 *   returns null, 0 or an empty object. The category is bfc::category(), the values are bfc::errc, and
 *   `ec == std::errc::not_enough_memory` and the like work too.
 * - Without one it throws. Where exceptions are off (-fno-exceptions) these forms and memory_resource are
 *   not there, and the rest is.
 *
 * What is thrown is caught as `const bfc::error &` (code() and what(), which has the words of
 * bfc_last_error), or by the standard's types: running out of device or host memory is bfc::out_of_memory,
 * a std::bad_alloc, and everything else is bfc::status_error, a std::system_error. bfc::error itself does
 * not derive from std::exception, for then out_of_memory would have two of them and `catch (const
 * std::exception &)` would catch neither.
 *
 * After a failure nothing has changed, as the C header says: live allocations and their contents are
 * untouched, and objects of this header own what they owned before. Constructors that throw leave nothing
 * behind.
 *
 * Threads: the operations of a device may be called from any thread at any time. The objects pool,
 * allocation, private_pool_scope and options are as the standard's are: not to be changed by two threads at once.
 *
 * Sizes are in bytes. Pointers are addresses of the backend's memory: what a device with its own memory
 * returned must not be dereferenced by the CPU, and memory_resource is not for it.
 *
 * Stream 0 is the legacy default stream, and in a translation unit that defines CUDA_API_PER_THREAD_DEFAULT_STREAM before
 * this header (nvcc --default-stream per-thread does) the calling thread's own; see stream_ref. Units of both kinds may
 * be parts of one program and may share pools.
 */

#ifndef BFC_HPP
#define BFC_HPP

#if !defined(_MSVC_LANG) && __cplusplus < 201703L
#error \
    "bfc.hpp needs C++17 or newer: compile with -std=c++17 (in CMake: target_compile_features(app PRIVATE cxx_std_17))"
#endif

#include "bfc.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <memory_resource>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define BFC_HAS_EXCEPTIONS 1
#else
#define BFC_HAS_EXCEPTIONS 0
#endif

namespace bfc {

/* Why a call failed: bfc_status_t by name, in std::error_code. */
enum class errc : int {
  invalid_argument = BFC_ERROR_INVALID_ARGUMENT,
  no_allocator = BFC_ERROR_NO_ALLOCATOR,
  already_exists = BFC_ERROR_ALREADY_EXISTS,
  out_of_memory = BFC_ERROR_OUT_OF_MEMORY,
  invalid_pointer = BFC_ERROR_INVALID_POINTER,
  double_free = BFC_ERROR_DOUBLE_FREE,
  busy = BFC_ERROR_BUSY,
  backend_unavailable = BFC_ERROR_BACKEND_UNAVAILABLE,
  backend_failed = BFC_ERROR_BACKEND_FAILED,
  unsupported = BFC_ERROR_UNSUPPORTED,
  shutting_down = BFC_ERROR_SHUTTING_DOWN,
  internal = BFC_ERROR_INTERNAL
};

/* Where regions come from: BFC_BACKEND_... */
enum class backend : std::uint32_t {
  automatic = BFC_BACKEND_AUTO,
  host = BFC_BACKEND_HOST,
  custom = BFC_BACKEND_CUSTOM,
  cuda = BFC_BACKEND_CUDA,
  cuda_vmm = BFC_BACKEND_CUDA_VMM,
  host_vmm = BFC_BACKEND_HOST_VMM,
  prefer_cuda_vmm = BFC_BACKEND_PREFER_CUDA_VMM
};

/* How the sizes of regions are chosen with growth: BFC_GROWTH_... */
enum class growth_policy : std::uint32_t {
  by_default = BFC_GROWTH_DEFAULT, /* what BFC_GROWTH says; else tensorflow with options::allow_growth */
  tensorflow = BFC_GROWTH_TENSORFLOW,
  need = BFC_GROWTH_NEED,
  prefer_need = BFC_GROWTH_PREFER_NEED /* what BFC_GROWTH says, else need */
};

/* What happens to a region: BFC_REGION_... */
enum class region_event : std::int32_t {
  obtained = BFC_REGION_OBTAINED,  /* nothing of it is handed out yet */
  returning = BFC_REGION_RETURNING /* nothing of it is in use; obtained comes again if the backend does not take it */
};

/* The ordinal of host memory; 0 to 255 are devices, 257 is pinned host memory, 258 to 1023 are yours. */
inline constexpr std::int32_t host_device = 256;

/* The library that is loaded, "major.minor.patch". */
inline std::string_view version() noexcept { return bfc_version(); }

namespace detail {

class status_category final : public std::error_category {
 public:
  const char *name() const noexcept override { return "bfc"; }
  std::string message(int status) const override { return bfc_status_string(status); }
  std::error_condition default_error_condition(int status) const noexcept override {
    switch (status) {
      case BFC_ERROR_INVALID_ARGUMENT: return std::errc::invalid_argument;
      case BFC_ERROR_OUT_OF_MEMORY: return std::errc::not_enough_memory;
      case BFC_ERROR_BUSY: return std::errc::device_or_resource_busy;
      case BFC_ERROR_UNSUPPORTED: return std::errc::not_supported;
      default: return {status, *this};
    }
  }
};

}  // namespace detail

inline const std::error_category &category() noexcept {
  static const detail::status_category instance;
  return instance;
}

inline std::error_code make_error_code(errc value) noexcept { return {static_cast<int>(value), category()}; }

}  // namespace bfc

template <>
struct std::is_error_code_enum<bfc::errc> : std::true_type {};

namespace bfc {

#if BFC_HAS_EXCEPTIONS

/* What every exception of this header is, beside a std::exception. */
class error {
 public:
  virtual ~error() = default;
  /* The status, in bfc::category(). */
  virtual const std::error_code &code() const noexcept = 0;
  /* The function that failed and why, in words. */
  virtual const char *what() const noexcept = 0;

 protected:
  error() = default;
  error(const error &) = default;
  error &operator=(const error &) = default;
};

/* Any failure but that of memory. */
class status_error final : public std::system_error, public error {
 public:
  status_error(std::error_code code, const std::string &words) : std::system_error(code, words) {}
  const std::error_code &code() const noexcept override { return std::system_error::code(); }
  const char *what() const noexcept override { return std::system_error::what(); }
};

/* Device or host memory ran out. Needs no memory itself; words beyond its buffer are cut. */
class out_of_memory final : public std::bad_alloc, public error {
 public:
  explicit out_of_memory(const char *function) noexcept : code_(errc::out_of_memory) {
    std::string_view name(function);
    name = name.substr(0, sizeof(words_) / 2);
    const std::size_t length = name.copy(words_, name.size());
    words_[length] = ':';
    words_[length + 1] = ' ';
    bfc_last_error(words_ + length + 2, sizeof(words_) - length - 2);
  }
  const std::error_code &code() const noexcept override { return code_; }
  const char *what() const noexcept override { return words_; }

 private:
  std::error_code code_;
  char words_[512];
};

#endif  // BFC_HAS_EXCEPTIONS

/* This thread's last failure in words; a success leaves it. May throw std::bad_alloc. */
inline std::string last_error() {
  std::string words(bfc_last_error(nullptr, 0) + 1, '\0');
  words.resize(std::min(bfc_last_error(words.data(), words.size()), words.size() - 1));
  return words;
}

namespace detail {

/* An ordinal that no call accepts, for objects that own nothing. */
inline constexpr std::int32_t nowhere = -1;

inline bool set(std::error_code &ec, bfc_status_t status) noexcept {
  ec.assign(status, bfc::category());
  return status == BFC_OK;
}

/* The text of a report. The pool may change between the call for the length and the call for the text. */
template <class Write>
std::string text(Write *write, std::int32_t ordinal, std::error_code &ec) noexcept {
  std::string buffer;
#if BFC_HAS_EXCEPTIONS
  try {
#endif
    std::size_t length = 0;
    while (set(ec, write(ordinal, buffer.data(), buffer.size(), &length)) && length >= buffer.size()) {
      buffer.resize(length + length / 8 + 1);
    }
    buffer.resize(ec ? 0 : length);
#if BFC_HAS_EXCEPTIONS
  } catch (...) {
    buffer.clear();
    ec = errc::out_of_memory;
  }
#endif
  return buffer;
}

#if BFC_HAS_EXCEPTIONS

[[noreturn]] inline void raise(const char *function, std::error_code code) {
  if (code == errc::out_of_memory) { throw out_of_memory(function); }
  throw status_error(code, std::string(function) + ": " + last_error());
}

/* The throwing form of a call that takes an error code. */
template <class Call>
auto must(const char *function, Call call) {
  std::error_code ec;
  if constexpr (std::is_void_v<decltype(call(ec))>) {
    call(ec);
    if (ec) raise(function, ec);
  } else {
    auto result = call(ec);
    if (ec) raise(function, ec);
    return result;
  }
}

#endif  // BFC_HAS_EXCEPTIONS

}  // namespace detail

/* How a pool is made, as bfc_options_t. What is not set comes from the environment (BFC_...), and after
 * that from the defaults. Each function returns the object, so that calls chain. */
class options {
 public:
  options() noexcept = default;

  /* Growth and garbage collection on. */
  static options growing() noexcept { return options().allow_growth().garbage_collection(); }

  options &backend(bfc::backend kind) noexcept { return raw_.backend = static_cast<std::uint32_t>(kind), *this; }
  /* Bytes held from the backend at most. */
  options &memory_limit(std::uint64_t bytes) noexcept { return raw_.memory_limit = bytes, *this; }
  /* Of the device's total, from 0 to 1, where no limit is set. */
  options &memory_fraction(double share) noexcept { return raw_.memory_fraction = share, *this; }
  /* Split off a remainder of this share of the limit, from 0 to 1. */
  options &fragmentation_fraction(double share) noexcept { return raw_.fragmentation_fraction = share, *this; }
  /* Bytes of the first region with growth. */
  options &initial_region_bytes(std::uint64_t bytes) noexcept { return raw_.initial_region_bytes = bytes, *this; }
  /* How the sizes of regions are chosen with growth. */
  options &growth_policy(bfc::growth_policy policy) noexcept {
    return raw_.growth_policy = static_cast<std::uint32_t>(policy), *this;
  }
  /* How long a request waits for another thread's free; negative is 0, 49 days are the most. */
  options &retry_timeout(std::chrono::milliseconds time) noexcept {
    constexpr std::int64_t most = std::numeric_limits<std::uint32_t>::max();
    raw_.retry_timeout_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(time.count(), 0, most));
    return *this;
  }
  /* UTF-8, for reports. */
  options &name(std::string text) noexcept { return name_ = std::move(text), *this; }

  /* The file of a plan that `bfc plan` has computed for the program. Empty: no plan, also if BFC_PLAN names one. */
  options &plan(std::string path) noexcept { return plan_ = std::move(path), *this; }

  /* Regions on demand instead of one of memory_limit. */
  options &allow_growth(bool on = true) noexcept { return flag(BFC_ALLOW_GROWTH, on); }
  /* Give wholly free regions back before failing. */
  options &garbage_collection(bool on = true) noexcept { return flag(BFC_GARBAGE_COLLECTION, on); }
  /* Stamp frees; see device::set_safe_frontier. */
  options &timestamps(bool on = true) noexcept { return flag(BFC_TIMESTAMPS, on); }
  /* Split off any remainder of 256 bytes or more. */
  options &split_always(bool on = true) noexcept { return flag(BFC_SPLIT_ALWAYS, on); }
  /* With timestamps: never hand out a chunk whose stamp is not safe. */
  options &quarantine(bool on = true) noexcept { return flag(BFC_QUARANTINE, on); }

  /* Regions from the caller's functions; see bfc_suballocator_t. They must not throw. */
  options &suballocator(bfc_region_alloc_t alloc, bfc_region_free_t free, void *user_data,
                        bool supports_coalescing = false) noexcept {
    raw_.backend = BFC_BACKEND_CUSTOM;
    bfc_suballocator_t functions = BFC_SUBALLOCATOR_INIT;
    functions.user_data = user_data;
    functions.alloc = alloc;
    functions.free = free;
    functions.supports_coalescing = supports_coalescing ? 1 : 0;
    suballocator_ = functions;
    return *this;
  }

  /* Regions from a memory resource, which must outlive the pool and bear calls from several threads. */
  options &upstream(std::pmr::memory_resource &resource) noexcept {
    return suballocator(&options::take_region, &options::give_region, &resource);
  }

  /* For bfc_create; the pointers in it are valid as long as this object is neither changed nor moved. */
  bfc_options_t raw() const noexcept {
    bfc_options_t result = raw_;
    result.name = name_ ? name_->c_str() : nullptr;
    result.plan = plan_ ? plan_->c_str() : nullptr;
    result.suballocator = suballocator_ ? &*suballocator_ : nullptr;
    return result;
  }

 private:
  /* Both calls of a resource must name the same alignment. The library finds a larger one inside. */
  static constexpr std::size_t region_alignment = 4096;

  static void *take_region(void *resource, std::size_t, std::size_t bytes, std::size_t *) noexcept {
#if BFC_HAS_EXCEPTIONS
    try {
      return static_cast<std::pmr::memory_resource *>(resource)->allocate(bytes, region_alignment);
    } catch (...) { return nullptr; }
#else
    return static_cast<std::pmr::memory_resource *>(resource)->allocate(bytes, region_alignment);
#endif
  }
  static void give_region(void *resource, void *region, std::size_t bytes) noexcept {
    static_cast<std::pmr::memory_resource *>(resource)->deallocate(region, bytes, region_alignment);
  }

  options &flag(std::uint32_t bit, bool on) noexcept {
    raw_.flags = on ? raw_.flags | bit : raw_.flags & ~bit;
    return *this;
  }

  bfc_options_t raw_ = BFC_OPTIONS_INIT;
  std::optional<std::string> name_;
  std::optional<std::string> plan_;
  std::optional<bfc_suballocator_t> suballocator_;
};

/* Where two units of a program are compiled differently an inline function that both have is linked from only one of
 * them. So what depends on the unit is a type of a namespace of that kind of unit, and every inline function with such a
 * parameter is another symbol, also std::make_unique of such a type; the objects that units share, pool and device, are
 * of one type. The names in parentheses below are the functions of bfc.h and not its macros, for the same reason. */
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline namespace per_thread_default_stream {
#else
inline namespace legacy_default_stream {
#endif

/* A stream as the calling unit names it: made of a CUstream or a cudaStream_t, of which 0 is the default stream. */
class stream_ref {
 public:
  stream_ref(bfc_stream_t handle) noexcept : handle_(handle == nullptr ? default_stream() : handle) {}

  /* The handle as every unit names it. */
  bfc_stream_t get() const noexcept { return handle_; }

  /* The two default streams, whichever 0 stands for here. */
  static stream_ref legacy() noexcept { return numbered(1); }
  static stream_ref per_thread() noexcept { return numbered(2); }

 private:
  static bfc_stream_t numbered(std::uintptr_t number) noexcept { return reinterpret_cast<bfc_stream_t>(number); }
  static bfc_stream_t default_stream() noexcept {
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
    return numbered(2);
#else
    return nullptr;
#endif
  }

  bfc_stream_t handle_;
};

/* A request with everything that can be said about it, as bfc_request_t. */
struct request {
  std::size_t bytes = 0;
  std::size_t alignment = 0;                         /* 0 is 256; else a power of two */
  std::uint64_t freed_before = 0;                    /* accept chunks stamped at most this; 0 is any */
  std::optional<bfc_stream_t> stream = std::nullopt; /* order by a stream; a stream_ref's handle, or the caller's */
};

}  // inline namespace

/* What a pointer belongs to: the live chunk around it, and that chunk's region. */
struct address_range {
  void *chunk = nullptr;
  std::size_t chunk_bytes = 0;
  void *region = nullptr;
  std::size_t region_bytes = 0;
};

/* The allocator of a device, not owned: a value as small as its ordinal. It need not exist. */
class device {
 public:
  constexpr explicit device(std::int32_t ordinal) noexcept : ordinal_(ordinal) {}

  constexpr std::int32_t ordinal() const noexcept { return ordinal_; }
  friend constexpr bool operator==(device a, device b) noexcept { return a.ordinal_ == b.ordinal_; }
  friend constexpr bool operator!=(device a, device b) noexcept { return a.ordinal_ != b.ordinal_; }

  /* Memory for the caller, until deallocate; 0 bytes are null. The contents are undefined. */
  void *allocate(std::size_t bytes, std::error_code &ec) const noexcept {
    void *ptr = nullptr;
    detail::set(ec, bfc_alloc(ordinal_, bytes, &ptr));
    return ptr;
  }
  /* At a multiple of `alignment`, a power of two. */
  void *allocate(std::size_t bytes, std::size_t alignment, std::error_code &ec) const noexcept {
    void *ptr = nullptr;
    detail::set(ec, bfc_alloc_aligned(ordinal_, bytes, alignment, &ptr));
    return ptr;
  }
  void *allocate(const request &wanted, std::error_code &ec) const noexcept {
    bfc_request_t raw = BFC_REQUEST_INIT;
    raw.bytes = wanted.bytes;
    raw.alignment = wanted.alignment;
    raw.freed_before = wanted.freed_before;
    raw.stream = wanted.stream ? stream_ref(*wanted.stream).get() : nullptr;
    raw.flags = wanted.stream ? BFC_REQUEST_ON_STREAM : 0;
    void *ptr = nullptr;
    detail::set(ec, (bfc_alloc_ex)(ordinal_, &raw, &ptr));
    return ptr;
  }
  /* In the order of a stream. */
  void *allocate_async(std::size_t bytes, stream_ref stream, std::error_code &ec) const noexcept {
    void *ptr = nullptr;
    detail::set(ec, (bfc_alloc_async)(ordinal_, bytes, stream.get(), &ptr));
    return ptr;
  }
  /* Gives back what any of these returned; null is fine. A pointer that is not live is an error. */
  void deallocate(void *ptr, std::error_code &ec) const noexcept { detail::set(ec, bfc_free(ordinal_, ptr)); }
  void deallocate_async(void *ptr, stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_free_async)(ordinal_, ptr, stream.get()));
  }
  /* Declares that the chunk is also used on that stream: once freed, it is not reused until that work is done. */
  void record_stream(void *ptr, stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_record_stream)(ordinal_, ptr, stream.get()));
  }
  /* Declares that a stream is about to be destroyed. */
  void forget_stream(stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_forget_stream)(ordinal_, stream.get()));
  }
  /* The caller vouches that all work queued there so far is done. */
  void stream_synchronized(stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_stream_synchronized)(ordinal_, stream.get()));
  }

  /* Routes requests in the order of a stream to a private pool, for memory that a captured graph uses, and announces the
   * capture: call it before the capture begins. `name` is the caller's; several streams may use one pool. While that holds for
   * a stream, another begin for it is errc::invalid_argument. private_pool_scope does it for a block. */
  void begin_private_pool(std::uint64_t name, stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_pool_begin)(ordinal_, name, stream.get()));
  }
  /* They are served from common memory again. The pool keeps what it has, until it is released. */
  void end_private_pool(std::uint64_t name, stream_ref stream, std::error_code &ec) const noexcept {
    detail::set(ec, (bfc_pool_end)(ordinal_, name, stream.get()));
  }
  /* No graph uses the pool any more: what is free in it becomes common memory once the context was synchronized,
   * what is live stays so. errc::busy while a stream's requests are for it, errc::invalid_argument if there is no
   * such pool. The graphs must not be launched after this: nothing here knows of them. */
  void release_private_pool(std::uint64_t name, std::error_code &ec) const noexcept {
    detail::set(ec, bfc_pool_release(ordinal_, name));
  }

  /* Has a function called when memory was obtained from the backend and before it goes back; a null one ends that,
   * and holds when the call returns. errc::busy if the allocator holds memory already: set it right after creation.
   * It must not throw; what it must not do besides stands at bfc_region_callback_t. `user_data` must be valid until
   * the allocator has ended or another call has returned. */
  void set_region_callback(bfc_region_callback_t callback, void *user_data, std::error_code &ec) const noexcept {
    detail::set(ec, bfc_set_region_callback(ordinal_, callback, user_data));
  }
  void set_region_callback(std::nullptr_t, std::error_code &ec) const noexcept {
    set_region_callback(nullptr, nullptr, ec);
  }
  /* The same with an object that is called as listener(device, start, bytes, region_event), from any thread, and is
   * noexcept. It is not copied and must live as long as `user_data` above: declared before the pool it does. */
  template <class Listener>
  void set_region_callback(Listener &listener, std::error_code &ec) const noexcept {
    static_assert(std::is_nothrow_invocable_v<Listener &, device, void *, std::size_t, region_event>,
                  "the listener takes (bfc::device, void *, std::size_t, bfc::region_event) and is noexcept");
    const void *const address = std::addressof(listener);
    set_region_callback(&device::tell<Listener>, const_cast<void *>(address), ec);
  }

  /* The program has reset or destroyed the context that the memory belongs to: to be called right afterwards. Live
   * allocations count as freed and their pointers are errc::invalid_pointer (until the driver gives the same
   * addresses again), private pools are forgotten; the allocator stays and begins anew. Nothing happens if the
   * memory is still there. errc::unsupported where the backend has no such thing. */
  void device_lost(std::error_code &ec) const noexcept { detail::set(ec, bfc_device_lost(ordinal_)); }

  /* With timestamps: the last stamp given to a free. */
  std::uint64_t timestamp(std::error_code &ec) const noexcept {
    std::uint64_t count = 0;
    detail::set(ec, bfc_timestamp(ordinal_, &count));
    return count;
  }
  /* Stamps below `count` are safe from now on: read timestamp(), synchronize, pass it plus 1. */
  void set_safe_frontier(std::uint64_t count, std::error_code &ec) const noexcept {
    detail::set(ec, bfc_set_safe_frontier(ordinal_, count));
  }

  /* Of a live allocation: what was asked for, what the chunk has, and its number, rising from 1. */
  std::size_t requested_size(const void *ptr, std::error_code &ec) const noexcept {
    std::size_t bytes = 0;
    detail::set(ec, bfc_requested_size(ordinal_, ptr, &bytes));
    return bytes;
  }
  std::size_t allocated_size(const void *ptr, std::error_code &ec) const noexcept {
    std::size_t bytes = 0;
    detail::set(ec, bfc_allocated_size(ordinal_, ptr, &bytes));
    return bytes;
  }
  std::int64_t allocation_id(const void *ptr, std::error_code &ec) const noexcept {
    std::int64_t id = 0;
    detail::set(ec, bfc_allocation_id(ordinal_, ptr, &id));
    return id;
  }
  /* The pointer may lie inside. */
  bfc::address_range address_range(const void *ptr, std::error_code &ec) const noexcept {
    bfc::address_range r;
    detail::set(ec, bfc_address_range(ordinal_, ptr, &r.chunk, &r.chunk_bytes, &r.region, &r.region_bytes));
    return r;
  }
  /* The device whose allocator holds the memory around a pointer; on failure one with ordinal -1. */
  static device owner(const void *ptr, std::error_code &ec) noexcept {
    std::int32_t ordinal = 0;
    return device(detail::set(ec, bfc_owner(ptr, &ordinal)) ? ordinal : detail::nowhere);
  }

  /* Gives wholly free regions back while `keep_bytes` stay held; returns how many bytes went. */
  std::uint64_t trim(std::uint64_t keep_bytes, std::error_code &ec) const noexcept {
    std::uint64_t released = 0;
    detail::set(ec, bfc_trim(ordinal_, keep_bytes, &released));
    return released;
  }
  /* Changes how many bytes may be held from the backend; see bfc_set_memory_limit. */
  void set_memory_limit(std::uint64_t bytes, std::error_code &ec) const noexcept {
    detail::set(ec, bfc_set_memory_limit(ordinal_, bytes));
  }
  bfc_stats_t stats(std::error_code &ec) const noexcept {
    bfc_stats_t result = BFC_STATS_INIT;
    detail::set(ec, bfc_stats(ordinal_, &result));
    return result;
  }
  /* Counts to 0, peaks to the current values. */
  void reset_stats(std::error_code &ec) const noexcept { detail::set(ec, bfc_reset_stats(ordinal_)); }
  /* Checks every invariant of the allocator's books. */
  void check(std::error_code &ec) const noexcept { detail::set(ec, bfc_check(ordinal_)); }

  /* The pool in 100 columns: '*' used, 'x' slack, '_' free. */
  std::string occupancy(std::error_code &ec) const noexcept { return text(bfc_occupancy, ec); }
  /* Regions, chunks, bins and statistics as JSON. */
  std::string memory_map(std::error_code &ec) const noexcept { return text(bfc_memory_map, ec); }
  /* What a person wants to read after running out of memory. */
  std::string report(std::error_code &ec) const noexcept { return text(bfc_report, ec); }

#if BFC_HAS_EXCEPTIONS
  /* The same, throwing. */
  void *allocate(std::size_t bytes) const {
    return detail::must("bfc_alloc", [&](auto &ec) { return allocate(bytes, ec); });
  }
  void *allocate(std::size_t bytes, std::size_t alignment) const {
    return detail::must("bfc_alloc_aligned", [&](auto &ec) { return allocate(bytes, alignment, ec); });
  }
  void *allocate(const request &wanted) const {
    return detail::must("bfc_alloc_ex", [&](auto &ec) { return allocate(wanted, ec); });
  }
  void *allocate_async(std::size_t bytes, stream_ref stream) const {
    return detail::must("bfc_alloc_async", [&](auto &ec) { return allocate_async(bytes, stream, ec); });
  }
  void deallocate(void *ptr) const {
    detail::must("bfc_free", [&](auto &ec) { deallocate(ptr, ec); });
  }
  void deallocate_async(void *ptr, stream_ref stream) const {
    detail::must("bfc_free_async", [&](auto &ec) { deallocate_async(ptr, stream, ec); });
  }
  void record_stream(void *ptr, stream_ref stream) const {
    detail::must("bfc_record_stream", [&](auto &ec) { record_stream(ptr, stream, ec); });
  }
  void forget_stream(stream_ref stream) const {
    detail::must("bfc_forget_stream", [&](auto &ec) { forget_stream(stream, ec); });
  }
  void stream_synchronized(stream_ref stream) const {
    detail::must("bfc_stream_synchronized", [&](auto &ec) { stream_synchronized(stream, ec); });
  }
  void begin_private_pool(std::uint64_t name, stream_ref stream) const {
    detail::must("bfc_pool_begin", [&](auto &ec) { begin_private_pool(name, stream, ec); });
  }
  void end_private_pool(std::uint64_t name, stream_ref stream) const {
    detail::must("bfc_pool_end", [&](auto &ec) { end_private_pool(name, stream, ec); });
  }
  void release_private_pool(std::uint64_t name) const {
    detail::must("bfc_pool_release", [&](auto &ec) { release_private_pool(name, ec); });
  }
  void set_region_callback(bfc_region_callback_t callback, void *user_data) const {
    detail::must("bfc_set_region_callback", [&](auto &ec) { set_region_callback(callback, user_data, ec); });
  }
  void set_region_callback(std::nullptr_t) const { set_region_callback(nullptr, nullptr); }
  template <class Listener>
  void set_region_callback(Listener &listener) const {
    detail::must("bfc_set_region_callback", [&](auto &ec) { set_region_callback(listener, ec); });
  }
  void device_lost() const {
    detail::must("bfc_device_lost", [&](auto &ec) { device_lost(ec); });
  }
  std::uint64_t timestamp() const {
    return detail::must("bfc_timestamp", [&](auto &ec) { return timestamp(ec); });
  }
  void set_safe_frontier(std::uint64_t count) const {
    detail::must("bfc_set_safe_frontier", [&](auto &ec) { set_safe_frontier(count, ec); });
  }
  std::size_t requested_size(const void *ptr) const {
    return detail::must("bfc_requested_size", [&](auto &ec) { return requested_size(ptr, ec); });
  }
  std::size_t allocated_size(const void *ptr) const {
    return detail::must("bfc_allocated_size", [&](auto &ec) { return allocated_size(ptr, ec); });
  }
  std::int64_t allocation_id(const void *ptr) const {
    return detail::must("bfc_allocation_id", [&](auto &ec) { return allocation_id(ptr, ec); });
  }
  bfc::address_range address_range(const void *ptr) const {
    return detail::must("bfc_address_range", [&](auto &ec) { return address_range(ptr, ec); });
  }
  static device owner(const void *ptr) {
    return detail::must("bfc_owner", [&](auto &ec) { return owner(ptr, ec); });
  }
  std::uint64_t trim(std::uint64_t keep_bytes = 0) const {
    return detail::must("bfc_trim", [&](auto &ec) { return trim(keep_bytes, ec); });
  }
  void set_memory_limit(std::uint64_t bytes) const {
    detail::must("bfc_set_memory_limit", [&](auto &ec) { set_memory_limit(bytes, ec); });
  }
  bfc_stats_t stats() const {
    return detail::must("bfc_stats", [&](auto &ec) { return stats(ec); });
  }
  void reset_stats() const {
    detail::must("bfc_reset_stats", [&](auto &ec) { reset_stats(ec); });
  }
  void check() const {
    detail::must("bfc_check", [&](auto &ec) { check(ec); });
  }
  std::string occupancy() const {
    return detail::must("bfc_occupancy", [&](auto &ec) { return occupancy(ec); });
  }
  std::string memory_map() const {
    return detail::must("bfc_memory_map", [&](auto &ec) { return memory_map(ec); });
  }
  std::string report() const {
    return detail::must("bfc_report", [&](auto &ec) { return report(ec); });
  }
#endif  // BFC_HAS_EXCEPTIONS

 private:
  using writer = bfc_status_t(std::int32_t, char *, std::size_t, std::size_t *);
  std::string text(writer *write, std::error_code &ec) const noexcept { return detail::text(write, ordinal_, ec); }

  /* The bfc_region_callback_t of an object. */
  template <class Listener>
  static void tell(void *listener, std::int32_t ordinal, void *start, std::size_t bytes, std::int32_t event) noexcept {
    (*static_cast<Listener *>(listener))(device(ordinal), start, bytes, static_cast<region_event>(event));
  }

  std::int32_t ordinal_;
};

/* The allocator of a device, owned: created here, destroyed with this object. Also a device, so that it
 * can be used, and passed, as one. Moving leaves an empty pool, whose operations are invalid_argument. */
class pool : public device {
 public:
  /* Owns nothing. */
  pool() noexcept : device(detail::nowhere) {}

  /* Creates the device's allocator. No memory is taken before the first allocation. */
  static pool create(std::int32_t ordinal, const options &how, std::error_code &ec) noexcept {
    const bfc_options_t raw = how.raw();
    return create(ordinal, &raw, ec);
  }
  /* Growth, garbage collection, and what the environment says. */
  static pool create(std::int32_t ordinal, std::error_code &ec) noexcept { return create(ordinal, nullptr, ec); }
  /* Owns from now on an allocator that exists already. */
  static pool adopt(device existing) noexcept { return pool(existing); }

#if BFC_HAS_EXCEPTIONS
  pool(std::int32_t ordinal, const options &how)
      : pool(detail::must("bfc_create", [&](auto &ec) { return create(ordinal, how, ec); })) {}
  explicit pool(std::int32_t ordinal)
      : pool(detail::must("bfc_create", [&](auto &ec) { return create(ordinal, ec); })) {}
#endif

  pool(const pool &) = delete;
  pool &operator=(const pool &) = delete;
  pool(pool &&other) noexcept : device(other.release()) {}
  pool &operator=(pool &&other) noexcept {
    pool old(std::exchange(static_cast<device &>(*this), other.release()));
    return *this;
  }
  /* While allocations live the allocator stays, for their pointers are still in use: it is then nobody's,
   * and can be adopted. Call destroy() or destroy_forced() first to see or to override that. */
  ~pool() {
    if (*this) bfc_destroy(ordinal());
  }

  explicit operator bool() const noexcept { return ordinal() != detail::nowhere; }

  /* Gives every region back; errc::busy while allocations live, and then the pool still owns. */
  void destroy(std::error_code &ec) noexcept {
    if (detail::set(ec, bfc_destroy(ordinal()))) release();
  }
  /* The same with live allocations, whose pointers are then invalid. */
  void destroy_forced(std::error_code &ec) noexcept {
    if (detail::set(ec, bfc_destroy_forced(ordinal()))) release();
  }
#if BFC_HAS_EXCEPTIONS
  void destroy() {
    detail::must("bfc_destroy", [&](auto &ec) { destroy(ec); });
  }
  void destroy_forced() {
    detail::must("bfc_destroy_forced", [&](auto &ec) { destroy_forced(ec); });
  }
#endif

  /* Gives ownership up; the allocator stays. */
  device release() noexcept { return std::exchange(static_cast<device &>(*this), device(detail::nowhere)); }

 private:
  explicit pool(device owned) noexcept : device(owned) {}
  static pool create(std::int32_t ordinal, const bfc_options_t *raw, std::error_code &ec) noexcept {
    return detail::set(ec, bfc_create(ordinal, raw)) ? pool(device(ordinal)) : pool();
  }
};

/* Memory of a device, owned: given back with this object, which must not outlive the allocator. (After
 * destroy_forced the address may be another allocation's: release() what is left before.) */
class allocation {
 public:
  /* Owns nothing. */
  allocation() noexcept = default;

  static allocation create(device from, std::size_t bytes, std::error_code &ec) noexcept {
    return create(from, bytes, 0, ec);
  }
  /* Alignment 0 is 256. */
  static allocation create(device from, std::size_t bytes, std::size_t alignment, std::error_code &ec) noexcept {
    request wanted;
    wanted.bytes = bytes;
    wanted.alignment = alignment;
    void *const data = from.allocate(wanted, ec);
    return ec ? allocation() : allocation(from, data, bytes);
  }
  /* Owns from now on what was allocated already, of which `size` bytes are in use. */
  static allocation adopt(device from, void *data, std::size_t size) noexcept { return {from, data, size}; }

#if BFC_HAS_EXCEPTIONS
  allocation(device from, std::size_t bytes, std::size_t alignment = 0)
      : allocation(detail::must("bfc_alloc_ex", [&](auto &ec) { return create(from, bytes, alignment, ec); })) {}
#endif

  allocation(const allocation &) = delete;
  allocation &operator=(const allocation &) = delete;
  allocation(allocation &&other) noexcept
      : device_(other.device_), size_(std::exchange(other.size_, 0)), data_(std::exchange(other.data_, nullptr)) {}
  allocation &operator=(allocation &&other) noexcept {
    allocation taken(std::move(other));
    swap(taken);
    return *this;
  }
  /* What cannot be given back, for the allocator is gone, is dropped without a word. */
  ~allocation() {
    if (data_ != nullptr) bfc_free(device_.ordinal(), data_);
  }

  void swap(allocation &other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  void *data() const noexcept { return data_; }
  /* The bytes that were asked for; the chunk may have more. */
  std::size_t size() const noexcept { return size_; }
  bfc::device get_device() const noexcept { return device_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  /* Gives the memory back now. On failure it is still owned. */
  void reset(std::error_code &ec) noexcept {
    if (detail::set(ec, data_ == nullptr ? BFC_OK : bfc_free(device_.ordinal(), data_))) release();
  }
#if BFC_HAS_EXCEPTIONS
  void reset() {
    detail::must("bfc_free", [&](auto &ec) { reset(ec); });
  }
#endif

  /* Gives ownership up: the caller frees it on the device. */
  void *release() noexcept {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }

 private:
  allocation(device from, void *data, std::size_t size) noexcept : device_(from), size_(size), data_(data) {}

  device device_ = device(detail::nowhere);
  std::size_t size_ = 0;
  void *data_ = nullptr;
};

/* The operation on whose behalf this thread allocates in a block, for the reports; see bfc_scope_begin.
 * To be destroyed in the thread that made it. One that could not begin does nothing at its end. */
class scope {
 public:
  scope(const char *operation, std::uint64_t step, std::error_code &ec) noexcept
      : begun_(detail::set(ec, bfc_scope_begin(operation, step))) {}
#if BFC_HAS_EXCEPTIONS
  explicit scope(const char *operation, std::uint64_t step = 0) : begun_(true) {
    detail::must("bfc_scope_begin", [&](auto &ec) { detail::set(ec, bfc_scope_begin(operation, step)); });
  }
#endif
  scope(const scope &) = delete;
  scope &operator=(const scope &) = delete;
  ~scope() {
    if (begun_) bfc_scope_end();
  }

 private:
  bool begun_;
};

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline namespace per_thread_default_stream {
#else
inline namespace legacy_default_stream {
#endif

/* A stream's requests are for a private pool in a block; see device::begin_private_pool. The block goes around the
 * capture. The pool keeps what it has afterwards, for the graph: device::release_private_pool, once the graph is
 * gone, is the caller's. May be ended and destroyed in any thread, unless the stream is the thread's default stream. One
 * that could not begin does nothing. */
class private_pool_scope {
 public:
  private_pool_scope(device of, std::uint64_t name, stream_ref stream, std::error_code &ec) noexcept
      : device_(of), name_(name), stream_(stream.get()) {
    device_.begin_private_pool(name_, stream_, ec);
    begun_ = !ec;
  }
#if BFC_HAS_EXCEPTIONS
  private_pool_scope(device of, std::uint64_t name, stream_ref stream)
      : device_(of), name_(name), stream_(stream.get()), begun_(true) {
    device_.begin_private_pool(name_, stream_);
  }
#endif
  private_pool_scope(const private_pool_scope &) = delete;
  private_pool_scope &operator=(const private_pool_scope &) = delete;
  /* What cannot be ended, for the allocator or its memory is gone, is dropped without a word. */
  ~private_pool_scope() {
    if (begun_) (bfc_pool_end)(device_.ordinal(), name_, stream_);
  }

  std::uint64_t name() const noexcept { return name_; }
  /* Whether the stream's requests are for the pool because of this object. */
  explicit operator bool() const noexcept { return begun_; }

  /* Ends it before the block does; ended already is fine. On failure it is as before. */
  void end(std::error_code &ec) noexcept {
    ec.clear();
    if (begun_) detail::set(ec, (bfc_pool_end)(device_.ordinal(), name_, stream_));
    begun_ = begun_ && ec;
  }
#if BFC_HAS_EXCEPTIONS
  void end() {
    detail::must("bfc_pool_end", [&](auto &ec) { end(ec); });
  }
#endif

 private:
  device device_;
  std::uint64_t name_;
  bfc_stream_t stream_;
  bool begun_ = false;
};

}  // inline namespace

}  // namespace bfc

#include "bfc/pmr.hpp"

#endif  // BFC_HPP
