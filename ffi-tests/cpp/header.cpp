// The C++ header alone, twice, with every warning an error, in every standard and without exceptions; also
// the C header, from C++. Compiled several times, and linked twice into one program by two_units.cpp.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>
#include <bfc.hpp>

#include <bfc.h>

static_assert(std::is_nothrow_move_constructible_v<bfc::pool> && std::is_nothrow_move_assignable_v<bfc::pool>);
static_assert(!std::is_copy_constructible_v<bfc::pool> && !std::is_copy_assignable_v<bfc::pool>);
static_assert(std::is_nothrow_move_constructible_v<bfc::allocation>);
static_assert(std::is_nothrow_move_assignable_v<bfc::allocation>);
static_assert(!std::is_copy_constructible_v<bfc::allocation> && !std::is_copy_assignable_v<bfc::allocation>);
static_assert(!std::is_copy_constructible_v<bfc::scope> && !std::is_move_constructible_v<bfc::scope>);
static_assert(!std::is_copy_constructible_v<bfc::private_pool_scope>);
static_assert(!std::is_move_constructible_v<bfc::private_pool_scope>);
static_assert(std::is_nothrow_move_constructible_v<bfc::private_pool>);
static_assert(std::is_nothrow_move_assignable_v<bfc::private_pool>);
static_assert(!std::is_copy_constructible_v<bfc::private_pool> && !std::is_copy_assignable_v<bfc::private_pool>);
static_assert(std::is_trivially_copyable_v<bfc::device> && sizeof(bfc::device) == sizeof(std::int32_t));
static_assert(std::is_error_code_enum_v<bfc::errc>);
// An ordinal is not by chance a device.
static_assert(!std::is_convertible_v<int, bfc::device> && std::is_convertible_v<bfc::pool &, bfc::device>);

#if BFC_HAS_EXCEPTIONS
static_assert(std::is_base_of_v<bfc::error, bfc::out_of_memory>);
static_assert(std::is_base_of_v<std::bad_alloc, bfc::out_of_memory>);
static_assert(std::is_base_of_v<bfc::error, bfc::status_error>);
static_assert(std::is_base_of_v<std::system_error, bfc::status_error>);
static_assert(std::is_nothrow_copy_constructible_v<bfc::out_of_memory>);
static_assert(std::is_nothrow_copy_constructible_v<bfc::status_error>);
#endif

// In C++, too, the initializers are clean, and a flag can be taken out of a mask.
bfc_options_t options_of_another_unit();
bfc_options_t options_of_another_unit() {
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.flags = BFC_ALLOW_GROWTH | BFC_TIMESTAMPS;
  options.flags &= ~BFC_TIMESTAMPS;
  return options;
}
