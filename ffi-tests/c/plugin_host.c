/* A thread loads a plugin, calls the library in it, unloads it, and ends: nothing of the plugin may run then.
 *
 *     plugin_host PLUGIN
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                               \
    }                                                                         \
  } while (0)

static void *load_and_unload(void *file) {
  int (*call)(void);
  void *symbol, *const plugin = dlopen((const char *)file, RTLD_NOW | RTLD_LOCAL);
  if (plugin == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(plugin != NULL);
  symbol = dlsym(plugin, "plugin_call");
  CHECK(symbol != NULL);
  /* C has no conversion from void * to a function pointer; POSIX has a way around. */
  memcpy(&call, &symbol, sizeof(call));
  CHECK(call() == 2); /* BFC_ERROR_NO_ALLOCATOR */
  CHECK(dlclose(plugin) == 0);
  CHECK(dlopen((const char *)file, RTLD_NOW | RTLD_NOLOAD) == NULL);
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t thread;
  int round;
  CHECK(argc == 2);
  alarm(120);
  for (round = 0; round < 3; round++) {
    CHECK(pthread_create(&thread, NULL, load_and_unload, argv[1]) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
  }
  return 0;
}
