/* The library as a plugin or an interpreter loads it: by name at run time, and closed again. It stays in the
 * process, for its fork handlers and its callers' memory must outlive the closing.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "loaded.h"

#include <bfc.h>

#include <stdlib.h>
#include <sys/wait.h>

static bfc_status_t (*create)(int32_t, const bfc_options_t *);
static bfc_status_t (*destroy)(int32_t);
static bfc_status_t (*alloc)(int32_t, size_t, void **);
static bfc_status_t (*give_back)(int32_t, void *);
static size_t (*last_error)(char *, size_t);

static void *open_library(const char *file) {
  void *const library = load(file);
  find(library, "bfc_create", &create);
  find(library, "bfc_destroy", &destroy);
  find(library, "bfc_alloc", &alloc);
  find(library, "bfc_free", &give_back);
  find(library, "bfc_last_error", &last_error);
  return library;
}

int main(int argc, char **argv) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  void *library, *ptr = NULL;
  char words[256];
  int status = -1;
  pid_t child;
  CHECK(argc == 2);
  alarm(120);
  options.backend = BFC_BACKEND_HOST;
  options.flags = BFC_ALLOW_GROWTH;
  options.memory_limit = 1 << 20;

  library = open_library(argv[1]);
  CHECK(create(256, &options) == BFC_OK && alloc(256, 1000, &ptr) == BFC_OK);
  memset(ptr, 'p', 1000);
  CHECK(dlclose(library) == 0);

  /* The memory is there, and a fork finds the library's handlers. */
  CHECK(((char *)ptr)[999] == 'p');
  child = fork();
  CHECK(child >= 0);
  if (child == 0) _exit(give_back(256, ptr) == BFC_OK && destroy(256) == BFC_OK ? 7 : 1);
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);

  /* Opened again it is the same one. */
  library = open_library(argv[1]);
  CHECK(create(256, &options) == BFC_ERROR_ALREADY_EXISTS && last_error(words, sizeof(words)) > 0);
  CHECK(give_back(256, ptr) == BFC_OK && destroy(256) == BFC_OK);
  CHECK(dlclose(library) == 0);
  return 0;
}
