/* Replaces TensorFlow's own BFC allocator with libbfc, for host memory.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Include this in exactly one source file, in which no class derives from tsl::BFCAllocator. It defines those functions
 * of that class that allocate, free and report memory. TensorFlow's virtual function tables find them by name, so
 * defining them in front of TensorFlow (in a library that is loaded before it with RTLD_GLOBAL or by LD_PRELOAD, or
 * because the program is linked with it) replaces them. In Python, bfc.tensorflow.use() does all this in one line.
 * Compile it as the wheel was compiled: C++17, -D_GLIBCXX_USE_CXX11_ABI=1, -isystem site-packages/tensorflow/include.
 * Link with libbfc but not with TensorFlow, of which it needs nothing if functions that are never called are left out:
 * -DNDEBUG -fvisibility=hidden -ffunction-sections -fdata-sections -Wl,--gc-sections. -Wl,--no-undefined checks this.
 *
 * TensorFlow's CPU memory comes from such an allocator only with TF_CPU_ALLOCATOR_USE_BFC=1 in the environment.
 *
 * - Each BFCAllocator of host memory has a pool of its own. The first has the ordinal 256, or that of use_device, and
 *   others have the next free ordinals of 258 to 1023. An existing pool is shared. Otherwise the first request creates
 *   it, with growth and garbage collection, and with the smaller of two limits: that of TensorFlow's allocator
 *   (TF_CPU_BFC_MEM_LIMIT_IN_MB, 64 GiB) and libbfc's default (BFC_MEMORY_LIMIT, the machine's memory). It ends with
 *   the BFCAllocator, if that ever ends, together with its live allocations, as with TensorFlow's.
 * - An allocator of other memory (a GPU's) keeps using TensorFlow's functions, as if nothing were replaced.
 * - NULL tells TensorFlow that it is out of memory, and it raises its ResourceExhaustedError. A request with the
 *   attribute retry_on_failure, which requests for tensors have, first waits for frees of other threads: at most 10
 *   seconds, as TensorFlow does, or the time given to set_retry. A request without it fails at once. Do not set
 *   BFC_RETRY_TIMEOUT_MS: then all requests would wait, and twice.
 * - freed_by_func, the time of a free that is acceptable to the caller, is for allocators with a timing counter.
 *   TensorFlow gives one to its GPUs only: freed host memory is reusable by every caller, here as there.
 * - Freeing memory that was not allocated ends the program, as in TensorFlow.
 * - TF_BFC_MEMORY_DUMP and the memory profile have no data; use bfc_report and bfc_memory_map.
 *
 * All functions may be called from any thread at any time.
 */

#ifndef BFC_TENSORFLOW_HPP
#define BFC_TENSORFLOW_HPP

#include "../bfc.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"
#include "xla/tsl/framework/allocator.h"
#include "xla/tsl/framework/bfc_allocator.h"

namespace bfc {
namespace tensorflow {

namespace detail {

/* TensorFlow's own functions, by the mangled names of the Itanium C++ ABI, in which a member function is one whose first
 * argument is `this`. */
constexpr char allocate_raw[] = "_ZN3tsl12BFCAllocator11AllocateRawEmmRKNS_20AllocationAttributesE";

struct originals {
  void *(*allocate)(tsl::BFCAllocator *, std::size_t, std::size_t, const tsl::AllocationAttributes &);
  void (*deallocate)(tsl::BFCAllocator *, void *);
  std::size_t (*requested_size)(const tsl::BFCAllocator *, const void *);
  std::size_t (*allocated_size)(const tsl::BFCAllocator *, const void *);
  std::int64_t (*allocation_id)(const tsl::BFCAllocator *, const void *);
  std::optional<tsl::AllocatorStats> (*stats)(tsl::BFCAllocator *);
  bool (*clear_stats)(tsl::BFCAllocator *);
  std::string (*name)(tsl::BFCAllocator *);
  void (*end)(tsl::BFCAllocator *);
  /* The operation in progress in this thread. */
  tsl::profiler::MemoryDebugAnnotation *(*annotation)();
};

/* Opens the library that contains an address of TensorFlow, if it (or a library that it is linked with) has
 * TensorFlow's functions and not those of this file. The caller closes it. */
inline void *library_around(const void *address) {
  Dl_info there;
  Dl_info here;
  Dl_info found;
  if (address == nullptr || dladdr(address, &there) == 0 || dladdr(allocate_raw, &here) == 0) return nullptr;
  void *const library = dlopen(there.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  if (dladdr(dlsym(library, allocate_raw), &found) != 0 && found.dli_fbase != here.dli_fbase) return library;
  dlclose(library);
  return nullptr;
}

/* The functions are looked up in the library of the allocator's virtual function table. If that is the program's table,
 * because it has derived a class, the library of a function that is not replaced is used. */
inline originals find_originals(const tsl::BFCAllocator *allocator) {
  void *library = library_around(*reinterpret_cast<void *const *>(allocator));
  if (library == nullptr) library = library_around(dlsym(RTLD_DEFAULT, "_ZN3tsl12BFCAllocator15RecordMemoryMapEv"));
  const auto find = [&](auto &function, const char *name) {
    void *const address = library == nullptr ? nullptr : dlsym(library, name);
    if (address == nullptr) {
      std::fprintf(stderr, "libbfc: this TensorFlow does not have the function %s\n", name);
      std::abort();
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  originals own;
  find(own.allocate, allocate_raw);
  find(own.deallocate, "_ZN3tsl12BFCAllocator13DeallocateRawEPv");
  find(own.requested_size, "_ZNK3tsl12BFCAllocator13RequestedSizeEPKv");
  find(own.allocated_size, "_ZNK3tsl12BFCAllocator13AllocatedSizeEPKv");
  find(own.allocation_id, "_ZNK3tsl12BFCAllocator12AllocationIdEPKv");
  find(own.stats, "_ZN3tsl12BFCAllocator8GetStatsEv");
  find(own.clear_stats, "_ZN3tsl12BFCAllocator10ClearStatsEv");
  find(own.name, "_ZN3tsl12BFCAllocator4NameB5cxx11Ev");
  find(own.end, "_ZN3tsl12BFCAllocatorD2Ev");
  find(own.annotation, "_ZN3tsl8profiler27ScopedMemoryDebugAnnotation27ThreadMemoryDebugAnnotationEv");
  // TensorFlow is never unloaded, and this allocator belongs to it.
  dlclose(library);
  return own;
}

/* The ordinal of an allocator that keeps using TensorFlow's functions. */
constexpr std::int32_t nobody = -1;
constexpr std::int32_t host = 256;
constexpr std::int32_t first_of_the_caller = 258;
constexpr std::int32_t ordinals = 1024;
constexpr std::size_t most = ordinals - first_of_the_caller + 1;

/* An allocator of TensorFlow, and what serves it. */
struct served {
  std::atomic<const tsl::BFCAllocator *> allocator{nullptr};
  std::int32_t ordinal = nobody;
  /* Whether the pool ends with the allocator. */
  bool is_ours = false;
  originals own;
};

/* All of them, found by a linear search: there is one, or one for each NUMA node. Entries are written with the lock
 * held, the allocator last, and are read without it. */
struct registry {
  std::mutex lock;
  std::atomic<std::size_t> used{0};
  served entries[most];
  std::atomic<std::int32_t> first{host};
  /* Whether the pool is informed of the operation of each request. */
  std::atomic<bool> is_named{false};
};

/* Requests that wait for a free. */
struct waiting_room {
  std::mutex lock;
  std::condition_variable came_back;
  /* The number of frees made while a request waited. Changed with the lock held. */
  std::uint64_t returned = 0;
  std::atomic<int> waiting{0};
  std::atomic<int> milliseconds{10000};
};

/* Both are never destroyed: TensorFlow frees even at the very end of a program. */
inline registry &known() {
  static registry *const all = new registry;
  return *all;
}

inline waiting_room &room() {
  static waiting_room *const only = new waiting_room;
  return *only;
}

inline bool create(std::int32_t ordinal, std::uint64_t limit, bfc_status_t &status) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  // On 256 BFC_BACKEND applies. Elsewhere AUTO names no backend.
  options.backend = ordinal == host ? BFC_BACKEND_AUTO : BFC_BACKEND_HOST;
  options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
  options.memory_limit = limit;
  options.name = "TensorFlow";
  status = bfc_create(ordinal, &options);
  return status == BFC_OK;
}

/* Returns a pool with that limit, unless libbfc's default is smaller. */
inline bool create_within(std::int32_t ordinal, std::uint64_t limit, bfc_status_t &status) {
  if (!create(ordinal, 0, status)) return false;
  bfc_stats_t stats = BFC_STATS_INIT;
  bfc_stats(ordinal, &stats);
  if (limit == 0 || stats.bytes_limit <= limit) return true;
  bfc_destroy(ordinal);
  return create(ordinal, limit, status);
}

inline bool is_taken(std::int32_t ordinal) {
  const registry &all = known();
  return std::any_of(all.entries, all.entries + all.used,
                     [&](const served &other) { return other.allocator != nullptr && other.ordinal == ordinal; });
}

/* Determines what serves an allocator at its first request. */
inline void settle(served &entry, tsl::BFCAllocator *allocator, std::int32_t first) {
  entry.ordinal = nobody;
  entry.is_ours = false;
  entry.own = find_originals(allocator);
  if (allocator->GetMemoryType() != tsl::AllocatorMemoryType::kHostPageable) return;
  const auto own = entry.own.stats(allocator);
  const std::uint64_t limit = own && own->bytes_limit ? static_cast<std::uint64_t>(*own->bytes_limit) : 0;
  bfc_status_t status = BFC_OK;
  // The named ordinal, whose pool may exist already, and then unused ones.
  const auto serves = [&](std::int32_t ordinal, bool is_named) {
    if (is_taken(ordinal)) return false;
    entry.is_ours = create_within(ordinal, limit, status);
    if (!entry.is_ours && !(is_named && status == BFC_ERROR_ALREADY_EXISTS)) return false;
    entry.ordinal = ordinal;
    return true;
  };
  if (serves(first, true)) return;
  for (std::int32_t ordinal = first_of_the_caller; ordinal < ordinals; ++ordinal) {
    if (serves(ordinal, false)) return;
  }
  std::fprintf(stderr, "libbfc: no pool for TensorFlow's memory, which goes on with its own: %s\n",
               bfc_status_string(status));
}

inline served *find(const tsl::BFCAllocator *allocator) {
  registry &all = known();
  const std::size_t used = all.used.load(std::memory_order_acquire);
  for (std::size_t index = 0; index < used; ++index) {
    if (all.entries[index].allocator.load(std::memory_order_acquire) == allocator) return &all.entries[index];
  }
  return nullptr;
}

/* Returns what serves an allocator, determined at its first request. */
inline const served &serving(tsl::BFCAllocator *allocator) {
  if (const served *const entry = find(allocator)) return *entry;
  registry &all = known();
  const std::lock_guard<std::mutex> locked(all.lock);
  if (const served *const entry = find(allocator)) return *entry;
  served *const end = all.entries + all.used;
  served *const entry = std::find_if(all.entries, end, [](const served &old) { return old.allocator == nullptr; });
  if (entry == all.entries + most) {
    std::fprintf(stderr, "libbfc: TensorFlow has more than %zu allocators\n", most);
    std::abort();
  }
  settle(*entry, allocator, all.first);
  entry->allocator.store(allocator, std::memory_order_release);
  if (entry == end) all.used.fetch_add(1, std::memory_order_release);
  return *entry;
}

/* The end of an allocator, and how TensorFlow ends it. */
inline originals forget(const tsl::BFCAllocator *allocator) {
  registry &all = known();
  const std::lock_guard<std::mutex> locked(all.lock);
  served *const entry = find(allocator);
  if (entry == nullptr) return find_originals(allocator);
  if (entry->is_ours) bfc_destroy_forced(entry->ordinal);
  entry->allocator.store(nullptr, std::memory_order_release);
  return entry->own;
}

/* Sets the operation in which TensorFlow is, for libbfc's reports, while this object lives. */
class named {
 public:
  explicit named(const served &by) {
    if (!known().is_named) return;
    const tsl::profiler::MemoryDebugAnnotation &now = *by.own.annotation();
    char name[120];
    name[now.pending_op_name.copy(name, sizeof name - 1)] = '\0';
    // TensorFlow's step number is random.
    begun_ = name[0] != '\0' && bfc_scope_begin(name, 0) == BFC_OK;
  }
  ~named() {
    if (begun_) bfc_scope_end();
  }
  named(const named &) = delete;
  named &operator=(const named &) = delete;

 private:
  bool begun_ = false;
};

inline void *take(std::int32_t ordinal, std::size_t alignment, std::size_t bytes, bfc_status_t &status) {
  void *got = nullptr;
  // Every chunk is aligned to 256 anyway.
  status = alignment <= 256 ? bfc_alloc(ordinal, bytes, &got) : bfc_alloc_aligned(ordinal, bytes, alignment, &got);
  return got;
}

/* Tries again whenever memory was freed, until the request is served or the time is over. */
inline void *wait_for(std::int32_t ordinal, std::size_t alignment, std::size_t bytes) {
  waiting_room &all = room();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(all.milliseconds);
  std::unique_lock<std::mutex> locked(all.lock);
  // Read before the attempt, so that a free after it is noticed.
  ++all.waiting;
  void *got = nullptr;
  for (bool has_time = true; has_time;) {
    const std::uint64_t seen = all.returned;
    locked.unlock();
    bfc_status_t status = BFC_OK;
    got = take(ordinal, alignment, bytes, status);
    locked.lock();
    if (status != BFC_ERROR_OUT_OF_MEMORY) break;
    has_time = all.came_back.wait_until(locked, end, [&] { return all.returned != seen; });
  }
  --all.waiting;
  return got;
}

inline void tell_who_waits() {
  waiting_room &all = room();
  if (all.waiting == 0) return;
  {
    const std::lock_guard<std::mutex> locked(all.lock);
    ++all.returned;
  }
  all.came_back.notify_all();
}

/* TensorFlow also ends a program whose memory accounting is inconsistent. */
inline void expect(const char *what, bfc_status_t status, const void *ptr) {
  if (status != BFC_ERROR_INVALID_POINTER && status != BFC_ERROR_DOUBLE_FREE) return;
  char words[256];
  bfc_last_error(words, sizeof words);
  std::fprintf(stderr, "libbfc: %s of %p for TensorFlow: %s\n", what, ptr, words);
  std::abort();
}

}  // namespace detail

/* Sets the ordinal of the first allocator. Call it before TensorFlow's first request. */
inline void use_device(std::int32_t ordinal) { detail::known().first = ordinal; }

/* Makes libbfc's reports show TensorFlow's operations, and the memory of each: docs/reports.md. The cost is small. */
inline void name_operations(bool is_wanted) { detail::known().is_named = is_wanted; }

/* Sets how long a request for a tensor waits for memory, in milliseconds. 0: not at all. */
inline void set_retry(int milliseconds) { detail::room().milliseconds = milliseconds; }

/* One of TensorFlow's allocators, and what serves it. */
struct allocator_facts {
  /* TensorFlow's name for it. */
  std::string name;
  /* The pool's ordinal, or -1 if TensorFlow serves it itself. */
  std::int32_t ordinal;
  /* From TensorFlow's own accounting: requests served, and bytes held. Both 0 where libbfc serves. */
  std::int64_t own_allocations;
  std::int64_t own_bytes;
};

/* Returns all allocators seen so far. They must not end meanwhile; those of the CPU never do. */
inline std::vector<allocator_facts> allocators() {
  std::vector<allocator_facts> facts;
  detail::registry &all = detail::known();
  const std::lock_guard<std::mutex> locked(all.lock);
  for (std::size_t index = 0; index < all.used; ++index) {
    const detail::served &entry = all.entries[index];
    auto *const allocator = const_cast<tsl::BFCAllocator *>(entry.allocator.load());
    if (allocator == nullptr) continue;
    const auto own = entry.own.stats(allocator).value_or(tsl::AllocatorStats());
    facts.push_back({entry.own.name(allocator), entry.ordinal, own.num_allocs, own.pool_bytes.value_or(0)});
  }
  return facts;
}

}  // namespace tensorflow
}  // namespace bfc

/* The replaced functions. They must be visible to the loader, even where -fvisibility=hidden hides the rest. */
#define BFC_TENSORFLOW_REPLACES __attribute__((visibility("default")))

BFC_TENSORFLOW_REPLACES void *tsl::BFCAllocator::AllocateRaw(size_t alignment, size_t num_bytes,
                                                             const AllocationAttributes &attributes) {
  namespace ours = bfc::tensorflow::detail;
  const ours::served &by = ours::serving(this);
  if (by.ordinal == ours::nobody) return by.own.allocate(this, alignment, num_bytes, attributes);
  const ours::named operation(by);
  bfc_status_t status = BFC_OK;
  void *const got = ours::take(by.ordinal, alignment, num_bytes, status);
  const bool is_to_wait = attributes.retry_on_failure && ours::room().milliseconds > 0;
  return status == BFC_ERROR_OUT_OF_MEMORY && is_to_wait ? ours::wait_for(by.ordinal, alignment, num_bytes) : got;
}

BFC_TENSORFLOW_REPLACES void tsl::BFCAllocator::DeallocateRaw(void *ptr) {
  namespace ours = bfc::tensorflow::detail;
  const ours::served &by = ours::serving(this);
  if (by.ordinal == ours::nobody) return by.own.deallocate(this, ptr);
  ours::expect("DeallocateRaw", bfc_free(by.ordinal, ptr), ptr);
  ours::tell_who_waits();
}

BFC_TENSORFLOW_REPLACES bool tsl::BFCAllocator::TracksAllocationSizes() const { return true; }

BFC_TENSORFLOW_REPLACES size_t tsl::BFCAllocator::RequestedSize(const void *ptr) const {
  namespace ours = bfc::tensorflow::detail;
  const ours::served &by = ours::serving(const_cast<BFCAllocator *>(this));
  if (by.ordinal == ours::nobody) return by.own.requested_size(this, ptr);
  size_t size = 0;
  ours::expect("RequestedSize", bfc_requested_size(by.ordinal, ptr, &size), ptr);
  return size;
}

BFC_TENSORFLOW_REPLACES size_t tsl::BFCAllocator::AllocatedSize(const void *ptr) const {
  namespace ours = bfc::tensorflow::detail;
  const ours::served &by = ours::serving(const_cast<BFCAllocator *>(this));
  if (by.ordinal == ours::nobody) return by.own.allocated_size(this, ptr);
  size_t size = 0;
  ours::expect("AllocatedSize", bfc_allocated_size(by.ordinal, ptr, &size), ptr);
  return size;
}

BFC_TENSORFLOW_REPLACES int64_t tsl::BFCAllocator::AllocationId(const void *ptr) const {
  namespace ours = bfc::tensorflow::detail;
  const ours::served &by = ours::serving(const_cast<BFCAllocator *>(this));
  if (by.ordinal == ours::nobody) return by.own.allocation_id(this, ptr);
  int64_t id = 0;
  ours::expect("AllocationId", bfc_allocation_id(by.ordinal, ptr, &id), ptr);
  return id;
}

/* For an allocator without any request TensorFlow's own values are correct, and no pool is created for this call:
 * TensorFlow has some allocators that it never uses. */
BFC_TENSORFLOW_REPLACES std::optional<tsl::AllocatorStats> tsl::BFCAllocator::GetStats() {
  namespace ours = bfc::tensorflow::detail;
  const ours::served *const by = ours::find(this);
  if (by == nullptr) return ours::find_originals(this).stats(this);
  if (by->ordinal == ours::nobody) return by->own.stats(this);
  bfc_stats_t from = BFC_STATS_INIT;
  if (bfc_stats(by->ordinal, &from) != BFC_OK) return std::nullopt;
  AllocatorStats stats;
  stats.num_allocs = static_cast<int64_t>(from.num_allocs);
  stats.bytes_in_use = static_cast<int64_t>(from.bytes_in_use);
  stats.peak_bytes_in_use = static_cast<int64_t>(from.peak_bytes_in_use);
  stats.largest_alloc_size = static_cast<int64_t>(from.largest_alloc_size);
  stats.bytes_limit = static_cast<int64_t>(from.bytes_limit);
  stats.pool_bytes = static_cast<int64_t>(from.pool_bytes);
  stats.peak_pool_bytes = static_cast<int64_t>(from.peak_pool_bytes);
  stats.largest_free_block_bytes = static_cast<int64_t>(from.largest_free_block_bytes);
  return stats;
}

BFC_TENSORFLOW_REPLACES bool tsl::BFCAllocator::ClearStats() {
  namespace ours = bfc::tensorflow::detail;
  const ours::served *const by = ours::find(this);
  if (by == nullptr) return ours::find_originals(this).clear_stats(this);
  return by->ordinal == ours::nobody ? by->own.clear_stats(this) : bfc_reset_stats(by->ordinal) == BFC_OK;
}

/* The other functions cannot be defined as members (the name is inline in the header, and a destructor would bring in
 * the virtual function table), so they are defined by their symbol names. */
namespace bfc {
namespace tensorflow {
namespace detail {

BFC_TENSORFLOW_REPLACES std::string shown_name(tsl::BFCAllocator *) __asm__("_ZN3tsl12BFCAllocator4NameB5cxx11Ev");
BFC_TENSORFLOW_REPLACES void end(tsl::BFCAllocator *) __asm__("_ZN3tsl12BFCAllocatorD1Ev");
BFC_TENSORFLOW_REPLACES void end_of_base(tsl::BFCAllocator *) __asm__("_ZN3tsl12BFCAllocatorD2Ev");

/* The name appears in the message of ResourceExhaustedError, so it identifies the owner of the memory. */
std::string shown_name(tsl::BFCAllocator *allocator) {
  const served *const by = find(allocator);
  if (by == nullptr) return find_originals(allocator).name(allocator);
  const std::string own = by->own.name(allocator);
  return by->ordinal == nobody ? own : own + " (libbfc, device " + std::to_string(by->ordinal) + ")";
}

/* An allocator's destructors: of the complete object and of a base. */
void end(tsl::BFCAllocator *allocator) { forget(allocator).end(allocator); }
void end_of_base(tsl::BFCAllocator *allocator) { forget(allocator).end(allocator); }

}  // namespace detail
}  // namespace tensorflow
}  // namespace bfc

#undef BFC_TENSORFLOW_REPLACES

#endif  // BFC_TENSORFLOW_HPP
