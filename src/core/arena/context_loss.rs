//! All memory is gone at once: the program has ended the context that it belonged to.
//!
//! Nothing of it is given back, for there is nothing left to give. What was live counts as freed, and the arena is as
//! it was before its first region; only what counts events, and the numbers of allocations, goes on.

use super::arena::Arena;
use super::remap_plan::{Plan, bytes};
use crate::core::heap::{Chunks, Regions, State};
use crate::core::ids::{ChunkId, NIL};
use crate::core::units::Span;
use crate::core::vmm::Range;

/// What an arena held when all of it was gone.
pub(crate) struct Gone {
    chunks: Chunks,
    regions: Regions,
    range: Option<Range>,
}

impl Arena {
    /// Forgets every region, chunk and queue. Needs no memory and cannot fail. Regions that others have detached are
    /// theirs to forget ([`Self::forget_detached`]), as are extensions and plans under way.
    pub(crate) fn forget_all(&mut self) -> Gone {
        let range = self.range();
        let has_stamps = self.settings.timestamps;
        let (chunks, regions) = self.heap_mut().forget_all(has_stamps);
        self.stamps.clear();
        self.vm.forget_all();
        self.streams.forget_all();
        Gone { chunks, regions, range }
    }

    /// How often everything was forgotten: what was learnt before is of no use after.
    pub(crate) fn life(&self) -> u64 {
        self.counters().losses
    }

    /// A region was detached, and everything was forgotten before it went.
    pub(crate) fn forget_detached(&mut self) {
        self.heap_mut().counters_mut().regions_released += 1;
    }

    /// A plan was made, and everything was forgotten before it was carried out.
    pub(crate) fn abandon(&mut self, plan: &Plan) {
        self.heap_mut().growth_mut().unreserve(bytes(&plan.fresh));
    }
}

impl Gone {
    /// The pieces of memory that there were, in address order.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        let whole = self.range.is_none();
        let regions = self.regions.iter().filter(move |_| whole);
        let regions = regions.map(|(_, region)| Span { base: region.base, bytes: region.given });
        regions.chain(self.mapped())
    }

    /// Of a range what was mapped. Pieces that were on their way are not told: who moves them tells of them. What was
    /// only kept for their sake is.
    fn mapped(&self) -> impl Iterator<Item = Span> + '_ {
        let first = self.regions.iter().next().filter(|_| self.range.is_some());
        let mut at = first.map_or(NIL, |(_, region)| region.first);
        let has_memory = |id: ChunkId| match self.chunks.state(id) {
            State::Unmapped | State::BeingMapped => false,
            State::Withheld => self.chunks.get(id).is_staying(),
            _ => true,
        };
        std::iter::from_fn(move || {
            let span;
            (span, at) = self.chunks.piece_from(at, has_memory)?;
            Some(span)
        })
    }
}
