//! Loss of all memory at once, when the program has ended the context that it belonged to.
//!
//! No memory is given back, because none is left. Memory in use counts as freed, and the arena is as it was before its
//! first region. Only the counts of events and the numbers of allocations continue.

use super::arena::Arena;
use super::remap_plan::{Plan, bytes};
use crate::heap::{Chunks, Regions, State};
use crate::ids::{ChunkId, NIL};
use crate::units::Span;
use crate::vmm::Range;

/// What an arena held when all of its memory was lost.
pub struct LostMemory {
    chunks: Chunks,
    regions: Regions,
    range: Option<Range>,
}

impl Arena {
    /// Forgets every region, chunk and queue. Needs no memory and cannot fail. Callers that hold detached regions,
    /// extensions or plans must forget these themselves ([`Self::forget_detached`]).
    pub fn forget_all(&mut self) -> LostMemory {
        let range = self.range();
        let has_stamps = self.settings.reuse.has_stamps();
        let (chunks, regions) = self.heap_mut().forget_all(has_stamps);
        self.stamps.clear();
        self.vm.forget_all();
        self.streams.forget_all();
        if let Some(plan) = self.placement.plan_mut() {
            plan.restart();
        }
        LostMemory { chunks, regions, range }
    }

    /// Returns how often everything was forgotten. Knowledge from before a change of this number is of no use
    /// afterwards.
    pub fn life(&self) -> u64 {
        self.counters().losses
    }

    /// Counts a detached region as released if everything was forgotten before the backend took the region back.
    pub fn forget_detached(&mut self) {
        self.heap_mut().counters_mut().regions_released += 1;
    }

    /// Abandons a plan if everything was forgotten before the plan was carried out.
    pub fn abandon(&mut self, plan: &Plan) {
        self.heap_mut().growth_mut().unreserve(bytes(&plan.fresh));
    }
}

impl LostMemory {
    /// Returns the pieces of memory that existed, in address order.
    pub fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        let whole = self.range.is_none();
        let regions = self.regions.iter().filter(move |_| whole);
        let regions = regions.map(|(_, region)| region.span());
        regions.chain(self.mapped())
    }

    /// Returns the mapped pieces of a range. Pieces that a plan was mapping or unmapping are left out, because the code
    /// that carries out the plan reports them. Chunks that the plan only kept are included.
    fn mapped(&self) -> impl Iterator<Item = Span> + '_ {
        let first = self.regions.iter().next().filter(|_| self.range.is_some());
        let mut at = first.map_or(NIL, |(_, region)| region.first);
        let has_memory = |id: ChunkId| match self.chunks.state(id) {
            State::Unmapped | State::BeingMapped => false,
            State::Withheld => self.chunks.get(id).is_staying(),
            _ => true,
        };
        core::iter::from_fn(move || {
            let span;
            (span, at) = self.chunks.piece_from(at, has_memory)?;
            Some(span)
        })
    }
}
