/* A plugin with the static library inside. When it is unloaded, its own destructors run after those of the library, and
 * one of them makes a call that fails.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include <bfc.h>

#include <cstdlib>

namespace {

/* On a device without an allocator. */
bfc_status_t fail() {
  static int anything;
  return bfc_free(5, &anything);
}

struct fails_at_the_end {
  ~fails_at_the_end() {
    if (fail() != BFC_ERROR_NO_ALLOCATOR) std::abort();
  }
} at_the_end;

}  // namespace

extern "C" bfc_status_t plugin_call(void) { return fail(); }
