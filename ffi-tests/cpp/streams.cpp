// Streams in C++: references, requests with every field and flag, and allocations in the order of a stream. On host memory,
// where a stream is any token.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include "../c/check.h"

#include <cstring>
#include <utility>

// As CUDA's headers declare them: pointers to types that are never defined.
typedef struct CUstream_st *cudaStream_t;

namespace {

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;

bfc::options small() { return bfc::options::growing().backend(bfc::backend::host).memory_limit(4 * mib); }

std::uint64_t in_use(bfc::device device) { return device.stats().bytes_in_use; }

// As rmm::cuda_stream_view: a class that converts to the handle.
struct stream_view {
  cudaStream_t handle;
  operator cudaStream_t() const noexcept { return handle; }
};

static_assert(std::is_trivially_copyable_v<bfc::stream_ref> && sizeof(bfc::stream_ref) == sizeof(void *));
static_assert(std::is_nothrow_constructible_v<bfc::stream_ref, cudaStream_t>);
static_assert(std::is_convertible_v<cudaStream_t, bfc::stream_ref> && std::is_convertible_v<void *, bfc::stream_ref>);
static_assert(std::is_convertible_v<std::nullptr_t, bfc::stream_ref>);
static_assert(std::is_convertible_v<stream_view, bfc::stream_ref>);
// A number is no stream, nor is what could be one by chance.
static_assert(!std::is_constructible_v<bfc::stream_ref, int> && !std::is_convertible_v<bfc::pool, bfc::stream_ref>);
static_assert(!std::is_convertible_v<const int *, bfc::stream_ref>);
// The constants are constants, in each kind of unit.
static_assert(bfc::legacy_stream != bfc::per_thread_stream && bfc::default_stream == bfc::legacy_stream);

void references() {
  int token;
  const auto handle = reinterpret_cast<cudaStream_t>(&token);
  const bfc::stream_ref stream = handle;
  CHECK(stream.get() == &token && stream == bfc::stream_ref(&token) && stream == stream_view{handle});
  CHECK(stream != bfc::default_stream && !(stream == bfc::legacy_stream));
  CHECK(bfc::legacy_stream.get() == BFC_STREAM_LEGACY && bfc::per_thread_stream.get() == BFC_STREAM_PER_THREAD);
  CHECK(bfc::stream_ref::legacy() == bfc::legacy_stream && bfc::stream_ref::per_thread() == bfc::per_thread_stream);
  // Null is the default stream, whatever its type is.
  CHECK(bfc::stream_ref(nullptr) == bfc::default_stream && bfc::stream_ref(cudaStream_t{}) == bfc::default_stream);
  CHECK(stream_view{nullptr} == bfc::default_stream);
}

// A new field of bfc_request_t does not compile here until bfc::request has it too.
void every_field_of_a_request() {
  int token;
  bfc::request request;
  request.bytes = 1;
  request.alignment = 2;
  request.freed_before = 3;
  request.stream = &token;
  const auto [struct_size, bytes, alignment, stream, freed_before, flags, reserved] = request.raw();
  CHECK(struct_size == sizeof(bfc_request_t) && bytes == 1 && alignment == 2 && freed_before == 3 && reserved == 0);
  CHECK(stream == &token && flags == BFC_REQUEST_ON_STREAM);
  const bfc_request_t plain = bfc::request().raw();
  const bfc_request_t initial = BFC_REQUEST_INIT;
  CHECK(std::memcmp(&plain, &initial, sizeof(plain)) == 0);
}

// Whatever flag the library accepts can be set, and no other.
void every_flag_of_a_request() {
  const bfc::pool pool(bfc::host_device, small());
  std::uint32_t accepted = 0;
  for (unsigned bit = 0; bit < 32; bit++) {
    bfc_request_t raw = BFC_REQUEST_INIT;
    raw.bytes = 0;
    raw.flags = std::uint32_t{1} << bit;
    void *ptr;
    const bfc_status_t status = bfc_alloc_ex(pool.ordinal(), &raw, &ptr);
    CHECK(status == BFC_OK || status == BFC_ERROR_INVALID_ARGUMENT);
    if (status == BFC_OK) accepted |= raw.flags;
  }
  bfc::request all;
  all.stream = bfc::default_stream;
  all.no_growth = all.size_512 = all.short_lived = all.attempt = true;
  CHECK(all.raw().flags == accepted);
}

void no_growth_and_sizes() {
  const bfc::pool pool(bfc::host_device, small());
  std::error_code ec;
  bfc::request request;
  request.bytes = 1000;
  request.no_growth = true;
  CHECK(pool.allocate(request, ec) == nullptr && ec == bfc::errc::out_of_memory && pool.stats().num_failures == 0);
  CHECK(bfc::allocation::create(pool, request, ec) == nullptr && ec == bfc::errc::out_of_memory);
  try {
    const bfc::allocation memory(pool, request);
    CHECK(false);
  } catch (const bfc::out_of_memory &) {}
  CHECK(pool.stats().pool_bytes == 0);
  request.no_growth = false;
  request.attempt = true;
  request.bytes = std::size_t{1} << 50;
  CHECK(pool.allocate(request, ec) == nullptr && ec == bfc::errc::out_of_memory && pool.stats().num_failures == 0);
  pool.allocation_failed(request, ec);
  CHECK(!ec && pool.stats().num_failures == 1);
  pool.allocation_failed(request);
  CHECK(pool.stats().num_failures == 2);
  request.attempt = false;
  request.size_512 = true;
  request.bytes = 600;
  const bfc::allocation memory(pool, request);
  CHECK(memory.size() == 600 && in_use(pool) == 1024 && memory.stream() == nullptr);
}

// Most of the pool, so that nothing else can serve a second request.
constexpr std::size_t most = 1536 * kib;

// Whether a stream gets that much of what the pool holds.
bool gets_most(bfc::device device, bfc::stream_ref stream) {
  bfc::request request;
  request.bytes = most;
  request.stream = stream;
  request.no_growth = true;
  std::error_code ec;
  const bfc::allocation memory = bfc::allocation::create(device, request, ec);
  CHECK(!ec || ec == bfc::errc::out_of_memory);
  return memory != nullptr;
}

void allocations_are_freed_on_their_stream() {
  const bfc::pool pool(bfc::host_device, small().memory_limit(2 * mib).split_always());
  int first, second;
  // Both streams are known, so that they are told apart.
  for (int *const stream : {&first, &second}) bfc::allocation(pool, 1, stream).reset();
  {
    const bfc::allocation memory(pool, most, &first);
    CHECK(memory.stream() == &first && memory.size() == most && in_use(pool) == most);
  }
  CHECK(in_use(pool) == 0 && !gets_most(pool, &second) && gets_most(pool, &first));
  // Another stream has taken over, and the work of the first one is done.
  {
    bfc::allocation memory(pool, most, &first);
    memory.set_stream(&second);
    CHECK(memory.stream() == &second);
  }
  pool.stream_synchronized(&first);
  CHECK(!gets_most(pool, &first) && gets_most(pool, &second));
}

void recorded_streams() {
  const bfc::pool pool(bfc::host_device, small().memory_limit(2 * mib).split_always());
  int first, second;
  std::error_code ec;
  for (int *const stream : {&first, &second}) bfc::allocation(pool, 1, stream).reset();
  {
    const bfc::allocation memory(pool, most, &first);
    memory.record_stream(&second);
    memory.record_stream(bfc::default_stream, ec);
    CHECK(!ec);
  }
  CHECK(!gets_most(pool, &first));
  pool.stream_synchronized(&second);
  CHECK(!gets_most(pool, &first));
  pool.stream_synchronized(nullptr);
  CHECK(gets_most(pool, &first));
  const bfc::allocation nothing;
  nothing.record_stream(&first, ec);
  CHECK(ec);
}

// The stream goes where the memory goes.
void streams_move_with_allocations() {
  const bfc::pool pool(bfc::host_device, small());
  int first, second;
  bfc::allocation one(pool, 1000, &first), other(pool, 2000);
  CHECK(one.stream() == &first && other.stream() == nullptr);
  swap(one, other);
  CHECK(one.stream() == nullptr && other.stream() == &first && other.size() == 1000);
  bfc::allocation moved(std::move(other));
  CHECK(moved.stream() == &first && other == nullptr && nullptr == other && moved != nullptr && nullptr != moved);
  one = std::move(moved);
  CHECK(one.stream() == &first && in_use(pool) == 1024);
  void *const data = one.release();
  one = bfc::allocation::adopt(pool, data, 1000, &second);
  CHECK(one.stream() == &second && one.data() == data);
  one.reset();
  CHECK(one == nullptr && in_use(pool) == 0);
  one.reset();
  // The default stream is a stream, and not none.
  const bfc::allocation by_default(pool, 1000, nullptr);
  CHECK(by_default.stream() == BFC_STREAM_LEGACY);
}

}  // namespace

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(references),
      CASE(every_field_of_a_request),
      CASE(every_flag_of_a_request),
      CASE(no_growth_and_sizes),
      CASE(allocations_are_freed_on_their_stream),
      CASE(recorded_streams),
      CASE(streams_move_with_allocations),
  };
  return RUN_CASE(cases, argc, argv);
}
