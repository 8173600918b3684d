/* What the programs beside it share: an expectation that fails is said and counted, and the program goes on. */
#ifndef SIMCUDA_TESTS_CHECK_H
#define SIMCUDA_TESTS_CHECK_H

#include <stdio.h>

static int failures;

#define IS(actual, expected)                                                                               \
  do {                                                                                                     \
    long long is_ = (long long)(actual), should_ = (long long)(expected);                                  \
    if (is_ != should_) {                                                                                  \
      fprintf(stderr, "line %d: %s is %lld, not %s (%lld)\n", __LINE__, #actual, is_, #expected, should_); \
      failures++;                                                                                          \
    }                                                                                                      \
  } while (0)

#endif
