//! Pools: requests, frees, and when to wait for the device.
//!
//! cudaFree waits for the device before it returns, and programs rely on that: freed memory is not reused before the
//! work that was queued until then has completed. Here a freed chunk stays in quarantine instead (`BFC_QUARANTINE`). A
//! request that finds no memory outside of it probes the work, and one probe covers all chunks that were freed before.
//! The pool waits for the device only if it cannot grow.
//!
//! ```text
//! handle                        the pool's ordinal, creator and counters
//! requests                      single calls of libbfc
//! sharing                       the contexts whose work may touch a pool's memory
//! deferred_frees                deferred frees
//! waiting_frees                 frees that a synchronization covers
//! probe                         querying the work of several devices without waiting for it
//! wait                          waiting for the device: when, and with which effect
//! room                          the memory that the pool can return to a driver that is out of memory
//! idle                          frees that become reusable while the program is idle
//! create                        the beginning and the end of a pool
//! alloc  free                   requests and frees
//! pinned                        the pool of pinned host memory
//! known_streams                 the streams known to pools
//! ```
//!
//! A file uses only those above it.

mod alloc;
mod create;
mod deferred_frees;
mod free;
mod handle;
mod idle;
pub(crate) mod known_streams;
mod legacy_stream;
pub(crate) mod pinned;
mod probe;
mod requests;
mod room;
mod sharing;
mod wait;
mod waiting_frees;

pub(crate) use free::Freed;
pub(crate) use handle::{Pool, Refused, pointer};
pub(crate) use probe::pause_probes;
pub(crate) use waiting_frees::WaitingFrees;
