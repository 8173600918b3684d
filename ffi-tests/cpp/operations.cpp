// Every operation in both of its forms, options, exceptions and error codes.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include "../c/check.h"

#include <cstring>
#include <map>

namespace {

constexpr std::size_t mib = 1u << 20;

bfc::options small() { return bfc::options::growing().backend(bfc::backend::host).memory_limit(4 * mib).name("small"); }

// The call throws a bfc::error with that code, whose words contain these.
template <class Call>
void throws(bfc::errc expected, const char *words, Call call) {
  try {
    call();
  } catch (const bfc::error &error) {
    CHECK(error.code() == expected && error.code().category() == bfc::category());
    if (std::strstr(error.what(), words) == nullptr) check_failed(__FILE__, __LINE__, error.what(), words);
    return;
  }
  check_failed(__FILE__, __LINE__, words, "was not thrown");
}

void exceptions() {
  const bfc::pool pool(bfc::host_device, small());
  const bfc::device nothing(300);
  throws(bfc::errc::out_of_memory, "bfc_alloc: small: no memory for 8.00 MiB", [&] { pool.allocate(8 * mib); });
  throws(bfc::errc::invalid_argument, "power of two", [&] { pool.allocate(1, 3); });
  throws(bfc::errc::no_allocator, "bfc_alloc: no allocator", [&] { nothing.allocate(1); });
  throws(bfc::errc::already_exists, "bfc_create: ", [&] { bfc::pool twin(bfc::host_device, small()); });
  throws(bfc::errc::invalid_pointer, "bfc_free: ", [&] {
    int local = 0;
    pool.deallocate(&local);
  });
  throws(bfc::errc::unsupported, "BFC_TIMESTAMPS", [&] { pool.timestamp(); });
  throws(bfc::errc::invalid_argument, "NULL", [] { bfc::scope scope(nullptr); });
  throws(bfc::errc::out_of_memory, "bfc_alloc_ex", [&] { bfc::allocation memory(pool, 8 * mib); });
  bfc::allocation keeps_it_busy(pool, 1);
  throws(bfc::errc::busy, "bfc_destroy: small: 1 allocation is live", [&] {
    bfc::pool owner = bfc::pool::adopt(pool);
    try {
      owner.destroy();
    } catch (...) {
      CHECK(owner);
      owner.release();
      throw;
    }
  });
}

// The message of a failure is there once.
void messages_are_not_repeated() {
  const std::string expected = "bfc_stats: no allocator was created for device 300: create one first";
  try {
    bfc::device(300).stats();
    CHECK(false);
  } catch (const bfc::status_error &error) {
    CHECK(error.what() == expected);
    CHECK(bfc::status_error(error).what() == expected);
  }
}

// What most programs should set is what a pool without options has.
void recommended_options() {
  std::size_t length = 0;
  CHECK_OK(bfc_resolve_options(bfc::host_device, nullptr, nullptr, 0, &length));
  std::string without(length + 1, '\0');
  CHECK_OK(bfc_resolve_options(bfc::host_device, nullptr, without.data(), without.size(), &length));
  without.resize(length);
  CHECK(bfc::options::recommended().resolve(bfc::host_device) == without);
  CHECK(bfc::options::growing().resolve(bfc::host_device) != without);
}

// Each type by which a failure can be caught, alone.
void kinds_of_exceptions() {
  const bfc::pool pool(bfc::host_device, small());
  int caught = 0;
  try {
    pool.allocate(8 * mib);
  } catch (const std::bad_alloc &error) {
    caught++;
    CHECK(std::strstr(error.what(), "no memory") != nullptr);
  }
  try {
    pool.allocate(8 * mib);
  } catch (const std::exception &error) {
    caught++;
    CHECK(std::strstr(error.what(), "no memory") != nullptr);
  }
  try {
    pool.allocate(1, 3);
  } catch (const std::system_error &error) {
    caught++;
    CHECK(error.code() == std::errc::invalid_argument);
  }
  try {
    pool.allocate(1, 3);
  } catch (const std::exception &) { caught++; }
  CHECK(caught == 4);
  // A name longer than the exception's buffer: cut, and nothing worse.
  bfc::pool endless(300, small().name(std::string(100000, 'n')));
  try {
    endless.allocate(8 * mib);
  } catch (const bfc::out_of_memory &error) {
    caught++;
    CHECK(std::strlen(error.what()) < 1024);
  }
  CHECK(caught == 5);
}

void error_codes() {
  std::map<std::string, int> messages;
  for (int status = BFC_ERROR_INVALID_ARGUMENT; status <= BFC_ERROR_INTERNAL; status++) {
    const std::error_code code = static_cast<bfc::errc>(status);
    CHECK(code && code.value() == status && code.category() == bfc::category());
    CHECK(messages[code.message()]++ == 0 && code.message() == bfc_status_string(status));
  }
  CHECK(std::string(bfc::category().name()) == "bfc");
  CHECK(std::error_code(bfc::errc::out_of_memory) == std::errc::not_enough_memory);
  CHECK(std::error_code(bfc::errc::invalid_argument) == std::errc::invalid_argument);
  CHECK(std::error_code(bfc::errc::busy) == std::errc::device_or_resource_busy);
  CHECK(std::error_code(bfc::errc::unsupported) == std::errc::not_supported);
  CHECK(std::error_code(bfc::errc::double_free) != std::errc::invalid_argument);
  // A success clears an old code.
  std::error_code ec = bfc::errc::busy;
  const bfc::pool pool = bfc::pool::create(bfc::host_device, small(), ec);
  CHECK(!ec);
  ec = bfc::errc::busy;
  pool.deallocate(nullptr, ec);
  CHECK(!ec);
}

void memory_and_questions() {
  const bfc::pool pool(bfc::host_device, small());
  std::error_code ec;
  char *const ptr = static_cast<char *>(pool.allocate(1000));
  CHECK(pool.requested_size(ptr) == 1000 && pool.requested_size(ptr, ec) == 1000);
  CHECK(pool.allocated_size(ptr) == 1024 && pool.allocated_size(ptr, ec) == 1024);
  CHECK(pool.allocation_id(ptr) == 1 && pool.allocation_id(ptr, ec) == 1);
  const bfc::address_range range = pool.address_range(ptr + 10);
  CHECK(range.chunk == ptr && range.chunk_bytes == 1024 && range.region == ptr && range.region_bytes == 2 * mib);
  CHECK(pool.address_range(&ec, ec).chunk == nullptr && ec == bfc::errc::invalid_pointer);
  CHECK(bfc::device::owner(ptr) == pool);
  CHECK(bfc::device::owner(&ec, ec).ordinal() == -1 && ec == bfc::errc::invalid_pointer);
  bfc::request request;
  request.bytes = 10;
  request.alignment = 8192;
  void *const aligned = pool.allocate(request);
  CHECK(reinterpret_cast<std::uintptr_t>(aligned) % 8192 == 0);
  CHECK(pool.allocate(0) == nullptr && pool.allocate(0, ec) == nullptr && !ec);
  pool.deallocate(aligned);
  pool.deallocate(ptr, ec);
  CHECK(!ec);
  pool.deallocate(ptr, ec);
  CHECK(ec == bfc::errc::double_free);
  CHECK(pool.stats().num_allocs == 2 && pool.stats(ec).num_frees == 2);
  pool.reset_stats();
  CHECK(pool.stats().num_allocs == 0);
  pool.check();
  CHECK(pool.trim(2 * mib) == 0 && pool.trim(0, ec) == 2 * mib && pool.trim() == 0);
  pool.set_memory_limit(mib);
  CHECK(pool.stats().bytes_limit == mib);
  pool.set_memory_limit(4 * mib, ec);
  CHECK(!ec && pool.stats().bytes_limit == 4 * mib);
}

void order_of_device_work() {
  bfc::pool pool(bfc::host_device, small().timestamps().quarantine());
  std::error_code ec;
  void *const ptr = pool.allocate(1000);
  CHECK(pool.timestamp() == 0);
  pool.deallocate(ptr);
  const std::uint64_t stamp = pool.timestamp(ec);
  CHECK(!ec && stamp == 1);
  CHECK(pool.allocate(1000) != ptr);  // in quarantine
  pool.set_safe_frontier(stamp + 1);
  bfc::request request;
  request.bytes = 1000;
  request.freed_before = stamp;
  CHECK(pool.allocate(request, ec) == ptr && !ec);
  pool.destroy_forced();
  // Stamps exclude streams.
  const bfc::pool stamped(501, small().timestamps());
  CHECK(stamped.allocate_async(1, nullptr, ec) == nullptr && ec == bfc::errc::unsupported);
  throws(bfc::errc::unsupported, "bfc_alloc_async", [&] { stamped.allocate_async(1, nullptr); });
  throws(bfc::errc::unsupported, "bfc_free_async", [&] { stamped.deallocate_async(&ec, nullptr); });
  throws(bfc::errc::unsupported, "bfc_record_stream", [&] { stamped.record_stream(&ec, nullptr); });
  throws(bfc::errc::unsupported, "bfc_forget_stream", [&] { stamped.forget_stream(nullptr); });
  throws(bfc::errc::unsupported, "bfc_stream_synchronized", [&] { stamped.stream_synchronized(nullptr); });
  const bfc::pool plain(bfc::host_device, small());
  void *const stream = &ec;
  void *ordered = plain.allocate_async(1000, stream);
  plain.record_stream(ordered, nullptr);
  plain.deallocate_async(ordered, stream);
  void *const other = plain.allocate_async(1000, stream, ec);
  CHECK(!ec && other != ordered);  // which waits for the default stream
  plain.stream_synchronized(nullptr);
  request.freed_before = 0;
  request.stream = stream;
  CHECK(plain.allocate(request) == ordered);
  plain.deallocate_async(ordered, stream);
  plain.deallocate_async(other, nullptr);
  plain.forget_stream(stream);
}

// What is freed in a private pool stays the pool's until it is released.
void private_pools() {
  const bfc::pool pool(bfc::host_device, small());
  std::error_code ec;
  int first, second;
  void *const common = pool.allocate_async(1000, &first);
  pool.begin_private_pool(7, &first);
  void *const own = pool.allocate_async(1000, &first);
  pool.begin_private_pool(7, &second, ec);
  CHECK(!ec);
  pool.deallocate_async(own, &first);
  CHECK(pool.allocate_async(1000, &first) == own);
  pool.deallocate_async(own, &first);
  // Misuse, in both forms; nothing has changed by it.
  throws(bfc::errc::invalid_argument, "already", [&] { pool.begin_private_pool(7, &first); });
  throws(bfc::errc::invalid_argument, "already", [&] { pool.begin_private_pool(8, &first); });
  throws(bfc::errc::invalid_argument, "pool 8", [&] { pool.end_private_pool(8, &first); });
  throws(bfc::errc::invalid_argument, "no private pool 8", [&] { pool.release_private_pool(8); });
  throws(bfc::errc::busy, "pool 7", [&] { pool.release_private_pool(7); });
  pool.end_private_pool(7, &second);
  pool.end_private_pool(7, &first, ec);
  CHECK(!ec);
  pool.end_private_pool(7, &first, ec);
  CHECK(ec == bfc::errc::invalid_argument);
  void *const another = pool.allocate_async(1000, &first);
  CHECK(another != own);
  pool.release_private_pool(7);
  pool.release_private_pool(7, ec);
  CHECK(ec == bfc::errc::invalid_argument);
  pool.stream_synchronized(nullptr);
  CHECK(pool.allocate_async(1000, &first) == own);
  for (void *const ptr : {own, another, common}) pool.deallocate_async(ptr, &first);
  pool.check();
  // Stamps exclude them, and where nothing is there is no pool.
  const bfc::pool stamped(501, small().timestamps());
  throws(bfc::errc::unsupported, "bfc_pool_begin", [&] { stamped.begin_private_pool(1, &first); });
  const bfc::device nothing(300);
  throws(bfc::errc::no_allocator, "bfc_pool_end", [&] { nothing.end_private_pool(1, &first); });
  nothing.release_private_pool(1, ec);
  CHECK(ec == bfc::errc::no_allocator);
}

// Counts what is there, and tries what it must not do.
struct region_counter {
  std::size_t bytes = 0;
  int calls = 0;
  std::error_code from_within;

  void operator()(bfc::device of, void *start, std::size_t count, bfc::region_event event) noexcept {
    CHECK(start != nullptr && of.ordinal() == bfc::host_device);
    calls++;
    bytes += event == bfc::region_event::obtained ? count : 0 - count;
    of.stats(from_within);
  }
};

void idle_callbacks() {
  const bfc_idle_callback_t settle = [](void *, std::int32_t) {};
  std::error_code ec;
  bfc::pool pool(bfc::host_device, small());
  pool.set_idle_callback(settle, nullptr);
  pool.set_idle_callback(nullptr, nullptr, ec);
  CHECK(!ec);
  throws(bfc::errc::no_allocator, "bfc_set_idle_callback", [] { bfc::device(7).set_idle_callback(nullptr, nullptr); });
}

void region_callbacks() {
  region_counter counter, late;
  std::error_code ec;
  bfc::pool pool(bfc::host_device, small());
  pool.set_region_callback(counter);
  void *const ptr = pool.allocate(1000);
  CHECK(counter.calls == 1 && counter.bytes == 2 * mib && counter.from_within == bfc::errc::busy);
  // Too late for another one, and the first goes on.
  throws(bfc::errc::busy, "holds memory already", [&] { pool.set_region_callback(late); });
  pool.set_region_callback(late, ec);
  CHECK(ec == bfc::errc::busy);
  pool.deallocate(ptr);
  pool.trim();
  CHECK(counter.calls == 2 && counter.bytes == 0);
  // Nobody is told any more.
  pool.set_region_callback(nullptr);
  pool.deallocate(pool.allocate(1000));
  pool.set_region_callback(nullptr, ec);
  CHECK(!ec && counter.calls == 2 && late.calls == 0);
  // As a function with a pointer, and until the end of the pool.
  pool.trim();
  const bfc_region_callback_t count = [](void *calls, std::int32_t, void *, std::size_t, std::int32_t) {
    ++*static_cast<int *>(calls);
  };
  int calls = 0;
  pool.set_region_callback(count, &calls, ec);
  CHECK(!ec);
  pool.deallocate(pool.allocate(1000));
  pool.destroy();
  CHECK(calls == 2 && counter.calls == 2);
  throws(bfc::errc::no_allocator, "bfc_set_region_callback",
         [] { bfc::device(bfc::host_device).set_region_callback(nullptr); });
}

// Host memory has no context that could be lost.
void a_lost_device() {
  const bfc::pool pool(bfc::host_device, small());
  std::error_code ec;
  void *const ptr = pool.allocate(1000);
  throws(bfc::errc::unsupported, "bfc_device_lost: ", [&] { pool.device_lost(); });
  pool.device_lost(ec);
  CHECK(ec == bfc::errc::unsupported && pool.requested_size(ptr) == 1000);
  pool.deallocate(ptr);
  throws(bfc::errc::no_allocator, "bfc_device_lost: ", [] { bfc::device(300).device_lost(); });
}

void texts() {
  bfc::pool pool(bfc::host_device, small());
  std::error_code ec;
  {
    const bfc::scope scope("attention", 3);
    pool.allocate(1000);
  }
  CHECK(pool.occupancy().size() == 100 && pool.occupancy(ec).size() == 100);
  CHECK(pool.memory_map().front() == '{' && pool.memory_map(ec).back() == '}');
  CHECK(pool.report().find("attention") != std::string::npos);
  CHECK(pool.report().find('\0') == std::string::npos);
  const std::string sample = "\nbfc_allocations_total{device=\"256\",";
  CHECK(bfc::metrics().find(sample) != std::string::npos && bfc::metrics(ec).find(sample) != std::string::npos && !ec);
  const bfc::device nothing(300);
  CHECK(nothing.report(ec).empty() && ec == bfc::errc::no_allocator);
  throws(bfc::errc::no_allocator, "bfc_memory_map", [&] { nothing.memory_map(); });
  CHECK(bfc::last_error().find("create one first") != std::string::npos);
  CHECK(bfc::version() == BFC_TESTS_PACKAGE_VERSION);
  pool.destroy_forced();
  CHECK(bfc::metrics().find('{') == std::string::npos);
}

// The builder sets the fields of its names, and the pointers are its own.
void options() {
  bfc::options how = bfc::options()
                         .backend(bfc::backend::host)
                         .memory_limit(1)
                         .memory_fraction(0.5)
                         .fragmentation_fraction(0.25)
                         .initial_region_bytes(2)
                         .retry_timeout(std::chrono::seconds(3))
                         .name("n")
                         .allow_growth()
                         .garbage_collection()
                         .timestamps()
                         .split_always()
                         .quarantine();
  bfc_options_t raw = how.raw();
  CHECK(raw.struct_size == sizeof(raw) && raw.backend == BFC_BACKEND_HOST && raw.flags == 31);
  CHECK(raw.memory_limit == 1 && raw.memory_fraction == 0.5 && raw.fragmentation_fraction == 0.25);
  CHECK(raw.initial_region_bytes == 2 && raw.retry_timeout_ms == 3000 && std::string(raw.name) == "n");
  CHECK(raw.suballocator == nullptr && raw.reserved == 0);
  how.quarantine(false).timestamps(false);
  CHECK(how.raw().flags == (BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION | BFC_SPLIT_ALWAYS));
  CHECK(how.retry_timeout(std::chrono::hours(24 * 365)).raw().retry_timeout_ms == UINT32_MAX);
  CHECK(how.retry_timeout(std::chrono::milliseconds(-1)).raw().retry_timeout_ms == 0);
  const bfc::options copy = how;
  CHECK(copy.raw().name != how.raw().name && std::string(copy.raw().name) == "n");
  CHECK(bfc::options().raw().name == nullptr && bfc::options().raw().flags == 0);
}

// A new field of bfc_options_t does not compile here until bfc::options has it too.
void every_field_of_options() {
  int first;
  const bfc_region_alloc_t alloc = [](void *, std::size_t, std::size_t, std::size_t *) -> void * { return nullptr; };
  const bfc_region_free_t release = [](void *, void *, std::size_t) {};
  const bfc::options how = bfc::options()
                               .memory_limit(1)
                               .memory_fraction(0.5)
                               .fragmentation_fraction(0.25)
                               .initial_region_bytes(2)
                               .retry_timeout(std::chrono::milliseconds(3))
                               .name("n")
                               .suballocator(alloc, release, &first)
                               .growth_policy(bfc::growth_policy::need)
                               .plan("p");
  const auto [struct_size, backend, flags, limit, fraction, fragmentation, region, retry, reserved, name, suballocator,
              policy, reserved2, plan] = how.raw();
  CHECK(struct_size == sizeof(bfc_options_t) && backend == BFC_BACKEND_CUSTOM && flags == 0 && limit == 1);
  CHECK(fraction == 0.5 && fragmentation == 0.25 && region == 2 && retry == 3 && std::strcmp(name, "n") == 0);
  CHECK(policy == BFC_GROWTH_NEED && std::strcmp(plan, "p") == 0 && reserved == 0 && reserved2 == 0);
  const auto [functions_size, user_data, its_alloc, its_free, coalescing, its_reserved] = *suballocator;
  CHECK(functions_size == sizeof(bfc_suballocator_t) && user_data == &first && its_alloc == alloc);
  CHECK(its_free == release && coalescing == 0 && its_reserved == 0);
}

// Whatever flag the library accepts can be set, and no other. With timestamps, which quarantine requires.
void every_flag_of_options() {
  std::uint32_t accepted = 0;
  for (unsigned bit = 0; bit < 32; bit++) {
    bfc_options_t raw = BFC_OPTIONS_INIT;
    raw.flags = std::uint32_t{1} << bit | BFC_TIMESTAMPS;
    std::size_t length = 0;
    const bfc_status_t status = bfc_resolve_options(bfc::host_device, &raw, nullptr, 0, &length);
    CHECK(status == BFC_OK || status == BFC_ERROR_INVALID_ARGUMENT);
    if (status == BFC_OK) accepted |= raw.flags;
  }
  const bfc::options all = bfc::options::growing().timestamps().split_always().quarantine().two_ends();
  CHECK(all.raw().flags == accepted);
}

// What a pool would be made of, without making one.
void resolved_options() {
  std::error_code ec;
  const bfc::options how = small();
  CHECK(how.resolve(bfc::host_device).find("4194304") != std::string::npos);
  CHECK(how.resolve(bfc::host_device, ec) == how.resolve(bfc::host_device) && !ec);
  CHECK(how.resolve(-1, ec).empty() && ec == bfc::errc::invalid_argument);
  throws(bfc::errc::invalid_argument, "bfc_resolve_options: ", [&] { how.resolve(-1); });
  bfc::device(bfc::host_device).stats(ec);
  CHECK(ec == bfc::errc::no_allocator);
}

void log_messages() {
  std::string last;
  int warnings = 0;
  auto listener = [&](bfc::log_level level, std::string_view message) noexcept {
    last = message;
    warnings += level == bfc::log_level::warn;
  };
  // A value that is ignored, with a warning.
  const auto warn = [] {
    setenv("BFC_MEMORY_LIMIT", "a lot", 1);
    const bfc::pool pool(bfc::host_device);
  };
  bfc::set_log_callback(listener);
  warn();
  CHECK(warnings == 1 && last.find("BFC_MEMORY_LIMIT") != std::string::npos);
  bfc::set_log_callback(nullptr);
  warn();
  std::error_code ec;
  bfc::set_log_callback(listener, ec);
  CHECK(!ec);
  bfc::set_log_callback(nullptr, ec);
  warn();
  CHECK(!ec && warnings == 1);
}

// Announcements are counted, and each ends with its block.
void announced_captures() {
  { const bfc::capture_scope outer, inner; }
  CHECK(bfc_capture_end() == BFC_ERROR_INVALID_ARGUMENT);
  const bfc::capture_scope again;
  CHECK_OK(bfc_capture_begin());
  CHECK_OK(bfc_capture_end());
}

}  // namespace

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(exceptions),     CASE(messages_are_not_repeated), CASE(recommended_options),   CASE(kinds_of_exceptions),
      CASE(error_codes),    CASE(memory_and_questions),      CASE(order_of_device_work),  CASE(private_pools),
      CASE(idle_callbacks), CASE(region_callbacks),          CASE(a_lost_device),         CASE(texts),
      CASE(options),        CASE(every_field_of_options),    CASE(every_flag_of_options), CASE(resolved_options),
      CASE(log_messages),   CASE(announced_captures),
  };
  return RUN_CASE(cases, argc, argv);
}
