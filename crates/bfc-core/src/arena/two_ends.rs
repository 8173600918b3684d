//! Short-lived allocations at the upper end of free chunks, and others at the lower end, so that memory that is freed
//! soon does not lie between memory that stays. Newest XLA partitions its pool like this.

use super::arena::Arena;
use super::mode::Placement;
use crate::ids::ChunkId;
use crate::request::Request;
use crate::units::{Span, UNIT};
use bfc_hostmem::HostMemoryExhausted;

impl Arena {
    /// Returns whether short-lived sizes are learnt.
    pub fn has_two_ends(&self) -> bool {
        matches!(self.placement, Placement::TwoEnds(_))
    }

    /// Returns whether a request takes the upper end of a free chunk.
    pub(crate) fn is_short_lived(&self, request: &Request<'_>) -> bool {
        let is_learnt = match &self.placement {
            Placement::TwoEnds(lifetimes) => lifetimes.is_short(request.size),
            _ => false,
        };
        self.range().is_none() && (request.short_lived || is_learnt)
    }

    /// Allocates one of the ends of the best fit. There must be one stream, and no stamps.
    #[inline(never)]
    pub(super) fn alloc_at_an_end(
        &mut self,
        request: &Request<'_>,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        if request.alignment > UNIT {
            return self.alloc_constrained(request);
        }
        if self.is_short_lived(request)
            && let Some(id) = self.heap().best_fit(request.size)
            && self.heap().splits(self.heap().size(id), request.size)
            && !self.streams.spares(request, self.heap().size(id))
        {
            let place = Span { base: self.heap().end_of(id) - request.size, bytes: request.size };
            return self.heap_mut().alloc_at(id, place, request.requested).map(Some);
        }
        self.alloc_best_fit(request)
    }

    /// Records how long a chunk that is being freed was in use.
    #[inline(always)]
    pub(super) fn note_lifetime(&mut self, id: ChunkId) {
        if !self.has_two_ends() {
            return;
        }
        // Any remainder was split off, so a chunk has the size that was requested.
        let (size, age) =
            (self.heap().size(id), self.counters().allocations() - self.chunks().cold(id).allocation_id);
        if let Placement::TwoEnds(lifetimes) = &mut self.placement {
            lifetimes.freed(size, age);
        }
    }
}
