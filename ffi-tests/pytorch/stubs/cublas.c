/* A stand-in for libcublas, for PyTorch on the simulated driver: handles that are not NULL. IT COMPUTES NOTHING.
 * Everything that is not here returns 0, which is CUBLAS_STATUS_SUCCESS; see README.md. */

static int context;

int cublasCreate_v2(void **handle) {
  *handle = &context;
  return 0;
}

int cublasGetMathMode(void *handle, int *mode) {
  (void)handle;
  *mode = 0;
  return 0;
}

int cublasGetPointerMode_v2(void *handle, int *mode) {
  (void)handle;
  *mode = 0;
  return 0;
}
