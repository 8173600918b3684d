/* A stand-in for libcublasLt, for PyTorch on the simulated driver: descriptors that are not NULL, and one algorithm for
 * every product. IT COMPUTES NOTHING. Everything that is not here returns 0, which is CUBLAS_STATUS_SUCCESS; see
 * README.md. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static int something;

int cublasLtMatmulDescCreate(void **descriptor, int compute_type, int scale_type) {
  (void)compute_type, (void)scale_type;
  *descriptor = &something;
  return 0;
}

int cublasLtMatmulPreferenceCreate(void **preference) {
  *preference = &something;
  return 0;
}

int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  (void)type, (void)rows, (void)columns, (void)stride;
  *layout = &something;
  return 0;
}

/* As cublasLt.h has it: an algorithm, the bytes that it wants beside, whether it works (0 is yes), and how well. */
struct result {
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
};

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                   int most, struct result *results, int *found) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
  *found = most > 0;
  if (most > 0) memset(&results[0], 0, sizeof results[0]);
  return 0;
}
