/* simcuda: what PyTorch needs of the runtime beside cudart.c and kernels.c, mostly calls of the driver's function of
 * the same name; the driver's part of the simulation says what they do. */
#include "inside.h"

/* ---- Devices ---- */

API cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char *id, int length, int device) {
  int code = driver_there();
  return done(code ? code : driver.DeviceGetPCIBusId(id, length, device));
}

API cudaError_t CUDARTAPI cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  int code = enter();
  Handle context = NULL;
  if (!code) code = context_of(peer, &context);
  return done(code ? code : driver.CtxEnablePeerAccess(context, flags));
}

API cudaError_t CUDARTAPI cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute,
                                                         void *value) {
  int code = driver_there();
  return done(code ? code : driver.DeviceGetGraphMemAttribute(device, (int)attribute, value));
}

/* ---- Memory ---- */

API cudaError_t CUDARTAPI cudaHostRegister(void *memory, size_t bytes, unsigned int flags) {
  IN_CONTEXT(driver.MemHostRegister(memory, bytes, flags));
}

API cudaError_t CUDARTAPI cudaHostUnregister(void *memory) { IN_CONTEXT(driver.MemHostUnregister(memory)); }

/* Devices' addresses do not overlap, so that a pointer says whose it is. */
API cudaError_t CUDARTAPI cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                              cudaStream_t stream) {
  int count = 0, code = driver_there();
  if (!code) code = driver.DeviceGetCount(&count);
  if (!code && (to_device < 0 || from_device < 0 || to_device >= count || from_device >= count))
    code = cudaErrorInvalidDevice;
  return code ? done(code) : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}

/* Row by row: as many items of work as there are rows. */
API cudaError_t CUDARTAPI cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                            size_t width, size_t height, enum cudaMemcpyKind kind,
                                            cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return done(cudaErrorInvalidPitchValue);
  for (size_t row = 0; row < height; row++) {
    char *target = (char *)to + row * to_pitch;
    const char *source = (const char *)from + row * from_pitch;
    int code = cudaMemcpyAsync(target, source, width, kind, stream);
    if (code) return (cudaError_t)code;
  }
  return cudaSuccess;
}

/* ---- Pools: attributes and descriptors are the driver's, number by number ---- */

API cudaError_t CUDARTAPI cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  int code = driver_there();
  return done(code ? code : driver.MemPoolSetAttribute(pool, (int)attribute, value));
}

API cudaError_t CUDARTAPI cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  int code = driver_there();
  return done(code ? code : driver.MemPoolGetAttribute(pool, (int)attribute, value));
}

API cudaError_t CUDARTAPI cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *whose,
                                               size_t count) {
  int code = driver_there();
  return done(code ? code : driver.MemPoolSetAccess(pool, whose, count));
}

API cudaError_t CUDARTAPI cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  int code = driver_there();
  return done(code ? code : driver.MemPoolTrimTo(pool, keep));
}

/* ---- Streams, events, graphs ---- */

API cudaError_t CUDARTAPI cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  IN_CONTEXT(driver.StreamGetPriority(stream, priority));
}

API cudaError_t CUDARTAPI cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *argument,
                                                unsigned int flags) {
  IN_CONTEXT(driver.StreamAddCallback(stream, (void (*)(Handle, int, void *))callback, argument, flags));
}

API cudaError_t CUDARTAPI cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  IN_CONTEXT(driver.EventRecordWithFlags(event, stream, flags));
}

API cudaError_t CUDARTAPI cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
  IN_CONTEXT(driver.IpcGetEventHandle(handle, event));
}

API cudaError_t CUDARTAPI cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph,
                                                        unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

API cudaError_t CUDARTAPI cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  IN_CONTEXT(driver.GraphGetNodes(graph, (Handle *)nodes, count));
}
