/* A program whose history is shown: streams, scopes, marks, a failure, and what is live at its end. For each mark it prints
 * what bfc_stats says then. */
#include <bfc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE 300
#define CHECK(call) check(call, #call)

static void check(bfc_status_t status, const char *call) {
  if (status == BFC_OK) return;
  fprintf(stderr, "%s: %d\n", call, (int)status);
  exit(1);
}

static void mark(const char *name) {
  bfc_stats_t stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  CHECK(bfc_stats(DEVICE, &stats));
  CHECK(bfc_history_mark(name));
  printf("%s %llu %llu %llu\n", name, (unsigned long long)stats.bytes_requested, (unsigned long long)stats.bytes_in_use,
         (unsigned long long)stats.pool_bytes);
}

int main(int count, char **arguments) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  options.backend = count > 1 && strcmp(arguments[1], "vmm") == 0 ? BFC_BACKEND_HOST_VMM : BFC_BACKEND_HOST;
  options.memory_limit = 64u << 20;
  options.flags = BFC_ALLOW_GROWTH;
  options.name = "<b>pool</b>";
  void *held[40] = {0}, *large;
  CHECK(bfc_create(DEVICE, &options));
  for (int step = 0; step < 4; step++) {
    char name[16];
    for (int i = 0; i < 40; i++) {
      if (held[i]) CHECK(bfc_free(DEVICE, held[i]));
      CHECK(bfc_scope_begin(i % 3 ? "<img src=x onerror=hacked=1>" : "attention", step));
      CHECK(bfc_alloc(DEVICE, 1000 * (size_t)(1 + (i * 7 + step * 13) % 90), &held[i]));
      CHECK(bfc_scope_end());
    }
    CHECK(bfc_alloc(DEVICE, (size_t)(1 + step) << 21, &large));
    snprintf(name, sizeof name, "full-%d", step);
    mark(name);
    CHECK(bfc_free(DEVICE, large));
    for (int i = step; i < 40; i += 3) {
      CHECK(bfc_free(DEVICE, held[i]));
      held[i] = NULL;
    }
    if (step == 2) {
      uint64_t released;
      CHECK(bfc_trim(DEVICE, 0, &released));
    }
    snprintf(name, sizeof name, "half-%d", step);
    mark(name);
  }
  CHECK(bfc_scope_begin("attention", 3));
  if (bfc_alloc(DEVICE, (size_t)1 << 30, &large) == BFC_OK) return 1;
  CHECK(bfc_scope_end());
  mark("end");
  CHECK(bfc_history_stop());
  return 0;
}
