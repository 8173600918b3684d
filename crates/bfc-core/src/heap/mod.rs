//! The heap: the chunks of all regions, the index of those available to every request, and what the backend has
//! provided.
//!
//! [`Heap`] keeps invariants I1, I3, I5 and I6 (`crate::invariants`). It does not depend on streams. Of stamps
//! it has only the number stored with a chunk, and of granules only the chunk's state.
//!
//! ```text
//!   chunk         32 hot bytes, neighbours linked by address
//!   chunks        the slab of all chunks
//!   free_index    free chunks by (size, address), over size_classes
//!   regions       what the backend gave            region_growth  how large the next one is
//!   address_map   address -> chunk, over probing
//!   alloc         best fit
//!   place         allocation at a given place
//!   small_requests  small requests beside large chunks
//!   lent          the parts borrowed one by one: split, coalesce, hand out
//! ```

mod address_map;
mod alloc;
mod chunk;
mod chunks;
mod free_index;
#[allow(clippy::module_inception)] // the room's type
mod heap;
mod lent;
mod place;
mod probing;
mod region_growth;
mod region_io;
mod regions;
mod size_classes;
mod small_requests;

#[cfg(test)]
mod broken_tests;

pub use self::alloc::Refused;
pub use self::chunk::{State, Tag};
pub use self::chunks::Chunks;
pub use self::heap::{Heap, Parts};
pub use self::region_growth::{Extension, Growth, RegionGrowth};
pub use self::regions::{Region, Regions};

pub(crate) use self::chunk::Hot;
pub(crate) use self::lent::{InUse, Lent};
#[cfg(test)]
pub(crate) use self::probing::Steps;
pub(crate) use self::size_classes::CLASSES;
