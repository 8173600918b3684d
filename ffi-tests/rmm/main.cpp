// Behaviours of RMM's own tests, over libbfc's resource, on the simulated driver. `rmm-tests` lists the cases, one a line;
// `rmm-tests NAME` runs one, in a process of its own; `rmm-tests NAME FAULT` with a fault that it has to find.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "tests.hpp"

int main(int argc, char **argv) {
  std::vector<tests::test> all;
  for (const auto &some : {tests::behaviours(), tests::streams(), tests::failures(), tests::threads(),
                           tests::containers(), tests::repeated()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  if (argc < 2) {
    for (const auto &each : all) std::puts(each.name);
    return 0;
  }
  alarm(HANG_SECONDS);
  CHECK(simcuda_configure(2, 512 * tests::mib) == 0);
  for (const auto &each : all) {
    if (std::strcmp(each.name, argv[1]) != 0) continue;
    // The simulation names default streams by the current context.
    CHECK(cudaSetDevice(0) == cudaSuccess);
    const char *const fault = argc > 2 ? argv[2] : "";
    // The driver says that work is done which is not.
    if (std::strcmp(fault, "events") == 0) CHECK(simcuda_set(SIMCUDA_EVENTS_LIE, 1) == 0);
    if (std::strcmp(fault, "leak") == 0) {
      const tests::pool_of pool(0);
      bfc::rmm_resource resource;
      CHECK(tests::take(resource, 1000) != nullptr);
    }
    each.run();
    char words[256];
    simcuda_misuse(0, words, sizeof(words));
    if (simcuda_misuses() != 0) std::fprintf(stderr, "misuse: %s\n", words);
    CHECK(simcuda_misuses() == 0);
    CHECK(simcuda_mismatches() == 0);
    CHECK(simcuda_live(SIMCUDA_ALLOCATIONS) == 0);
    return 0;
  }
  std::fprintf(stderr, "there is no %s\n", argv[1]);
  return 2;
}
