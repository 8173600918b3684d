/* The process's host memory, under the test's control: the program's own malloc, mmap and relatives, to which
 * libbfc's calls bind because the program exports them. They count what is held, and refuse when told.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef BFC_TESTS_HOST_MEMORY_H
#define BFC_TESTS_HOST_MEMORY_H

typedef enum { ONLY_THAT_ONE, ALL_FROM_THERE } refusal;

/* The n-th allocation, counted from 1 over all later armed stretches, is refused; with ALL_FROM_THERE the later ones of
 * the same stretch are too. 0: none is. */
void host_memory_refuse(long nth, refusal how);

/* A stretch in which allocations count and may be refused. Returns how many were refused in it. */
void host_memory_arm(void);
int host_memory_disarm(void);

/* Allocations counted since host_memory_refuse. */
long host_memory_asked(void);

/* Held at this moment: blocks by malloc and relatives, bytes by mmap. */
long host_memory_blocks(void);
long host_memory_mapped(void);

#endif
