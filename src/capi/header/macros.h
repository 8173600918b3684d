/* Initializers, valid in C and C++: `bfc_options_t o = BFC_OPTIONS_RECOMMENDED;`. struct_size is set and every other
 * field is 0, except in BFC_OPTIONS_RECOMMENDED: it has what bfc_create uses for NULL options, for programs that change
 * fields (for a fragmentation_fraction, take BFC_SPLIT_ALWAYS out of the flags). With it, the environment's switches have
 * no effect, except BFC_FORCE_ALLOW_GROWTH. BFC_OPTIONS_INIT has no growth: the first allocation takes one region of the
 * whole memory_limit. */
#define BFC_SUBALLOCATOR_INIT { sizeof(bfc_suballocator_t), NULL, NULL, NULL, 0, 0 }
#define BFC_OPTIONS_INIT { sizeof(bfc_options_t), 0, 0, 0, 0.0, 0.0, 0, 0, 0, NULL, NULL, 0, 0, NULL }
#define BFC_OPTIONS_RECOMMENDED { sizeof(bfc_options_t), 0, BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION | BFC_SPLIT_ALWAYS, \
  0, 0.0, 0.0, 0, 0, 0, NULL, NULL, BFC_GROWTH_PREFER_NEED, 0, NULL }
#define BFC_REQUEST_INIT { sizeof(bfc_request_t), 0, 0, NULL, 0, 0, 0 }
#define BFC_STATS_INIT { sizeof(bfc_stats_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
/* The default streams in every translation unit: the legacy one, and the calling thread's own. */
#define BFC_STREAM_LEGACY ((bfc_stream_t)0x1)
#define BFC_STREAM_PER_THREAD ((bfc_stream_t)0x2)
