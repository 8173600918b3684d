// libbfc by its plain calls.
#include <bfc.h>

#include "peer.h"

static int device = 300;

static void *take(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  (void)user_data, (void)alignment;
  *received = bytes;
  return (void *)PEER_ADDRESS;
}

static void give_back(void *user_data, void *ptr, size_t bytes) { (void)user_data, (void)ptr, (void)bytes; }

const char *peer_open(uint64_t capacity, int touched) {
  static char why[512];
  bfc_suballocator_t memory = BFC_SUBALLOCATOR_INIT;
  memory.alloc = take;
  memory.free = give_back;
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.memory_limit = capacity;
  options.backend = touched ? BFC_BACKEND_HOST : BFC_BACKEND_CUSTOM;
  options.suballocator = touched ? NULL : &memory;
  if (bfc_create(device, &options) == BFC_OK) return NULL;
  bfc_last_error(why, sizeof why);
  return why;
}

/* On the first device of the simulated driver, with NULL options. */
const char *peer_open_on_demand(void) {
  static char why[512];
  device = 0;
  if (bfc_create(device, NULL) == BFC_OK) return NULL;
  bfc_last_error(why, sizeof why);
  return why;
}

uint64_t peer_held(void) {
  bfc_stats_t stats = BFC_STATS_INIT;
  return bfc_stats(device, &stats) == BFC_OK ? stats.pool_bytes : 0;
}

void *peer_alloc(size_t bytes) {
  void *ptr = NULL;
  bfc_alloc(device, bytes, &ptr);
  return ptr;
}

void peer_free(void *ptr, size_t bytes) {
  (void)bytes;
  bfc_free(device, ptr);
}
