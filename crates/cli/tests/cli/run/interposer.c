/* An interposer that interposes nothing: it says in the check file what a test has it say (FAKE_SEES, lines with
   `;` between them), and writes the environment that it finds into the file FAKE_ENVIRONMENT. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static void say(const char *what, size_t length) {
  const char *path = getenv("BFC_PRELOAD_CHECK");
  char line[5000];
  int file, n;
  if (!path) return;
  n = snprintf(line, sizeof line, "%d %.*s\n", (int)getpid(), (int)length, what);
  file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0 || write(file, line, (size_t)n) != n) _exit(99);
  close(file);
}

static void write_environment(const char *path) {
  FILE *file = fopen(path, "w");
  if (!file) _exit(98);
  for (char **variable = environ; *variable; variable++) fprintf(file, "%s\n", *variable);
  fclose(file);
}

__attribute__((constructor)) static void begin(void) {
  char loaded[4200] = "loaded ";
  const char *sees = getenv("FAKE_SEES");
  if (readlink("/proc/self/exe", loaded + 7, 4096) < 0) _exit(97);
  say(loaded, strlen(loaded));
  for (; sees && *sees; sees += strcspn(sees, ";"), sees += *sees == ';') say(sees, strcspn(sees, ";"));
  if (getenv("FAKE_ENVIRONMENT")) write_environment(getenv("FAKE_ENVIRONMENT"));
}

__attribute__((destructor)) static void end(void) {
  const char *driver = getenv("FAKE_DRIVER");
  char line[100];
  snprintf(line, sizeof line, "exit driver=%s", driver ? driver : "absent");
  say(line, strlen(line));
}
