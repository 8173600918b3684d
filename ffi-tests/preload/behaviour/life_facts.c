/* What a program sees of contexts, devices, captures, handles and errors that stay, see facts.h. */
#include "facts.h"

#include <pthread.h>

/* Everything that can be asked for where nothing may be given. */
static void say_refusals(void) {
  Address address = 0x7777;
  size_t free = 0x7777, total = 0x7777, pitch = 0x7777;
  uint64_t handle = 0x7777, value = 0x7777;
  void *memory = (void *)0x7777;
  char named[64];
  int attribute = 2;
  void *place = &value;
  const MemoryKind kind = MEMORY_OF(0);
  memset(named, 0x77, sizeof named);
  SAY("cuMemAlloc: %d", cuMemAlloc_v2(&address, 1000));
  SAY("cuMemAlloc of nothing: %d", cuMemAlloc_v2(&address, 0));
  SAY("cuMemAlloc to nowhere: %d", cuMemAlloc_v2(NULL, 1000));
  SAY("cuMemAllocPitch: %d", cuMemAllocPitch_v2(&address, &pitch, 100, 100, 4));
  SAY("cuMemAllocManaged: %d", cuMemAllocManaged(&address, 1000, 1));
  SAY("cuMemAllocAsync: %d", cuMemAllocAsync(&address, 1000, NULL));
  SAY("cuMemAllocAsync_ptsz: %d", cuMemAllocAsync_ptsz(&address, 1000, NULL));
  SAY("cuMemHostAlloc: %d", cuMemHostAlloc(&memory, 1000, 0));
  SAY("cuMemAllocHost: %d", cuMemAllocHost_v2(&memory, 1000));
  SAY("cuMemFree: %d", cuMemFree_v2(0x1000));
  SAY("cuMemFree of 0: %d", cuMemFree_v2(0));
  SAY("cuMemFreeAsync: %d", cuMemFreeAsync(0x1000, NULL));
  SAY("cuMemFreeHost: %d", cuMemFreeHost((void *)0x1000));
  SAY("cuMemFreeHost of NULL: %d", cuMemFreeHost(NULL));
  SAY("cuMemGetInfo: %d", cuMemGetInfo_v2(&free, &total));
  SAY("cuMemGetInfo to nowhere: %d", cuMemGetInfo_v2(NULL, NULL));
  SAY("cuMemGetAddressRange: %d", cuMemGetAddressRange_v2(&address, &total, 0x1000));
  SAY("cuPointerGetAttribute: %d", cuPointerGetAttribute(&value, 2, 0x1000));
  SAY("cuPointerGetAttributes: %d", cuPointerGetAttributes(1, &attribute, &place, 0x1000));
  SAY("cuIpcGetMemHandle: %d", cuIpcGetMemHandle(named, 0x1000));
  SAY("cuCtxSynchronize: %d", cuCtxSynchronize());
  SAY("cuMemCreate of no whole granules: %d", cuMemCreate(&handle, 1000, &kind, 0));
  SAY("written: %llx %zx %zx %zx %llx %llx %p %x", (unsigned long long)address, free, total, pitch,
      (unsigned long long)handle, (unsigned long long)value, memory, named[0]);
}

static void before_init(void) { say_refusals(); }

static void no_context(void) {
  SAY("cuInit: %d", cuInit(0));
  say_refusals();
  void *memory = NULL, *host = NULL;
  OK(cudaMalloc(&memory, 1000));
  OK(cudaMallocHost(&host, 1000));
  OK(cuCtxSetCurrent(NULL));
  SAY("cuMemFreeHost: %d", cuMemFreeHost(host));
  SAY("cuMemFree: %d", cuMemFree_v2((Address)memory));
  SAY("cuMemFreeAsync: %d", cuMemFreeAsync((Address)memory, NULL));
  SAY("cuMemGetAddressRange: %d", cuMemGetAddressRange_v2(&(Address){0}, &(size_t){0}, (Address)memory));
  say_refusals();
  SAY_CODE("cudaFree", cudaFree(memory));
}

static void created_contexts(void) {
  Handle one = NULL, other = NULL, primary = NULL, popped = NULL;
  Address of_one = 0, of_other = 0, of_primary = 0, again = 0;
  size_t before = 0, total = 0;
  without_runtime = 1;
  OK(cuInit(0));
  SAY("cuCtxCreate: %d", cuCtxCreate_v2(&one, 0, 0));
  SAY("cuMemAlloc: %d", cuMemAlloc_v2(&of_one, 1000));
  SAY("cuMemAlloc: %d", cuMemAlloc_v2(&again, 5 * MIB));
  say_pointer("in a context", of_one);
  OK(cuCtxCreate_v2(&other, 0, 0));
  SAY("cuMemAlloc in another: %d", cuMemAlloc_v2(&of_other, 1000));
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxPushCurrent_v2(primary));
  SAY("cuMemAlloc in the primary one: %d", cuMemAlloc_v2(&of_primary, 1000));
  say_pointer("in a context, seen from another", of_one);
  SAY("cuMemFree of another context's: %d", cuMemFree_v2(again));
  OK(cuCtxPopCurrent_v2(&popped));
  say_pointer("in the primary context, seen from another", of_primary);
  OK(cuMemGetInfo_v2(&before, &total));
  SAY("cuCtxDestroy: %d", cuCtxDestroy_v2(other));
  Handle current = NULL;
  OK(cuCtxGetCurrent(&current));
  SAY("the first is current: %d", current == one);
  say_free("then", before);
  say_pointer("of a destroyed context", of_other);
  SAY("cuMemFree of it: %d", cuMemFree_v2(of_other));
  SAY("cuMemFree of the primary one's: %d", cuMemFree_v2(of_primary));
  SAY("cuMemFree of the primary one's again: %d", cuMemFree_v2(of_primary));
  SAY("cuMemFree: %d", cuMemFree_v2(of_one));
  SAY("cuCtxDestroy: %d", cuCtxDestroy_v2(one));
  SAY("cuCtxDestroy of the primary one: %d", cuCtxDestroy_v2(primary));
  SAY("cuDevicePrimaryCtxRelease: %d", cuDevicePrimaryCtxRelease_v2(0));
  SAY("cuDevicePrimaryCtxRelease again: %d", cuDevicePrimaryCtxRelease_v2(0));
  say_refusals();
}

static void say_state(const char *what, int device) {
  unsigned flags = 0;
  int active = -1;
  int code = cuDevicePrimaryCtxGetState(device, &flags, &active);
  SAY("%s: state %d, flags %u, active %d, bytes in use %llu", what, code, flags, active,
      active ? 1ull : (unsigned long long)simcuda_used(device));
}

static void primary_context(void) {
  Handle primary = NULL, again = NULL;
  Address address = 0, other = 0;
  size_t before = 0, total = 0;
  without_runtime = 1;
  OK(cuInit(0));
  say_state("before", 0);
  SAY("retain: %d", cuDevicePrimaryCtxRetain(&primary, 0));
  SAY("retain: %d", cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxSetCurrent(primary));
  SAY("cuMemAlloc: %d", cuMemAlloc_v2(&address, 1000));
  say_state("with memory", 0);
  SAY("release: %d", cuDevicePrimaryCtxRelease_v2(0));
  say_state("released once", 0);
  say_pointer("released once", address);
  SAY("release: %d", cuDevicePrimaryCtxRelease_v2(0));
  say_state("released", 0);
  say_pointer("released", address);
  say_refusals();
  SAY("cuMemFree: %d", cuMemFree_v2(address));
  SAY("release: %d", cuDevicePrimaryCtxRelease_v2(0));
  SAY("retain: %d", cuDevicePrimaryCtxRetain(&again, 0));
  SAY("the same: %d", primary == again);
  say_state("retained again", 0);
  say_pointer("retained again", address);
  SAY("cuMemFree: %d", cuMemFree_v2(address));
  OK(cuMemGetInfo_v2(&before, &total));
  SAY("cuMemAlloc: %d", cuMemAlloc_v2(&other, 1000));
  say_pointer("in the next life", other);
  say_free("with it", before);
  SAY("reset: %d", cuDevicePrimaryCtxReset_v2(0));
  say_state("reset", 0);
  say_pointer("reset", other);
  SAY("release: %d", cuDevicePrimaryCtxRelease_v2(0));
  SAY("retain of a device that is none: %d", cuDevicePrimaryCtxRetain(&again, 77));
  SAY("release of a device that is none: %d", cuDevicePrimaryCtxRelease_v2(77));
  SAY("reset of a device that is none: %d", cuDevicePrimaryCtxReset_v2(-1));
  SAY("retain to nowhere: %d", cuDevicePrimaryCtxRetain(NULL, 0));
}

static void reset(void) {
  void *memory = NULL, *host = NULL, *async = NULL, *again = NULL;
  const size_t before = free_bytes();
  for (int round = 0; round < 4; round++) {
    SAY_CODE("cudaMalloc", cudaMalloc(&memory, 5000));
    SAY_CODE("cudaMallocHost", cudaMallocHost(&host, 5000));
    SAY_CODE("cudaMallocAsync", cudaMallocAsync(&async, 5000, NULL));
    SAY_CODE("cudaDeviceReset", cudaDeviceReset());
    say_state("reset", 0);
    SAY_CODE("cudaFree", cudaFree(memory));
    SAY_CODE("cudaFreeHost", cudaFreeHost(host));
    say_pointer("of an earlier life", (Address)memory);
    SAY_CODE("cudaMalloc", cudaMalloc(&again, 100));
    SAY_CODE("cudaMemset", cudaMemset(again, 1, 100));
    SAY_CODE("cudaFree", cudaFree(again));
    say_free("then", before);
  }
}

static void two_devices(void) {
  void *of[2] = {NULL, NULL};
  size_t before[2];
  for (int device = 1; device >= 0; device--) {
    SAY_CODE("cudaSetDevice", cudaSetDevice(device));
    before[device] = free_bytes();
    SAY_CODE("cudaMalloc", cudaMalloc(&of[device], 3000 * (device + 1)));
  }
  for (int device = 0; device < 2; device++) {
    OK(cudaSetDevice(device));
    say_free("a device's own", before[device]);
    say_pointer("of device 0", (Address)of[0]);
    say_pointer("of device 1", (Address)of[1]);
  }
  SAY("numbers of two devices differ: %d", buffer_id(of[0]) != buffer_id(of[1]));
  SAY_CODE("cudaFree with another device", cudaFree(of[0]));
  SAY_CODE("cudaFree again", cudaFree(of[0]));
  OK(cudaSetDevice(0));
  say_free("freed from elsewhere", before[0]);
  SAY_CODE("cudaFree with another device", cudaFree(of[1]));
  SAY_CODE("cudaFree inside", cudaFree((char *)of[1] + 512));
  SAY_CODE("cudaDeviceReset", cudaDeviceReset());
  OK(cudaSetDevice(1));
  say_free("after the other's reset", before[1]);
  SAY_CODE("cudaMalloc", cudaMalloc(&of[1], 100));
  SAY_CODE("cudaFree", cudaFree(of[1]));
}

static void handles(void) {
  void *memory = NULL, *host = NULL, *managed = NULL, *async = NULL, *other = NULL, *third = NULL, *opened = NULL;
  cudaIpcMemHandle_t handle;
  OK(cudaMalloc(&memory, 4 * MIB));
  OK(cudaMalloc(&other, 1000));
  OK(cudaMalloc(&third, 1000));
  OK(cudaMallocHost(&host, 1000));
  OK(cudaMallocManaged(&managed, 1000, cudaMemAttachGlobal));
  OK(cudaMallocAsync(&async, 1000, NULL));
  SAY_CODE("of the first", cudaIpcGetMemHandle(&handle, memory));
  SAY_CODE("opened by whom it is of", cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
  SAY_CODE("inside the first", cudaIpcGetMemHandle(&handle, (char *)memory + 512));
  SAY_CODE("of the second", cudaIpcGetMemHandle(&handle, other));
  SAY_CODE("inside the second", cudaIpcGetMemHandle(&handle, (char *)other + 512));
  SAY_CODE("of the third", cudaIpcGetMemHandle(&handle, third));
  SAY_CODE("inside the third", cudaIpcGetMemHandle(&handle, (char *)third + 512));
  SAY_CODE("of pinned memory", cudaIpcGetMemHandle(&handle, host));
  SAY_CODE("of managed memory", cudaIpcGetMemHandle(&handle, managed));
  SAY_CODE("of stream-ordered memory", cudaIpcGetMemHandle(&handle, async));
  SAY_CODE("of NULL", cudaIpcGetMemHandle(&handle, NULL));
  SAY_CODE("of a variable", cudaIpcGetMemHandle(&handle, &handle));
  SAY_CODE("to nowhere", cudaIpcGetMemHandle(NULL, memory));
  say_pointer("the first", (Address)memory);
  say_pointer("the third", (Address)third);
  OK(cudaFree(memory));
  memset(&handle, 0x55, sizeof handle);
  SAY_CODE("of what was freed", cudaIpcGetMemHandle(&handle, memory));
  SAY("the handle is left alone: %d", handle.reserved[0] == 0x55 && handle.reserved[63] == 0x55);
  SAY_CODE("closed", cudaIpcCloseMemHandle(other));
}

static void *destroy(void *context) {
  OK(cuCtxDestroy_v2(context));
  return NULL;
}

static const char *const MODES[] = {"global", "thread-local", "relaxed"};

static void captures(void) {
  cudaStream_t stream = NULL;
  cudaGraph_t graph = NULL;
  enum cudaStreamCaptureStatus status;
  void *before = NULL, *memory = NULL, *host = NULL;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaMalloc(&before, 100000));
  OK(cudaMalloc(&memory, 1000));
  OK(cudaFree(memory));
  for (int mode = 0; mode < 3; mode++) {
    for (int call = 0; call < 8; call++) {
      const char *what = "nothing";
      int code = 0;
      memory = NULL;
      OK(cudaStreamBeginCapture(stream, (enum cudaStreamCaptureMode)mode));
      OK(cudaMemsetAsync(before, 1, 1000, stream));
      switch (call) {
        case 0: break;
        case 1: what = "cudaMalloc", code = cudaMalloc(&memory, 1000); break;
        case 2: what = "cudaFree", code = cudaFree(before); break;
        case 3: what = "cudaMalloc of much", code = cudaMalloc(&memory, 100 * MIB); break;
        case 4: what = "cudaMallocHost", code = cudaMallocHost(&host, 1000); break;
        case 5: what = "cudaMallocAsync", code = cudaMallocAsync(&memory, 1000, stream); break;
        case 6: what = "cudaMemGetInfo", code = cudaMemGetInfo(&(size_t){0}, &(size_t){0}); break;
        default: what = "cudaDeviceSynchronize", code = cudaDeviceSynchronize();
      }
      const int last = cudaGetLastError();
      if (call == 5) SAY("%s, cudaFreeAsync: %d", MODES[mode], cudaFreeAsync(memory, stream));
      OK(cudaStreamIsCapturing(stream, &status));
      const int ended = cudaStreamEndCapture(stream, &graph);
      SAY("%s, %s: %d, last error %d; the capture is %d, its end %d, a graph %d", MODES[mode], what, code, last,
          (int)status, ended, graph != NULL);
      cudaGetLastError();
      if (!ended) OK(cudaGraphDestroy(graph));
      graph = NULL;
      OK(cudaDeviceSynchronize());
      if (call == 2 && !code) OK(cudaMalloc(&before, 100000));
      if (call != 5 && memory) OK(cudaFree(memory));
    }
  }
}

/* Of the primary context, also after an error that stays; the runtime goes on holding it. */
static void another_life(void) {
  Handle primary = NULL;
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuDevicePrimaryCtxRelease_v2(0));
}

/* After device work that went wrong nothing works any more. */
static void sticky(void) {
  void *memory = NULL, *other = NULL, *host = NULL;
  OK(cudaMalloc(&memory, 1000));
  OK(cudaMalloc(&other, 1000));
  simcuda_make_sticky(ILLEGAL_ADDRESS);
  SAY_CODE("cudaDeviceSynchronize", cudaDeviceSynchronize());
  SAY_CODE("cudaMalloc", cudaMalloc(&memory, 1000));
  SAY_CODE("cudaMalloc of much", cudaMalloc(&memory, 1000 * MIB));
  SAY_CODE("cudaFree", cudaFree(other));
  SAY_CODE("cudaFree again", cudaFree(other));
  SAY_CODE("cudaFree of NULL", cudaFree(NULL));
  SAY_CODE("cudaMemset", cudaMemset(memory, 1, 1));
  SAY_CODE("cudaMemGetInfo", cudaMemGetInfo(&(size_t){0}, &(size_t){0}));
  SAY_CODE("cudaMallocPitch", cudaMallocPitch(&memory, &(size_t){0}, 100, 100));
  SAY_CODE("cudaMallocManaged", cudaMallocManaged(&memory, 1000, cudaMemAttachGlobal));
  SAY_CODE("cudaMallocHost", cudaMallocHost(&host, 1000));
  SAY_CODE("cudaMallocAsync", cudaMallocAsync(&memory, 1000, NULL));
  SAY_CODE("cudaFreeAsync", cudaFreeAsync(other, NULL));
  SAY_CODE("cudaIpcGetMemHandle", cudaIpcGetMemHandle(&(cudaIpcMemHandle_t){0}, memory));
  SAY_CODE("cudaDeviceReset", cudaDeviceReset());
  another_life();
  SAY_CODE("cudaDeviceSynchronize", cudaDeviceSynchronize());
  SAY_CODE("cudaMalloc", cudaMalloc(&memory, 1000));
  SAY_CODE("cudaMemset", cudaMemset(memory, 1, 1000));
  SAY_CODE("cudaFree", cudaFree(memory));
}

/* The driver fails, and goes on to. */
static void failures(void) {
  void *memory = NULL;
  const int codes[] = {2, 3, 46, 719, 999};
  for (unsigned each = 0; each < sizeof codes / sizeof codes[0]; each++) {
    OK(cudaMalloc(&(void *){NULL}, 1000));
    SAY("code %d", codes[each]);
    memory = (void *)0x99;
    for (int nth = 1; nth < 20; nth++) OK(simcuda_fail("cuMemAlloc", nth, codes[each]));
    SAY_CODE("cudaMalloc of much", cudaMalloc(&memory, 200 * MIB));
    simcuda_clear_faults();
    SAY("it gives %p", memory);
    OK(simcuda_fail("cuMemGetInfo", 1, codes[each]));
    SAY_CODE("cudaMemGetInfo", cudaMemGetInfo(&(size_t){0}, &(size_t){0}));
    simcuda_clear_faults();
    OK(simcuda_fail("cuCtxSynchronize", 1, codes[each]));
    SAY_CODE("cudaDeviceSynchronize", cudaDeviceSynchronize());
    simcuda_clear_faults();
    another_life();
  }
}

/* With a context that was destroyed, or after the end of the driver, memory is freed no more. */
static void ended(void) {
  Handle context = NULL;
  void *memory = NULL, *host = NULL, *async = NULL;
  OK(cudaMalloc(&memory, 1000));
  OK(cudaMallocHost(&host, 1000));
  OK(cudaMallocAsync(&async, 1000, NULL));
  OK(cuCtxCreate_v2(&context, 0, 0));
  pthread_t thread;
  OK(pthread_create(&thread, NULL, destroy, context));
  OK(pthread_join(thread, NULL));
  for (int round = 0; round < 2; round++) {
    SAY("cuMemFree: %d", cuMemFree_v2((Address)memory));
    SAY("cuMemFreeHost: %d", cuMemFreeHost(host));
    SAY("cuMemFreeAsync: %d", cuMemFreeAsync((Address)async, NULL));
    SAY("cuMemFreeAsync: %d", cuMemFreeAsync((Address)memory, NULL));
    SAY("cuMemGetAddressRange: %d", cuMemGetAddressRange_v2(&(Address){0}, &(size_t){0}, (Address)memory));
    say_refusals();
    simcuda_shutdown();
  }
  SAY_CODE("cudaMalloc", cudaMalloc(&memory, 1000));
  SAY_CODE("cudaFree", cudaFree(memory));
  SAY_CODE("cudaFreeHost", cudaFreeHost(host));
}

static const Case CASES[] = {
    {"before_init", before_init, NULL},
    {"no_context", no_context, NULL},
    {"created_contexts", created_contexts, NULL},
    {"primary_context", primary_context, NULL},
    {"reset", reset, NULL},
    {"two_devices", two_devices, NULL},
    {"handles", handles, NULL},
    {"captures", captures, NULL},
    {"sticky", sticky, NULL},
    {"failures", failures, NULL},
    {"ended", ended, NULL},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
