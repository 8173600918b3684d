/* libbfc for C++17: bfc.h with ownership, streams, exceptions or error codes, and std::pmr. Header-only.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 *     // Device 0, by CUDA. Without a GPU: bfc::host_device, and no streams.
 *     bfc::pool pool(0, bfc::options::recommended().memory_limit(1u << 30));
 *     bfc::allocation weights(pool, 4096);                  // freed at the end of the block
 *     bfc::allocation activations(pool, 4096, stream);      // allocated and freed in the order of a stream
 *     activations.record_stream(other);                     // also used on another stream
 *     void *scratch = pool.allocate_async(100, stream);     // pool.deallocate_async(scratch, stream)
 *     auto values = bfc::make_unique_for_overwrite<float[]>(pool, 1000, stream);
 *     bfc::private_pool graph_memory(pool, 1);              // for what a captured graph uses
 *
 * | header             | contents                                                                         |
 * |--------------------|----------------------------------------------------------------------------------|
 * | bfc/error.hpp      | errc, category, error, out_of_memory, status_error, result, last_error, version  |
 * | bfc/options.hpp    | backend, growth_policy, options                                                  |
 * | bfc/stream.hpp     | stream_ref, default_stream, legacy_stream, per_thread_stream, request            |
 * | bfc/device.hpp     | device: all operations of an allocator, which is not owned                       |
 * | bfc/pool.hpp       | pool: an allocator, owned; scope                                                 |
 * | bfc/allocation.hpp | allocation: memory, owned                                                        |
 * | bfc/unique_ptr.hpp | unique_ptr, deleter, make_unique, make_unique_for_overwrite                      |
 * | bfc/graph.hpp      | private_pool, private_pool_scope, capture_scope                                  |
 * | bfc/log.hpp        | log_level, set_log_callback                                                      |
 * | bfc/metrics.hpp    | metrics: the statistics of all allocators as OpenMetrics text                    |
 * | bfc/pmr.hpp        | memory_resource                                                                  |
 *
 * Errors. Every operation has up to three forms:
 * - With a std::error_code& as its last argument it is noexcept and reports there. On failure it returns null, 0 or
 *   an empty object. The category is bfc::category() and the values are bfc::errc. Conditions of the standard, such
 *   as `ec == std::errc::not_enough_memory`, work too.
 * - Without one it throws. These forms, make_unique and memory_resource do not exist if exceptions are disabled
 *   (-fno-exceptions).
 * - With the prefix try_ it is noexcept and returns bfc::result<T>, which is std::expected<T, std::error_code>. These
 *   forms exist where the standard library has std::expected (C++23).
 * In all forms bfc::last_error() has the message, until the next failure of the same thread.
 *
 * Exceptions are caught as `const bfc::error &` (code() and what(), which has the message), or by the standard's
 * types: running out of device or host memory is bfc::out_of_memory, a std::bad_alloc, and everything else is
 * bfc::status_error, a std::system_error. bfc::error itself does not derive from std::exception, because
 * out_of_memory would then have two of them and `catch (const std::exception &)` would catch neither.
 *
 * After a failure nothing has changed (the strong guarantee): live allocations and their contents are untouched, and
 * objects of this interface own what they owned before. Constructors that throw leave nothing behind.
 *
 * Threads: the operations of a device may be called from any thread at any time. Objects that own something (pool,
 * allocation, unique_ptr, private_pool, private_pool_scope) and options are like standard containers: no two threads
 * may use the same object if one of them changes it.
 *
 * Sizes are in bytes. Pointers are addresses of the backend's memory: the CPU must not access those of a device with
 * its own memory. memory_resource and make_unique are not for such devices.
 */

#ifndef BFC_HPP
#define BFC_HPP

#include "bfc/error.hpp"

#include "bfc/allocation.hpp"
#include "bfc/device.hpp"
#include "bfc/graph.hpp"
#include "bfc/history.hpp"
#include "bfc/log.hpp"
#include "bfc/metrics.hpp"
#include "bfc/options.hpp"
#include "bfc/pmr.hpp"
#include "bfc/pool.hpp"
#include "bfc/stream.hpp"
#include "bfc/unique_ptr.hpp"

/* What this header included before it was split, for programs that rely on it. */
#include <limits>
#include <memory>
#include <memory_resource>
#include <optional>

#endif  // BFC_HPP
