/* simcuda: a device's properties, asked of the driver attribute by attribute. Only for CUDA 13: the struct of 12 has
 * other fields, and nothing here uses it. What a test or PyTorch does not look at is 0. */
#include "inside.h"

#include <string.h>

#if CUDART_MAJOR >= 13

/* With NVIDIA's headers these hold for its struct, else for ours. */
#define AT(field, place) _Static_assert(offsetof(struct cudaDeviceProp, field) == (place), #field)
AT(luidDeviceNodeMask, 280);
AT(totalGlobalMem, 288);
AT(memPitch, 312);
AT(totalConstMem, 352);
AT(multiProcessorCount, 384);
AT(surfaceAlignment, 552);
AT(pciBusID, 568);
AT(sharedMemPerMultiprocessor, 624);
AT(sharedMemPerBlockOptin, 672);
AT(reservedSharedMemPerBlock, 696);
AT(gpuDirectRDMASupported, 724);
_Static_assert(sizeof(struct cudaDeviceProp) == 1008, "cudaDeviceProp");
_Static_assert(sizeof(struct cudaFuncAttributes) == 144, "cudaFuncAttributes");
_Static_assert(offsetof(struct cudaFuncAttributes, binaryVersion) == 36, "binaryVersion");

/* Numbers of CUdevice_attribute in cuda.h. */
static int attribute(int number, int device, int *code) {
  int value = 0;
  if (!*code) *code = driver.DeviceGetAttribute(&value, number, device);
  return value;
}

static size_t bytes(int number, int device, int *code) { return (size_t)attribute(number, device, code); }

API cudaError_t CUDARTAPI cudaGetDeviceProperties(struct cudaDeviceProp *all, int device) {
  int code = driver_there();
  if (!code && !all) code = cudaErrorInvalidValue;
  if (code) return done(code);
  memset(all, 0, sizeof *all);
  code = driver.DeviceGetName(all->name, sizeof all->name, device);
  if (!code) code = driver.DeviceGetUuid(&all->uuid, device);
  if (!code) code = driver.DeviceTotalMem(&all->totalGlobalMem, device);
#define IS(field, number) all->field = attribute(number, device, &code)
#define SIZE(field, number) all->field = bytes(number, device, &code)
  IS(maxThreadsPerBlock, 1);
  IS(maxThreadsDim[0], 2);
  IS(maxThreadsDim[1], 3);
  IS(maxThreadsDim[2], 4);
  IS(maxGridSize[0], 5);
  IS(maxGridSize[1], 6);
  IS(maxGridSize[2], 7);
  SIZE(sharedMemPerBlock, 8);
  SIZE(totalConstMem, 9);
  IS(warpSize, 10);
  SIZE(memPitch, 11);
  IS(regsPerBlock, 12);
  SIZE(textureAlignment, 14);
  IS(multiProcessorCount, 16);
  IS(integrated, 18);
  IS(canMapHostMemory, 19);
  SIZE(surfaceAlignment, 30);
  IS(concurrentKernels, 31);
  IS(ECCEnabled, 32);
  IS(pciBusID, 33);
  IS(pciDeviceID, 34);
  IS(memoryBusWidth, 37);
  IS(l2CacheSize, 38);
  IS(maxThreadsPerMultiProcessor, 39);
  IS(asyncEngineCount, 40);
  IS(unifiedAddressing, 41);
  IS(pciDomainID, 50);
  SIZE(texturePitchAlignment, 51);
  IS(major, 75);
  IS(minor, 76);
  IS(streamPrioritiesSupported, 78);
  IS(globalL1CacheSupported, 79);
  IS(localL1CacheSupported, 80);
  SIZE(sharedMemPerMultiprocessor, 81);
  IS(regsPerMultiprocessor, 82);
  IS(managedMemory, 83);
  IS(pageableMemoryAccess, 88);
  IS(concurrentManagedAccess, 89);
  IS(computePreemptionSupported, 90);
  IS(canUseHostPointerForRegisteredMem, 91);
  IS(cooperativeLaunch, 95);
  SIZE(sharedMemPerBlockOptin, 97);
  IS(hostRegisterSupported, 99);
  IS(maxBlocksPerMultiProcessor, 106);
  SIZE(reservedSharedMemPerBlock, 111);
  IS(memoryPoolsSupported, 115);
  return done(code);
}

#endif
