/* BFC_TRIM_AFTER: what was freed goes back to the driver while the program rests, although it synchronizes nothing. */
#include "held.h"

#include <time.h>

#define IDLE "BFC_TRIM_AFTER=0.1"

static void sleep_ms(long ms) {
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* Device 0 uses no more than that, soon. */
static void falls_to(uint64_t bytes) {
  for (int each = 0; each < 1000 && simcuda_used(0) > bytes; each++) sleep_ms(10);
  CHECK(simcuda_used(0) <= bytes);
}

static void freed(void) {
  for (int round = 0; round < 2; round++) {
    char *memory[20], *kept = pooled(MIB);
    for (int each = 0; each < 20; each++) {
      memory[each] = pooled(50 * MIB);
      use_at_once(memory[each], MIB, 1);
    }
    for (int each = 0; each < 20; each++) OK(cudaFree(memory[each]));
    CHECK(simcuda_used(0) >= 1000 * MIB);
    falls_to(60 * MIB);
    use_at_once(kept, MIB, 2);
    OK(cudaFree(kept));
    falls_to(0);
  }
  no_misuse();
}

/* In the order of a stream. */
static void freed_in_order(void) {
  cudaStream_t stream = NULL, other = NULL;
  void *memory = NULL, *second = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  OK(cudaMallocAsync(&memory, 500 * MIB, stream));
  OK(cudaMallocAsync(&second, 500 * MIB, other));
  use(stream, memory, MIB, 1);
  OK(cudaFreeAsync(memory, stream));
  OK(cudaFreeAsync(second, other));
  falls_to(0);
  no_misuse();
}

/* Work that goes on for longer than that: the memory goes back afterwards. */
static void busy(void) {
  cudaStream_t stream = held_stream();
  char *memory = pooled(500 * MIB);
  use(stream, memory, MIB, 1);
  OK(simcuda_receive(stream, 1));
  OK(cudaFree(memory));
  OK(simcuda_release(stream));
  sleep_ms(500);
  CHECK(simcuda_used(0) >= 500 * MIB && simcuda_pending(stream) > 0);
  no_misuse();
  cudaStream_t sender = NULL;
  OK(cudaStreamCreateWithFlags(&sender, cudaStreamNonBlocking));
  OK(simcuda_send(sender, 1));
  falls_to(0);
  no_misuse();
}

static void capture(void) {
  cudaStream_t stream = NULL;
  cudaGraph_t graph = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  char *memory = pooled(500 * MIB);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaFree(memory));
  sleep_ms(500);
  CHECK(simcuda_used(0) >= 500 * MIB);
  OK(cudaStreamEndCapture(stream, &graph));
  CHECK(graph != NULL);
  OK(cudaGraphDestroy(graph));
  falls_to(0);
  no_misuse();
}

static uint64_t pinned_allocations(void) { return simcuda_live(SIMCUDA_ALLOCATIONS); }

/* Pinned memory is held by the host. */
static void pinned(void) {
  void *memory = NULL;
  OK(cudaFree(NULL));
  const uint64_t before = pinned_allocations();
  OK(cudaMallocHost(&memory, 64 * MIB));
  CHECK(is_pooled(memory));
  OK(cudaFreeHost(memory));
  for (int each = 0; each < 1000 && pinned_allocations() > before; each++) sleep_ms(10);
  IS(pinned_allocations(), before);
  no_misuse();
}

static const Case CASES[] = {
    {"freed", freed, IDLE},
    {"freed_granules", freed, IDLE " BFC_BACKEND=cuda_vmm"},
    {"freed_async", freed, IDLE " BFC_PRELOAD_ASYNC=1"},
    {"freed_without_probes", freed, IDLE " " WITHOUT_PROBES},
    {"freed_in_order", freed_in_order, IDLE " BFC_PRELOAD_ASYNC=1"},
    {"busy", busy, IDLE},
    {"capture", capture, IDLE},
    {"capture_async", capture, IDLE " BFC_PRELOAD_ASYNC=1"},
    {"pinned", pinned, IDLE " BFC_PRELOAD_PINNED=1"},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
