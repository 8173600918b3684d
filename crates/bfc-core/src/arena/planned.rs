//! Requests of a pool with planned placements.

use super::arena::Arena;
use super::mode::Placement;
use crate::ids::NIL;
use crate::plan::PlacementPlan;
use crate::request::Request;
use crate::units::{Span, UNIT};
use bfc_hostmem::HostMemoryExhausted;

impl Arena {
    /// Gives requests their places from now on, as long as one stream uses the pool. There must be no region yet. A plan
    /// and two ends exclude stamps, and two ends a virtual range: there granules are moved, and nothing was gained on the
    /// recorded programs.
    #[inline]
    pub fn set_placement(&mut self, placement: Placement) {
        match &placement {
            Placement::BestFit => return,
            Placement::Plan(plan) => self.make_room_for(plan.bytes()),
            Placement::TwoEnds(_) => {}
        }
        self.streams.set_steered();
        self.placement = placement;
        self.note_range();
    }

    fn make_room_for(&mut self, planned: u64) {
        self.heap_mut().growth_mut().set_planned(planned);
        if self.range().is_some() {
            // In a range nothing grows by regions. This much is mapped first.
            self.settings.initial_region = self.settings.initial_region.max(planned);
        }
    }

    /// Returns the planned placements, if there are any.
    pub fn plan(&self) -> Option<&PlacementPlan> {
        self.placement.plan()
    }

    /// Counts planned offsets from the beginning of the range, if there is one.
    pub(super) fn note_range(&mut self) {
        if let (Some(range), Some(plan)) = (self.vm.range(), self.placement.plan_mut()) {
            plan.set_base(range.base);
        }
    }

    /// Counts planned offsets from the first region of a pool.
    pub(super) fn note_region(&mut self, base: u64) {
        if self.regions().count() == 1
            && let Some(plan) = self.placement.plan_mut()
        {
            plan.set_base(base);
        }
    }

    /// Allocates at the planned place if the request is in the plan and the place is free. Otherwise allocates the best
    /// fit. There must be one stream.
    #[inline(never)]
    pub(super) fn alloc_planned(
        &mut self,
        request: &Request<'_>,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        let Some(plan) = self.plan() else { return Ok(None) };
        let found = plan.find(request.size, self.counters().live() == 0);
        let (place, below) = found.map_or((None, None), |found| (found.place, found.below));
        let is_aligned = |place: &u64| place.is_multiple_of(request.alignment.max(UNIT));
        let place = place.filter(is_aligned).map(|base| Span { base, bytes: request.size });
        let chunk = place.and_then(|place| Some((place, self.heap().free_chunk_at(place, below)?)));
        let (served, at_place) = match chunk {
            Some((place, chunk)) => {
                let before = self.heap().prev(chunk);
                let before = if before == NIL { place.base } else { self.heap().addr(before) };
                (Some(self.heap_mut().alloc_at(chunk, place, request.requested)?), Some(before))
            }
            None => (self.alloc_unplanned(request)?, None),
        };
        if served.is_some()
            && let Some(plan) = self.placement.plan_mut()
        {
            plan.served(request.size, found.as_ref(), at_place);
        }
        Ok(served)
    }

    /// Allocates for a request without a planned place, or whose place is not free. Behind the planned bytes it is in the
    /// way of no other request; if there is no room it gets the best fit.
    fn alloc_unplanned(&mut self, request: &Request<'_>) -> Result<Option<u64>, HostMemoryExhausted> {
        if let Some((end, below)) = self.plan().and_then(|plan| plan.end()) {
            let alignment = request.alignment.max(UNIT);
            let (found, below) = self.heap().free_chunk_after(end, request.size, alignment, below);
            if let Some(plan) = self.placement.plan_mut() {
                plan.set_below_end(below);
            }
            if let Some((chunk, place)) = found {
                return self.heap_mut().alloc_at(chunk, place, request.requested).map(Some);
            }
        }
        if request.is_plain() {
            self.heap_mut().alloc(request.size, request.requested)
        } else {
            self.alloc_constrained(request)
        }
    }
}
