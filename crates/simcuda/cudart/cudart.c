/* simcuda: a simulation of the CUDA runtime, libcudart.so.11.0 (CUDART_MAJOR=11), libcudart.so.12 and libcudart.so.13,
 * and with hidden symbols libcudart_static.a. It reaches libcuda.so.1 the way NVIDIA's does: dlopen, dlsym for
 * cuGetProcAddress_v2 (11: cuGetProcAddress; 13 asks for cuDriverGetVersion before), and everything else by name and
 * version from there. It works on any driver that answers in this way. On a real one it is useless, because it has no
 * kernels.
 *
 * Rules, from cuda_runtime_api.h: the primary context comes to life at the first call that needs it (Initialization in
 * the Programming Guide); cudaMalloc of 0 bytes gives NULL and cudaFree of NULL nothing; every function leaves its
 * failure for cudaGetLastError, by thread.
 */
#include "inside.h"

/* What a driver that lacks a function is taken to answer. */
static int unsupported(void) { return cudaErrorNotSupported; }

struct simcudart_driver driver;
void *simcudart_library;

static int loaded = cudaErrorInitializationError;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The primary contexts that this runtime has retained. */
static Handle primary[MOST_DEVICES];

static __thread int last_error;
static __thread int wanted_device;

static int look_up(const char *name, void **found, int version, uint64_t flags, int *how) {
#if CUDART_MAJOR >= 12
  return driver.GetProcAddress(name, found, version, flags, how);
#else
  (void)how;
  return driver.GetProcAddress(name, found, version, flags);
#endif
}

static void load(void) {
  loaded = cudaErrorInsufficientDriver;
  void *library = simcudart_library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return;
  int version = 0;
#if CUDART_MAJOR >= 13
  int (*get_version)(int *) = (int (*)(int *))dlsym(library, "cuDriverGetVersion");
  if (!get_version || get_version(&version) || version < 13000) return;
#endif
#define FIND(name, version, arguments)                                                        \
  {                                                                                           \
    void *found = NULL;                                                                       \
    if (look_up("cu" #name, &found, version, 0, NULL) || !found) found = (void *)unsupported; \
    driver.name = (int(*) arguments)found;                                                    \
  }
  *(void **)&driver.GetProcAddress = dlsym(library, LOOKUP_SYMBOL);
  if (!driver.GetProcAddress) return;
#if CUDART_MAJOR >= 12
  /* NVIDIA's runtime begins with that, too. */
  void *nothing = NULL;
  look_up("", &nothing, VERSION, 0, NULL);
#endif
  DRIVER(FIND)
  if (driver.DriverGetVersion(&version) || version < CUDART_MAJOR * 1000) return;
  loaded = driver.Init(0);
}

cudaError_t done(int code) {
  if (code) last_error = code;
  return (cudaError_t)code;
}

int driver_there(void) {
  pthread_once(&once, load);
  return loaded;
}

/* Retains it once. */
int context_of(int device, Handle *context) {
  if (device < 0 || device >= MOST_DEVICES) return cudaErrorInvalidDevice;
  int code = 0;
  pthread_mutex_lock(&lock);
  if (!primary[device]) code = driver.DevicePrimaryCtxRetain(&primary[device], device);
  *context = primary[device];
  pthread_mutex_unlock(&lock);
  return code;
}

static int enter_device(int device) {
  Handle context = NULL;
  int code = context_of(device, &context);
  return code ? code : driver.CtxSetCurrent(context);
}

static int device_of_primary(Handle context) {
  for (int device = 0; device < MOST_DEVICES; device++)
    if (context && primary[device] == context) return device;
  return -1;
}

int enter(void) {
  int code = driver_there();
  if (code) return code;
  Handle context = NULL;
  code = driver.CtxGetCurrent(&context);
  if (code) return code;
  /* After cudaDeviceReset the context is current and dead, and comes to life again here. */
  int device;
  if (context && (device_of_primary(context) >= 0 || !driver.CtxGetDevice(&device))) return 0;
  return enter_device(wanted_device);
}

/* ---- Versions and errors ---- */

API cudaError_t CUDARTAPI cudaRuntimeGetVersion(int *version) {
  if (!version) return done(cudaErrorInvalidValue);
  *version = VERSION;
  return cudaSuccess;
}

API cudaError_t CUDARTAPI cudaDriverGetVersion(int *version) {
  if (!version) return done(cudaErrorInvalidValue);
  *version = 0; /* "If no driver is installed, then 0 is returned" */
  if (driver_there() == cudaErrorInsufficientDriver && !driver.DriverGetVersion) return cudaSuccess;
  return done(driver.DriverGetVersion(version));
}

API cudaError_t CUDARTAPI cudaGetLastError(void) {
  int code = last_error;
  last_error = 0;
  return (cudaError_t)code;
}

API cudaError_t CUDARTAPI cudaPeekAtLastError(void) { return (cudaError_t)last_error; }

API const char *CUDARTAPI cudaGetErrorName(cudaError_t error) {
  const char *name = NULL;
  if (!driver_there()) driver.GetErrorName((int)error, &name);
  return name ? name : "unrecognized error code (simcuda)";
}

API const char *CUDARTAPI cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

#if CUDART_MAJOR >= 12
API cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char *symbol, void **pointer, unsigned int version,
                                                           unsigned long long flags,
                                                           enum cudaDriverEntryPointQueryResult *status) {
  int how = 0, code = driver_there();
  if (!code) code = look_up(symbol, pointer, (int)version, flags, &how);
  if (status) *status = (enum cudaDriverEntryPointQueryResult)how;
  return done(code);
}

API cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char *symbol, void **pointer, unsigned long long flags,
                                                  enum cudaDriverEntryPointQueryResult *status) {
  return cudaGetDriverEntryPointByVersion(symbol, pointer, VERSION, flags, status);
}
#else
API cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char *symbol, void **pointer, unsigned long long flags) {
  int code = driver_there();
  return done(code ? code : look_up(symbol, pointer, VERSION, flags, NULL));
}
#endif

/* ---- Devices ---- */

API cudaError_t CUDARTAPI cudaGetDeviceCount(int *count) {
  int code = driver_there();
  return done(code ? code : driver.DeviceGetCount(count));
}

API cudaError_t CUDARTAPI cudaGetDevice(int *device) {
  int code = driver_there();
  if (!code && !device) code = cudaErrorInvalidValue;
  if (code) return done(code);
  Handle context = NULL;
  if (driver.CtxGetCurrent(&context) || !context || driver.CtxGetDevice(device)) *device = wanted_device;
  return cudaSuccess;
}

/* Since CUDA 12 it also brings the context to life. */
API cudaError_t CUDARTAPI cudaSetDevice(int device) {
  int code = driver_there();
  if (!code) code = enter_device(device);
  if (!code) wanted_device = device;
  return done(code);
}

API cudaError_t CUDARTAPI cudaDeviceSynchronize(void) { IN_CONTEXT(driver.CtxSynchronize()); }

API cudaError_t CUDARTAPI cudaDeviceReset(void) {
  int device, code = enter();
  if (!code) code = driver.CtxGetDevice(&device);
  if (!code) code = driver.DevicePrimaryCtxReset(device);
  if (!code) {
    pthread_mutex_lock(&lock);
    if (primary[device]) driver.DevicePrimaryCtxRelease(device);
    primary[device] = NULL;
    pthread_mutex_unlock(&lock);
  }
  return done(code);
}

API cudaError_t CUDARTAPI cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  int code = driver_there();
  return done(code ? code : driver.DeviceGetAttribute(value, (int)attribute, device));
}

API cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  int code = driver_there();
  return done(code ? code : driver.DeviceCanAccessPeer(can, device, peer));
}

API cudaError_t CUDARTAPI cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  int code = driver_there();
  return done(code ? code : driver.DeviceGetDefaultMemPool((Handle *)pool, device));
}

API cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  IN_CONTEXT(driver.CtxGetStreamPriorityRange(least, greatest));
}

/* ---- Memory ---- */

/* Whether there is nothing to allocate or no place for the result; then the answer is in code. */
static int is_settled(void **memory, size_t bytes, int *code) {
  *code = enter();
  if (!*code && !memory) *code = cudaErrorInvalidValue;
  if (*code) return 1;
  *memory = NULL;
  return bytes == 0;
}

API cudaError_t CUDARTAPI cudaMalloc(void **memory, size_t bytes) {
  int code;
  if (is_settled(memory, bytes, &code)) return done(code);
  return done(driver.MemAlloc((Address *)memory, bytes));
}

API cudaError_t CUDARTAPI cudaFree(void *memory) {
  int code = enter();
  return done(code || !memory ? code : driver.MemFree((Address)memory));
}

API cudaError_t CUDARTAPI cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream) {
  int code;
  if (is_settled(memory, bytes, &code)) return done(code);
  return done(driver.MemAllocAsync((Address *)memory, bytes, stream));
}

API cudaError_t CUDARTAPI cudaFreeAsync(void *memory, cudaStream_t stream) {
  int code = enter();
  return done(code || !memory ? code : driver.MemFreeAsync((Address)memory, stream));
}

API cudaError_t CUDARTAPI cudaMallocManaged(void **memory, size_t bytes, unsigned int flags) {
  int code;
  if (is_settled(memory, bytes, &code)) return done(bytes || code ? code : cudaErrorInvalidValue);
  return done(driver.MemAllocManaged((Address *)memory, bytes, flags));
}

API cudaError_t CUDARTAPI cudaMallocPitch(void **memory, size_t *pitch, size_t width, size_t height) {
  int code;
  if (!pitch) return done(cudaErrorInvalidValue);
  *pitch = 0;
  if (is_settled(memory, width && height ? 1 : 0, &code)) return done(code);
  return done(driver.MemAllocPitch((Address *)memory, pitch, width, height, 4));
}

API cudaError_t CUDARTAPI cudaHostAlloc(void **memory, size_t bytes, unsigned int flags) {
  int code;
  if (is_settled(memory, bytes, &code)) return done(code);
  return done(driver.MemHostAlloc(memory, bytes, flags));
}

API cudaError_t CUDARTAPI cudaMallocHost(void **memory, size_t bytes) { return cudaHostAlloc(memory, bytes, 0); }

API cudaError_t CUDARTAPI cudaFreeHost(void *memory) {
  int code = enter();
  return done(code || !memory ? code : driver.MemFreeHost(memory));
}

API cudaError_t CUDARTAPI cudaMemGetInfo(size_t *free, size_t *total) { IN_CONTEXT(driver.MemGetInfo(free, total)); }

API cudaError_t CUDARTAPI cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  int code = enter();
  if (code || !bytes) return done(code);
  Address target = (Address)to, source = (Address)from;
  switch ((int)kind) {
    case cudaMemcpyHostToDevice: return done(driver.MemcpyHtoD(target, from, bytes));
    case cudaMemcpyDeviceToHost: return done(driver.MemcpyDtoH(to, source, bytes));
    case cudaMemcpyDeviceToDevice: return done(driver.MemcpyDtoD(target, source, bytes));
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault: return done(driver.Memcpy(target, source, bytes));
    default: return done(cudaErrorInvalidMemcpyDirection);
  }
}

API cudaError_t CUDARTAPI cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                          cudaStream_t stream) {
  int code = enter();
  if (code || !bytes) return done(code);
  Address target = (Address)to, source = (Address)from;
  switch ((int)kind) {
    case cudaMemcpyHostToDevice: return done(driver.MemcpyHtoDAsync(target, from, bytes, stream));
    case cudaMemcpyDeviceToHost: return done(driver.MemcpyDtoHAsync(to, source, bytes, stream));
    case cudaMemcpyDeviceToDevice: return done(driver.MemcpyDtoDAsync(target, source, bytes, stream));
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault: return done(driver.MemcpyAsync(target, source, bytes, stream));
    default: return done(cudaErrorInvalidMemcpyDirection);
  }
}

API cudaError_t CUDARTAPI cudaMemset(void *memory, int value, size_t bytes) {
  int code = enter();
  return done(code || !bytes ? code : driver.MemsetD8((Address)memory, (unsigned char)value, bytes));
}

API cudaError_t CUDARTAPI cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
  int code = enter();
  return done(code || !bytes ? code : driver.MemsetD8Async((Address)memory, (unsigned char)value, bytes, stream));
}

/* Memory that CUDA does not know is cudaMemoryTypeUnregistered and no error. */
API cudaError_t CUDARTAPI cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  int code = enter();
  if (!code && !attributes) code = cudaErrorInvalidValue;
  if (code) return done(code);
  unsigned type = 0, managed = 0;
  int device = -2;
  Address on_device = 0, on_host = 0;
  int names[] = {2 /* MEMORY_TYPE */, 8 /* IS_MANAGED */, 9 /* DEVICE_ORDINAL */, 3 /* DEVICE_POINTER */,
                 4 /* HOST_POINTER */};
  void *places[] = {&type, &managed, &device, &on_device, &on_host};
  code = driver.PointerGetAttributes(5, names, places, (Address)pointer);
  if (code) return done(code);
  *attributes = (struct cudaPointerAttributes){0};
  attributes->type = managed ? cudaMemoryTypeManaged : (enum cudaMemoryType)type; /* 1 is the host, 2 a device */
  attributes->device = type ? device : -2;
  attributes->devicePointer = (void *)on_device;
  attributes->hostPointer = type ? (void *)on_host : (void *)(uintptr_t)pointer;
  return cudaSuccess;
}

/* ---- Streams and events ---- */

API cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
  IN_CONTEXT(driver.StreamCreateWithPriority((Handle *)stream, flags, priority));
}

API cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

API cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }

API cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) { IN_CONTEXT(driver.StreamDestroy(stream)); }

API cudaError_t CUDARTAPI cudaStreamQuery(cudaStream_t stream) { IN_CONTEXT(driver.StreamQuery(stream)); }

API cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) { IN_CONTEXT(driver.StreamSynchronize(stream)); }

API cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  IN_CONTEXT(driver.StreamWaitEvent(stream, event, flags));
}

API cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument) {
  IN_CONTEXT(driver.LaunchHostFunc(stream, function, argument));
}

API cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
  IN_CONTEXT(driver.EventCreate((Handle *)event, flags));
}

API cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

API cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  IN_CONTEXT(driver.EventRecord(event, stream));
}

API cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) { IN_CONTEXT(driver.EventQuery(event)); }

API cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event) { IN_CONTEXT(driver.EventSynchronize(event)); }

API cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) { IN_CONTEXT(driver.EventDestroy(event)); }

API cudaError_t CUDARTAPI cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  IN_CONTEXT(driver.EventElapsedTime(milliseconds, start, end));
}

/* ---- Capture and graphs ---- */

API cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  IN_CONTEXT(driver.StreamBeginCapture(stream, (int)mode));
}

API cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  IN_CONTEXT(driver.StreamEndCapture(stream, (Handle *)graph));
}

API cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  IN_CONTEXT(driver.StreamIsCapturing(stream, (int *)status));
}

API cudaError_t CUDARTAPI cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  int code = driver_there();
  return done(code ? code : driver.ThreadExchangeStreamCaptureMode((int *)mode));
}

#if CUDART_MAJOR >= 13
API cudaError_t CUDARTAPI cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                                   unsigned long long *id, cudaGraph_t *graph,
                                                   const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                                   size_t *count) {
  if (edges) *edges = NULL;
#else
API cudaError_t CUDARTAPI cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                                      unsigned long long *id, cudaGraph_t *graph,
                                                      const cudaGraphNode_t **nodes, size_t *count) {
#endif
  IN_CONTEXT(driver.StreamGetCaptureInfo(stream, (int *)status, (uint64_t *)id, (Handle *)graph, (const Handle **)nodes,
                                         count));
}

API cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph,
                                               unsigned long long flags) {
  IN_CONTEXT(driver.GraphInstantiateWithFlags((Handle *)executable, graph, flags));
}

API cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  IN_CONTEXT(driver.GraphLaunch(executable, stream));
}

API cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) { IN_CONTEXT(driver.GraphDestroy(graph)); }

API cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t executable) {
  IN_CONTEXT(driver.GraphExecDestroy(executable));
}

/* ---- IPC ---- */

API cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory) {
  IN_CONTEXT(driver.IpcGetMemHandle(handle, (Address)memory));
}

API cudaError_t CUDARTAPI cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned int flags) {
  IN_CONTEXT(driver.IpcOpenMemHandle((Address *)memory, handle, flags));
}

API cudaError_t CUDARTAPI cudaIpcCloseMemHandle(void *memory) { IN_CONTEXT(driver.IpcCloseMemHandle((Address)memory)); }
