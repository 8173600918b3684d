// A random program: a configuration and a list of steps, both a pure function of one seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fake_memory.h"

enum class Family : int {
  kFixed,          // one region of the limit
  kGrowth,         // regions on demand
  kGrowthGc,       // and given back before failing
  kFragmentation,  // fragmentation_fraction instead of the 128 MiB rule
  kFailing,        // a sub-allocator that fails often, and limits far above what it has
  kGenerous,       // a sub-allocator that gives more than asked
  kCoalescing,     // touching regions that may merge
  kPlacement,      // touching or descending regions that may not merge
  kOneStream,      // the _async functions on one stream: places as the plain ones
  kTimestamps,     // stamped frees, moving frontier, freed_before
  kCount
};
const char *FamilyName(Family family);
// Programs come in rounds of one of each family, but more of the last: most of those end early.
constexpr uint64_t kRound = static_cast<uint64_t>(Family::kCount) + 1;

struct Config {
  Family family = Family::kFixed;
  uint64_t seed = 0;
  int32_t device = 0;
  uint64_t limit = 0;
  bool growth = false;
  bool garbage_collection = false;
  bool coalescing = false;
  bool timestamps = false;
  bool one_stream = false;
  double fragmentation_fraction = 0;
  FakeMemoryOptions memory;
};
std::string Describe(const Config &config);

struct Step {
  enum Kind : uint8_t {
    kAlloc,
    kAllocFreedBefore,  // with freed_before = the last stamp - lag
    kAllocSafe,         // with freed_before = the newest safe stamp - lag: never takes an unsafe chunk
    kFree,
    kFreeNull,
    kQuery,     // sizes and id of a live allocation
    kFrontier,  // to the last stamp + 1 - lag
    kClearStats
  };
  Kind kind = kAlloc;
  uint8_t entry = 0;  // which of several equivalent C functions
  uint32_t lag = 0;
  uint32_t id = 0;  // an allocation's name: it survives the removal of other steps
  uint64_t bytes = 0;
};

struct Program {
  Config config;
  std::vector<Step> steps;
};

Program MakeProgram(uint64_t seed);
