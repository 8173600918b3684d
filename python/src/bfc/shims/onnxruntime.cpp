/* bfc.onnxruntime: libbfc's allocator for the ONNX Runtime that Python has loaded.
 *
 * That one is a part of Python's module, and exports nothing. But it passes its functions to each library of custom
 * operators that it opens, so this is such a library, without operators.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include <onnxruntime_c_api.h>

#include <bfc/onnxruntime.hpp>

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

std::atomic<const OrtApiBase *> base{nullptr};
std::mutex lock;
/* Never destroyed, because ONNX Runtime may be gone before the process ends. */
std::optional<bfc::ort_registration> &registration = *new std::optional<bfc::ort_registration>;

int failed(int code, const char *what, char *words, std::size_t capacity) {
  if (capacity != 0) {
    std::strncpy(words, what, capacity - 1);
    words[capacity - 1] = '\0';
  }
  return code;
}

}  // namespace

/* ONNX Runtime calls this when it opens the library. */
EXPORTED OrtStatus *RegisterCustomOps(OrtSessionOptions *, const OrtApiBase *functions) {
  base = functions;
  return nullptr;
}

/* Makes a device's allocator the one for the CPU. Returns 0, a bfc_status_t, or -1, with a message. */
EXPORTED int bfc_onnxruntime_begin(std::int32_t device, char *words, std::size_t capacity) {
  const OrtApiBase *const functions = base;
  if (functions == nullptr) return failed(-1, "onnxruntime did not hand its functions over", words, capacity);
  try {
    const std::lock_guard<std::mutex> guard(lock);
    bfc::ort_allocator &memory = bfc::ort_allocator::cpu(*functions, bfc::device(device));
    /* The environment is that of this process, whichever code created it. */
    bfc::ort_registration made(*functions, nullptr, memory);
    if (registration) {
      *registration = std::move(made);
    } else {
      registration.emplace(std::move(made));
    }
    return 0;
  } catch (const bfc::error &error) {
    return failed(error.code().value(), error.what(), words, capacity);
  } catch (const std::exception &error) { return failed(-1, error.what(), words, capacity); }
}

/* Later sessions use ONNX Runtime's own allocator. */
EXPORTED void bfc_onnxruntime_end() {
  const std::lock_guard<std::mutex> guard(lock);
  registration.reset();
}
