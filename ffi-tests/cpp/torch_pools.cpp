// PyTorch's private pools as its C++ calls for them: a pair of numbers and a std::function by value, which in C are two
// numbers and a pointer. Nothing of PyTorch is here but these signatures; ffi-tests/pytorch has PyTorch itself.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc_adapters.h>

#include "../c/check.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace {

using pool_id = std::pair<std::uint64_t, std::uint64_t>;
using filter = std::function<bool(bfc_stream_t)>;

// As PyTorch makes a function of the address that it is given (torch/csrc/cuda/Module.cpp).
template <class To, class From>
To *at_address_of(From *function) {
  return reinterpret_cast<To *>(reinterpret_cast<std::uintptr_t>(function));
}

const auto begin = at_address_of<void(int, pool_id, filter)>(&bfc_torch_begin_allocate_to_pool);
const auto end = at_address_of<void(int, pool_id)>(&bfc_torch_end_allocate_to_pool);
const auto release = at_address_of<void(int, pool_id)>(&bfc_torch_release_pool);

const pool_id id{3, std::uint64_t{5} << 40};

bfc_stream_t stream(std::uintptr_t number) { return reinterpret_cast<bfc_stream_t>(number); }

// What freed memory of a pool is to others: nothing.
bool is_apart(bfc_stream_t on) {
  void *const first = bfc_torch_alloc(3u << 20, 0, on);
  CHECK(first != nullptr);
  bfc_torch_free(first, 0, 0, on);
  void *again = nullptr;
  CHECK(bfc_alloc_async(0, 3u << 20, on, &again) == BFC_OK);
  bfc_torch_free(again, 0, 0, on);
  return again != first;
}

void prepare() { CHECK(setenv("BFC_BACKEND", "host", 1) == 0); }

void called_as_pytorch_does() {
  prepare();
  const bfc_stream_t wanted = stream(0x7f), other = stream(0x70);
  begin(0, id, [wanted](bfc_stream_t asked) { return asked == wanted; });
  CHECK(is_apart(wanted) && !is_apart(other));
  end(0, id);
  CHECK(!is_apart(wanted));
  release(0, id);
  CHECK_OK(bfc_destroy(0));
}

void filters_are_copied_and_ended() {
  prepare();
  const auto counted = std::make_shared<int>(0);
  const std::string far(100, 'x');
  {
    // Too large for the function's own place, so that it lies elsewhere.
    const filter large = [counted, far, more = far](bfc_stream_t) {
      *counted += far.size() == 100 && more == far ? 1 : 1000;
      return true;
    };
    begin(0, id, large);
  }
  CHECK(counted.use_count() == 2);
  CHECK(is_apart(stream(0x7f)) && *counted == 1);
  end(0, id);
  CHECK(counted.use_count() == 1);
  CHECK(!is_apart(stream(0x7f)) && *counted == 1);
  release(0, id);
  CHECK_OK(bfc_destroy(0));
}

void an_empty_filter() {
  prepare();
  begin(0, id, filter());
  CHECK(is_apart(stream(0x7f)));
  end(0, id);
  release(0, id);
  CHECK_OK(bfc_destroy(0));
}

// PyTorch's filters throw where the runtime fails. That comes back to who asked for memory, and all goes on.
void what_a_filter_throws() {
  prepare();
  bool fails = true;
  const auto alive = std::make_shared<int>(0);
  begin(0, id, [&fails, alive](bfc_stream_t) {
    if (fails) throw std::runtime_error("the runtime");
    return true;
  });
  for (int round = 0; round < 3; ++round) {
    bool caught = false;
    try {
      bfc_torch_alloc(1000, 0, nullptr);
    } catch (const std::runtime_error &error) { caught = std::string(error.what()) == "the runtime"; }
    CHECK(caught);
  }
  fails = false;
  CHECK(is_apart(stream(0x7f)));
  end(0, id);
  CHECK(alive.use_count() == 1);
  release(0, id);
  CHECK_OK(bfc_destroy(0));
}

}  // namespace

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(called_as_pytorch_does),
      CASE(filters_are_copied_and_ended),
      CASE(an_empty_filter),
      CASE(what_a_filter_throws),
  };
  return RUN_CASE(cases, argc, argv);
}
