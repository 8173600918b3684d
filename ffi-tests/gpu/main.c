/* bfc-gpu: libbfc on a real NVIDIA GPU, by its C ABI. `bfc-gpu` runs the tests, `bfc-gpu costs` measures. Each test is a
 * process of its own; this one never touches the driver, so that it may fork. It prints as cargo test does.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#define _GNU_SOURCE
#include "gpu.h"

#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77, SECONDS = 120 };

static int reasons = -1;

static void say(const char *words) {
  if (write(reasons, words, strlen(words)) < 0) _exit(1);
}

void failed(const char *file, int line, const char *what, const char *how) {
  char words[512] = "";
  bfc_last_error(words, sizeof(words));
  fprintf(stderr, "%s:%d: %s: %s (last error of the library: \"%s\")\n", file, line, what, how, words);
  fflush(NULL);
  _exit(1);
}

void skip(const char *why) {
  if (reasons >= 0) say(why);
  fflush(NULL);
  _exit(SKIPPED);
}

typedef struct test {
  const char *name;
  void (*run)(void);
} test;

#define TEST(name) {#name, name}
static const test TESTS[] = {
    TEST(basics_cuda),
    TEST(basics_vmm),
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
    TEST(ipc),
    TEST(reset_cuda),
    TEST(reset_vmm),
};
enum { COUNT = sizeof(TESTS) / sizeof(*TESTS) };

/* Anything that keeps all of it from running is one test that was skipped. */
static const char *absent(void) {
  static char why[256];
  int ends[2], status = 0;
  ssize_t length;
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const char *words = open_driver();
    reasons = ends[1];
    if (words != NULL) say(words);
    _exit(words != NULL);
  }
  close(ends[1]);
  length = read(ends[0], why, sizeof(why) - 1);
  why[length > 0 ? length : 0] = '\0';
  close(ends[0]);
  if (child < 0 || waitpid(child, &status, 0) != child) return "no child process";
  return status == 0 ? NULL : why;
}

static int run_one(const test *test) {
  char why[512];
  int ends[2], status = 0;
  ssize_t length;
  fflush(NULL);
  if (pipe(ends) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    reasons = ends[1];
    alarm(SECONDS);
    if (open_driver() != NULL) failed(__FILE__, __LINE__, "open_driver", "the driver is gone");
    enter_device();
    test->run();
    fflush(NULL);
    _exit(0);
  }
  close(ends[1]);
  length = read(ends[0], why, sizeof(why) - 1);
  why[length > 0 ? length : 0] = '\0';
  close(ends[0]);
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
    printf("test %s ... ignored, %s\n", test->name, why);
    return SKIPPED;
  }
  printf("test %s ... %s\n", test->name, status == 0 ? "ok" : "FAILED");
  if (WIFSIGNALED(status)) printf("  it ended by signal %d\n", WTERMSIG(status));
  return status != 0;
}

int main(int argc, char **argv) {
  int at, passed = 0, ignored = 0, broken = 0;
  const char *why;
  char **variable;
  for (variable = environ; *variable != NULL; variable++) {
    if (strncmp(*variable, "BFC_", 4) == 0) {
      fprintf(stderr, "unset %s first: the settings of whoever runs the tests are not those of the tests\n", *variable);
      return 2;
    }
  }
  if (argc > 1 && strcmp(argv[1], "ipc-other") == 0) return ipc_other(argc, argv);
  why = absent();
  if (argc > 1 && strcmp(argv[1], "costs") == 0) {
    if (why != NULL) {
      printf("nothing measured: %s\n", why);
      return 0;
    }
    return costs();
  }
  if (why != NULL) {
    printf("test gpu ... ignored, %s\n", why);
    printf("test result: ok. 0 passed; 0 failed; 1 ignored\n");
    return 0;
  }
  for (at = 0; at < COUNT; at++) {
    if (argc > 1 && strcmp(argv[1], TESTS[at].name) != 0) continue;
    const int status = run_one(&TESTS[at]);
    passed += status == 0;
    ignored += status == SKIPPED;
    broken += status != 0 && status != SKIPPED;
  }
  printf("test result: %s. %d passed; %d failed; %d ignored\n", broken ? "FAILED" : "ok", passed, broken, ignored);
  return broken != 0;
}
