/* bfc_handler_alloc and bfc_handler_free have the types that cuTensorNet's and nvJPEG's headers ask for. Compiled, not run.
 *
 * A stream is cudaStream_t there and bfc_stream_t, a void *, here: another type, passed alike. With -DFAULT one argument is
 * of another type, and this does not compile. */

#include <cuda_runtime_api.h>
#include <cutensornet.h>
#include <nvjpeg.h>

#include "bfc_adapters.h"

#ifdef FAULT
typedef int *size_type;
#else
typedef size_t size_type;
#endif

#define ARE_OF(stream_type, alloc, free)                                                                            \
  _Static_assert(__builtin_types_compatible_p(__typeof__(alloc), int (*)(void *, void **, size_type, stream_type)), \
                 "");                                                                                               \
  _Static_assert(__builtin_types_compatible_p(__typeof__(free), int (*)(void *, void *, size_type, stream_type)), "")

static const cutensornetDeviceMemHandler_t of_cutensornet;
static const nvjpegDevAllocatorV2_t of_nvjpeg;

ARE_OF(cudaStream_t, of_cutensornet.device_alloc, of_cutensornet.device_free);
ARE_OF(cudaStream_t, of_nvjpeg.dev_malloc, of_nvjpeg.dev_free);
ARE_OF(bfc_stream_t, &bfc_handler_alloc, &bfc_handler_free);
