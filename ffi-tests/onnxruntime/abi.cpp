/* Where things lie in ONNX Runtime's C tables. Compiled with the real header and with the one of python/src/bfc/shims, it
 * has to print the same.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include <onnxruntime_c_api.h>

#include <cstddef>
#include <cstdio>
#include <type_traits>

#define AT(type, member) \
  std::printf(#type "::" #member " at %zu of %zu\n", offsetof(type, member), sizeof(type::member))
#define VALUE(name) std::printf(#name " = %d, %zu\n", static_cast<int>(name), sizeof(name))

/* Enumerations and pointers are given as they are: what a function takes and returns, by size and kind. */
template <class Type>
constexpr char kind() {
  if constexpr (std::is_void_v<Type>) return 'v';
  else if constexpr (std::is_pointer_v<Type>) return 'p';
  else return sizeof(Type) == 4 ? 'i' : sizeof(Type) == 8 ? 'l' : '?';
}
template <class Result, class... Arguments>
void shape(const char *name, Result (*)(Arguments...)) {
  const char kinds[] = {kind<Result>(), ':', kind<Arguments>()..., '\0'};
  std::printf("%s is %s\n", name, kinds);
}
#define SHAPE(table, member) shape(#member, decltype(table::member){})

#define FUNCTION(table, member) \
  do {                          \
    AT(table, member);          \
    SHAPE(table, member);       \
  } while (0)

int main() {
  AT(OrtAllocator, version);
  FUNCTION(OrtAllocator, Alloc);
  FUNCTION(OrtAllocator, Free);
  FUNCTION(OrtAllocator, Info);
  FUNCTION(OrtAllocator, Reserve);
  FUNCTION(OrtAllocator, GetStats);
  FUNCTION(OrtAllocator, AllocOnStream);
  FUNCTION(OrtAllocator, Shrink);
  std::printf("OrtAllocator of %zu\n", sizeof(OrtAllocator));
  FUNCTION(OrtApi, CreateStatus);
  FUNCTION(OrtApi, GetErrorCode);
  FUNCTION(OrtApi, GetErrorMessage);
  FUNCTION(OrtApi, CreateEnv);
  FUNCTION(OrtApi, CreateMemoryInfo);
  FUNCTION(OrtApi, ReleaseEnv);
  FUNCTION(OrtApi, ReleaseStatus);
  FUNCTION(OrtApi, ReleaseMemoryInfo);
  FUNCTION(OrtApi, RegisterAllocator);
  FUNCTION(OrtApi, UnregisterAllocator);
  FUNCTION(OrtApi, CreateKeyValuePairs);
  FUNCTION(OrtApi, AddKeyValuePair);
  FUNCTION(OrtApi, ReleaseKeyValuePairs);
  FUNCTION(OrtApi, GetSharedAllocator);
  FUNCTION(OrtApi, SyncStream_GetHandle);
  FUNCTION(OrtApiBase, GetApi);
  FUNCTION(OrtApiBase, GetVersionString);
  VALUE(ORT_OK);
  VALUE(ORT_FAIL);
  VALUE(ORT_LOGGING_LEVEL_WARNING);
  VALUE(OrtDeviceAllocator);
  VALUE(OrtMemTypeDefault);
}
