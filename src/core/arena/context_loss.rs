//! All memory is gone at once: the program has ended the context that it belonged to.
//!
//! Nothing of it is given back, for there is nothing left to give. What was live counts as freed, and the arena is as
//! it was before its first region; only what counts events, and the numbers of allocations, goes on.

use crate::core::arena::Arena;
use crate::core::arena::remap_plan::{Plan, bytes};
use crate::core::heap::chunks::{Chunks, State};
use crate::core::heap::regions::Regions;
use crate::core::ids::{ChunkId, NIL};
use crate::core::streams::queues::{Lanes, Stream};
use crate::core::units::Span;
use crate::core::vmm::unmapped::{Holes, Range};

/// What an arena held when all of it was gone.
pub(crate) struct Gone {
    chunks: Chunks,
    regions: Regions,
    range: Option<Range>,
}

impl Arena {
    /// Forgets every region, chunk and lane. Needs no memory and cannot fail. Regions that others have detached are
    /// theirs to forget ([`Self::forget_detached`]), as are extensions and plans under way.
    pub(crate) fn forget_all(&mut self) -> Gone {
        let range = self.holes.range;
        let chunks = std::mem::replace(&mut self.chunks, Chunks::new(self.settings.timestamps));
        let regions = self.regions.take();
        self.index.clear();
        self.starts.clear_all();
        self.stamps.clear();
        self.holes = Holes::default();
        self.holes.range = range;
        let advances = self.lanes.advances;
        self.lanes = Lanes::new(self.settings.seed, self.settings.events);
        self.lanes.advances = advances;
        (self.home, self.mixed, self.home_recorded) = (Stream::NONE, false, false);
        self.simple = self.settings.first_simple();
        self.counters.lost_all(regions.count() as u64);
        self.synchronized_frees = self.counters.frees();
        self.growth.forget_held();
        Gone { chunks, regions, range }
    }

    /// How often everything was forgotten: what was learnt before is of no use after.
    pub(crate) fn life(&self) -> u64 {
        self.counters.losses
    }

    /// A region was detached, and everything was forgotten before it went.
    pub(crate) fn forget_detached(&mut self) {
        self.counters.regions_released += 1;
    }

    /// A plan was made, and everything was forgotten before it was carried out.
    pub(crate) fn abandon(&mut self, plan: &Plan) {
        self.growth.unreserve(bytes(&plan.fresh));
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
            State::Hole | State::Coming => false,
            State::Away => self.chunks.slab[..][id].is_staying(),
            _ => true,
        };
        std::iter::from_fn(move || {
            let span;
            (span, at) = self.chunks.piece_from(at, has_memory)?;
            Some(span)
        })
    }
}
