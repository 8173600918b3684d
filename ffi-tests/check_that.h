// A check for programs among a framework's headers, which have a CHECK of their own.

#ifndef BFC_TESTS_CHECK_THAT_H
#define BFC_TESTS_CHECK_THAT_H

#include <cstdio>
#include <cstdlib>

#define CHECK_THAT(condition)                                                      \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (false)

#endif  // BFC_TESTS_CHECK_THAT_H
