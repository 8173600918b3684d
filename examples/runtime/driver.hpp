// The functions of the CUDA driver that the runtime calls, loaded at run time: no header or library of CUDA is needed.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#ifndef EXAMPLE_RUNTIME_DRIVER_HPP
#define EXAMPLE_RUNTIME_DRIVER_HPP

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace runtime {

using address = std::uint64_t;  // CUdeviceptr

class Driver {
 public:
  // The driver, or null if there is none or it has no device.
  static const Driver *load() {
    static const Driver driver;
    return driver.devices_ > 0 ? &driver : nullptr;
  }

  // Makes the primary context of device 0 that of the calling thread.
  void enter() const {
    static void *const context = [this] {
      void *retained = nullptr;
      must(cuDevicePrimaryCtxRetain(&retained, 0), "cuDevicePrimaryCtxRetain");
      return retained;
    }();
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  }

  static void must(int result, const char *function) {
    if (result != 0) throw std::runtime_error(std::string(function) + " failed with " + std::to_string(result));
  }

 private:
  void *library_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  int devices_ = 0;

  // A driver that lacks one of these functions counts as none. Newer versions have a suffix.
  bool is_complete_ = library_ != nullptr;
  template <class... Args>
  void find(int (*&function)(Args...), const char *name) {
    void *const found = is_complete_ ? dlsym(library_, name) : nullptr;
    is_complete_ = found != nullptr;
    function = reinterpret_cast<int (*)(Args...)>(found);
  }

  Driver() {
    find(cuInit, "cuInit");
    find(cuDeviceGetCount, "cuDeviceGetCount");
    find(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    find(cuCtxSetCurrent, "cuCtxSetCurrent");
    find(cuStreamCreate, "cuStreamCreate");
    find(cuStreamDestroy, "cuStreamDestroy_v2");
    find(cuStreamSynchronize, "cuStreamSynchronize");
    find(cuStreamWaitEvent, "cuStreamWaitEvent");
    find(cuEventCreate, "cuEventCreate");
    find(cuEventRecord, "cuEventRecord");
    find(cuEventDestroy, "cuEventDestroy_v2");
    find(cuMemsetD32Async, "cuMemsetD32Async");
    find(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2");
    find(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
    find(cuStreamBeginCapture, "cuStreamBeginCapture_v2");
    find(cuStreamEndCapture, "cuStreamEndCapture");
    find(cuGraphInstantiate, "cuGraphInstantiateWithFlags");
    find(cuGraphLaunch, "cuGraphLaunch");
    find(cuGraphExecDestroy, "cuGraphExecDestroy");
    find(cuGraphDestroy, "cuGraphDestroy");
    if (!is_complete_ || cuInit(0) != 0 || cuDeviceGetCount(&devices_) != 0) devices_ = 0;
  }

  int (*cuInit)(unsigned);
  int (*cuDeviceGetCount)(int *);
  int (*cuDevicePrimaryCtxRetain)(void **, int);
  int (*cuCtxSetCurrent)(void *);

 public:
  int (*cuStreamCreate)(void **, unsigned);
  int (*cuStreamDestroy)(void *);
  int (*cuStreamSynchronize)(void *);
  int (*cuStreamWaitEvent)(void *, void *, unsigned);
  int (*cuEventCreate)(void **, unsigned);
  int (*cuEventRecord)(void *, void *);
  int (*cuEventDestroy)(void *);
  int (*cuMemsetD32Async)(address, unsigned, std::size_t, void *);
  int (*cuMemcpyDtoDAsync)(address, address, std::size_t, void *);
  int (*cuMemcpyDtoHAsync)(void *, address, std::size_t, void *);
  int (*cuStreamBeginCapture)(void *, int);
  int (*cuStreamEndCapture)(void *, void **);
  int (*cuGraphInstantiate)(void **, void *, unsigned long long);
  int (*cuGraphLaunch)(void *, void *);
  int (*cuGraphExecDestroy)(void *);
  int (*cuGraphDestroy)(void *);
};

}  // namespace runtime

#endif
