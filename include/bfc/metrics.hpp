/* The metrics of all allocators. Part of bfc.hpp.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_METRICS_HPP
#define BFC_METRICS_HPP

#include "error.hpp"

#include <cstddef>
#include <string>

namespace bfc {

/* Returns the statistics of all allocators of the process as OpenMetrics text: bfc_metrics. */
inline std::string metrics(std::error_code &ec) noexcept {
  return detail::text(ec, [](char *buffer, std::size_t capacity, std::size_t *length) {
    return bfc_metrics(buffer, capacity, length);
  });
}
#if BFC_HAS_EXCEPTIONS
inline std::string metrics() {
  return detail::must("bfc_metrics", [](auto &ec) { return metrics(ec); });
}
#endif
#if BFC_HAS_EXPECTED
inline result<std::string> try_metrics() noexcept {
  return detail::attempt([](auto &ec) { return metrics(ec); });
}
#endif

}  // namespace bfc

#endif  // BFC_METRICS_HPP
