#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) && !defined(bfc_alloc_async)
/* This unit is compiled for the per-thread default stream: stream 0 of these functions is BFC_STREAM_PER_THREAD, as it is
 * for the CUDA runtime. A function's address, or its name in parentheses, is the function itself, whose 0 is
 * BFC_STREAM_LEGACY. */
static inline bfc_stream_t bfc_stream_of_unit(bfc_stream_t stream) {
#ifdef __cplusplus
  return stream != NULL ? stream : reinterpret_cast<bfc_stream_t>(0x2);
#else
  return stream != NULL ? stream : BFC_STREAM_PER_THREAD;
#endif
}
static inline bfc_status_t bfc_alloc_ex_of_unit(int32_t device, const bfc_request_t *request, void **out_ptr) {
  bfc_request_t named;
  if (request == NULL || request->struct_size != sizeof(named)) {
    return bfc_alloc_ex(device, request, out_ptr);
  }
  named = *request;
  named.stream = bfc_stream_of_unit(named.stream); /* not read without BFC_REQUEST_ON_STREAM */
  return bfc_alloc_ex(device, &named, out_ptr);
}
#  define bfc_alloc_ex(device, request, out_ptr) bfc_alloc_ex_of_unit(device, request, out_ptr)
#  define bfc_alloc_async(device, bytes, stream, out_ptr) bfc_alloc_async(device, bytes, bfc_stream_of_unit(stream), out_ptr)
#  define bfc_free_async(device, ptr, stream) bfc_free_async(device, ptr, bfc_stream_of_unit(stream))
#  define bfc_record_stream(device, ptr, stream) bfc_record_stream(device, ptr, bfc_stream_of_unit(stream))
#  define bfc_forget_stream(device, stream) bfc_forget_stream(device, bfc_stream_of_unit(stream))
#  define bfc_stream_synchronized(device, stream) bfc_stream_synchronized(device, bfc_stream_of_unit(stream))
#  define bfc_pool_begin(device, pool, stream) bfc_pool_begin(device, pool, bfc_stream_of_unit(stream))
#  define bfc_pool_end(device, pool, stream) bfc_pool_end(device, pool, bfc_stream_of_unit(stream))
#endif
