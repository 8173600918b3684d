/* The parts of ONNX Runtime's C header that bfc/onnxruntime.hpp needs, because the wheel lacks the header: the same
 * names at the same offsets. ONNX Runtime only appends to these tables, so this is valid for 1.25 and later. With an
 * older version the end of the tables is not used. A test compares this with the real header.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#ifndef BFC_SHIM_ONNXRUNTIME_C_API_H
#define BFC_SHIM_ONNXRUNTIME_C_API_H

#include <cstddef>
#include <cstdint>

#define ORT_API_VERSION 25

struct OrtEnv;
struct OrtStatus;
struct OrtMemoryInfo;
struct OrtSessionOptions;
struct OrtKeyValuePairs;
struct OrtSyncStream;

enum OrtErrorCode : int { ORT_OK = 0, ORT_FAIL = 1 };
enum OrtLoggingLevel : int { ORT_LOGGING_LEVEL_WARNING = 2 };
enum OrtAllocatorType : int { OrtDeviceAllocator = 0 };
enum OrtMemType : int { OrtMemTypeDefault = 0 };

struct OrtAllocator {
  std::uint32_t version;
  void *(*Alloc)(OrtAllocator *, std::size_t);
  void (*Free)(OrtAllocator *, void *);
  const OrtMemoryInfo *(*Info)(const OrtAllocator *);
  void *(*Reserve)(OrtAllocator *, std::size_t);
  OrtStatus *(*GetStats)(const OrtAllocator *, OrtKeyValuePairs **) noexcept;
  void *(*AllocOnStream)(OrtAllocator *, std::size_t, OrtSyncStream *);
  OrtStatus *(*Shrink)(OrtAllocator *) noexcept;
};

/* The functions before the next one are left out. Numbers count from the first. */
struct OrtApi {
  OrtStatus *(*CreateStatus)(OrtErrorCode, const char *) noexcept;
  OrtErrorCode (*GetErrorCode)(const OrtStatus *) noexcept;
  const char *(*GetErrorMessage)(const OrtStatus *) noexcept;
  OrtStatus *(*CreateEnv)(OrtLoggingLevel, const char *, OrtEnv **) noexcept;
  void *from_4[68 - 4];
  OrtStatus *(*CreateMemoryInfo)(const char *, OrtAllocatorType, int, OrtMemType, OrtMemoryInfo **) noexcept;
  void *from_69[92 - 69];
  void (*ReleaseEnv)(OrtEnv *);
  void (*ReleaseStatus)(OrtStatus *);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo *);
  void *from_95[176 - 95];
  OrtStatus *(*RegisterAllocator)(OrtEnv *, OrtAllocator *) noexcept;
  OrtStatus *(*UnregisterAllocator)(OrtEnv *, const OrtMemoryInfo *) noexcept;
  void *from_178[295 - 178];
  void (*CreateKeyValuePairs)(OrtKeyValuePairs **);
  void (*AddKeyValuePair)(OrtKeyValuePairs *, const char *, const char *);
  void *from_297[300 - 297];
  void (*ReleaseKeyValuePairs)(OrtKeyValuePairs *);
  void *from_301[376 - 301];
  OrtStatus *(*GetSharedAllocator)(OrtEnv *, const OrtMemoryInfo *, OrtAllocator **) noexcept;
  void *from_377[384 - 377];
  void *(*SyncStream_GetHandle)(OrtSyncStream *) noexcept;
};

struct OrtApiBase {
  const OrtApi *(*GetApi)(std::uint32_t version) noexcept;
  const char *(*GetVersionString)() noexcept;
};

#endif
