/* The simulated driver (simcuda, a simulation and no device), steered by a program that does not link it.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BFC_TESTS_SIMULATED_H
#define BFC_TESTS_SIMULATED_H

#include "../c/check.h"
#include "../../crates/simcuda/simcuda.h"

#include <dlfcn.h>

#include <cstdint>

class Simulated {
 public:
  explicit Simulated(std::uint64_t memory = 1u << 30, int devices = 2) {
    driver_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver_ == nullptr) check_failed(__FILE__, __LINE__, "libcuda.so.1", dlerror());
    CHECK(call<int(int, std::uint64_t)>("simcuda_configure")(devices, memory) == 0);
    /* Without a device it is CUDA_ERROR_NO_DEVICE. */
    CHECK(call<int(unsigned)>("cuInit")(0) == (devices == 0 ? 100 : 0));
  }

  /* A function of the driver, or of the simulation. */
  template <class Signature>
  Signature *call(const char *name) const {
    void *const found = dlsym(driver_, name);
    if (found == nullptr) check_failed(__FILE__, __LINE__, name, "is not in libcuda.so.1");
    return reinterpret_cast<Signature *>(found);
  }

  /* The primary context of a device becomes this thread's. */
  void enter(int device) const {
    void *context = nullptr;
    CHECK(call<int(void **, int)>("cuDevicePrimaryCtxRetain")(&context, device) == 0);
    CHECK(call<int(void *)>("cuCtxSetCurrent")(context) == 0);
  }
  void *stream() const {
    void *made = nullptr;
    CHECK(call<int(void **, unsigned)>("cuStreamCreate")(&made, 1) == 0);
    return made;
  }
  void hold(void *stream) const { CHECK(call<int(void *)>("simcuda_hold")(stream) == 0); }
  void release_all() const { call<void()>("simcuda_release_all")(); }
  /* Runs some items of a held stream. */
  void step(void *stream, std::uint64_t items) const {
    call<std::uint64_t(void *, std::uint64_t)>("simcuda_step")(stream, items);
  }
  /* Work that fills a range; and work that looks whether it is still so when its turn comes. */
  void fill(void *stream, void *ptr, std::size_t bytes) const { queue("simcuda_fill", stream, ptr, bytes); }
  void expect(void *stream, void *ptr, std::size_t bytes) const { queue("simcuda_expect", stream, ptr, bytes); }
  void work(void *stream, void *ptr, std::size_t bytes) const {
    fill(stream, ptr, bytes);
    expect(stream, ptr, bytes);
  }
  /* The nth call of cuMemAlloc from now is out of memory. */
  void fail_alloc(std::uint64_t nth) const {
    CHECK(call<int(const char *, std::uint64_t, int)>("simcuda_fail")("cuMemAlloc", nth, 2) == 0);
  }
  void clear_faults() const { call<void()>("simcuda_clear_faults")(); }
  std::uint64_t struck() const { return call<std::uint64_t()>("simcuda_struck")(); }
  std::uint64_t used(int device) const { return call<std::uint64_t(int)>("simcuda_used")(device); }

  /* Nothing is left but contexts, and nothing was misused. */
  void check_clean() const {
    release_all();
    CHECK(call<std::uint64_t(int)>("simcuda_live")(SIMCUDA_ALLOCATIONS) == 0);
    CHECK(call<std::uint64_t()>("simcuda_misuses")() == 0);
    CHECK(call<std::uint64_t()>("simcuda_mismatches")() == 0);
  }

 private:
  /* The pattern is another one for each stream and size. */
  void queue(const char *kernel, void *stream, void *ptr, std::size_t bytes) const {
    const std::uint64_t pattern = reinterpret_cast<std::uintptr_t>(stream) * 0x9e3779b97f4a7c15u + bytes;
    using queued = int(void *, std::uint64_t, std::uint64_t, std::uint64_t);
    CHECK(call<queued>(kernel)(stream, reinterpret_cast<std::uintptr_t>(ptr), bytes / 8 * 8, pattern) == 0);
  }

  void *driver_;
};

#endif
