//! Plans to remap granules: growth, relocation and trim of a pool in a reserved range.
//!
//! A plan is decided at once, and the backend carries it out with the allocator unlocked. So there are three steps:
//!
//! - The plan takes every chunk concerned out of circulation: free chunks that give granules (`sources`), unmapped
//!   chunks that get new granules (`fresh`) or those of the sources (`targets`), and free chunks between them that are
//!   to coalesce with them (`kept`).
//! - The backend works, and its caller notes in the plan what is mapped in the end.
//! - `commit` makes mapped pieces free, and the others unmapped chunks.
//!
//! There is one plan at a time. Chunks in use are never part of a plan, and neither is any granule that contains a byte
//! of one.

use super::arena::Arena;
use crate::heap::{Heap, State};
use crate::ids::{ChunkId, NIL};
use crate::request::Request;
use crate::streams::QueueId;
use crate::units::Span;
use crate::vmm::{Donor, Place, Range, available_below, choose, donors, has_donors, total};
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// A chunk whose granules the backend maps or unmaps.
#[derive(Debug)]
pub struct Piece {
    id: ChunkId,
    /// The addresses of the chunk.
    pub span: Span,
    /// Whether the piece is mapped now. The code that calls the backend keeps this up to date.
    pub mapped: bool,
}

impl Piece {
    /// Returns the piece's chunk, until the plan is committed.
    pub fn id(&self) -> ChunkId {
        self.id
    }
}

/// The chunks that a plan concerns; see the top of this file.
#[derive(Default, Debug)]
pub struct Plan {
    /// Free chunks whose memory moves to the targets.
    pub sources: Vec<Piece>,
    /// Unmapped chunks that get new memory.
    pub fresh: Vec<Piece>,
    /// Unmapped chunks that get the memory of the sources.
    pub targets: Vec<Piece>,
    kept: Vec<ChunkId>,
}

impl Plan {
    /// Returns the new bytes that are reserved for the plan.
    pub fn reserved(&self) -> u64 {
        bytes(&self.fresh)
    }

    fn reserve(&mut self, sources: usize, unmapped: usize, kept: usize) -> Result<(), HostMemoryExhausted> {
        self.sources.try_reserve_exact(sources)?;
        // The unmapped chunk where new granules end and moved ones begin is split in two.
        self.fresh.try_reserve_exact(unmapped)?;
        self.targets.try_reserve_exact(unmapped)?;
        Ok(self.kept.try_reserve_exact(kept)?)
    }
}

/// Returns the bytes of all pieces.
pub fn bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.span.bytes).sum()
}

/// How much new memory a plan may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewMemory {
    /// What the request needs, and something for later requests.
    Ample,
    /// What the request needs.
    Needed,
    /// What the request needs beyond all idle memory.
    Least,
}

impl Arena {
    /// Returns whether a plan is under way.
    pub fn is_moving(&self) -> bool {
        self.vm.is_moving()
    }

    /// Plans to map what a request needs, where that is least, within the limit, and less than `below` bytes.
    pub fn plan_growth(
        &mut self,
        request: &Request<'_>,
        new: NewMemory,
        below: u64,
    ) -> Result<Option<Plan>, HostMemoryExhausted> {
        self.plan_with(|arena, range| arena.grow_for(range, request, new, below))
    }

    /// Begins a plan, and ends it if it changes nothing.
    fn plan_with(
        &mut self,
        make: impl FnOnce(&mut Self, Range) -> Result<Option<Plan>, HostMemoryExhausted>,
    ) -> Result<Option<Plan>, HostMemoryExhausted> {
        let Some(range) = self.range() else { return Ok(None) };
        let plan = self.begin_plan(range).and_then(|()| make(self, range));
        if !matches!(plan, Ok(Some(_))) {
            self.close_range();
        }
        plan
    }

    fn grow_for(
        &mut self,
        range: Range,
        request: &Request<'_>,
        new: NewMemory,
        below: u64,
    ) -> Result<Option<Plan>, HostMemoryExhausted> {
        let available = available_below(self.heap(), range, below);
        let queue = self.queue_for(request);
        if self.is_served(request, queue) {
            return Ok(None);
        }
        let is_free = |id| self.is_free_for(queue, id);
        let place = self.vm.best_place(self.heap(), range, request, is_free, |place| {
            (1..=available).contains(&place.missing)
        });
        let Some(place) = place else { return Ok(None) };
        let extra = match new {
            NewMemory::Ample => {
                self.growth_step(range).saturating_sub(place.missing).min(available - place.missing)
            }
            NewMemory::Needed | NewMemory::Least => 0,
        };
        let mut plan = Plan::default();
        self.reserve_plan(&mut plan, range, &place, request.size, 0)?;
        self.take_out(&mut plan, range, &place, request.size, place.missing, extra);
        self.start(&plan);
        Ok(Some(plan))
    }

    /// Plans to serve a request that the limit forbids to grow for. The plan uses what the limit leaves, and whole
    /// granules of free chunks, the largest first. Less than `below` bytes are new.
    pub fn plan_relocation(
        &mut self,
        request: &Request<'_>,
        new: NewMemory,
        below: u64,
    ) -> Result<Option<Plan>, HostMemoryExhausted> {
        self.plan_with(|arena, range| arena.relocate_for(range, request, new, below))
    }

    fn relocate_for(
        &mut self,
        range: Range,
        request: &Request<'_>,
        new: NewMemory,
        below: u64,
    ) -> Result<Option<Plan>, HostMemoryExhausted> {
        // Without host memory for that the request is served in another way.
        if has_donors(self.heap(), range, 0) && self.streams.hold_unfinished().is_err() {
            return Ok(None);
        }
        let mut donors = donors(self.heap(), range)?;
        let idle = total(&donors);
        let available = available_below(self.heap(), range, below);
        let (mut place, mut most) = (None, available + idle);
        if self.is_served(request, None) {
            return Ok(None);
        }
        let is_idle = |id| self.heap().is_idle(id);
        while let Some(found) =
            self.vm.best_place(self.heap(), range, request, is_idle, |place| place.granules <= most)
        {
            place = Some(found);
            if new != NewMemory::Least || found.granules <= idle {
                break;
            }
            // A place that takes fewer granules needs fewer new ones.
            most = found.granules - range.granule;
        }
        let Some(place) = place else { return Ok(None) };
        let zone = Span { base: range.floor(place.at), bytes: 0 };
        let zone = Span { bytes: range.ceil(place.at + request.size) - zone.base, ..zone };
        donors.iter_mut().for_each(|donor| donor.leave(&zone));
        let fresh = match new {
            NewMemory::Least => place.missing.saturating_sub(total(&donors)),
            NewMemory::Ample | NewMemory::Needed => place.missing.min(available),
        };
        choose(self.heap(), &mut donors, place.missing - fresh);
        let mut plan = Plan::default();
        self.reserve_plan(&mut plan, range, &place, request.size, donors.len())?;
        donors.iter().for_each(|donor| self.carve(&mut plan, donor));
        self.take_out(&mut plan, range, &place, request.size, fresh, 0);
        self.start(&plan);
        Ok(Some(plan))
    }

    /// Plans to give whole granules of free chunks back, the largest first, as long as `keep` bytes stay mapped.
    pub fn plan_trim(&mut self, keep: u64) -> Result<Plan, HostMemoryExhausted> {
        let mut plan = Plan::default();
        let Some(range) = self.range() else { return Ok(plan) };
        if !self.prepare_trim(keep)? {
            return Ok(plan);
        }
        let mut donors = donors(self.heap(), range)?;
        let spare = range.floor(self.growth().pool_bytes().saturating_sub(keep));
        choose(self.heap(), &mut donors, spare);
        if donors.is_empty() {
            return Ok(plan);
        }
        plan.reserve(donors.len(), 0, 0)?;
        self.reserve_cuts(2 * donors.len())?;
        donors.iter().for_each(|donor| self.carve(&mut plan, donor));
        self.start(&plan);
        Ok(plan)
    }

    /// Completes a plan, as far as the backend could carry it out.
    pub fn commit(&mut self, plan: Plan) {
        let Plan { sources, fresh, targets, kept } = plan;
        let reserved = bytes(&fresh);
        let mut held = self.growth().pool_bytes() - bytes(&sources);
        self.vm.end_move(fresh.len() + targets.len(), bytes(&sources));
        let changed = sources.iter().any(|piece| !piece.mapped)
            || fresh.iter().chain(&targets).any(|piece| piece.mapped);
        for piece in sources.iter().chain(&fresh).chain(&targets) {
            if piece.mapped {
                held += piece.span.bytes;
                self.vm.mapped(piece.span.bytes);
                self.return_chunk(piece.id);
            } else {
                self.streams.disown(piece.id);
                self.vm.make_unmapped(self.streams.heap_mut(), piece.id);
            }
        }
        kept.iter().for_each(|&id| self.return_chunk(id));
        let heap = self.heap_mut();
        heap.growth_mut().record_held(reserved, held);
        heap.set_given(held);
        // A plan that failed and was undone is no progress for other requests.
        heap.counters_mut().remaps += u64::from(changed);
        self.close_range();
    }

    /// Makes a chunk of a plan free, and coalesces it with its neighbours.
    fn return_chunk(&mut self, id: ChunkId) {
        if self.streams.is_multi() {
            self.streams.put_back(id);
        } else {
            self.release(id);
        }
    }

    /// Forgets the region of the range if it consists of one unmapped chunk.
    fn close_range(&mut self) {
        let only = self.regions().iter().map(|(number, region)| (number, region.first)).next();
        let Some((region, id)) = only else { return };
        if self.heap().next(id) == NIL && self.heap().state(id) == State::Unmapped {
            self.detach(region);
        }
    }

    fn start(&mut self, plan: &Plan) {
        self.heap_mut().growth_mut().reserve(bytes(&plan.fresh));
        self.vm.begin_move(plan.fresh.len() + plan.targets.len());
    }

    fn begin_plan(&mut self, range: Range) -> Result<(), HostMemoryExhausted> {
        debug_assert!(!self.vm.is_moving());
        self.merge_safe();
        self.reserve_cuts(1)?;
        self.vm.open(self.streams.heap_mut(), range)
    }

    fn reserve_cuts(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        self.reserve_chunks(count)?;
        // Every piece may end as an unmapped chunk of its own.
        let pieces = self.vm.coming() + count;
        self.vm.reserve(pieces + 1)
    }

    /// Reserves memory for everything that a plan for a place needs from here on.
    fn reserve_plan(
        &mut self,
        plan: &mut Plan,
        range: Range,
        place: &Place,
        size: u64,
        donors: usize,
    ) -> Result<(), HostMemoryExhausted> {
        let end = range.ceil(place.at + size);
        let (mut unmapped, mut free) = (0, 0);
        let mut id = ChunkId(place.first);
        while id != NIL && self.heap().addr(id) < end {
            match self.heap().state(id) {
                State::Unmapped => unmapped += 1,
                _ => free += 1,
            }
            id = self.heap().next(id);
        }
        plan.reserve(donors, unmapped, free)?;
        // A donor is split twice. So are the first and the last unmapped chunk, and the one where moved granules begin.
        self.reserve_cuts(2 * donors + unmapped + 4)
    }

    /// Returns how many bytes to map at once at least. A request mostly needs little, and a backend call is expensive.
    /// The step is a sixty-fourth of the pool, but not less than a granule, nor than the initial region if the pool is
    /// empty. It is unlimited without growth.
    fn growth_step(&self, range: Range) -> u64 {
        if !self.settings.growth.grows() {
            return u64::MAX;
        }
        let initial = if self.growth().pool_bytes() == 0 { self.settings.initial_region } else { 0 };
        let initial = range.floor(initial.saturating_add(range.granule - 1));
        range.floor(self.growth().pool_bytes() / 64).max(initial).max(range.granule)
    }

    /// Returns whether a chunk is free for a queue, or for every queue.
    fn is_free_for(&self, queue: Option<QueueId>, id: ChunkId) -> bool {
        self.heap().is_idle(id) || queue.is_some_and(|queue| self.streams.is_own(queue, id))
    }

    /// Returns whether memory that serves the request was freed since the request searched.
    fn is_served(&self, request: &Request<'_>, queue: Option<QueueId>) -> bool {
        self.find_constrained(request).is_some()
            || queue.is_some_and(|queue| self.streams.has_in_queue(request, queue))
    }

    /// Returns the queue whose chunks a request may use beside those that are reusable by every stream. These chunks
    /// stay the queue's own and in circulation while a plan is under way. If they are taken meanwhile, the request
    /// searches again.
    fn queue_for(&self, request: &Request<'_>) -> Option<QueueId> {
        self.streams.queue_of_request(request)
    }

    /// Splits the granules that a donor gives off its chunk. What is left of the chunk stays free.
    fn carve(&mut self, plan: &mut Plan, donor: &Donor) {
        let changing = self.streams.begin_change(donor.id);
        self.heap_mut().unindex(donor.id);
        let id = self.heap_mut().carve(donor.id, donor.span, Heap::add_to_index);
        self.heap_mut().chunks_mut().get_mut(id).mark_withheld();
        self.streams.end_change(changing, id);
        plan.sources.push(Piece { id, span: donor.span, mapped: true });
    }

    /// Takes the chunks of a place out of circulation. The first `fresh` bytes of its unmapped chunks get new granules,
    /// and so do up to `extra` bytes behind the place.
    fn take_out(
        &mut self,
        plan: &mut Plan,
        range: Range,
        place: &Place,
        size: u64,
        mut fresh: u64,
        extra: u64,
    ) {
        let (from, to) = (range.floor(place.at), range.ceil(place.at + size));
        let mut id = ChunkId(place.first);
        while id != NIL && self.heap().addr(id) < to {
            let (addr, end) = (self.heap().addr(id), self.heap().addr(id) + self.heap().size(id));
            let mut after = self.heap().next(id);
            if self.heap().state(id) == State::Unmapped {
                let more = if end >= to { extra.min(end - to) } else { 0 };
                fresh += more;
                let part = Span { base: addr.max(from), bytes: end.min(to) + more - addr.max(from) };
                let piece = self.vm.cut(self.streams.heap_mut(), id, part);
                after = self.heap().next(piece);
                fresh -= self.assign(plan, piece, part, fresh);
            } else if end > from && self.heap().is_idle(id) {
                let changing = self.streams.begin_change(id);
                self.heap_mut().unindex(id);
                self.heap_mut().chunks_mut().get_mut(id).mark_staying();
                self.streams.end_change(changing, id);
                plan.kept.push(id);
            }
            id = after;
        }
    }

    /// Assigns new granules to up to `fresh` bytes of a piece, and moved ones to the rest. Returns how many bytes are
    /// new.
    fn assign(&mut self, plan: &mut Plan, piece: ChunkId, span: Span, fresh: u64) -> u64 {
        let Span { base, bytes } = span;
        let new = bytes.min(fresh);
        let moved = Span { base: base + new, bytes: bytes - new };
        if new == 0 {
            plan.targets.push(Piece { id: piece, span, mapped: false });
            return 0;
        }
        if moved.bytes != 0 {
            let rest = self.heap_mut().split(piece, new);
            self.heap_mut().chunks_mut().get_mut(rest).mark_being_mapped();
            plan.targets.push(Piece { id: rest, span: moved, mapped: false });
        }
        plan.fresh.push(Piece { id: piece, span: Span { base, bytes: new }, mapped: false });
        new
    }
}
