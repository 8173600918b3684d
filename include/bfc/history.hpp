/* The history: the last events of all allocators. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_HISTORY_HPP
#define BFC_HISTORY_HPP

#include "error.hpp"

#include <cstdint>
#include <string>

namespace bfc {

/* Starts recording the history of all allocators of the process into a new file: bfc_history_start. Without a path it
 * records into memory. `events` is how many of the last events are kept; 0 stands for 262,144. */
inline void start_history(const char *path, std::uint64_t events, std::error_code &ec) noexcept {
  detail::set(ec, bfc_history_start(path, events));
}
/* Starts recording with backtraces: bfc_history_start_with_stacks. `stacks` is BFC_STACKS_NATIVE, BFC_STACKS_PYTHON, or
 * both. */
inline void start_history(const char *path, std::uint64_t events, std::uint32_t stacks, std::error_code &ec) noexcept {
  detail::set(ec, bfc_history_start_with_stacks(path, events, stacks));
}
/* Stops recording. A history in memory is gone. */
inline void stop_history(std::error_code &ec) noexcept { detail::set(ec, bfc_history_stop()); }
/* Writes a copy of the history so far to a new file. */
inline void save_history(const char *path, std::error_code &ec) noexcept { detail::set(ec, bfc_history_save(path)); }
/* Marks this moment in the history. */
inline void mark_history(const char *name, std::error_code &ec) noexcept { detail::set(ec, bfc_history_mark(name)); }

#if BFC_HAS_EXCEPTIONS
inline void start_history(const char *path, std::uint64_t events = 0) {
  detail::must("bfc_history_start", [&](auto &ec) { start_history(path, events, ec); });
}
inline void start_history(const char *path, std::uint64_t events, std::uint32_t stacks) {
  detail::must("bfc_history_start_with_stacks", [&](auto &ec) { start_history(path, events, stacks, ec); });
}
inline void stop_history() {
  detail::must("bfc_history_stop", [&](auto &ec) { stop_history(ec); });
}
inline void save_history(const char *path) {
  detail::must("bfc_history_save", [&](auto &ec) { save_history(path, ec); });
}
inline void mark_history(const char *name) {
  detail::must("bfc_history_mark", [&](auto &ec) { mark_history(name, ec); });
}

/* Records the history while it lives. */
class history {
 public:
  explicit history(const std::string &path, std::uint64_t events = 0) { start_history(path.c_str(), events); }
  history(const std::string &path, std::uint64_t events, std::uint32_t stacks) {
    start_history(path.c_str(), events, stacks);
  }
  /* Records into memory. save() writes it to a file. */
  explicit history(std::uint64_t events = 0) { start_history(nullptr, events); }
  history(const history &) = delete;
  history &operator=(const history &) = delete;
  ~history() {
    std::error_code ignored;
    stop_history(ignored);
  }

  void save(const std::string &path) const { save_history(path.c_str()); }
  void mark(const std::string &name) const { mark_history(name.c_str()); }
};
#endif  // BFC_HAS_EXCEPTIONS

}  // namespace bfc

#endif  // BFC_HISTORY_HPP
