/* What the programs of this folder share: ONNX Runtime as it is loaded, and its objects with owners.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BFC_TESTS_ORT_H
#define BFC_TESTS_ORT_H

#include <onnxruntime_c_api.h>

#include <bfc.hpp>
#include <bfc/onnxruntime.hpp>

#include "../c/check.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

/* The library of a wheel. Its symbols are visible to it alone. */
inline const OrtApiBase &load(const char *library) {
  void *const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) check_failed(__FILE__, __LINE__, library, dlerror());
  using getter = const OrtApiBase *(*)();
  const auto get = reinterpret_cast<getter>(dlsym(handle, "OrtGetApiBase"));
  CHECK(get != nullptr);
  return *get();
}

/* Why a call failed; nothing where it did not. */
struct Failure {
  OrtErrorCode code = ORT_OK;
  std::string words;
  explicit operator bool() const { return code != ORT_OK; }
  bool says(const char *part) const { return words.find(part) != std::string::npos; }
};

class Ort {
 public:
  explicit Ort(const char *library) : base(load(library)), api(*bfc::detail::ort_runtime(base).api) {
    must(api.CreateEnv(ORT_LOGGING_LEVEL_FATAL, "tests", &env));
    must(api.CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &cpu));
  }
  Ort(const Ort &) = delete;
  Ort &operator=(const Ort &) = delete;
  ~Ort() { end(); }
  /* The program's hold on the environment. */
  void end() {
    if (env == nullptr) return;
    api.ReleaseMemoryInfo(cpu);
    api.ReleaseEnv(std::exchange(env, nullptr));
  }

  Failure failure(OrtStatus *status) const {
    if (status == nullptr) return {};
    Failure found{api.GetErrorCode(status), api.GetErrorMessage(status)};
    api.ReleaseStatus(status);
    return found;
  }
  void must(OrtStatus *status) const {
    const Failure found = failure(status);
    if (found) check_failed(__FILE__, __LINE__, "a call of ONNX Runtime", found.words.c_str());
  }

  const OrtApiBase &base;
  const OrtApi &api;
  OrtEnv *env = nullptr;
  OrtMemoryInfo *cpu = nullptr;
};

/* The model's input: `rows` times `steps` times 64 random numbers. */
struct Input {
  static constexpr std::int64_t width = 64;
  Input(std::int64_t rows_, std::int64_t steps_, unsigned seed) : rows(rows_), steps(steps_) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> number(-1, 1);
    values.resize(static_cast<std::size_t>(rows * steps * width));
    for (float &value : values) value = number(random);
  }
  std::int64_t rows;
  std::int64_t steps;
  std::vector<float> values;
};

inline std::vector<Input> inputs(int count, unsigned seed, int most_rows = 24, int most_steps = 48) {
  std::mt19937 random(seed);
  std::vector<Input> all;
  for (int index = 0; index < count; ++index) {
    const int rows = std::uniform_int_distribution<>(1, most_rows)(random);
    const int steps = std::uniform_int_distribution<>(1, most_steps)(random);
    all.emplace_back(rows, steps, seed + static_cast<unsigned>(index));
  }
  return all;
}

class Value {
 public:
  Value(const Ort &ort, OrtValue *value) : ort_(&ort), value_(value) {}
  Value(Value &&other) noexcept : ort_(other.ort_), value_(std::exchange(other.value_, nullptr)) {}
  Value &operator=(Value &&) = delete;
  ~Value() { ort_->api.ReleaseValue(value_); }

  const OrtValue *get() const { return value_; }
  const float *data() const {
    void *data = nullptr;
    ort_->must(ort_->api.GetTensorMutableData(value_, &data));
    return static_cast<const float *>(data);
  }
  std::vector<float> numbers() const {
    OrtTensorTypeAndShapeInfo *info = nullptr;
    std::size_t count = 0;
    ort_->must(ort_->api.GetTensorTypeAndShape(value_, &info));
    ort_->must(ort_->api.GetTensorShapeElementCount(info, &count));
    ort_->api.ReleaseTensorTypeAndShapeInfo(info);
    return {data(), data() + count};
  }

 private:
  const Ort *ort_;
  OrtValue *value_;
};

/* What is different from session to session. */
struct Settings {
  bool shared = true;    /* session.use_env_allocators */
  bool arena = true;     /* ORT's own, where it is not shared */
  int threads = 1;       /* within an operation */
  bool parallel = false; /* operations at once, in two threads */
};

class Session {
 public:
  Session(const Ort &ort, const char *model, Settings settings = {}) : ort_(&ort) {
    OrtSessionOptions *options = nullptr;
    ort.must(ort.api.CreateSessionOptions(&options));
    ort.must(ort.api.SetIntraOpNumThreads(options, settings.threads));
    if (settings.shared) ort.must(ort.api.AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
    if (settings.parallel) {
      ort.must(ort.api.SetSessionExecutionMode(options, ORT_PARALLEL));
      ort.must(ort.api.SetInterOpNumThreads(options, 2));
    }
    if (!settings.arena) ort.must(ort.api.DisableCpuMemArena(options));
    failure = ort.failure(ort.api.CreateSession(ort.env, model, options, &session_));
    ort.api.ReleaseSessionOptions(options);
  }
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;
  ~Session() { end(); }
  void end() {
    if (session_ != nullptr) ort_->api.ReleaseSession(std::exchange(session_, nullptr));
  }

  /* Both outputs; none where it failed. */
  std::vector<Value> run(const Input &input, Failure &why) const {
    const std::int64_t shape[] = {input.rows, input.steps, Input::width};
    OrtValue *in = nullptr;
    float *const data = const_cast<float *>(input.values.data());
    ort_->must(ort_->api.CreateTensorWithDataAsOrtValue(ort_->cpu, data, input.values.size() * sizeof(float), shape, 3,
                                                        ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &in));
    const Value x(*ort_, in);
    const char *const names_in[] = {"x"};
    const char *const names_out[] = {"y", "mean"};
    const OrtValue *const values_in[] = {x.get()};
    OrtValue *out[] = {nullptr, nullptr};
    why = ort_->failure(ort_->api.Run(session_, nullptr, names_in, values_in, 1, names_out, 2, out));
    std::vector<Value> values;
    for (OrtValue *value : out) {
      if (value != nullptr) values.emplace_back(*ort_, value);
    }
    return values;
  }
  /* Both outputs' numbers; the run must not fail. */
  std::vector<std::vector<float>> numbers(const Input &input) const {
    Failure why;
    const std::vector<Value> values = run(input, why);
    if (why) check_failed(__FILE__, __LINE__, "a run", why.words.c_str());
    return {values.at(0).numbers(), values.at(1).numbers()};
  }

  Failure failure;

 private:
  const Ort *ort_;
  OrtSession *session_ = nullptr;
};

/* Equal to the bit: what is compared as numbers would let -0 pass, and no NaN. */
inline bool same_bits(const std::vector<std::vector<float>> &some, const std::vector<std::vector<float>> &others) {
  if (some.size() != others.size()) return false;
  for (std::size_t index = 0; index < some.size(); ++index) {
    const std::size_t bytes = some[index].size() * sizeof(float);
    if (some[index].size() != others[index].size()) return false;
    if (std::memcmp(some[index].data(), others[index].data(), bytes) != 0) return false;
  }
  return true;
}

/* A case of a program, by its name on the command line. */
struct Case {
  const char *name;
  void (*run)(const char *library, const char *model);
};

/* PROGRAM LIBRARY MODEL CASE */
template <std::size_t Count>
int run_case(const Case (&cases)[Count], int argc, char **argv) {
  alarm(HANG_SECONDS);
  for (const Case &one : cases) {
    if (argc == 4 && one.name == std::string(argv[3])) {
      one.run(argv[1], argv[2]);
      return 0;
    }
  }
  /* The list of cases, for the runner. */
  for (const Case &one : cases) std::printf("%s\n", one.name);
  return argc == 2 && argv[1] == std::string("--list") ? 0 : 2;
}

#endif
