/* Device work that ends only by a later action of the host: a call that the driver alone would answer at once does not wait for
 * it. Here it is a receive whose message is sent at the end of the case, and a call that waits for it fails at once. */
#include "held.h"

#define AT_ONCE "SIMCUDA_DEADLOCK_MILLISECONDS=0"

enum { CHANNEL = 1 };

static void begin_endless(void) {
  cudaStream_t stream = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(simcuda_receive(stream, CHANNEL));
  IS(simcuda_pending(stream), 1);
}

/* Nothing has waited for the work. */
static void end_it(void) {
  cudaStream_t stream = NULL;
  no_misuse();
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(simcuda_send(stream, CHANNEL));
  OK(cudaDeviceSynchronize());
  no_misuse();
}

/* What was freed waits for the work, and the device has room for more. */
static void room(void) {
  OK(cudaFree(pooled(512 * MIB)));
  begin_endless();
  char *memory = pooled(512 * MIB);
  use_at_once(memory, MIB, 1);
  OK(cudaFree(memory));
  pooled(600 * MIB);
  end_it();
}

/* The same where the limit is small: what does not wait serves. */
static void frees(void) {
  for (int each = 0; each < 1100; each++) OK(cudaFree(pooled(500)));
  begin_endless();
  for (int each = 0; each < 1100; each++) OK(cudaFree(pooled(500)));
  simcuda_clear_log();
  for (int each = 0; each < 1100; each++) OK(cudaFree(pooled(500)));
  /* Nor is the driver asked at each request. */
  CHECK(simcuda_calls(NULL) < 200 + simcuda_calls("cuCtxGetCurrent"));
  end_it();
}

/* More than the device has, whatever is freed, is refused at once. */
static void too_large(int is_settled) {
  const MemoryKind kind = MEMORY_OF(0);
  void *memory = NULL;
  size_t pitch = 0;
  uint64_t handle = 0;
  cudaStream_t stream = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  char *used = pooled(1024 * MIB);
  OK(cudaFree(pooled(512 * MIB)));
  if (is_settled) OK(cudaDeviceSynchronize());
  begin_endless();
  for (size_t bytes = 3500 * MIB; bytes < 6000 * MIB; bytes += 2000 * MIB) {
    IS(cudaMallocAsync(&memory, bytes, stream), OUT_OF_MEMORY);
    IS(cuMemCreate(&handle, bytes, &kind, 0), OUT_OF_MEMORY);
    IS(cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal), OUT_OF_MEMORY);
    IS(cudaMallocPitch(&memory, &pitch, MIB, bytes / MIB), OUT_OF_MEMORY);
    IS(cudaMalloc(&memory, bytes), OUT_OF_MEMORY);
  }
  end_it();
  OK(cudaFree(used));
  OK(cudaMalloc(&memory, 3500 * MIB));
  no_misuse();
}

static void too_large_for_waiting(void) { too_large(0); }
static void too_large_for_idle(void) { too_large(1); }

/* Work that was queued before the free has to be waited for in the end, as cudaFree would have: where nothing else serves. */
static void last_resort(void) {
  cudaStream_t stream = held_stream();
  char *memory = pooled(3000 * MIB);
  use(stream, memory, MIB, 1);
  OK(cudaFree(memory));
  char *again = pooled(3000 * MIB);
  IS(simcuda_pending(stream), 0);
  use_at_once(again, MIB, 2);
  no_misuse();
}

/* Pinned memory too. */
static void pinned(void) {
  void *memory = NULL;
  for (int each = 0; each < 1100; each++) {
    OK(cudaMallocHost(&memory, 500));
    OK(cudaFreeHost(memory));
  }
  OK(cudaMallocHost(&memory, 512 * MIB));
  OK(cudaFreeHost(memory));
  begin_endless();
  OK(cudaMallocHost(&memory, 512 * MIB));
  CHECK(is_pooled(memory));
  OK(cudaMallocHost(&memory, 500));
  CHECK(is_pooled(memory));
  end_it();
}

static const Case CASES[] = {
    {"room", room, AT_ONCE},
    {"room_in_granules", room, AT_ONCE " BFC_BACKEND=cuda_vmm"},
    {"frees", frees, AT_ONCE},
    {"too_large_for_waiting", too_large_for_waiting, AT_ONCE},
    {"too_large_for_idle", too_large_for_idle, AT_ONCE},
    {"last_resort", last_resort, NULL},
    {"pinned", pinned, AT_ONCE " BFC_PRELOAD_PINNED=1"},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
