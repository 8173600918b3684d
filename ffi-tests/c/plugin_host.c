/* A thread loads a plugin, calls the library in it, unloads it, and ends: nothing of the plugin may run then.
 *
 *     plugin_host PLUGIN
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "loaded.h"

#include <pthread.h>

static void *load_and_unload(void *file) {
  int (*call)(void);
  void *const plugin = load((const char *)file);
  find(plugin, "plugin_call", &call);
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
