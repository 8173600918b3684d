//! An allocator: an arena with a backend, behind a lock.
//!
//! ```text
//!   mutation     defects that tests switch on            lifecycle    creation, destruction
//!   captures     captures announced for the process      shrink       trims, lower limits, idle pools
//!   listener     the callback for regions                graph_pools  private pools, for captured graphs
//!   events       events of pending work                  alloc        requests, and what is tried for them
//!   guard_state  the debug mode's state                  free         frees
//!   idle_time    how long the pool has been idle         guarded      the debug mode, which detects overruns
//!   limit_share  what the limit follows                  take_back    the free itself, and refusals
//!   pool         the type                                limits       changes of the limit
//!   slot         its lock, waiting, calls under way      give_back    giving free memory back
//!   order        pending device work                     remap        mapping and moving granules
//!   context_loss a reset of the device's context         region_io    obtaining regions and giving them back
//!                                                        idle_callback  the callback before an idle pool is trimmed
//!                                                        populating   new regions, made resident in the background
//!                                                        stamp_merge  merges of stamped chunks, in pieces
//!                                                        snapshot     the copy that reports are written from
//!                                                        zeroing      zeroed host memory
//! ```
//!
//! The modules are ordered from the bottom layer up: the left column from the top down, then the right column from the
//! bottom up. Each module uses only those listed before it in this order.

pub(crate) mod alloc;
pub(crate) mod captures;
pub(crate) mod context_loss;
mod events;
pub(crate) mod free;
mod give_back;
pub(crate) mod graph_pools;
mod guard_state;
pub(crate) mod guarded;
mod history;
pub(crate) mod idle_callback;
pub(crate) mod idle_time;
pub(crate) mod lifecycle;
mod limit_share;
mod limits;
pub(crate) mod listener;
mod mutation;
pub(crate) mod order;
#[allow(clippy::module_inception)] // the type of this module
mod pool;
pub(crate) mod populating;
mod region_io;
mod remap;
pub(crate) mod shrink;
pub(crate) mod slot;
pub(crate) mod snapshot;
mod stamp_merge;
mod take_back;
pub(crate) mod zeroing;

pub(crate) use self::pool::Pool;
