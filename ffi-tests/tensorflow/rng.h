// A small random generator of our own: a seed printed by one machine must give the same program on
// every other, which the distributions of <random> do not promise.
#pragma once

#include <cstddef>
#include <cstdint>

// SplitMix64's finaliser: also used alone, as a hash of (seed, counter).
inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(Mix(seed)) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15u;
    return Mix(state_);
  }
  // 0 <= result < bound. The bias of the modulus is far below what a test could notice.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  bool Chance(unsigned percent) { return Below(100) < percent; }
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }
  template <class T, size_t N>
  const T &Pick(const T (&items)[N]) {
    return items[Below(N)];
  }

 private:
  uint64_t state_;
};
