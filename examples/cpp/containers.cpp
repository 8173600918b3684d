// Containers in a pool, and a pool in somebody else's memory, by way of std::pmr.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include <cstddef>
#include <iostream>
#include <map>
#include <memory_resource>
#include <string>
#include <vector>

namespace {

// Where the program has its memory from: here a buffer, in earnest shared memory or huge pages.
class buffer final : public std::pmr::memory_resource {
 public:
  buffer() : bytes_(16u << 20), rest_(bytes_.data(), bytes_.size(), std::pmr::null_memory_resource()) {}

 private:
  void *do_allocate(std::size_t bytes, std::size_t alignment) override {
    std::cout << "  a region of " << bytes << " bytes\n";
    return rest_.allocate(bytes, alignment);
  }
  void do_deallocate(void *region, std::size_t bytes, std::size_t alignment) override {
    std::cout << "  a region of " << bytes << " bytes is back\n";
    rest_.deallocate(region, bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

  std::vector<std::byte> bytes_;
  std::pmr::monotonic_buffer_resource rest_;
};

}  // namespace

int main() {
  buffer memory;
  // Ordinals 258 to 1023 are the program's to use. The buffer has to outlive the pool.
  const bfc::pool pool(500, bfc::options::recommended().upstream(memory).memory_limit(12u << 20).name("containers"));
  bfc::memory_resource resource(pool);
  {
    std::pmr::vector<double> samples(100'000, 0.5, &resource);
    // Vectors begin at a multiple of 256 bytes, so loads of any width are aligned.
    if (reinterpret_cast<std::uintptr_t>(samples.data()) % 256 != 0) return 1;
    std::pmr::map<int, std::pmr::string> names(&resource);
    for (int i = 0; i < 1000; i++) names[i] = "the name of layer number " + std::to_string(i);

    const bfc_stats_t stats = pool.stats();
    std::cout << stats.bytes_in_use << " bytes in use for " << stats.bytes_requested << " requested, in "
              << stats.num_chunks << " chunks\n";
    // A pool is for large blocks: each of the map's nodes costs 256 bytes. The standard's pools go on top.
    std::pmr::unsynchronized_pool_resource small_blocks(&resource);
    std::pmr::map<int, std::pmr::string> cheaper(names.begin(), names.end(), &small_blocks);
    std::cout << pool.stats().bytes_in_use - stats.bytes_in_use << " bytes for the same map over a pool resource\n";

    try {
      samples.resize(10'000'000);
      return 1;
    } catch (const std::bad_alloc &error) {
      std::cout << error.what() << '\n';  // and the samples are what they were
    }
  }
  return pool.stats().bytes_in_use == 0 ? 0 : 1;
}
