/* A few steps of training over libbfc: a pool, tensors that come and go, the statistics, and what the
 * library says when something goes wrong.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include <bfc.h>

#include <stdio.h>
#include <stdlib.h>

enum { HOST = BFC_HOST_DEVICE }; /* a GPU's ordinal is 0, 1, ... */

/* Every call returns a status, and keeps its reason in words for the thread that made it. */
static void must(bfc_status_t status, const char *what) {
  char words[512];
  if (status == BFC_OK) return;
  bfc_last_error(words, sizeof(words));
  fprintf(stderr, "%s: %s: %s\n", what, bfc_status_string(status), words);
  exit(1);
}

static float *tensor(size_t elements) {
  void *ptr = NULL;
  must(bfc_alloc(HOST, elements * sizeof(float), &ptr), "bfc_alloc");
  return (float *)ptr; /* aligned to 256 bytes; the contents are undefined */
}

/* One step: the activations live until the backward pass has used them. */
static void step(uint64_t number, const float *weights) {
  float *activations, *gradients;
  /* For the reports: on whose behalf this thread allocates. Costs nothing while nobody looks. */
  must(bfc_scope_begin("forward", number), "bfc_scope_begin");
  activations = tensor(300000);
  activations[0] = weights[0] + (float)number;
  must(bfc_scope_end(), "bfc_scope_end");

  must(bfc_scope_begin("backward", number), "bfc_scope_begin");
  gradients = tensor(100000);
  gradients[0] = activations[0];
  must(bfc_scope_end(), "bfc_scope_end");

  must(bfc_free(HOST, activations), "bfc_free");
  must(bfc_free(HOST, gradients), "bfc_free");
}

/* The statistics count what TensorFlow's count, and some more. */
static void show_stats(void) {
  bfc_stats_t stats = BFC_STATS_INIT;
  must(bfc_stats(HOST, &stats), "bfc_stats");
  printf("%llu allocations, %llu frees; %llu bytes in use, %llu at the peak; %llu held in %llu regions\n",
         (unsigned long long)stats.num_allocs, (unsigned long long)stats.num_frees,
         (unsigned long long)stats.bytes_in_use, (unsigned long long)stats.peak_bytes_in_use,
         (unsigned long long)stats.pool_bytes, (unsigned long long)stats.num_regions);
}

/* The pool in a hundred columns: '*' used, 'x' slack, '_' free. */
static void show_occupancy(void) {
  char line[101];
  size_t length = 0;
  must(bfc_occupancy(HOST, line, sizeof(line), &length), "bfc_occupancy");
  printf("[%s]\n", line);
}

/* Reports have any length: ask for it, then for the text. */
static void show_report(void) {
  size_t length = 0;
  char *text;
  must(bfc_report(HOST, NULL, 0, &length), "bfc_report");
  text = (char *)malloc(length + 1);
  if (text == NULL) return;
  must(bfc_report(HOST, text, length + 1, &length), "bfc_report");
  printf("%s", text);
  free(text);
}

int main(void) {
  bfc_options_t options = BFC_OPTIONS_RECOMMENDED;
  float *weights;
  void *too_much;
  bfc_status_t status;
  char words[512];
  uint64_t number, released;

  options.backend = BFC_BACKEND_HOST;
  options.memory_limit = 16u << 20;
  options.name = "trainer";
  must(bfc_create(HOST, &options), "bfc_create");

  must(bfc_scope_begin("weights", 0), "bfc_scope_begin");
  weights = tensor(500000);
  weights[0] = 1.0f;
  must(bfc_scope_end(), "bfc_scope_end");
  for (number = 1; number <= 4; number++) step(number, weights);
  show_stats();
  show_occupancy();

  /* Out of memory is a status like any other. Nothing was lost, and the words say what would help. */
  status = bfc_alloc(HOST, 20u << 20, &too_much);
  if (status != BFC_ERROR_OUT_OF_MEMORY || too_much != NULL) return 1;
  bfc_last_error(words, sizeof(words));
  printf("refused: %s\n", words);
  show_report();

  /* So is a mistake: a double free is refused, and the allocator is as sound as before. */
  must(bfc_free(HOST, weights), "bfc_free");
  status = bfc_free(HOST, weights);
  if (status != BFC_ERROR_DOUBLE_FREE && status != BFC_ERROR_INVALID_POINTER) return 1;
  bfc_last_error(words, sizeof(words));
  printf("refused: %s\n", words);

  /* What is free goes back to the system on request, and everything in the end. */
  must(bfc_trim(HOST, 0, &released), "bfc_trim");
  printf("%llu bytes given back\n", (unsigned long long)released);
  must(bfc_destroy(HOST), "bfc_destroy");
  return 0;
}
