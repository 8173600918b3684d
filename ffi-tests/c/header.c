/* The C header alone, twice, with every warning an error: it needs nothing before it and nothing beside it.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include <bfc.h>
#include <bfc.h>

/* The initializers are clean under -Wextra (missing fields), also where they are static. */
static const bfc_options_t options = BFC_OPTIONS_INIT;
static const bfc_options_t recommended = BFC_OPTIONS_RECOMMENDED;
static const bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
static const bfc_request_t request = BFC_REQUEST_INIT;

/* A flag can be taken out of a mask: under -Wconversion that needs unsigned constants. */
static uint32_t without_growth(uint32_t flags) { return flags & ~BFC_ALLOW_GROWTH; }

int main(void) {
  bfc_stats_t stats = BFC_STATS_INIT;
  if (options.struct_size != sizeof(options) || recommended.struct_size != sizeof(options)) return 1;
  if (suballocator.struct_size != sizeof(suballocator)) return 1;
  if (request.struct_size != sizeof(request) || stats.struct_size != sizeof(stats)) return 1;
  if (options.name != NULL || suballocator.alloc != NULL || request.bytes != 0 || stats.metadata_bytes != 0) return 1;
  return without_growth(BFC_ALLOW_GROWTH | BFC_TIMESTAMPS) == BFC_TIMESTAMPS && bfc_version() != NULL ? 0 : 1;
}
