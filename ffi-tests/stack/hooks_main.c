/* Each hook of libbfc_preload.so needs at most 4 KiB of stack, with what it calls of libbfc, whatever it meets. This program
 * runs with the interposer preloaded, and is given the list of its hooks, each of which has to be measured:
 *
 *     LD_PRELOAD=.../libbfc_preload.so stack-hooks HOOKS .../libbfc_preload.so
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "hooks.h"
#include "painted.h"

#include "../c/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>

#define STACK_BYTES ((size_t)256 * 1024)
#define OUT_OF_MEMORY 2
#define UNKNOWN_ERROR 999
/* Driver calls, each of which fails once. */
#define FAILED_CALLS 80

static char folder[200];
static int measured_file;

/* ---- Scenarios --------------------------------------------------------------------------------------------------- */

struct scenario {
  const char *name;
  const char *variables[6];
  /* Bytes that the trace may have; 0: any. */
  word trace_limit;
};

static const struct scenario *current;

#define LIMIT "BFC_MEMORY_LIMIT=64M"
#define TRACE "BFC_PRELOAD_TRACE=%s/trace-%%p"
#define REPORT "BFC_PRELOAD_REPORT=%s/report"
#define CHECKED "BFC_PRELOAD_CHECK=%s/check"
#define LOG "BFC_LOG=debug"
#define ASYNC "BFC_PRELOAD_ASYNC=1"
#define PINNED "BFC_PRELOAD_PINNED=1"

static const struct scenario scenarios[] = {
    {"plain", {NULL}, 0},
    {"trace and report", {TRACE, REPORT, CHECKED, LOG}, 0},
    {"report on standard error", {TRACE, "BFC_PRELOAD_REPORT=-", "BFC_PRELOAD_CHECK=-", LOG}, 0},
    {"no such folder", {"BFC_PRELOAD_TRACE=/nonexistent/t", "BFC_PRELOAD_REPORT=/nonexistent/r"}, 0},
    {"relative names", {"BFC_PRELOAD_TRACE=./trace-%%p", "BFC_PRELOAD_REPORT=./report"}, 0},
    {"foreign report", {"BFC_PRELOAD_REPORT=%s/foreign"}, 0},
    {"full disk", {TRACE, REPORT}, MIB},
    {"limit", {LIMIT, TRACE, REPORT, LOG}, 0},
    {"async", {ASYNC, PINNED, TRACE, REPORT, CHECKED}, 0},
    {"async, limit", {ASYNC, PINNED, LIMIT, TRACE, REPORT, LOG}, 0},
    {"granules", {"BFC_BACKEND=cuda_vmm", TRACE, REPORT, LOG}, 0},
    {"granules, limit, async", {"BFC_BACKEND=cuda_vmm", LIMIT, ASYNC, TRACE, REPORT}, 0},
    {"free synchronizes", {"BFC_PRELOAD_FREE=sync", PINNED, TRACE, REPORT}, 0},
    {"shares", {"BFC_PRELOAD_IPC=1", PINNED}, 0},
    {"guard", {"BFC_DEBUG=guard", TRACE, REPORT, LOG}, 0},
    {"malformed", {"BFC_PRELOAD_MIN=many", "BFC_MEMORY_FRACTION=0.1x", "BFC_PRELOAD_ASYNC=perhaps", CHECKED}, 0},
};

static void set(const struct scenario *scenario) {
  char text[500];
  size_t at;
  for (at = 0; at < 6 && scenario->variables[at] != NULL; at++) {
    snprintf(text, sizeof(text), scenario->variables[at], folder);
    CHECK(putenv(strdup(text)) == 0);
  }
}

/* A process of its own, in which the interposer reads the scenario's environment: it starts this program once more. */
static void run(const struct scenario *scenario, const char *part, word nth, char **argv) {
  char name[60], numbers[3][24];
  int status = -1;
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    set(scenario);
    snprintf(numbers[0], sizeof(numbers[0]), "%d", (int)(scenario - scenarios));
    snprintf(numbers[1], sizeof(numbers[1]), "%d", (int)nth);
    snprintf(numbers[2], sizeof(numbers[2]), "%d", measured_file);
    execl("/proc/self/exe", argv[0], argv[1], argv[2], part, numbers[0], numbers[1], folder, numbers[2], (char *)NULL);
    _exit(7);
  }
  CHECK(waitpid(child, &status, 0) == child);
  if (status != 0) {
    snprintf(name, sizeof(name), "%s, %s %d", scenario->name, part, (int)nth);
    fprintf(stderr, "%s ended with status %#x\n", name, (unsigned)status);
    _exit(1);
  }
}

static void child(char **argv) {
  static char name[60];
  void (*const works[])(void) = {work, work_of_others, work_until_exit};
  const char *const parts[] = {"work", "others", "exit"};
  size_t at;
  current = &scenarios[atoi(argv[4])];
  trace_limit = current->trace_limit;
  fail_nth = (word)atoi(argv[5]);
  fail_code = fail_nth % 2 == 0 ? OUT_OF_MEMORY : UNKNOWN_ERROR;
  alarm(HANG_SECONDS);
  snprintf(name, sizeof(name), fail_nth == 0 ? "%s" : "%s, call %d fails", current->name, (int)fail_nth);
  for (at = 0; at < 3; at++) {
    if (strcmp(argv[3], parts[at]) != 0) continue;
    if (at == 2) {
      /* What follows exit is seen by another process, which shares the stack. */
      char *stack = painted_stack(STACK_BYTES);
      int status = -1;
      const pid_t ending = fork();
      measure_on(stack, STACK_BYTES, name);
      if (ending == 0) run_on(stack, STACK_BYTES, works[at]);
      CHECK(waitpid(ending, &status, 0) == ending && status == 0);
      note_depth("exit(0)");
    } else {
      on_painted_stack(name, STACK_BYTES, works[at]);
    }
  }
  _exit(0);
}

/* ---- Results ------------------------------------------------------------------------------------------------------ */

static const measurement *deepest(const char *name) {
  const measurement *list, *found = NULL;
  size_t count, at;
  list = measurements(&count);
  for (at = 0; at < count; at++) {
    if (strcmp(list[at].function, name) != 0) continue;
    if (found == NULL || list[at].depth > found->depth) found = &list[at];
  }
  return found;
}

/* What the scenarios have written. */
static void remove_folder(void) {
  DIR *files = opendir(folder);
  struct dirent *file;
  CHECK(files != NULL);
  while ((file = readdir(files)) != NULL) unlinkat(dirfd(files), file->d_name, 0);
  closedir(files);
  rmdir(folder);
}

int main(int argc, char **argv) {
  int wrong = 0;
  size_t at;
  word nth;
  CHECK(argc == 3 || argc == 8);
  begin_hooks(argv[1], argv[2]);
  if (argc == 8) {
    measurements_in(atoi(argv[7]));
    snprintf(folder, sizeof(folder), "%s", argv[6]);
    child(argv);
  }
  measured_file = measurements_begin();
  snprintf(folder, sizeof(folder), "/tmp/libbfc-stack-XXXXXX");
  CHECK(mkdtemp(folder) != NULL && chdir(folder) == 0);
  {
    const int file = open("foreign", O_WRONLY | O_CREAT, 0600);
    CHECK(file >= 0 && write(file, "not a report\n", 13) == 13);
  }
  for (at = 0; at < sizeof(scenarios) / sizeof(scenarios[0]); at++) {
    run(&scenarios[at], "work", 0, argv);
    run(&scenarios[at], "others", 0, argv);
    run(&scenarios[at], "exit", 0, argv);
  }
  for (nth = 1; nth <= FAILED_CALLS; nth++) run(&scenarios[1 + nth % 2 * 8], "work", nth, argv);
  remove_folder();
  strcpy(hooks[hook_count++], "exit");
  for (at = 0; at < hook_count; at++) {
    const measurement *most = deepest(hooks[at]);
    if (most == NULL) {
      printf("%s was not measured\n", hooks[at]);
      wrong++;
    } else {
      const int fits = most->depth <= MOST_BYTES;
      printf("%6ld %s %s (%s)\n", most->depth, fits ? "ok  " : "DEEP", most->call, most->scenario);
      if (!fits) wrong++;
    }
  }
  if (wrong != 0)
    fprintf(stderr, "%d hooks need more than %d bytes of stack, or were not measured\n", wrong, MOST_BYTES);
  return wrong != 0;
}
