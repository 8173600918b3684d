// A small runtime on libbfc: tensors on two streams, a captured graph, threads, running out of memory, statistics. It
// runs on GPU 0 if the CUDA driver can be loaded, and else on host memory.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "stream.hpp"
#include "tensor.hpp"

#include <atomic>
#include <iostream>
#include <sstream>
#include <thread>
#include <vector>

using runtime::Driver;
using runtime::Graph;
using runtime::Stream;
using runtime::Tensor;

namespace {

constexpr std::size_t mib = 1u << 20;
constexpr std::size_t megabyte_of_elements = mib / sizeof(std::uint32_t);

void check(bool condition, const char *what) {
  if (!condition) throw std::runtime_error(std::string("wrong result: ") + what);
}

// Each thread enters the device before it uses it.
void enter() {
  if (const Driver *const driver = Driver::load()) driver->enter();
}

// One stream computes and another one copies the results. Each batch is dropped while its copy may be pending.
void two_streams(bfc::device memory) {
  Stream compute(memory), copies(memory);
  std::vector<Tensor> results;
  for (std::uint32_t batch = 1; batch <= 4; batch++) {
    const bfc::scope scope("batch", batch);  // names this memory in reports
    Tensor values(compute, megabyte_of_elements);
    values.fill(compute, batch);
    copies.wait_for(compute);
    results.emplace_back(copies, megabyte_of_elements).copy_from(copies, values);
  }
  compute.synchronize();  // it is ahead of the copies, and has not got the memory that they read
  for (std::uint32_t batch = 1; batch <= 4; batch++) check(results[batch - 1].is(copies, batch), "a batch");
  std::cout << "two streams: 4 batches\n";
}

// The graph's intermediate tensor is freed during the capture, and its memory is still the graph's at each launch.
void captured_graph(bfc::device memory) {
  Stream stream(memory);
  Tensor input(stream, megabyte_of_elements), output(stream, megabyte_of_elements);
  Graph graph(stream, 1, [&] {
    Tensor intermediate(stream, megabyte_of_elements);
    intermediate.copy_from(stream, input);
    output.copy_from(stream, intermediate);
  });
  for (std::uint32_t launch = 1; launch <= 3; launch++) {
    input.fill(stream, launch);
    Tensor other(stream, megabyte_of_elements);  // never the memory of the graph
    other.fill(stream, 99);
    graph.launch(stream);
    check(output.is(stream, launch) && other.is(stream, 99), "a launch");
  }
  std::cout << "captured graph: 3 launches\n";
}

// Threads share the pool, and each has a stream of its own.
void two_threads(bfc::device memory) {
  std::atomic<int> steps{0}, failures{0};
  const auto work = [&](std::uint32_t id) {
    try {
      enter();
      Stream stream(memory);
      for (std::uint32_t step = 0; step < 50; step++) {
        Tensor values(stream, (step % 7 + 1) * 1000);
        values.fill(stream, id * 1000 + step);
        check(values.is(stream, id * 1000 + step), "a step");
        steps++;
      }
    } catch (const std::exception &error) {
      std::cerr << error.what() << '\n';
      failures++;
    }
  };
  std::thread first(work, 1), second(work, 2);
  first.join();
  second.join();
  check(failures == 0, "a thread");
  std::cout << "two threads: " << steps << " steps\n";
}

// Out of memory is an exception with a message, and the report shows where the memory is. Nothing is lost by it.
void out_of_memory(bfc::device memory) {
  Stream stream(memory);
  const bfc::scope scope("large tensors");
  const Tensor first(stream, 10 * megabyte_of_elements), second(stream, 10 * megabyte_of_elements);
  try {
    const Tensor third(stream, 60 * megabyte_of_elements);
    throw std::runtime_error("there is memory beyond the limit");
  } catch (const bfc::out_of_memory &error) {
    std::cout << "out of memory, as expected:\n  " << error.what() << '\n';
    std::istringstream report(memory.report());
    for (std::string line; std::getline(report, line);) std::cout << "  " << line << '\n';
  }
}

void statistics(bfc::device memory) {
  const bfc_stats_t stats = memory.stats();
  std::cout << stats.num_allocs << " allocations, " << stats.num_frees << " frees, " << stats.num_failures
            << " failures\n"
            << stats.bytes_in_use << " bytes in use, " << stats.peak_bytes_in_use << " at the peak\n";
}

}  // namespace

int main() {
  try {
    enter();
    const bool has_gpu = Driver::load() != nullptr;
    std::cout << "running on " << (has_gpu ? "GPU 0" : "host memory") << '\n';
    bfc::pool pool(has_gpu ? 0 : bfc::host_device,
                   bfc::options::recommended()
                       .backend(has_gpu ? bfc::backend::prefer_cuda_vmm : bfc::backend::host)
                       .memory_limit(64 * mib)
                       .name("runtime"));
    two_streams(pool);
    captured_graph(pool);
    two_threads(pool);
    out_of_memory(pool);
    statistics(pool);
    pool.check();
    pool.destroy();  // errc::busy if memory is still in use
    return 0;
  } catch (const bfc::error &error) { std::cerr << error.what() << '\n'; } catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
  }
  return 1;
}
