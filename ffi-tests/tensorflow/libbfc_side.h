// libbfc through its C ABI: a device over a FakeMemory, destroyed with the object.
#pragma once

#include <bfc.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "fake_memory.h"

inline std::string BfcLastError() {
  char text[512] = "";
  bfc_last_error(text, sizeof text);
  return text;
}

// A number in the memory map: "name": 123. Missing is an error of its own.
inline std::optional<uint64_t> CounterIn(const std::string &map, const std::string &name) {
  size_t at = map.find("\"" + name + "\"");
  if (at == std::string::npos) return std::nullopt;
  at = map.find_first_of("0123456789", at + name.size() + 2);
  if (at == std::string::npos) return std::nullopt;
  return std::stoull(map.substr(at, 20));
}

// For calls that have no reason to fail: without them nothing below means anything.
inline void BfcMust(bfc_status_t status, const char *what) {
  if (status == BFC_OK) return;
  std::fprintf(stderr, "%s: %s (%s)\n", what, bfc_status_string(status), BfcLastError().c_str());
  std::exit(2);
}

// Fields left 0 are filled from BFC_... variables: a stray one would compare two different
// configurations.
inline void DropBfcEnvironment() {
  std::vector<std::string> names;
  for (char **entry = environ; *entry != nullptr; ++entry) {
    if (std::strncmp(*entry, "BFC_", 4) == 0 && std::strncmp(*entry, "BFC_LOG", 7) != 0) {
      names.emplace_back(*entry, std::strcspn(*entry, "="));
    }
  }
  for (const std::string &name : names) unsetenv(name.c_str());
}

class BfcDevice {
 public:
  // `options` says limit, flags and fractions; backend and sub-allocator are set here. With
  // `memory` NULL the backend stays as it is.
  BfcDevice(int32_t ordinal, bfc_options_t options, FakeMemory *memory, bool coalescing) : ordinal_(ordinal) {
    bfc_suballocator_t sub;
    std::memset(&sub, 0, sizeof sub);
    if (memory != nullptr) {
      sub.struct_size = sizeof sub;
      sub.user_data = memory;
      sub.alloc = [](void *user, size_t, size_t bytes, size_t *received) {
        return static_cast<FakeMemory *>(user)->Alloc(bytes, received);
      };
      sub.free = [](void *user, void *ptr, size_t bytes) { static_cast<FakeMemory *>(user)->Free(ptr, bytes); };
      sub.supports_coalescing = coalescing ? 1 : 0;
      options.backend = BFC_BACKEND_CUSTOM;
      options.suballocator = &sub;
    }
    BfcMust(bfc_create(ordinal, &options), "bfc_create");
  }
  ~BfcDevice() { Destroy(); }
  BfcDevice(const BfcDevice &) = delete;
  BfcDevice &operator=(const BfcDevice &) = delete;

  void Destroy() {
    if (alive_) BfcMust(bfc_destroy_forced(ordinal_), "bfc_destroy_forced");
    alive_ = false;
  }
  int32_t ordinal() const { return ordinal_; }

  bfc_stats_t Stats() const {
    bfc_stats_t stats = BFC_STATS_INIT;
    BfcMust(bfc_stats(ordinal_, &stats), "bfc_stats");
    return stats;
  }

  std::string MemoryMap() const {
    size_t length = 0;
    BfcMust(bfc_memory_map(ordinal_, nullptr, 0, &length), "bfc_memory_map");
    std::string text(length + 1, '\0');
    BfcMust(bfc_memory_map(ordinal_, &text[0], text.size(), &length), "bfc_memory_map");
    text.resize(length);
    return text;
  }

 private:
  const int32_t ordinal_;
  bool alive_ = true;
};
