/* Children of a test: one says that all is well by ending with a status of its own.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef LIBBFC_TESTS_CHILD_H
#define LIBBFC_TESTS_CHILD_H

#include "check.h"

#include <errno.h>
#include <sys/wait.h>

/* The status that CHECK, an abort and a child that merely goes on do not end with. */
enum { CHILD_SECONDS = 60, CHILD_IS_WELL = 7 };

/* The child has to end by itself and well. */
CHECK_UNUSED static void child_ends_well(pid_t child) {
  int status = -1;
  CHECK(child > 0);
  while (waitpid(child, &status, 0) != child) CHECK(errno == EINTR);
  if (WIFSIGNALED(status)) fprintf(stderr, "the child was killed by signal %d\n", WTERMSIG(status));
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == CHILD_IS_WELL);
}

/* Runs in a child, which has to end by itself and well. */
CHECK_UNUSED static void in_a_child(void (*run)(void)) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(CHILD_SECONDS); /* not inherited; one that fires is a hang */
    run();
    _exit(CHILD_IS_WELL);
  }
  child_ends_well(child);
}

#endif
