/* SPDX-License-Identifier: Apache-2.0 OR MIT */

#ifndef BFC_TESTS_STACK_CALLS_H
#define BFC_TESTS_STACK_CALLS_H

#include <bfc.h>

/* An allocator, and what happens to it. */
struct pool_kind {
  const char *name;
  uint32_t backend;
  int32_t device;
  /* Whether the pool is the simulated driver's, and which call of that fails with which code; 0: none. */
  int driver;
  uint64_t fail_nth;
  int fail_code;
  /* Whether log messages go to a callback. */
  int callback;
  /* BFC_LOG, BFC_DEBUG and so on: NAME=VALUE, or NULL. */
  const char *variables[3];
  /* No call has to come to a certain end. */
  int anything_goes;
  /* How many other threads have used the library before and still live: what it keeps for the first ones needs no host
   * memory. */
  int threads;
};

/* Calls every function, each where it succeeds and where it fails. */
void exercise(const struct pool_kind *kind);

#endif
