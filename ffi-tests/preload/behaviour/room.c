/* The driver is out of memory for something else: the pool returns what it does not use, and the driver is called again. */
#include "held.h"

/* What cuda.h has: arguments that do not matter here are pointers. */
int cuArrayCreate_v2(Handle *array, const void *wanted);
int cuArray3DCreate_v2(Handle *array, const void *wanted);
int cuGreenCtxCreate(Handle *context, Handle descriptor, int device, unsigned flags);
int cuGreenCtxStreamCreate(Handle *stream, Handle context, unsigned flags, int priority);
int cuMipmappedArrayCreate(Handle *array, const void *wanted, unsigned levels);
int cuCtxSetLimit(int limit, size_t value);
int cuDeviceGetDefaultMemPool(Handle *pool, int device);
int cuEventCreate(Handle *event, unsigned flags);
int cuGraphInstantiateWithFlags(Handle *executable, Handle graph, unsigned long long flags);
int cuGraphLaunch(Handle executable, Handle stream);
int cuGraphUpload(Handle executable, Handle stream);
int cuKernelGetFunction(Handle *function, Handle kernel);
int cuKernelSetAttribute(int attribute, int value, Handle kernel, int device);
int cuFuncLoad(Handle function);
int cuLaunchCooperativeKernel(Handle function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
                              unsigned block_z, unsigned shared, Handle stream, void **parameters);
int cuLaunchKernel(Handle function, unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared, Handle stream, void **parameters, void **extra);
int cuLaunchKernelEx(const void *config, Handle function, void **parameters, void **extra);
int cuLibraryGetGlobal(Address *address, size_t *bytes, Handle library, const char *name);
int cuLibraryGetModule(Handle *module, Handle library);
int cuLibraryLoadData(Handle *library, const void *code, void *options, void **values, unsigned count, void *more,
                      void **more_values, unsigned more_count);
int cuLibraryLoadFromFile(Handle *library, const char *file, void *options, void **values, unsigned count, void *more,
                          void **more_values, unsigned more_count);
int cuMemAllocFromPoolAsync(Address *address, size_t bytes, Handle pool, Handle stream);
int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags);
int cuMemMap(Address address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags);
int cuMemPoolCreate(Handle *pool, const void *properties);
int cuModuleGetFunction(Handle *function, Handle module, const char *name);
int cuModuleGetGlobal_v2(Address *address, size_t *bytes, Handle module, const char *name);
int cuModuleLoad(Handle *module, const char *file);
int cuModuleLoadData(Handle *module, const void *image);
int cuModuleLoadDataEx(Handle *module, const void *image, unsigned count, void *options, void **values);
int cuModuleLoadFatBinary(Handle *module, const void *image);
int cuMulticastAddDevice(uint64_t object, int device);
int cuMulticastBindAddr(uint64_t object, size_t offset, Address address, size_t bytes, unsigned long long flags);
int cuMulticastBindMem(uint64_t object, size_t offset, uint64_t memory, size_t memory_offset, size_t bytes,
                       unsigned long long flags);
int cuMulticastCreate(uint64_t *object, const void *properties);
int cuStreamCreateWithPriority(Handle *stream, unsigned flags, int priority);
typedef struct IpcHandle {
  char reserved[64];
} IpcHandle;
int cuIpcOpenMemHandle_v2(Address *address, IpcHandle handle, unsigned flags);

enum { NOT_SUPPORTED = 801, NOT_FOUND = 500, INVALID_HANDLE = 400 };

static const char PTX[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry fill() { ret; }\n";

static Handle stream, graph, executable, module, function, popped;
static uint64_t handle;
static char page[1 << 16] __attribute__((aligned(1 << 16)));

/* The pool of the current device has memory that it does not use; some of it waits for a synchronization. */
static void leave_idle(void) {
  char *memory = pooled(64 * MIB);
  use(stream, memory, MIB, 1);
  OK(cudaFree(memory));
}

/* The first call fails, and the second does what it would have done: the simulation has no body for some. */
#define RETRIED(device, function, call) RETRIED_AS(device, #function, call)
#define RETRIED_AS(device, function, call)                                                                         \
  do {                                                                                                             \
    const uint64_t used_ = simcuda_used(device);                                                                   \
    CHECK(used_ >= 64 * MIB);                                                                                      \
    simcuda_clear_log();                                                                                           \
    OK(simcuda_fail(function, 1, OUT_OF_MEMORY));                                                                  \
    const int code_ = call;                                                                                        \
    if (code_ == OUT_OF_MEMORY || simcuda_calls(function) < 2 || simcuda_used(device) > used_ / 2)                 \
      test_failed(__FILE__, __LINE__, "%s is %d, called %d times", function, code_, (int)simcuda_calls(function)); \
  } while (0)

static void begin(void) {
  OK(cudaFree(NULL));
  stream = held_stream();
}

static void of_context(void) {
  Handle other = NULL;
  void *memory = NULL;
  size_t pitch = 0;
  Address address = 0;
  const MemoryKind kind = MEMORY_OF(0);
  begin();
#define EACH(function, call)    \
  do {                          \
    leave_idle();               \
    RETRIED(0, function, call); \
  } while (0)
  EACH(cuMemAllocPitch, cudaMallocPitch(&memory, &pitch, MIB, 3));
  EACH(cuMemAllocManaged, cudaMallocManaged(&memory, MIB, cudaMemAttachGlobal));
  EACH(cuMemCreate, cuMemCreate(&handle, 2 * MIB, &kind, 0));
  EACH(cuMemMap, cuMemMap(0, 2 * MIB, 0, handle, 0));
  EACH(cuMemHostRegister, cuMemHostRegister_v2(page, sizeof page, 0));
  if (!getenv("BFC_PRELOAD_ASYNC")) EACH(cuMemAllocAsync, cudaMallocAsync(&memory, MIB, stream));
  EACH(cuMemPoolCreate, cuMemPoolCreate(&other, &(char[256]){0}));
  EACH(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2(&address, (IpcHandle){{0}}, 1));
  EACH(cuStreamCreate, cuStreamCreate(&other, 1));
  EACH(cuStreamCreateWithPriority, cuStreamCreateWithPriority(&other, 1, 0));
  EACH(cuEventCreate, cuEventCreate(&other, 0));
  EACH(cuCtxSetLimit, cuCtxSetLimit(0, 4096));
  EACH(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain(&other, 0));
  OK(cuDevicePrimaryCtxRelease_v2(0));
  EACH(cuCtxCreate, cuCtxCreate_v2(&other, 0, 0));
  OK(cuCtxPopCurrent_v2(&popped));
}

static void modules(void) {
  Handle other = NULL;
  Address address = 0;
  size_t bytes = 0;
  begin();
  EACH(cuModuleLoad, cuModuleLoad(&other, "/nowhere"));
  EACH(cuModuleLoadData, cuModuleLoadData(&module, PTX));
  EACH(cuModuleLoadDataEx, cuModuleLoadDataEx(&module, PTX, 0, NULL, NULL));
  EACH(cuModuleLoadFatBinary, cuModuleLoadFatBinary(&other, PTX));
  EACH(cuLibraryLoadData, cuLibraryLoadData(&other, PTX, NULL, NULL, 0, NULL, NULL, 0));
  EACH(cuLibraryLoadFromFile, cuLibraryLoadFromFile(&other, "/nowhere", NULL, NULL, 0, NULL, NULL, 0));
  EACH(cuModuleGetFunction, cuModuleGetFunction(&function, module, "fill"));
  EACH(cuModuleGetGlobal, cuModuleGetGlobal_v2(&address, &bytes, module, "nothing"));
  EACH(cuLibraryGetModule, cuLibraryGetModule(&other, NULL));
  EACH(cuLibraryGetGlobal, cuLibraryGetGlobal(&address, &bytes, NULL, "nothing"));
  EACH(cuKernelGetFunction, cuKernelGetFunction(&other, NULL));
  EACH(cuKernelSetAttribute, cuKernelSetAttribute(8, 0, NULL, 0));
  EACH(cuFuncLoad, cuFuncLoad(function));
  uint64_t parameters[3] = {(uint64_t)pooled(MIB), MIB, 7};
  void *places[] = {&parameters[0], &parameters[1], &parameters[2]};
  EACH(cuLaunchKernel, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, places, NULL));
  EACH(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, places));
  EACH(cuLaunchKernelEx, cuLaunchKernelEx(&(char[64]){0}, function, places, NULL));
}

static void graphs(void) {
  void *node = NULL;
  begin();
  Handle capturing = NULL;
  OK(cuStreamCreate(&capturing, 1));
  OK(cuStreamBeginCapture_v2(capturing, 2));
  OK(cudaMallocAsync(&node, MIB, capturing));
  OK(cudaFreeAsync(node, capturing));
  OK(cuStreamEndCapture(capturing, &graph));
  EACH(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags(&executable, graph, 0));
  EACH(cuGraphUpload, cuGraphUpload(executable, capturing));
  EACH(cuGraphLaunch, cuGraphLaunch(executable, capturing));
  no_misuse();
}

static void multicast(void) {
  begin();
  EACH(cuMulticastCreate, cuMulticastCreate(&handle, &(char[64]){0}));
  EACH(cuMulticastAddDevice, cuMulticastAddDevice(handle, 0));
  EACH(cuMulticastBindMem, cuMulticastBindMem(handle, 0, 0, 0, 2 * MIB, 0));
  EACH(cuMulticastBindAddr, cuMulticastBindAddr(handle, 0, 0, 2 * MIB, 0));
}

/* Arrays, and the stream of a green context. */
static void arrays(void) {
  /* CUDA_ARRAY_DESCRIPTOR: 64 times 64 unsigned bytes; CUDA_ARRAY3D_DESCRIPTOR has a depth too. */
  const struct {
    size_t width, height;
    int format;
    unsigned channels;
  } flat = {64, 64, 1, 1};
  const struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
  } deep = {64, 64, 0, 1, 1, 0};
  Handle other = NULL;
  begin();
  EACH(cuArrayCreate, cuArrayCreate_v2(&other, &flat));
  EACH(cuArray3DCreate, cuArray3DCreate_v2(&other, &deep));
  EACH(cuMipmappedArrayCreate, cuMipmappedArrayCreate(&other, &deep, 1));
  EACH(cuGreenCtxStreamCreate, cuGreenCtxStreamCreate(&other, NULL, 1, 0));
}

/* Of another device than the current one. */
static void other_device(void) {
  const MemoryKind kind = MEMORY_OF(1);
  Handle there = NULL, pool = NULL, own = NULL;
  Address address = 0;
  void *memory = NULL;
  OK(cudaSetDevice(1));
  begin();
  there = stream;
#define THERE(function, call) \
  OK(cudaSetDevice(1));       \
  leave_idle();               \
  OK(cudaSetDevice(0));       \
  RETRIED(1, function, call)
  THERE(cuMemCreate, cuMemCreate(&handle, 2 * MIB, &kind, 0));
  THERE(cuMemAllocAsync, cudaMallocAsync(&memory, MIB, there));
  OK(cuDeviceGetDefaultMemPool(&pool, 1));
  THERE(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync(&address, MIB, pool, there));
  THERE(cuMulticastAddDevice, cuMulticastAddDevice(0, 1));
  THERE(cuGreenCtxCreate, cuGreenCtxCreate(&own, NULL, 1, 1));
  THERE(cuGraphUpload, cuGraphUpload(NULL, there));
  THERE(cuGraphLaunch, cuGraphLaunch(NULL, there));
  THERE(cuLaunchKernel, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, there, NULL, NULL));
  /* CUlaunchConfig. */
  const struct {
    unsigned sizes[7];
    Handle stream, attributes;
    unsigned count;
  } config = {{1, 1, 1, 1, 1, 1, 0}, there, NULL, 0};
  THERE(cuLaunchKernelEx, cuLaunchKernelEx(&config, NULL, NULL, NULL));
  THERE(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain(&own, 1));
  OK(cuDevicePrimaryCtxRelease_v2(1));
  THERE(cuCtxCreate, cuCtxCreate_v2(&own, 0, 1));
  /* Its memory is that of its device's pool. */
  OK(cuCtxPopCurrent_v2(&popped));
  OK(cudaSetDevice(1));
  leave_idle();
  OK(cuCtxPushCurrent_v2(own));
  RETRIED(1, cuMemAlloc, cuMemAlloc_v2(&address, MIB));
  OK(cuCtxPopCurrent_v2(&popped));
}

/* The other device's memory stays where it is. */
static void only_there(void) {
  Handle other = NULL;
  OK(cudaSetDevice(1));
  begin();
  leave_idle();
  const uint64_t used = simcuda_used(1);
  OK(cudaSetDevice(0));
  begin();
  leave_idle();
  RETRIED(0, cuEventCreate, cuEventCreate(&other, 0));
  IS(simcuda_used(1), used);
}

/* Calls that name no device: the other ones return what they need not wait for. */
static void elsewhere(void) {
  Handle here = NULL, pool = NULL, other = NULL;
  Address address = 0;
  OK(cudaStreamCreateWithFlags((cudaStream_t *)&here, cudaStreamNonBlocking));
  OK(cudaSetDevice(1));
  begin();
  OK(cuDeviceGetDefaultMemPool(&pool, 1));
#define ELSEWHERE(function, call) \
  OK(cudaSetDevice(1));           \
  OK(cudaFree(pooled(64 * MIB))); \
  OK(cudaSetDevice(0));           \
  RETRIED(1, function, call)
  ELSEWHERE(cuMemMap, cuMemMap(0, 2 * MIB, 0, 0, 0));
  ELSEWHERE(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync(&address, MIB, pool, here));
  OK(cudaSetDevice(1));
  OK(cudaFree(pooled(64 * MIB)));
  OK(cudaSetDevice(0));
  const uint64_t used = simcuda_used(1);
  /* The device of an event is known. */
  OK(simcuda_fail("cuEventCreate", 1, OUT_OF_MEMORY));
  IS(cuEventCreate(&other, 0), OUT_OF_MEMORY);
  IS(simcuda_used(1), used);
  /* The memory's work is under way. */
  OK(cudaSetDevice(1));
  leave_idle();
  OK(cudaSetDevice(0));
  OK(simcuda_fail("cuMemMap", 1, OUT_OF_MEMORY));
  IS(cuMemMap(0, 2 * MIB, 0, 0, 0), OUT_OF_MEMORY);
  CHECK(simcuda_used(1) >= 64 * MIB && simcuda_pending(stream) != 0);
}

/* While a stream is captured nothing is returned, and the program gets the driver's answer. */
static void capture(void) {
  Handle other = NULL;
  begin();
  OK(cuStreamCreate(&stream, 1));
  leave_idle();
  OK(cuStreamBeginCapture_v2(stream, 0));
  simcuda_clear_log();
  OK(simcuda_fail("cuStreamCreate", 1, OUT_OF_MEMORY));
  IS(cuStreamCreate(&other, 1), OUT_OF_MEMORY);
  IS(simcuda_calls("cuStreamCreate"), 1);
  OK(cuStreamEndCapture(stream, &graph));
  RETRIED(0, cuStreamCreate, cuStreamCreate(&other, 1));
  no_misuse();
}

/* Pinned memory. */
static void pinned(void) {
  void *memory = NULL;
  begin();
  OK(cudaMallocHost(&memory, MIB));
  OK(cudaFreeHost(memory));
  OK(simcuda_fail("cuMemHostAlloc", 1, OUT_OF_MEMORY));
  OK(cudaHostAlloc(&memory, MIB, 1));
  /* Physical memory of the host, which the simulation lacks. */
  const MemoryKind host = {.type = 1, .location = 2};
  OK(cudaMallocHost(&memory, MIB));
  OK(cudaFreeHost(memory));
  OK(simcuda_fail("cuMemCreate", 1, OUT_OF_MEMORY));
  simcuda_clear_log();
  CHECK(cuMemCreate(&handle, 2 * MIB, &host, 0) != OUT_OF_MEMORY);
  IS(simcuda_calls("cuMemFreeHost"), 1);
}

static const Case CASES[] = {
    {"of_context", of_context, NULL},
    {"of_context_granules", of_context, "BFC_BACKEND=cuda_vmm"},
    {"of_context_async", of_context, "BFC_PRELOAD_ASYNC=1"},
    {"modules", modules, NULL},
    {"graphs", graphs, NULL},
    {"multicast", multicast, NULL},
    {"arrays", arrays, NULL},
    {"other_device", other_device, NULL},
    {"only_there", only_there, NULL},
    {"elsewhere", elsewhere, NULL},
    {"capture", capture, NULL},
    {"pinned", pinned, "BFC_PRELOAD_PINNED=1"},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
