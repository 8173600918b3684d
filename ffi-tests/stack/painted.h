/* How much stack each function of libbfc needs, measured on a thread whose stack is filled with a pattern.
 *
 * What runs behind a fence has a stack of its own and is not counted: callbacks, the driver and the loader.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_TESTS_PAINTED_H
#define BFC_TESTS_PAINTED_H

#include <stddef.h>

/* The most that a call of any function may need, in bytes. */
#define MOST_BYTES 4096

/* The deepest call of one function in one case. */
typedef struct measurement {
  char function[40];
  char scenario[40];
  long depth;
  char call[120];
} measurement;

/* Room for measurements in memory that the child processes share with the program. A program that a child executes finds it
 * by the file that is returned. */
int measurements_begin(void);
void measurements_in(int file);
const measurement *measurements(size_t *count);

/* Runs `work` in a new thread with a stack of `bytes`, and measures its calls as those of `scenario`. */
void on_painted_stack(const char *scenario, size_t bytes, void (*work)(void));

/* The same in steps. The stack is shared with child processes, so that what a call that does not return has changed can be
 * noted by the parent. */
char *painted_stack(size_t bytes);
void measure_on(char *stack, size_t bytes, const char *scenario);
void run_on(char *stack, size_t bytes, void (*work)(void));

/* Fills the stack below the caller's frame with the pattern, and afterwards notes how much of it `call` has changed. */
void paint(void);
void note_depth(const char *call);

/* The value of a call whose depth is measured. */
#define DEEP(call)                 \
  __extension__({                  \
    __typeof__(call) deep_result_; \
    paint();                       \
    deep_result_ = (call);         \
    note_depth(#call);             \
    deep_result_;                  \
  })
/* The same for one that returns nothing. */
#define DEEP_VOID(call) (paint(), (call), note_depth(#call))

/* The function's address for callers on the measured stack: what it calls runs on another stack. Functions with up to
 * ten arguments. Never given back. */
void *fence(void *function);

/* What stands for a function of the driver that was found by a name; NULL: it does itself. */
extern void *(*fence_replace)(const char *name, void *found);

/* A library whose functions are not behind fences, though they have the names of the driver's. */
extern void *fence_open;

/* Not 0: libcuda.so.1 cannot be opened. */
extern int fence_hides_driver;

#endif
