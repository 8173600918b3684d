/* What is called of libbfc_preload.so's hooks on the measured stack.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_TESTS_STACK_HOOKS_H
#define BFC_TESTS_STACK_HOOKS_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t word;

#define MIB ((word)1 << 20)
#define MOST_HOOKS 400

/* The names of all hooks. */
extern char hooks[MOST_HOOKS][60];
extern size_t hook_count;

/* Which call of the driver fails with which code; 0: none. */
extern word fail_nth;
extern int fail_code;
/* Bytes that the trace may have; 0: any. */
extern word trace_limit;

/* Reads the names from a file, and has the interposer, which is loaded, find the simulated driver behind fences. */
void begin_hooks(const char *names, const char *interposer);

/* Calls all hooks that the simulation implements. */
void work(void);
/* Calls the others, which leave the process in no state to go on in. */
void work_of_others(void);
/* Paints the stack, and ends the process from there. */
void work_until_exit(void);

#endif
