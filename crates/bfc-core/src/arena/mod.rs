//! The arena: allocation and free over a heap, stream order, stamps, and granules.
//!
//! [`Arena`] only orchestrates. Each module below it keeps its own invariants.
//!
//! ```text
//!   arena         the type, and what every request and free goes through
//!   constrained   requests with an alignment or an age        remap_plan    growth, remapping and trim by granules
//!   add_region    regions from the backend                    reclaim       garbage collection, trim, destruction
//!   context_loss  forgetting everything at once               snapshot      what reports read
//!   planned       requests with a planned place             two_ends      short-lived requests
//!   mode          what an arena is created as               check         invariants I1 to I6
//! ```

mod add_region;
#[allow(clippy::module_inception)] // the type of this module
mod arena;
mod check;
mod constrained;
mod context_loss;
mod mode;
mod planned;
mod reclaim;
mod remap_plan;
mod snapshot;
mod two_ends;

pub use self::add_region::usable;
pub use self::arena::{Arena, Progress, Settings};
pub use self::mode::{Placement, Reuse};
pub use self::reclaim::{Cursor, Detached};
pub use self::remap_plan::{NewMemory, Piece, Plan, bytes};
pub use self::snapshot::{Room, Snapshot, View};
pub use crate::heap::{Parts, RegionGrowth};
