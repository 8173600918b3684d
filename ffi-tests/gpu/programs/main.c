/* bfc-gpu: libbfc on a real NVIDIA GPU, through its C ABI. `bfc-gpu NAME` runs one test in this process, so a crash or a hang
 * ends with it; `bfc-gpu --list` prints the names; `bfc-gpu costs` measures. Exit status: 0 passed, 77 skipped (the last line
 * is the reason), anything else failed.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <unistd.h>

enum { FAILED = 1, USAGE = 2, SKIPPED = 77 };

void failed(const char *file, int line, const char *what, const char *how) {
  char message[512] = "";
  bfc_last_error(message, sizeof(message));
  printf("%s:%d: %s: %s (libbfc's last error: \"%s\")\n", file, line, what, how, message);
  fflush(NULL);
  _exit(FAILED);
}

void skip(const char *why) {
  printf("%s\n", why);
  fflush(NULL);
  _exit(SKIPPED);
}

typedef struct test {
  const char *name;
  void (*run)(void);
} test;

/* In the order in which the pack runs them. */
#define TEST(name) {#name, name}
static const test TESTS[] = {
    TEST(basics_cuda),
    TEST(basics_vmm),
    TEST(ipc),
    TEST(reset_cuda),
    TEST(reset_vmm),
    TEST(moving_vmm),
    TEST(the_race_is_seen),
    TEST(the_race_is_seen_vmm),
    TEST(reuse_two_streams),
    TEST(reuse_two_streams_vmm),
    TEST(reuse_four_streams),
    TEST(reuse_four_streams_vmm),
    TEST(recorded_streams),
    TEST(recorded_streams_vmm),
    TEST(captured_graph),
    TEST(captured_graph_vmm),
};
enum { COUNT = sizeof(TESTS) / sizeof(*TESTS) };

int main(int argc, char **argv) {
  int at;
  const char *why, *name = argc > 1 ? argv[1] : "";
  char **variable;
  for (variable = environ; *variable != NULL; variable++) {
    if (strncmp(*variable, "BFC_", 4) == 0 && strncmp(*variable, "BFC_GPU_", 8) != 0 && getenv("LD_PRELOAD") == NULL) {
      fprintf(stderr, "%s is set: unset libbfc's variables, which would change what is tested\n", *variable);
      return USAGE;
    }
  }
  if (strcmp(name, "--list") == 0) {
    for (at = 0; at < COUNT; at++) puts(TESTS[at].name);
    return 0;
  }
  if (strcmp(name, "ipc-other") == 0) return ipc_other(argc, argv);
  why = open_driver();
  if (why != NULL) skip(why);
  enter_device();
  if (strcmp(name, "costs") == 0) return costs();
  for (at = 0; at < COUNT; at++) {
    if (strcmp(name, TESTS[at].name) != 0) continue;
    TESTS[at].run();
    return 0;
  }
  fprintf(stderr, "usage: bfc-gpu NAME | costs | --list\n");
  return USAGE;
}
