/* Streams whose work is done when a test says so, and work that finds out who writes where it should not. */
#ifndef BFC_BEHAVIOUR_HELD_H
#define BFC_BEHAVIOUR_HELD_H

#include "test.h"

UNUSED static cudaStream_t held_stream(void) {
  cudaStream_t stream = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(simcuda_hold(stream));
  return stream;
}

/* Work that fills memory and then expects to find it so. */
UNUSED static void use(cudaStream_t stream, const char *memory, size_t bytes, uint64_t pattern) {
  OK(simcuda_fill(stream, (uint64_t)memory, bytes, pattern));
  OK(simcuda_expect(stream, (uint64_t)memory, bytes, pattern));
}

/* The same by another stream that is not held: it is done before this returns. */
static __thread cudaStream_t at_once;

UNUSED static void use_at_once(char *memory, size_t bytes, uint64_t pattern) {
  if (!at_once) OK(cudaStreamCreateWithFlags(&at_once, cudaStreamNonBlocking));
  use(at_once, memory, bytes, pattern);
}

#endif
