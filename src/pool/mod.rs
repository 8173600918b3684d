//! An allocator: an arena with a backend, behind a lock.
//!
//! ```text
//!   mutation     defects that tests switch on            lifecycle    creation, destruction
//!   captures     captures announced for the process      graph_pools  private pools, for captured graphs
//!   listener     the callback for regions                alloc        requests, and what is tried for them
//!   events       events of pending work                  free         frees
//!   guard_state  the debug mode's state                  guarded      the debug mode, which detects overruns
//!   idle_time    how long the pool has been idle         idle         trims, limits, memory of pools at rest
//!   limit_share  what the limit follows                  take_back    the free itself, and refusals
//!   history      what the pool records                   remap        mapping and moving granules
//!   pool         the type                                region_io    obtaining regions and giving them back
//!   slot         its lock, waiting, calls under way      populating   new regions, made resident in the background
//!   order        pending device work                     stamp_merge  merges of stamped chunks, in pieces
//!   context_loss a reset of the device's context         snapshot     the copy that reports are written from
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
pub(crate) mod graph_pools;
mod guard_state;
pub(crate) mod guarded;
mod history;
pub(crate) mod idle;
pub(crate) mod idle_time;
pub(crate) mod lifecycle;
mod limit_share;
pub(crate) mod listener;
mod mutation;
pub(crate) mod order;
#[allow(clippy::module_inception)] // the type of this module
mod pool;
pub(crate) mod populating;
mod region_io;
mod remap;
pub(crate) mod slot;
pub(crate) mod snapshot;
mod stamp_merge;
mod take_back;
pub(crate) mod zeroing;

pub(crate) use self::pool::Pool;
