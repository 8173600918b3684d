//! The arena: allocation and free over a heap, the order of streams, stamps, and granules.
//!
//! [`Arena`] only orchestrates: each room below keeps its own invariants.
//!
//! ```text
//!   constrained   requests with an alignment or an age        remap_plan    granules on their way
//!   add_region    what the backend gives                      reclaim       garbage collection, trim, the end
//!   context_loss  everything forgotten at once                snapshot      what reports read
//! ```

mod add_region;
#[allow(clippy::module_inception)] // the room's type
mod arena;
mod check;
mod constrained;
mod context_loss;
mod reclaim;
mod remap_plan;
mod snapshot;

pub(crate) use self::add_region::usable;
pub(crate) use self::arena::{Arena, Progress, Settings};
pub(crate) use self::reclaim::Detached;
pub(crate) use self::remap_plan::{New, Piece, Plan, bytes};
pub(crate) use self::snapshot::{Room, Snapshot, View};
pub(crate) use crate::core::heap::Parts;
