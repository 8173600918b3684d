/* A translation unit that names its default stream by 0. default_streams.cpp links each unit twice: compiled as
 * `nvcc --default-stream per-thread` compiles, and as every other compiler does.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BFC_TESTS_DEFAULT_STREAM_UNIT_H
#define BFC_TESTS_DEFAULT_STREAM_UNIT_H

#include <stddef.h>

/* Ways to allocate on stream 0 of device 0 and to free there. */
typedef struct default_stream_way {
  const char *name;
  void *(*take)(size_t bytes);
  void (*give)(void *ptr);
} default_stream_way;

/* What a unit does with its stream 0. */
typedef struct default_stream_unit {
  default_stream_way ways[6]; /* up to the first without a name */
  void (*record)(void *ptr);
  void (*forget)(void);
  void (*synchronized)(void);
  void (*begin_pool)(unsigned long long name);
  void (*end_pool)(unsigned long long name);
} default_stream_unit;

#ifdef __cplusplus
extern "C" {
#endif
extern const default_stream_unit c_legacy, c_per_thread;
#ifdef __cplusplus
}
extern const default_stream_unit cpp_legacy, cpp_per_thread;
#endif

#endif
