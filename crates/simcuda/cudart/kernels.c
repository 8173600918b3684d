/* simcuda: kernels of the simulated runtime, as nvcc's code and PyTorch's libraries launch them. THEY COMPUTE NOTHING:
 * no fat binary is looked at and no instruction is run. A launch queues an empty item of work on its stream, so that
 * events, queries, capture and the order of streams are as with a kernel that takes no time and touches no memory.
 *
 * The functions with two underscores are those that nvcc's code calls; their signatures are in crt/host_runtime.h and
 * crt/device_functions.h, which only nvcc's own output can include: no test compares them.
 */
#include "inside.h"

/* What a compiled kernel is taken to be: of this architecture, and this many of its blocks at once on a processor. */
enum { ARCHITECTURE = 90, REGISTERS = 32, BLOCKS_AT_ONCE = 2, MOST_THREADS = 1024, SHARED_BYTES = 48 << 10 };

/* ---- Registration ---- */

/* Of a fat binary nothing is needed but that it is not NULL. */
static void *no_binary;

API void **__cudaRegisterFatBinary(void *binary);
API void **__cudaRegisterFatBinary(void *binary) {
  (void)binary;
  return &no_binary;
}

API void __cudaRegisterFatBinaryEnd(void **handle);
API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

/* Nothing is loaded late. */
API char __cudaInitModule(void **handle);
API char __cudaInitModule(void **handle) {
  (void)handle;
  return 0;
}

API void __cudaUnregisterFatBinary(void **handle);
API void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads,
                                void *thread, void *block, dim3 *blocks, dim3 *grid, int *warp);
API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads,
                                void *thread, void *block, dim3 *blocks, dim3 *grid, int *warp) {
  (void)handle, (void)host, (void)device, (void)name, (void)threads;
  (void)thread, (void)block, (void)blocks, (void)grid, (void)warp;
}

API void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size,
                           int constant, int global);
API void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size,
                           int constant, int global) {
  (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

/* No kernel reads a variable, so none has a place. */
API cudaError_t CUDARTAPI cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                                             enum cudaMemcpyKind kind) {
  (void)bytes, (void)offset, (void)kind;
  int code = enter();
  return done(code || (symbol && from) ? code : cudaErrorInvalidValue);
}

/* ---- Launches ---- */

/* What stands in <<<...>>> goes to the stub by these two, on each thread's own stack; arguments of a launch may hold
 * launches. */
struct configuration {
  dim3 grid, block;
  size_t shared;
  void *stream;
};
enum { DEEPEST = 16 };
static __thread struct configuration pushed[DEEPEST];
static __thread unsigned depth;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  if (depth == DEEPEST) return 1;
  pushed[depth++] = (struct configuration){grid, block, shared, stream};
  return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  if (!depth) return done(cudaErrorMissingConfiguration);
  struct configuration top = pushed[--depth];
  *grid = top.grid, *block = top.block, *shared = top.shared;
  *(void **)stream = top.stream;
  return cudaSuccess;
}

static void compute_nothing(void *argument) { (void)argument; }

/* An item of work for a kernel, if this is the simulated driver; there is nothing to launch on another. */
static int launch(dim3 grid, dim3 block, cudaStream_t stream) {
  int code = enter();
  if (code) return code;
  unsigned long threads = (unsigned long)block.x * block.y * block.z;
  if (!grid.x || !grid.y || !grid.z || !threads || threads > MOST_THREADS) return cudaErrorInvalidConfiguration;
  int (*queue)(void *, void (*)(void *), void *) =
      (int (*)(void *, void (*)(void *), void *))dlsym(simcudart_library, "simcuda_launch");
  return queue ? queue(stream, compute_nothing, NULL) : cudaErrorNotSupported;
}

API cudaError_t CUDARTAPI cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                           cudaStream_t stream) {
  (void)arguments, (void)shared;
  return done(kernel ? launch(grid, block, stream) : cudaErrorInvalidDeviceFunction);
}

API cudaError_t CUDARTAPI cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                                                      size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

API cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *kernel, void **arguments) {
  if (!how) return done(cudaErrorInvalidValue);
  return cudaLaunchKernel(kernel, how->gridDim, how->blockDim, arguments, how->dynamicSmemBytes, how->stream);
}

/* The stub's address serves as the kernel's handle. */
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub);
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub) {
  if (!kernel || !stub) return done(cudaErrorInvalidValue);
  *kernel = (cudaKernel_t)(uintptr_t)stub;
  return cudaSuccess;
}

API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                   cudaStream_t stream);
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                   cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

/* ---- What kernels are ---- */

API cudaError_t CUDARTAPI cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
  int code = enter();
  if (!code && (!attributes || !kernel)) code = cudaErrorInvalidValue;
  if (code) return done(code);
  *attributes = (struct cudaFuncAttributes){0};
  attributes->maxThreadsPerBlock = MOST_THREADS;
  attributes->numRegs = REGISTERS;
  attributes->ptxVersion = ARCHITECTURE;
  attributes->binaryVersion = ARCHITECTURE;
  attributes->maxDynamicSharedSizeBytes = SHARED_BYTES;
  return cudaSuccess;
}

API cudaError_t CUDARTAPI cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
  (void)attribute, (void)value;
  int code = enter();
  return done(code || kernel ? code : cudaErrorInvalidDeviceFunction);
}

API cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel,
                                                                                 int threads, size_t shared,
                                                                                 unsigned int flags) {
  (void)shared, (void)flags;
  int code = enter();
  if (!code && (!blocks || !kernel || threads <= 0)) code = cudaErrorInvalidValue;
  if (!code) *blocks = BLOCKS_AT_ONCE;
  return done(code);
}

API cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads,
                                                                        size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared, 0);
}

/* There is no profiler to start or stop. */
API cudaError_t CUDARTAPI cudaProfilerStart(void) { return done(driver_there()); }

API cudaError_t CUDARTAPI cudaProfilerStop(void) { return done(driver_there()); }
