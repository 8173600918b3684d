/* bfc.onnxruntime: libbfc's allocator for the ONNX Runtime that Python has loaded.
 *
 * That one is a part of Python's module, and exports nothing. But it hands its functions to each library of custom
 * operators that it opens, so this is one, of no operators.
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
/* Not destroyed with the process, in which ONNX Runtime may be gone by then. */
std::optional<bfc::ort_registration> &registration = *new std::optional<bfc::ort_registration>;

int failed(int code, const char *what, char *words, std::size_t capacity) {
  if (capacity != 0) {
    std::strncpy(words, what, capacity - 1);
    words[capacity - 1] = '\0';
  }
  return code;
}

}  // namespace

/* ONNX Runtime calls it when it opens the library. */
EXPORTED OrtStatus *RegisterCustomOps(OrtSessionOptions *, const OrtApiBase *functions) {
  base = functions;
  return nullptr;
}

/* From now on a device's allocator is the one for the CPU. Returns 0, a bfc_status_t, or -1, with words. */
EXPORTED int bfc_onnxruntime_begin(std::int32_t device, char *words, std::size_t capacity) {
  const OrtApiBase *const functions = base;
  if (functions == nullptr) return failed(-1, "onnxruntime did not hand its functions over", words, capacity);
  try {
    const std::lock_guard<std::mutex> guard(lock);
    bfc::ort_allocator &memory = bfc::ort_allocator::cpu(*functions, bfc::device(device));
    /* The environment is the one of this process, whoever made it. */
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

/* Sessions that are made from now on are ONNX Runtime's own. */
EXPORTED void bfc_onnxruntime_end() {
  const std::lock_guard<std::mutex> guard(lock);
  registration.reset();
}
