/* What the parts of bfc-gpu share.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BFC_GPU_H
#define BFC_GPU_H

#include "driver.h"

#include <bfc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICE = 0, KIB = 1 << 10, MIB = 1 << 20 };

/* Ends the test: it failed. */
void failed(const char *file, int line, const char *what, const char *how);
/* Ends the test: something that it needs is not here. */
void skip(const char *why);

#define CHECK(condition)                                                  \
  do {                                                                    \
    if (!(condition)) failed(__FILE__, __LINE__, #condition, "is false"); \
  } while (0)

/* A call of the driver that must work. */
#define CU(call)                                                          \
  do {                                                                    \
    const int code_ = cuda.call;                                          \
    if (code_ != 0) failed(__FILE__, __LINE__, #call, error_name(code_)); \
  } while (0)

/* A call of the library that must return that. */
#define IS(call, expected)                                                            \
  do {                                                                                \
    const bfc_status_t is_ = (call);                                                  \
    if (is_ != (expected)) failed(__FILE__, __LINE__, #call, bfc_status_string(is_)); \
  } while (0)
#define OK(call) IS(call, BFC_OK)

/* An allocator on device 0; skips the test if this version has no such backend. */
void create(uint32_t backend, uint64_t limit);
/* The same, which returns BFC_ERROR_BACKEND_UNAVAILABLE. */
bfc_status_t try_create(uint32_t backend, uint64_t limit);
bfc_stats_t stats(void);
address_t get(size_t bytes);
address_t get_on(size_t bytes, handle_t stream);

/* Kernels: `load_kernels` comes first. The number of words that `expect` found wrong, once everything has run. */
void load_kernels(void);
void fill(handle_t stream, address_t at, size_t words, uint32_t value);
void delay(handle_t stream, uint64_t nanoseconds);
void expect(handle_t stream, address_t at, size_t words, uint32_t value);
uint32_t wrong_words(void);

/* The tests. */
void basics_cuda(void);
void basics_vmm(void);
void moving_vmm(void);
void reuse_two_streams(void);
void reuse_two_streams_vmm(void);
void reuse_four_streams(void);
void reuse_four_streams_vmm(void);
void recorded_streams(void);
void recorded_streams_vmm(void);
void the_race_is_seen(void);
void the_race_is_seen_vmm(void);
void captured_graph(void);
void captured_graph_vmm(void);
void ipc(void);
void reset_cuda(void);
void reset_vmm(void);
int ipc_other(int argc, char **argv);
int costs(void);

#endif
