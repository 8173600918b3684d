/* A client of libbfc: allocates once on the host, and prints the header's version and the library's. */
#include <stdio.h>
#include <string.h>

#include "bfc.h"

enum { HOST = 256 };

int main(void) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.backend = BFC_BACKEND_HOST;
  options.flags = BFC_ALLOW_GROWTH;
  options.memory_limit = 16u << 20;

  void *memory = NULL;
  bfc_status_t status = bfc_create(HOST, &options);
  if (status == BFC_OK) status = bfc_alloc(HOST, 1000, &memory);
  if (status == BFC_OK) {
    memset(memory, 0x5a, 1000);
    status = bfc_free(HOST, memory);
  }
  if (status == BFC_OK) status = bfc_destroy(HOST);
  if (status != BFC_OK) {
    char words[512];
    bfc_last_error(words, sizeof words);
    fprintf(stderr, "%s: %s\n", bfc_status_string(status), words);
    return 1;
  }
  printf("%d.%d.%d %s\n", BFC_VERSION_MAJOR, BFC_VERSION_MINOR, BFC_VERSION_PATCH, bfc_version());
  return 0;
}
