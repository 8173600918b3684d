#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "rng.h"

namespace {

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

const char *PlacementName(Placement placement) {
  switch (placement) {
    case Placement::kUpward: return "upward";
    case Placement::kDownward: return "downward";
    case Placement::kBothWays: return "both ways";
    case Placement::kLowestFit: return "lowest fit";
    case Placement::kHighestFit: return "highest fit";
  }
  return "?";
}

// TensorFlow touches 8 bytes for every 256 of a region when it takes it, so large pools cost a
// program more than its steps do: they are rare.
uint64_t RandomLimit(Rng &rng, bool growth) {
  const uint64_t kind = rng.Below(100);
  uint64_t limit;
  if (kind < 20) {
    limit = rng.Between(64 * kKiB, 4 * kMiB);
  } else if (kind < 78) {
    limit = rng.Between(4 * kMiB, 64 * kMiB);
  } else if (kind < 96 || growth) {
    limit = rng.Between(64 * kMiB, 512 * kMiB);
  } else {
    limit = rng.Between(512 * kMiB, 2 * kGiB);  // here the 128 MiB rule bites
  }
  // Now and then a limit that is no multiple of 256: the odd bytes count for bytes_limit only.
  return rng.Chance(25) ? limit : std::max<uint64_t>(limit & ~uint64_t{255}, 256);
}

FakeMemoryOptions RandomMemory(Rng &rng, bool touching) {
  static constexpr Placement kPlacements[] = {Placement::kUpward, Placement::kDownward, Placement::kBothWays,
                                              Placement::kLowestFit, Placement::kHighestFit};
  static constexpr uint64_t kGaps[] = {256, 4096, 2 * kMiB, kGiB};
  FakeMemoryOptions memory;
  memory.seed = rng.Next();
  memory.placement = rng.Pick(kPlacements);
  // Room for 16 TiB on either side of it, below 2^47 where user addresses end.
  memory.base = (uint64_t{1} << 44) + rng.Below(uint64_t{1} << 45) / 256 * 256;
  memory.gap = touching ? 0 : rng.Pick(kGaps);
  return memory;
}

Config MakeConfig(uint64_t seed, Rng &rng) {
  Config config;
  config.seed = seed;
  config.family = static_cast<Family>(std::min(seed % kRound, static_cast<uint64_t>(Family::kCount) - 1));
  config.device = static_cast<int32_t>(rng.Below(1024));
  switch (config.family) {
    case Family::kFixed:
    case Family::kOneStream: config.growth = config.family == Family::kOneStream && rng.Chance(50); break;
    case Family::kGrowth: config.growth = true; break;
    case Family::kGrowthGc:
      config.growth = rng.Chance(90);
      config.garbage_collection = true;
      break;
    default:
      config.growth = rng.Chance(75);
      config.garbage_collection = rng.Chance(50);
      break;
  }
  config.limit = RandomLimit(rng, config.growth);
  config.memory = RandomMemory(rng, false);
  switch (config.family) {
    case Family::kFragmentation: {
      static constexpr double kFractions[] = {1e-9, 0.0001, 0.001, 0.01, 0.05, 0.25, 0.9, 1.0};
      config.fragmentation_fraction = rng.Chance(50) ? rng.Pick(kFractions) : rng.Unit();
      // Below one byte TensorFlow splits off chunks of 0 bytes, at the end of a region past its table.
      const double limit = static_cast<double>(config.limit);
      config.fragmentation_fraction = std::max(config.fragmentation_fraction, 1.5 / limit);
      break;
    }
    case Family::kFailing:
      config.memory.fail_every = rng.Chance(40) ? static_cast<uint32_t>(rng.Between(2, 9)) : 0;
      config.memory.fail_percent = rng.Chance(40) ? static_cast<uint32_t>(rng.Between(5, 60)) : 0;
      if (rng.Chance(50) || config.memory.fail_every + config.memory.fail_percent == 0) {
        config.memory.capacity = rng.Between(config.limit / 4, config.limit);
        // Then the first request shrinks from far above the capacity: its sizes tell a 32-bit
        // float's 0.9 from a 64-bit one's.
        if (rng.Chance(50)) config.limit = rng.Between(4 * kGiB, 1024 * kGiB);
      }
      break;
    case Family::kGenerous: {
      // Regions are powers of two with growth, so these are not. A pool above its limit is where
      // deviation 2 begins: leave room for some regions before that.
      static constexpr uint64_t kGranules[] = {12 * kKiB, 192 * kKiB, 3 * kMiB, 7 * kMiB};
      config.growth = true;
      config.memory.granule = rng.Pick(kGranules);
      config.limit = std::max(config.limit, 16 * kMiB + 8 * config.memory.granule);
      break;
    }
    case Family::kCoalescing:
      config.coalescing = true;
      config.memory = RandomMemory(rng, rng.Chance(85));
      break;
    case Family::kPlacement: config.memory = RandomMemory(rng, rng.Chance(50)); break;
    case Family::kOneStream: config.one_stream = true; break;
    case Family::kTimestamps:
      config.timestamps = true;
      config.coalescing = rng.Chance(30);
      config.memory = RandomMemory(rng, config.coalescing);
      break;
    default: break;
  }
  return config;
}

// What sizes a program asks for: a weighted mix, so that some programs are all of one kind.
class Sizes {
 public:
  Sizes(Rng &rng, const Config &config) : scale_(std::min(config.limit, config.memory.capacity)) {
    for (unsigned &weight : weights_) weight = rng.Chance(45) ? unsigned(rng.Between(1, 10)) : 0;
    weights_[rng.Below(kKinds - 1)] += 10;
    weights_[kHuge] = rng.Chance(50) ? 1 : 0;
    equal_ = LogUniform(rng, scale_ / 16);
    // A failing sub-allocator hangs TensorFlow where the request rounds to 2304 or less (deviation
    // 11), so most such programs ask for more.
    if (config.family == Family::kFailing && rng.Chance(70)) least_ = 2305;
    // Equal sizes take whole stamped chunks: the only way to go far past the frontier without
    // splitting one, which is where deviation 5 ends a program.
    if (config.timestamps && rng.Chance(40)) {
      std::fill(weights_, weights_ + kKinds, 0u);
      weights_[kEqual] = 1;
    }
  }

  uint64_t Next(Rng &rng) {
    unsigned total = 0;
    for (unsigned weight : weights_) total += weight;
    uint64_t pick = rng.Below(total);
    int kind = 0;
    while (pick >= weights_[kind]) pick -= weights_[kind++];
    return std::max(least_, OfKind(kind, rng));
  }

 private:
  enum { kOdd, kPower, kTensor, kEqual, kUniform, kLog, kHuge, kKinds };

  static uint64_t LogUniform(Rng &rng, uint64_t high) {
    return static_cast<uint64_t>(std::exp2(rng.Unit() * std::log2(double(std::max<uint64_t>(high, 2)))));
  }

  uint64_t OfKind(int kind, Rng &rng) {
    switch (kind) {
      case kOdd: {
        static constexpr uint64_t kSizes[] = {1, 2, 100, 255, 256, 257, 511, 512, 513, 767, 769, 1023, 1024, 1025};
        return rng.Pick(kSizes);
      }
      case kPower: {
        const uint64_t highest = static_cast<uint64_t>(std::log2(double(scale_ / 4)));
        return (uint64_t{1} << rng.Between(1, highest)) - 1 + rng.Below(3);
      }
      case kTensor: {
        static constexpr uint64_t kDims[] = {1,   2,   3,    7,    8,    12,   16,   24,    32,
                                             49,  64,  77,   128,  196,  197,  224,  256,   384,
                                             512, 768, 1000, 1024, 2048, 3072, 4096, 30522, 50257};
        static constexpr uint64_t kElements[] = {1, 2, 4, 8};
        uint64_t bytes = rng.Pick(kElements);
        for (uint64_t dims = rng.Between(1, 4); dims > 0; --dims) {
          const uint64_t next = bytes * rng.Pick(kDims);
          if (next <= scale_ / 4) bytes = next;
        }
        return bytes;
      }
      case kEqual: return equal_;
      case kUniform: return rng.Between(1, std::max<uint64_t>(scale_ / 24, 2));
      case kLog: return LogUniform(rng, scale_ / 4);
      default: {
        const uint64_t kSizes[] = {scale_ / 3, scale_ / 2, scale_ / 2 + 1, scale_ - 256,
                                   scale_,     scale_ + 1, scale_ * 2,     uint64_t{1} << 45};
        return rng.Pick(kSizes);
      }
    }
  }

  const uint64_t scale_;
  unsigned weights_[kKinds];
  uint64_t equal_;
  uint64_t least_ = 1;
};

// Draws the steps. The writer cannot know which allocations will succeed; a free of one that failed
// does nothing when the program runs.
class StepWriter {
 public:
  explicit StepWriter(Program *program, Rng &rng)
      : program_(*program),
        rng_(rng),
        sizes_(rng, program->config),
        scale_(std::min(program->config.limit, program->config.memory.capacity)),
        caution_(static_cast<unsigned>(rng.Chance(30) ? 100 : rng.Below(101))),
        move_frontier_(static_cast<unsigned>(rng.Chance(50) ? 50 : rng.Below(10))),
        pipeline_(program->config.timestamps && rng.Chance(40)),
        depth_(RandomLag()) {}

  void Write() {
    if (program_.config.timestamps && rng_.Chance(30)) return FillFreeAsk();
    const size_t length = rng_.Between(100, rng_.Chance(20) ? 4000 : 1500);
    while (program_.steps.size() < length) {
      if (phase_left_-- == 0) NextPhase();
      One();
    }
    // Half the programs end empty, so that everything must have merged again.
    if (rng_.Chance(50)) {
      while (!live_.empty()) Free();
      if (program_.config.timestamps) Frontier(0);
      Alloc();
    }
  }

 private:
  struct Live {
    uint32_t id;
    uint64_t bytes;
  };

  // The forced merge is reached only where nothing fits and no stamped chunk was split before: a full
  // pool, frees in any order, and a request larger than what was freed at any one time.
  void FillFreeAsk() {
    order_ = 2;
    const bool equal = rng_.Chance(25);  // then what is asked for in the end may fit exactly
    const uint64_t typical = scale_ / rng_.Between(8, 200) / 256 * 256 + 256;
    while (bytes_ < scale_) Ask(Step::kAlloc, equal ? typical : rng_.Between(typical / 4 + 1, typical));
    for (uint64_t bytes = typical; bytes > 0; bytes /= 2) Ask(Step::kAlloc, bytes);  // the last holes
    const bool take_again = rng_.Chance(30);
    for (uint64_t frees = live_.size() * rng_.Between(30, 95) / 100; frees > 0; --frees) {
      const uint64_t freed = Free();
      // The same chunk again: TensorFlow's queue then has it twice, in another order.
      if (!take_again || !rng_.Chance(10)) continue;
      Ask(Step::kAlloc, freed);
      Free(live_.size() - 1);
    }
    if (rng_.Chance(30)) Frontier(static_cast<uint32_t>(rng_.Below(live_.size() + 1)));
    Ask(Step::kAlloc, equal ? typical * rng_.Between(2, 5) : typical + rng_.Below(5 * typical));
  }

  // The pool fills and drains in waves, above the limit too: failing is half of what there is to test.
  void NextPhase() {
    static constexpr double kTargets[] = {0, 0.1, 0.4, 0.7, 0.9, 1.0, 1.3};
    phase_left_ = rng_.Between(20, 200);
    target_bytes_ = static_cast<uint64_t>(rng_.Pick(kTargets) * static_cast<double>(scale_));
    target_count_ = rng_.Between(4, 500);
    order_ = static_cast<unsigned>(rng_.Below(4));
  }

  void One() {
    if (rng_.Below(1000) < 4) return Add(Step::kClearStats);
    if (rng_.Below(1000) < 4) return Add(Step::kFreeNull);
    if (!live_.empty() && rng_.Chance(4)) {
      Add(Step::kQuery);
      program_.steps.back().id = live_[rng_.Below(live_.size())].id;
      return;
    }
    if (program_.config.timestamps && rng_.Chance(move_frontier_ / 4)) return Frontier(RandomLag());
    const bool full = bytes_ >= target_bytes_ || live_.size() >= target_count_;
    if (!live_.empty() && rng_.Chance(full ? 75 : 25)) {
      Free();
    } else {
      Alloc();
    }
  }

  void Add(Step::Kind kind) {
    Step step;
    step.kind = kind;
    step.entry = static_cast<uint8_t>(rng_.Below(4));
    program_.steps.push_back(step);
  }
  uint32_t RandomLag() { return rng_.Chance(60) ? 0 : static_cast<uint32_t>(rng_.Below(rng_.Chance(50) ? 4 : 40)); }
  void Frontier(uint32_t lag) {
    Add(Step::kFrontier);
    program_.steps.back().lag = lag;
  }

  void Alloc() {
    Step::Kind kind = Step::kAlloc;
    if (program_.config.timestamps) {
      // A plain request among unsafe chunks soon splits one; careful programs make all of them safe
      // first, or ask for safe chunks only.
      if (rng_.Chance(caution_)) {
        if (rng_.Chance(move_frontier_)) {
          Frontier(0);
        } else {
          kind = Step::kAllocSafe;
        }
      } else if (rng_.Chance(40)) {
        kind = Step::kAllocFreedBefore;
      }
    }
    Ask(kind, rng_.Below(1000) < 4 ? 0 : sizes_.Next(rng_));
  }
  void Ask(Step::Kind kind, uint64_t bytes) {
    Add(kind);
    Step &step = program_.steps.back();
    step.id = ++last_id_;
    step.bytes = bytes;
    step.lag = kind == Step::kAlloc ? 0 : RandomLag();
    live_.push_back({step.id, bytes});
    bytes_ += bytes;
  }

  uint64_t Free() {
    if (order_ == 0) return Free(live_.size() - 1);
    return Free(order_ == 1 ? 0 : rng_.Below(live_.size()));
  }
  uint64_t Free(size_t at) {
    const Live live = live_[at];
    Add(Step::kFree);
    program_.steps.back().id = live.id;
    bytes_ -= live.bytes;
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(at));
    if (pipeline_) Frontier(depth_);
    return live.bytes;
  }

  Program &program_;
  Rng &rng_;
  Sizes sizes_;
  const uint64_t scale_;
  const unsigned caution_;        // percent of requests that never meet an unsafe chunk
  const unsigned move_frontier_;  // and of those that move the frontier for it
  const bool pipeline_;           // the frontier follows every free at a distance:
  const uint32_t depth_;
  std::vector<Live> live_;
  uint32_t last_id_ = 0;
  uint64_t bytes_ = 0;
  uint64_t target_bytes_ = 0;
  uint64_t target_count_ = 0;
  uint64_t phase_left_ = 0;
  unsigned order_ = 0;
};

}  // namespace

const char *FamilyName(Family family) {
  static const char *const kNames[] = {"fixed",      "growth",    "growth + gc", "fragmentation", "failing", "generous",
                                       "coalescing", "placement", "one stream",  "timestamps",    "?"};
  return kNames[static_cast<int>(family)];
}

std::string Describe(const Config &config) {
  const FakeMemoryOptions &memory = config.memory;
  char text[512];
  std::snprintf(text, sizeof text,
                "device %d, limit %llu%s%s%s%s%s, fragmentation_fraction %.17g; regions %s from 0x%llx, "
                "gap %llu, granule %llu, capacity %llu, fail every %u, fail %u%%, seed %llu",
                config.device, static_cast<unsigned long long>(config.limit), config.growth ? ", growth" : "",
                config.garbage_collection ? ", gc" : "", config.coalescing ? ", coalescing" : "",
                config.timestamps ? ", timestamps" : "", config.one_stream ? ", one stream" : "",
                config.fragmentation_fraction, PlacementName(memory.placement),
                static_cast<unsigned long long>(memory.base), static_cast<unsigned long long>(memory.gap),
                static_cast<unsigned long long>(memory.granule), static_cast<unsigned long long>(memory.capacity),
                memory.fail_every, memory.fail_percent, static_cast<unsigned long long>(memory.seed));
  return text;
}

Program MakeProgram(uint64_t seed) {
  Rng rng(seed);
  Program program;
  program.config = MakeConfig(seed, rng);
  StepWriter(&program, rng).Write();
  return program;
}
