/* simcuda: a simulation of the CUDA driver for tests. This header steers it; the driver's own functions are
 * NVIDIA's cuda.h. The symbols are in the simulated libcuda.so.1: link it, or get them by dlsym.
 *
 * Streams are named by handles as in cuda.h: NULL and 1 are the current context's legacy default stream, 2 the
 * calling thread's. Functions that return int return a CUresult, 0 for success. Nothing here is logged, counted
 * or made to fail. Any thread may call anything at any time; a simulated kernel may not wait for its own stream.
 * In a forked child nothing here may be called.
 *
 * Environment, read before the first call: SIMCUDA_DEVICES (1), SIMCUDA_MEMORY (bytes of each device, 16 GiB), and the
 * name of each simcuda_option for its initial value.
 */
#ifndef SIMCUDA_H
#define SIMCUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The machine ------------------------------------------------------------------------------------- */

/* As in a fresh process, with the options as they are: no context, no memory, nothing initialised, no log.
 * Handles from before stay known as stale. Not while other threads are in the driver. */
void simcuda_reset(void);

/* The same with that many devices (0 to 64) of that many bytes each, and the options at their defaults. */
int simcuda_configure(int devices, uint64_t memory);

/* From now on every function of the driver is CUDA_ERROR_DEINITIALIZED, as at the end of a process. */
void simcuda_shutdown(void);

/* clang-format off */
typedef enum simcuda_option {
  SIMCUDA_DRIVER_VERSION = 0,    /* 13050: newer functions are not found, and not supported if called */
  SIMCUDA_POISON = 1,            /* 0: freed memory is unmapped, a stray access faults; 1: filled with 0xdd */
  SIMCUDA_REUSE_ADDRESSES = 2,   /* 1: the lowest free address; 0: none again until all were used */
  SIMCUDA_SYNCHRONIZE_WAITS = 3, /* 0: a blocking call runs the held work that it waits for, so one thread never
                                    hangs; 1: it waits until another thread steps it (a minute, then it fails) */
  SIMCUDA_FREE_SYNCHRONIZES = 4, /* 1: cuMemFree waits for all work of the device; 0: for none */
  SIMCUDA_HOLD_NEW = 5,          /* 1: every new stream is held, default streams too */
  SIMCUDA_RECYCLE_HANDLES = 6,   /* 1: the handle that was destroyed last is the next new one of its kind */
  SIMCUDA_GRANULARITY = 7,       /* 2 MiB: of cuMemCreate; a power of two, at least 4096 */
  SIMCUDA_VMM = 8,               /* 1; 0: virtual memory management is not supported; 2: it is, without the flag
                                    gpuDirectRDMACapable */
  SIMCUDA_POOLS = 9,             /* 1; 0: memory pools are not supported */
  SIMCUDA_PEERS = 10,            /* who can access whose memory (cuDeviceCanAccessPeer). 1: each device all others'; 0: none;
                                    2: devices 0 and 1 each other's, 2 and 3, and so on; 3: that of lower ordinals */
  SIMCUDA_RESET_ENDS = 11,       /* what the end of a primary context does to virtual memory of its device. 0: nothing;
                                    1: mappings and physical memory go; 2: reserved ranges too */
  SIMCUDA_EVENTS_LIE = 12,       /* 1: queries of events and waits for them find everything done, so that a test of
                                    races can show that it sees one; no driver does that */
  SIMCUDA_STALE_ABORTS = 13,     /* 1: the use of a destroyed handle prints a message and aborts the process, as the
                                    real driver may crash; 0: it is counted and fails */
  SIMCUDA_DEADLOCK_MILLISECONDS = 14, /* 10000: how long a blocking call gives other threads to resolve a deadlock, before
                                         it fails and a misuse is counted */
  SIMCUDA_CAPTURED_STREAMS_HIDE = 15, /* 1: cuStreamGetId, cuStreamGetCtx and cuStreamGetDevice of a captured stream fail and
                                        end the capture even in a thread in relaxed mode; 0: there they succeed */
  SIMCUDA_GRAPH_ORDER = 16, /* the order in which a launch runs nodes that no dependency orders. 0: that of the capture; 1: the
                              reverse, so that branches which share memory by mistake show it */
  SIMCUDA_STREAM_QUERIES_UNSAFE = 17, /* 1: cuStreamGetId, cuStreamGetCtx and cuStreamGetDevice, of any stream, are among the
                                        potentially unsafe calls that captures forbid; 0: no capture forbids them, unless
                                        SIMCUDA_CAPTURED_STREAMS_HIDE does */
  SIMCUDA_HOST_FUNCTIONS_CALL = 18, /* what becomes of a driver's call in a host function, callback or simulated kernel. 0: it
                                      is refused and counted as a misuse; 1: it is made, and is a misuse only if it waits
                                      for the stream that runs the function */
  SIMCUDA_RACES = 19 /* uses of the same memory that nothing orders, at least one of them not a read. 0: they are not looked
                        for; 1: each is a misuse, and the first 20 are printed to stderr; 2: the first one aborts the process */
} simcuda_option;
/* clang-format on */

/* Takes effect at once and lasts until simcuda_configure. */
int simcuda_set(int option, int64_t value);
int64_t simcuda_get(int option);

/* ---- Streams and work --------------------------------------------------------------------------------- */

/* Work that is queued on the stream later, and work that waits there already, stays until it is stepped. */
int simcuda_hold(void *stream);
/* Runs up to n items of a held stream, in order, as far as what they wait for elsewhere is done; then whatever can
 * run on streams that are not held. Returns how many were run. Kernels, copies, fills, records of events and waits
 * for events are an item each. */
uint64_t simcuda_step(void *stream, uint64_t n);
/* Ends the hold and runs what can be run. */
int simcuda_release(void *stream);
/* The same for every stream, also for destroyed ones whose work is left. */
void simcuda_release_all(void);
/* Items that are queued and not done. */
uint64_t simcuda_pending(void *stream);

/* A simulated kernel: when its turn comes, function(argument) is called, by whichever thread is then in the driver.
 * It may touch memory; a stray access faults. During capture it becomes a node. */
int simcuda_launch(void *stream, void (*function)(void *), void *argument);
/* Simulated kernels that fill a range with an 8-byte pattern, and that read it and expect the pattern: what differs
 * is counted (simcuda_mismatches). A range that is not accessible when the turn comes is a misuse, and the context
 * fails with CUDA_ERROR_ILLEGAL_ADDRESS (700) afterwards; nothing is touched and nothing crashes. */
int simcuda_fill(void *stream, uint64_t address, uint64_t bytes, uint64_t pattern);
int simcuda_expect(void *stream, uint64_t address, uint64_t bytes, uint64_t pattern);

/* Simulated kernels that communicate, for example a receive that is posted before the matching send. A send puts a
 * message into a channel (any number) when its turn comes. A receive ends only when the channel has a message, which it
 * takes; until then it blocks its stream. Neither orders the streams: no event connects them. Each may be on any stream
 * of any context or device. A collective of two devices is a send and a receive on a stream of each.
 *
 * A blocking call that waits for a receive which nothing can end (no send is queued, or the send is itself queued behind
 * the receive) gives other threads SIMCUDA_DEADLOCK_MILLISECONDS to change that. Then it counts a misuse whose text names
 * the chain of streams, and fails with CUDA_ERROR_LAUNCH_TIMEOUT (702). Later ones then fail at once. */
int simcuda_send(void *stream, uint64_t channel);
int simcuda_receive(void *stream, uint64_t channel);

/* ---- Faults ------------------------------------------------------------------------------------------- */

/* The nth call from now (1 is the next) of a function fails with a code and does nothing. The function is named by
 * symbol (cuMemAlloc_v2) or without the version (cuMemAlloc: any of its versions); NULL is any function. Several
 * orders may be open. A code such as 700 also makes the current context sticky. */
int simcuda_fail(const char *function, uint64_t nth, int code);
/* How many ordered failures have happened. */
uint64_t simcuda_struck(void);
/* Each call of a function, or of any, takes that long more; 0 ends it. */
void simcuda_delay(const char *function, uint64_t nanoseconds);
/* Forgets failures that are still to come, and delays. */
void simcuda_clear_faults(void);
/* The current context of this thread then fails with that code. */
void simcuda_make_sticky(int code);

/* ---- What happened ------------------------------------------------------------------------------------ */

/* Calls of a function, named as above; NULL: of all. */
uint64_t simcuda_calls(const char *function);
/* Counts and the log of calls begin anew. */
void simcuda_clear_log(void);
/* The last 65536 calls, a line each: sequence, thread, function, arguments, result. Writes at most capacity bytes
 * with a NUL, and returns the whole length without it. */
size_t simcuda_log(char *buffer, size_t capacity);

/* What would be undefined or a crash with the real driver: use of a destroyed handle, device work on memory that
 * is gone. Their number, and the words of each, which index counts from 0 (mismatches have words here too). */
uint64_t simcuda_misuses(void);
size_t simcuda_misuse(uint64_t index, char *buffer, size_t capacity);
/* How often a handle of a kind (simcuda_kind: contexts, streams, events, graphs; -1: all) was used that is not live:
 * destroyed before, or never given out. Each use is a misuse too. NVIDIA's text for streams: "Passing an invalid handle
 * will result in undefined behavior." */
uint64_t simcuda_stale(int kind);
/* How often a kernel of simcuda_expect found something else. */
uint64_t simcuda_mismatches(void);

/* clang-format off */
typedef enum simcuda_kind {
  SIMCUDA_CONTEXTS = 0,
  SIMCUDA_STREAMS = 1, /* created, not destroyed or with work left */
  SIMCUDA_EVENTS = 2,
  SIMCUDA_ALLOCATIONS = 3, /* device, managed, pinned, registered and imported memory */
  SIMCUDA_PHYSICAL = 4,
  SIMCUDA_RESERVATIONS = 5,
  SIMCUDA_MAPPINGS = 6,
  SIMCUDA_GRAPHS = 7, /* and executables */
  SIMCUDA_CAPTURES = 8,
  SIMCUDA_RETAINS = 9 /* references to primary contexts */
} simcuda_kind;
/* clang-format on */

/* How many there are now: what is left at a test's end has leaked. */
uint64_t simcuda_live(int kind);
/* Bytes of a device that are in use. */
uint64_t simcuda_used(int device);

#ifdef __cplusplus
}
#endif

#endif
