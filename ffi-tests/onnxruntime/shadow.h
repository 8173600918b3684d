/* What an allocator gave and has not got back: no two overlap, and the bytes stay what they were. Fed with a thousand
 * random sizes.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BFC_TESTS_SHADOW_H
#define BFC_TESTS_SHADOW_H

#include "../c/check.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <utility>

class Shadow {
 public:
  /* Whether the CPU may look into the memory. */
  explicit Shadow(bool is_readable) : is_readable_(is_readable) {}

  void took(void *ptr, std::size_t bytes) {
    char *const start = static_cast<char *>(ptr);
    CHECK(reinterpret_cast<std::uintptr_t>(ptr) % 256 == 0);
    const auto next = live_.lower_bound(start);
    CHECK(next == live_.end() || start + bytes <= next->first);
    if (next != live_.begin()) {
      const auto before = std::prev(next);
      CHECK(before->first + before->second <= start);
    }
    live_.emplace(start, bytes);
    if (is_readable_) std::memset(ptr, sign(start), bytes);
  }
  /* One of them with its size, to be given back. */
  std::pair<void *, std::size_t> pick(std::mt19937 &random) {
    auto one = live_.begin();
    std::advance(one, static_cast<long>(random() % live_.size()));
    char *const start = one->first;
    if (is_readable_) {
      for (std::size_t index = 0; index < one->second; index += 61) CHECK(start[index] == sign(start));
    }
    const std::pair<void *, std::size_t> picked(start, one->second);
    live_.erase(one);
    return picked;
  }
  bool empty() const { return live_.empty(); }
  std::size_t size() const { return live_.size(); }

 private:
  static char sign(const char *start) { return static_cast<char>(reinterpret_cast<std::uintptr_t>(start) >> 8); }

  bool is_readable_;
  std::map<char *, std::size_t> live_;
};

/* Mostly small, seldom up to 4 MiB, sometimes 0. */
inline std::size_t random_size(std::mt19937 &random) {
  const auto bits = random() % 23;
  return random() % (std::size_t{1} << bits);
}

#endif
