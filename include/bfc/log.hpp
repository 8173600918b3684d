/* The library's log messages. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_LOG_HPP
#define BFC_LOG_HPP

#include "error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

namespace bfc {

/* Levels of messages: BFC_LOG_... */
enum class log_level : std::int32_t {
  error = BFC_LOG_ERROR, /* a failure that the caller may not have noticed */
  warn = BFC_LOG_WARN,   /* something was ignored, or failed without failing the call */
  info = BFC_LOG_INFO,   /* creation, destruction, regions */
  debug = BFC_LOG_DEBUG  /* attempts to grow for which the backend provided no memory */
};

namespace detail {

/* The bfc_log_callback_t of an object. */
template <class Listener>
void log(void *listener, std::int32_t level, const char *message) noexcept {
  (*static_cast<Listener *>(listener))(static_cast<log_level>(level), std::string_view(message));
}

}  // namespace detail

/* Sends the library's messages to a function instead of the standard error stream, for the whole process. Null undoes
 * this. The function receives warnings and errors, unless BFC_LOG sets another level. It is called from any thread;
 * bfc_log_callback_t says what it may call. It must not throw. `user_data` must stay valid until another callback is
 * set and other threads have returned from calls that were in progress then. */
inline void set_log_callback(bfc_log_callback_t callback, void *user_data, std::error_code &ec) noexcept {
  detail::set(ec, bfc_set_log_callback(callback, user_data));
}
inline void set_log_callback(std::nullptr_t, std::error_code &ec) noexcept { set_log_callback(nullptr, nullptr, ec); }
/* Sends the messages to an object that is called as listener(log_level, std::string_view) and is noexcept. It is not
 * copied, and must live as long as `user_data` above. */
template <class Listener>
void set_log_callback(Listener &listener, std::error_code &ec) noexcept {
  static_assert(std::is_nothrow_invocable_v<Listener &, log_level, std::string_view>,
                "the listener takes (bfc::log_level, std::string_view) and is noexcept");
  const void *const address = std::addressof(listener);
  set_log_callback(&detail::log<Listener>, const_cast<void *>(address), ec);
}

#if BFC_HAS_EXCEPTIONS
inline void set_log_callback(bfc_log_callback_t callback, void *user_data) {
  detail::must("bfc_set_log_callback", [&](auto &ec) { set_log_callback(callback, user_data, ec); });
}
inline void set_log_callback(std::nullptr_t) { set_log_callback(nullptr, nullptr); }
template <class Listener>
void set_log_callback(Listener &listener) {
  detail::must("bfc_set_log_callback", [&](auto &ec) { set_log_callback(listener, ec); });
}
#endif

#if BFC_HAS_EXPECTED
inline result<void> try_set_log_callback(bfc_log_callback_t callback, void *user_data) noexcept {
  return detail::attempt([&](auto &ec) { set_log_callback(callback, user_data, ec); });
}
inline result<void> try_set_log_callback(std::nullptr_t) noexcept { return try_set_log_callback(nullptr, nullptr); }
template <class Listener>
result<void> try_set_log_callback(Listener &listener) noexcept {
  return detail::attempt([&](auto &ec) { set_log_callback(listener, ec); });
}
#endif

}  // namespace bfc

#endif  // BFC_LOG_HPP
