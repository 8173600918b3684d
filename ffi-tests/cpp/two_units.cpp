// The header in two translation units of one program: nothing in it is defined twice.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include "../c/check.h"

bfc_options_t options_of_another_unit();

int main() {
  const bfc_options_t options = options_of_another_unit();
  CHECK(options.struct_size == sizeof(options) && options.flags == BFC_ALLOW_GROWTH);
  CHECK(bfc::version() == BFC_TESTS_PACKAGE_VERSION);
  return 0;
}
