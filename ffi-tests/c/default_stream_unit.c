// The functions of bfc.h with a stream of 0, for ffi-tests/cpp/default_streams.cpp.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include "../cpp/default_stream_unit.h"

#include "check.h"

static void *take_async(size_t bytes) {
  void *ptr = NULL;
  CHECK_OK(bfc_alloc_async(0, bytes, NULL, &ptr));
  return ptr;
}
static void give_async(void *ptr) { CHECK_OK(bfc_free_async(0, ptr, NULL)); }

static void *take_by_request(size_t bytes) {
  bfc_request_t request = BFC_REQUEST_INIT;
  void *ptr = NULL;
  request.bytes = bytes;
  request.flags = BFC_REQUEST_ON_STREAM;
  CHECK_OK(bfc_alloc_ex(0, &request, &ptr));
  return ptr;
}
// Frees on the stream of the allocation.
static void give_plainly(void *ptr) { CHECK_OK(bfc_free(0, ptr)); }

static void record(void *ptr) { CHECK_OK(bfc_record_stream(0, ptr, NULL)); }
static void forget(void) { CHECK_OK(bfc_forget_stream(0, NULL)); }
static void synchronized(void) { CHECK_OK(bfc_stream_synchronized(0, NULL)); }
static void begin_pool(unsigned long long name) { CHECK_OK(bfc_pool_begin(0, name, NULL)); }
static void end_pool(unsigned long long name) { CHECK_OK(bfc_pool_end(0, name, NULL)); }

const default_stream_unit UNIT = {{{"bfc_alloc_async", take_async, give_async},
                                   {"bfc_alloc_ex and bfc_free", take_by_request, give_plainly},
                                   {"bfc_alloc_ex and bfc_free_async", take_by_request, give_async},
                                   {NULL, NULL, NULL}},
                                  record,
                                  forget,
                                  synchronized,
                                  begin_pool,
                                  end_pool};
