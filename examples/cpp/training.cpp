// A few steps of training over libbfc in C++: ownership by objects, memory in the order of a stream, failures by
// exceptions or error codes.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include <iostream>
#include <vector>

namespace {

// One step: the activations are freed at the end of the block, however it is left. They are freed in the order of the
// stream, so on a GPU its queued work may still use them, and nothing waits.
void step(bfc::device device, bfc::stream_ref stream, std::uint64_t number, std::size_t layers) {
  const bfc::scope scope("forward", number);  // for reports: the operation that this thread allocates for
  std::vector<bfc::allocation> activations;
  for (std::size_t layer = 1; layer <= layers; layer++) {
    activations.emplace_back(device, layer * 400'000, stream);
    static_cast<float *>(activations.back().data())[0] = static_cast<float>(layer);
  }
}

}  // namespace

int main() {
  // A GPU's ordinal is 0, 1, ... The pool is destroyed at the end of main. On a GPU the stream is a
  // cudaStream_t.
  const bfc::stream_ref stream = bfc::default_stream;
  bfc::pool pool(bfc::host_device,
                 bfc::options::recommended().backend(bfc::backend::host).memory_limit(16u << 20).name("trainer"));
  const bfc::allocation weights(pool, 2'000'000, 4096);

  for (std::uint64_t number = 1; number <= 3; number++) step(pool, stream, number, 5);
  const bfc_stats_t stats = pool.stats();
  std::cout << stats.num_allocs << " allocations, at most " << stats.peak_bytes_in_use << " bytes in use, "
            << stats.pool_bytes << " held\n[" << pool.occupancy() << "]\n";

  // The tenth layer does not fit. The activations of the others are freed on the way out.
  try {
    step(pool, stream, 4, 10);
    return 1;
  } catch (const bfc::out_of_memory &error) {  // a std::bad_alloc
    std::cout << error.what() << "\nAfter the others were freed:\n" << pool.report();
  }

  // The same without exceptions, for those who expect the failure.
  std::error_code ec;
  void *const scratch = pool.allocate(20u << 20, ec);
  if (scratch != nullptr || ec != bfc::errc::out_of_memory) return 1;

  // A double free is refused, and the pool is as sound as before.
  void *const raw = pool.allocate(1000);
  pool.deallocate(raw);
  try {
    pool.deallocate(raw);
    return 1;
  } catch (const bfc::error &error) { std::cout << "refused: " << error.what() << '\n'; }
  pool.check();
  return pool.stats().bytes_in_use == pool.allocated_size(weights.data()) ? 0 : 1;
}
