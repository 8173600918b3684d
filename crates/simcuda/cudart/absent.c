/* simcuda: functions of the runtime that PyTorch's libraries are linked with and that are not simulated. They are here
 * so that the libraries load, and answer cudaErrorNotSupported, which is left for cudaGetLastError as every failure is.
 * None has its arguments here, so no test compares their signatures. */
#include "inside.h"

#define ABSENT(name)          \
  API cudaError_t name(void); \
  API cudaError_t name(void) { return done(cudaErrorNotSupported); }

#ifndef WITH_NVIDIA_HEADERS
/* Libraries of kernels. */
ABSENT(cudaLibraryLoadData)
ABSENT(cudaLibraryLoadFromFile)
ABSENT(cudaLibraryUnload)
ABSENT(cudaLibraryGetKernel)
ABSENT(cudaLibraryGetKernelCount)
ABSENT(cudaLibraryGetGlobal)
ABSENT(cudaLibraryGetManaged)
ABSENT(cudaLibraryGetUnifiedFunction)
ABSENT(cudaKernelSetAttributeForDevice)
/* Variables in device memory. */
ABSENT(cudaGetSymbolAddress)
/* Graphs that are made otherwise than by a plain capture. */
ABSENT(cudaGraphAddNode)
ABSENT(cudaGraphDebugDotPrint)
ABSENT(cudaGraphNodeGetDependencies)
ABSENT(cudaGraphConditionalHandleCreate)
ABSENT(cudaGraphRetainUserObject)
ABSENT(cudaUserObjectCreate)
ABSENT(cudaUserObjectRelease)
ABSENT(cudaStreamBeginCaptureToGraph)
ABSENT(cudaStreamUpdateCaptureDependencies)
ABSENT(cudaDeviceSetGraphMemAttribute)
/* Events of other processes. */
ABSENT(cudaIpcOpenEventHandle)
#endif
