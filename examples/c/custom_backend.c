/* A pool over somebody else's memory: libbfc takes its regions from two functions of the program, here from
 * a window of a device's address space that some driver reserved. The library never touches the memory.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include <bfc.h>

#include <stdio.h>
#include <stdlib.h>

enum { ACCELERATOR = 1000 }; /* ordinals 258 to 1023 are the program's to use */

/* The driver's window. Its addresses mean nothing to the CPU. */
typedef struct window {
  uintptr_t base;
  size_t bytes;
  size_t used;
  size_t lent; /* the bytes of the regions that are not back yet */
} window;

/* Gives a region of `bytes` bytes, or NULL: then libbfc asks for less, down to what it needs. A backend that
 * gives more than was asked says so in *received. */
static void *take_from_window(void *user_data, size_t alignment, size_t bytes, size_t *received) {
  window *const w = (window *)user_data;
  const uintptr_t start = (w->base + w->used + alignment - 1) / alignment * alignment;
  if (bytes > w->bytes || start - w->base > w->bytes - bytes) {
    printf("  driver: no room for %zu bytes\n", bytes);
    return NULL;
  }
  w->used = (size_t)(start - w->base) + bytes;
  w->lent += bytes;
  *received = bytes;
  printf("  driver: region of %zu bytes at %#llx\n", bytes, (unsigned long long)start);
  return (void *)start;
}

static void give_to_window(void *user_data, void *region, size_t bytes) {
  window *const w = (window *)user_data;
  printf("  driver: %zu bytes at %p are back\n", bytes, region);
  /* This driver begins again once everything is back; a real one keeps a list. */
  w->lent -= bytes;
  if (w->lent == 0) w->used = 0;
}

static int failed(const char *what) {
  char words[512];
  bfc_last_error(words, sizeof(words));
  fprintf(stderr, "%s: %s\n", what, words);
  return 1;
}

int main(void) {
  window device = {(uintptr_t)0x700000000000, 64u << 20, 0, 0};
  bfc_suballocator_t suballocator = BFC_SUBALLOCATOR_INIT;
  bfc_options_t options = BFC_OPTIONS_RECOMMENDED;
  void *image, *filter, *chunk, *region, *huge;
  size_t chunk_bytes, region_bytes;
  int32_t owner;
  char words[512];

  suballocator.user_data = &device;
  suballocator.alloc = take_from_window;
  suballocator.free = give_to_window;
  suballocator.supports_coalescing = 1; /* regions that touch may become one, and come back as one */
  options.backend = BFC_BACKEND_CUSTOM;
  options.name = "accelerator";
  options.suballocator = &suballocator; /* copied; the window must stay */
  if (bfc_create(ACCELERATOR, &options) != BFC_OK) return failed("bfc_create");

  printf("an image and a filter\n");
  if (bfc_alloc(ACCELERATOR, 3000 * 1000, &image) != BFC_OK) return failed("bfc_alloc");
  if (bfc_alloc_aligned(ACCELERATOR, 9 * 9 * 4, 4096, &filter) != BFC_OK) return failed("bfc_alloc_aligned");

  /* From any pointer to what holds it: what one needs to share memory with another process. */
  if (bfc_owner((char *)image + 12345, &owner) != BFC_OK || owner != ACCELERATOR) return failed("bfc_owner");
  if (bfc_address_range(owner, (char *)image + 12345, &chunk, &chunk_bytes, &region, &region_bytes) != BFC_OK) {
    return failed("bfc_address_range");
  }
  printf("%p lies in a chunk of %zu bytes, %zu bytes into its region\n", (void *)((char *)image + 12345), chunk_bytes,
         (size_t)((char *)chunk - (char *)region));

  printf("more than there is\n");
  if (bfc_alloc(ACCELERATOR, 80u << 20, &huge) != BFC_ERROR_OUT_OF_MEMORY) return failed("bfc_alloc");
  bfc_last_error(words, sizeof(words));
  printf("refused: %s\n", words);

  printf("the end\n");
  if (bfc_free(ACCELERATOR, image) != BFC_OK || bfc_free(ACCELERATOR, filter) != BFC_OK) return failed("bfc_free");
  if (bfc_destroy(ACCELERATOR) != BFC_OK) return failed("bfc_destroy");
  return device.used == 0 ? 0 : 1;
}
