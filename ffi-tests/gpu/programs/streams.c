/* The order of real streams: memory that is handed out again too early would be overwritten by the earlier work.
 * Each case runs on both backends of device memory: NAME on plain device memory, NAME_vmm on granules of one range.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "gpu.h"

enum { WORDS = 256 * KIB, BYTES = 4 * WORDS, GRANULE = 2 * MIB, ROUNDS = 400, NON_BLOCKING = 1, STREAMS = 4 };

#define ON_BOTH_BACKENDS(name)                     \
  void name(void) { name##_on(BFC_BACKEND_CUDA); } \
  void name##_vmm(void) { name##_on(BFC_BACKEND_CUDA_VMM); }

static handle_t new_stream(void) {
  handle_t stream = NULL;
  CU(cuStreamCreate(&stream, NON_BLOCKING));
  return stream;
}

static void end_stream(handle_t stream) {
  OK(bfc_forget_stream(DEVICE, stream));
  CU(cuStreamDestroy_v2(stream));
}

/* Fills memory 0.2 ms after the stream's earlier work, and checks it 0.1 ms later. */
static void use(handle_t stream, address_t at, uint32_t words, uint32_t value) {
  delay(stream, 200000);
  fill(stream, at, words, value);
  delay(stream, 100000);
  expect(stream, at, words, value);
}

/* Requests on one stream get chunks that another has freed while its work is pending. There are fewer chunks than streams,
 * so they are ordered after that work, by events; the pool's first request across streams waits for the device. */
static void reuse(uint32_t backend, int streams, int chunks) {
  handle_t stream[STREAMS], last[STREAMS] = {NULL};
  /* A limit is whole granules: where there are some, a chunk is one. */
  const size_t bytes = backend == BFC_BACKEND_CUDA_VMM ? GRANULE : BYTES;
  int round, at, reused = 0;
  address_t base = 0;
  for (at = 0; at < streams; at++) stream[at] = new_stream();
  create(backend, chunks * (uint64_t)bytes);
  for (round = 0; round < ROUNDS; round++) {
    handle_t on = stream[round % streams];
    const address_t address = get_on(bytes, on);
    if (round == 0) base = address;
    at = (int)((address - base) / bytes);
    CHECK(at >= 0 && at < chunks);
    reused += last[at] != NULL && last[at] != on;
    last[at] = on;
    use(on, address, (uint32_t)(bytes / 4), (uint32_t)round);
    OK(bfc_free_async(DEVICE, (void *)address, on));
  }
  CHECK(wrong_words() == 0);
  printf("  %d of %d chunks had been another stream's before\n", reused, ROUNDS);
  CHECK(reused > ROUNDS / 4);
  for (at = 0; at < streams; at++) end_stream(stream[at]);
  OK(bfc_check(DEVICE));
  OK(bfc_destroy(DEVICE));
}

static void reuse_two_streams_on(uint32_t backend) {
  load_kernels();
  reuse(backend, 2, 1);
}
ON_BOTH_BACKENDS(reuse_two_streams)

static void reuse_four_streams_on(uint32_t backend) {
  load_kernels();
  reuse(backend, 4, 3);
}
ON_BOTH_BACKENDS(reuse_four_streams)

/* Work queued on `stream` after this call runs after the work that is queued on `before`. */
static void wait_for(handle_t stream, handle_t before) {
  enum { NO_TIMING = 2 };
  handle_t event = NULL;
  CU(cuEventCreate(&event, NO_TIMING));
  CU(cuEventRecord(event, before));
  CU(cuStreamWaitEvent(stream, event, 0));
  CU(cuEventDestroy_v2(event));
}

/* A piece of memory that another stream has filled: its contents stay long after the free, and so does what is written
 * then. */
static void use_piece(handle_t stream, handle_t home, address_t at, uint32_t round, uint64_t nanoseconds) {
  wait_for(stream, home);
  delay(stream, nanoseconds);
  expect(stream, at, WORDS / STREAMS, round);
  fill(stream, at, WORDS / STREAMS, ~round);
  delay(stream, 100000);
  expect(stream, at, WORDS / STREAMS, ~round);
}

/* Allocated and freed on one stream, used on three. Home does nothing else for many rounds, so that it is far ahead of
 * the others: nothing but the records keeps it from filling a chunk again that they are at work on. One of the others is
 * slower than the rest, each in turn, so that every single record counts. */
static void recorded_streams_on(uint32_t backend) {
  enum { EACH = ROUNDS / 4 / STREAMS };
  handle_t stream[STREAMS];
  int round, at;
  load_kernels();
  for (at = 0; at < STREAMS; at++) stream[at] = new_stream();
  create(backend, 4 * (uint64_t)MIB);
  for (round = 0; round < STREAMS * EACH; round++) {
    handle_t home = stream[round / EACH], slow = stream[(round / EACH + 1) % STREAMS];
    const address_t address = get_on(BYTES, home);
    fill(home, address, WORDS, (uint32_t)round);
    for (at = 0; at < STREAMS; at++) {
      if (stream[at] == home) continue;
      use_piece(stream[at], home, address + (address_t)at * (BYTES / STREAMS), (uint32_t)round,
                stream[at] == slow ? 500000 : 100000);
      OK(bfc_record_stream(DEVICE, (void *)address, stream[at]));
    }
    OK(bfc_free_async(DEVICE, (void *)address, home));
  }
  CHECK(wrong_words() == 0);
  for (at = 0; at < STREAMS; at++) end_stream(stream[at]);
  OK(bfc_check(DEVICE));
  OK(bfc_destroy(DEVICE));
}
ON_BOTH_BACKENDS(recorded_streams)

/* The test of the tests: who vouches for work that is not done gets a race, and the data shows it. */
static void the_race_is_seen_on(uint32_t backend) {
  handle_t one, other;
  address_t first, second;
  load_kernels();
  one = new_stream();
  other = new_stream();
  create(backend, 2 * (uint64_t)MIB);
  first = get_on(2 * MIB, one);
  use(one, first, WORDS, 1);
  OK(bfc_free_async(DEVICE, (void *)first, one));
  OK(bfc_stream_synchronized(DEVICE, one)); /* which is a lie */
  second = get_on(2 * MIB, other);
  CHECK(first == second);
  use(other, second, WORDS, 2);
  CHECK(wrong_words() != 0);
  OK(bfc_free_async(DEVICE, (void *)second, other));
  OK(bfc_destroy(DEVICE));
}
ON_BOTH_BACKENDS(the_race_is_seen)

/* Memory of a captured graph stays its own through many launches, while others allocate and free. */
static void captured_graph_on(uint32_t backend) {
  enum { LAUNCHES = 200, GLOBAL = 0 };
  handle_t stream, other, graph = NULL, launchable = NULL;
  address_t first, second;
  int round;
  load_kernels();
  stream = new_stream();
  other = new_stream();
  create(backend, 64 * (uint64_t)MIB);
  OK(bfc_pool_begin(DEVICE, 1, stream));
  CU(cuStreamBeginCapture_v2(stream, GLOBAL));
  first = get_on(BYTES, stream);
  use(stream, first, WORDS, 11);
  OK(bfc_free_async(DEVICE, (void *)first, stream));
  second = get_on(2 * BYTES, stream);
  use(stream, second, WORDS, 12);
  OK(bfc_free_async(DEVICE, (void *)second, stream));
  CU(cuStreamEndCapture(stream, &graph));
  OK(bfc_pool_end(DEVICE, 1, stream));
  CU(cuGraphInstantiateWithFlags(&launchable, graph, 0));
  for (round = 0; round < LAUNCHES; round++) {
    uint64_t released;
    CU(cuGraphLaunch(launchable, stream));
    const address_t address = get_on((size_t)(1 + round % 5) * BYTES, other);
    CHECK(address + (address_t)(1 + round % 5) * BYTES <= first || first + BYTES <= address);
    CHECK(address + (address_t)(1 + round % 5) * BYTES <= second || second + 2 * BYTES <= address);
    use(other, address, WORDS, (uint32_t)round);
    OK(bfc_free_async(DEVICE, (void *)address, other));
    if (round % 50 == 49) OK(bfc_trim(DEVICE, 0, &released));
  }
  CHECK(wrong_words() == 0);
  CU(cuGraphExecDestroy(launchable));
  CU(cuGraphDestroy(graph));
  OK(bfc_pool_release(DEVICE, 1));
  end_stream(stream);
  end_stream(other);
  OK(bfc_check(DEVICE));
  OK(bfc_destroy(DEVICE));
}
ON_BOTH_BACKENDS(captured_graph)
