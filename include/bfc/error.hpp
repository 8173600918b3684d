/* Errors of the C++ interface: error codes, exceptions and std::expected. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_ERROR_HPP
#define BFC_ERROR_HPP

#if !defined(_MSVC_LANG) && __cplusplus < 201703L
#error \
    "bfc.hpp needs C++17 or newer: compile with -std=c++17 (in CMake: target_compile_features(app PRIVATE cxx_std_17))"
#endif

#include "../bfc.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#if __has_include(<version>)
#include <version>
#endif

/* 1 unless exceptions are disabled (-fno-exceptions). */
#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define BFC_HAS_EXCEPTIONS 1
#else
#define BFC_HAS_EXCEPTIONS 0
#endif

/* 1 if the standard library has std::expected (C++23). */
#if defined(__cpp_lib_expected)
#define BFC_HAS_EXPECTED 1
#include <expected>
#else
#define BFC_HAS_EXPECTED 0
#endif

namespace bfc {

/* Why a call failed: the values of bfc_status_t, for std::error_code. */
enum class errc : int {
  invalid_argument = BFC_ERROR_INVALID_ARGUMENT,
  no_allocator = BFC_ERROR_NO_ALLOCATOR,
  already_exists = BFC_ERROR_ALREADY_EXISTS,
  out_of_memory = BFC_ERROR_OUT_OF_MEMORY,
  invalid_pointer = BFC_ERROR_INVALID_POINTER,
  double_free = BFC_ERROR_DOUBLE_FREE,
  busy = BFC_ERROR_BUSY,
  backend_unavailable = BFC_ERROR_BACKEND_UNAVAILABLE,
  backend_failed = BFC_ERROR_BACKEND_FAILED,
  unsupported = BFC_ERROR_UNSUPPORTED,
  shutting_down = BFC_ERROR_SHUTTING_DOWN,
  internal = BFC_ERROR_INTERNAL
};

namespace detail {

class status_category final : public std::error_category {
 public:
  const char *name() const noexcept override { return "bfc"; }
  std::string message(int status) const override { return bfc_status_string(status); }
  std::error_condition default_error_condition(int status) const noexcept override {
    switch (status) {
      case BFC_ERROR_INVALID_ARGUMENT: return std::errc::invalid_argument;
      case BFC_ERROR_OUT_OF_MEMORY: return std::errc::not_enough_memory;
      case BFC_ERROR_BUSY: return std::errc::device_or_resource_busy;
      case BFC_ERROR_UNSUPPORTED: return std::errc::not_supported;
      default: return {status, *this};
    }
  }
};

}  // namespace detail

/* The category of all error codes of this interface. Its messages are those of bfc_status_string. */
inline const std::error_category &category() noexcept {
  static const detail::status_category instance;
  return instance;
}

inline std::error_code make_error_code(errc value) noexcept { return {static_cast<int>(value), category()}; }

}  // namespace bfc

template <>
struct std::is_error_code_enum<bfc::errc> : std::true_type {};

namespace bfc {

#if BFC_HAS_EXCEPTIONS

/* The base class of every exception of this interface, in addition to a std::exception. */
class error {
 public:
  virtual ~error() = default;
  /* The status, in bfc::category(). */
  virtual const std::error_code &code() const noexcept = 0;
  /* The function that failed, and the message of bfc_last_error. */
  virtual const char *what() const noexcept = 0;

 protected:
  error() = default;
  error(const error &) = default;
  error &operator=(const error &) = default;
};

/* Any failure except out of memory. */
class status_error final : public std::system_error, public error {
 public:
  status_error(std::error_code code, const std::string &message) : std::system_error(code), message_(message) {}
  const std::error_code &code() const noexcept override { return std::system_error::code(); }
  const char *what() const noexcept override { return message_.what(); }

 private:
  /* std::system_error would repeat the status after the message. Unlike a string, copying this cannot fail. */
  std::runtime_error message_;
};

/* Device or host memory ran out. Allocates nothing. A message longer than its buffer of 512 bytes is truncated. */
class out_of_memory final : public std::bad_alloc, public error {
 public:
  explicit out_of_memory(const char *function) noexcept : code_(errc::out_of_memory) {
    std::string_view name(function);
    name = name.substr(0, sizeof(message_) / 2);
    const std::size_t length = name.copy(message_, name.size());
    message_[length] = ':';
    message_[length + 1] = ' ';
    bfc_last_error(message_ + length + 2, sizeof(message_) - length - 2);
  }
  const std::error_code &code() const noexcept override { return code_; }
  const char *what() const noexcept override { return message_; }

 private:
  std::error_code code_;
  char message_[512];
};

#endif  // BFC_HAS_EXCEPTIONS

#if BFC_HAS_EXPECTED
/* The result of the try_ functions: a value, or the reason why there is none. bfc::last_error() has the message until
 * the next failure of the same thread. */
template <class T>
using result = std::expected<T, std::error_code>;
#endif

/* Returns the message of this thread's last failure, or an empty string if nothing has failed. A success does not
 * change it. Throws std::bad_alloc if there is no host memory for the copy. */
inline std::string last_error() {
  std::string message(bfc_last_error(nullptr, 0) + 1, '\0');
  message.resize(std::min(bfc_last_error(message.data(), message.size()), message.size() - 1));
  return message;
}

/* Returns the version of the library that is loaded, "major.minor.patch". */
inline std::string_view version() noexcept { return bfc_version(); }

namespace detail {

/* An ordinal that every call refuses, for objects that own nothing. */
inline constexpr std::int32_t nowhere = -1;

inline bool set(std::error_code &ec, bfc_status_t status) noexcept {
  ec.assign(status, bfc::category());
  return status == BFC_OK;
}

/* The text of a report, of which `write(buffer, capacity, &length)` writes a part. The pool may change between the call
 * for the length and the call for the text. */
template <class Write>
std::string text(std::error_code &ec, Write write) noexcept {
  std::string buffer;
#if BFC_HAS_EXCEPTIONS
  try {
#endif
    std::size_t length = 0;
    while (set(ec, write(buffer.data(), buffer.size(), &length)) && length >= buffer.size()) {
      buffer.resize(length + length / 8 + 1);
    }
    buffer.resize(ec ? 0 : length);
#if BFC_HAS_EXCEPTIONS
  } catch (...) {
    buffer.clear();
    ec = errc::out_of_memory;
  }
#endif
  return buffer;
}

#if BFC_HAS_EXCEPTIONS

[[noreturn]] inline void raise(const char *function, std::error_code code) {
  if (code == errc::out_of_memory) { throw out_of_memory(function); }
  throw status_error(code, std::string(function) + ": " + last_error());
}

/* The throwing form of a call that takes an error code. */
template <class Call>
auto must(const char *function, Call call) {
  std::error_code ec;
  if constexpr (std::is_void_v<decltype(call(ec))>) {
    call(ec);
    if (ec) raise(function, ec);
  } else {
    auto result = call(ec);
    if (ec) raise(function, ec);
    return result;
  }
}

#endif  // BFC_HAS_EXCEPTIONS

#if BFC_HAS_EXPECTED

/* The form of such a call that returns std::expected. */
template <class Call>
auto attempt(Call call) noexcept -> result<decltype(call(std::declval<std::error_code &>()))> {
  std::error_code ec;
  if constexpr (std::is_void_v<decltype(call(ec))>) {
    call(ec);
    if (ec) return std::unexpected(ec);
    return {};
  } else {
    auto value = call(ec);
    if (ec) return std::unexpected(ec);
    return value;
  }
}

#endif  // BFC_HAS_EXPECTED

}  // namespace detail

}  // namespace bfc

#endif  // BFC_ERROR_HPP
