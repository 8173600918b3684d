//! Granules on their way: growth, remapping and trim of a pool in a reserved range.
//!
//! Each is decided at once and carried out by the backend with the allocator unlocked. So there are three steps. A
//! plan takes every chunk concerned out of circulation: free chunks that give granules (`sources`), holes that get
//! new ones (`fresh`) or those of the sources (`targets`), and free chunks between them, which are to be one with
//! them (`kept`). Then the backend works, and writes into the plan what is mapped in the end. At last `commit` makes
//! what is mapped free and what is not a hole. There is one plan at a time.
//!
//! Chunks in use are never part of a plan, and no granule with a byte of one.

use crate::core::arena::donors::{Donor, total};
use crate::core::arena::{Arena, Want};
use crate::core::heap::chunks::State;
use crate::core::ids::{ChunkId, NIL};
use crate::core::streams::queues::{ANYONE, Lane, Note};
use crate::core::units::{Span, UNIT};
use crate::core::vmm::unmapped::Range;
use crate::sys::HostMemoryExhausted;

/// A chunk whose granules the backend maps or unmaps.
#[derive(Debug)]
pub(crate) struct Piece {
    id: ChunkId,
    pub(crate) span: Span,
    /// Whether it is mapped now: whoever talks to the backend keeps this true.
    pub(crate) mapped: bool,
}

/// What is to be done; see the top of this file.
#[derive(Default, Debug)]
pub(crate) struct Plan {
    pub(crate) sources: Vec<Piece>,
    pub(crate) fresh: Vec<Piece>,
    pub(crate) targets: Vec<Piece>,
    kept: Vec<ChunkId>,
}

impl Plan {
    /// New bytes that are set aside for it.
    pub(crate) fn reserved(&self) -> u64 {
        bytes(&self.fresh)
    }

    fn reserve(&mut self, sources: usize, holes: usize, kept: usize) -> Result<(), HostMemoryExhausted> {
        self.sources.try_reserve_exact(sources)?;
        // The hole at which new granules end and moved ones begin is cut in two.
        self.fresh.try_reserve_exact(holes)?;
        self.targets.try_reserve_exact(holes)?;
        Ok(self.kept.try_reserve_exact(kept)?)
    }
}

pub(crate) fn bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.span.bytes).sum()
}

/// How much new memory a plan may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum New {
    /// What the request needs, and something for the next ones.
    Ample,
    /// What the request needs.
    Needed,
    /// What the request needs beyond all that is idle.
    Least,
}

/// A place for a request between two chunks that are no part of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    /// Bytes of holes that it touches: what has to be mapped. The first thing to compare by.
    missing: u64,
    /// How much of that is the end of the range.
    of_tail: u64,
    /// The bytes of the run of chunks that it lies in.
    run_bytes: u64,
    at: u64,
    /// Whole granules that it takes, mapped or not: the others are partly in use.
    granules: u64,
    /// A chunk of the run at or before it.
    first: u32,
}

/// Neighbouring chunks that are free or holes, between two that are neither.
struct Run {
    first: ChunkId,
    start: u64,
    end: u64,
}

impl Arena {
    /// Whether a plan is under way.
    pub(crate) fn is_moving(&self) -> bool {
        self.holes.moving
    }

    /// Plans to map what a request needs, where that is least, within the limit, and less than `below` bytes.
    pub(crate) fn plan_growth(
        &mut self,
        want: &Want<'_>,
        new: New,
        below: u64,
    ) -> Result<Option<Plan>, HostMemoryExhausted> {
        let Some(range) = self.range() else { return Ok(None) };
        let plan = self.begin_plan(range).and_then(|()| self.grow_for(range, want, new, below));
        if !matches!(plan, Ok(Some(_))) {
            self.close_range();
        }
        plan
    }

    fn grow_for(
        &mut self,
        range: Range,
        want: &Want<'_>,
        new: New,
        below: u64,
    ) -> Result<Option<Plan>, HostMemoryExhausted> {
        let available = self.available_below(range, below);
        let lane = self.lane_for(want);
        if self.is_served(want, lane) {
            return Ok(None);
        }
        let is_free = |id| self.is_free_for(lane, id);
        let place = self.best_place(range, want, is_free, |place| (1..=available).contains(&place.missing));
        let Some(place) = place else { return Ok(None) };
        let extra = match new {
            New::Ample => {
                self.growth_step(range).saturating_sub(place.missing).min(available - place.missing)
            }
            New::Needed | New::Least => 0,
        };
        let mut plan = Plan::default();
        self.reserve_plan(&mut plan, range, &place, want.size, 0)?;
        self.take_out(&mut plan, range, &place, want.size, place.missing, extra);
        self.start(&plan);
        Ok(Some(plan))
    }

    /// Plans to serve a request that the limit forbids to grow for: with what the limit leaves, and with whole
    /// granules of free chunks, the largest first. Less than `below` bytes are new.
    pub(crate) fn plan_relocation(
        &mut self,
        want: &Want<'_>,
        new: New,
        below: u64,
    ) -> Result<Option<Plan>, HostMemoryExhausted> {
        let Some(range) = self.range() else { return Ok(None) };
        let plan = self.begin_plan(range).and_then(|()| self.relocate_for(range, want, new, below));
        if !matches!(plan, Ok(Some(_))) {
            self.close_range();
        }
        plan
    }

    fn relocate_for(
        &mut self,
        range: Range,
        want: &Want<'_>,
        new: New,
        below: u64,
    ) -> Result<Option<Plan>, HostMemoryExhausted> {
        let mut donors = self.donors(range)?;
        let idle = total(&donors);
        let available = self.available_below(range, below);
        let (mut place, mut most) = (None, available + idle);
        if self.is_served(want, None) {
            return Ok(None);
        }
        let is_idle = |id| self.is_idle(id);
        while let Some(found) = self.best_place(range, want, is_idle, |place| place.granules <= most) {
            place = Some(found);
            if new != New::Least || found.granules <= idle {
                break;
            }
            // One that takes fewer needs less that is new.
            most = found.granules - range.granule;
        }
        let Some(place) = place else { return Ok(None) };
        let zone = Span { base: range.floor(place.at), bytes: 0 };
        let zone = Span { bytes: range.ceil(place.at + want.size) - zone.base, ..zone };
        donors.iter_mut().for_each(|donor| donor.leave(&zone));
        let fresh = match new {
            New::Least => place.missing.saturating_sub(total(&donors)),
            New::Ample | New::Needed => place.missing.min(available),
        };
        self.choose(&mut donors, place.missing - fresh);
        let mut plan = Plan::default();
        self.reserve_plan(&mut plan, range, &place, want.size, donors.len())?;
        donors.iter().for_each(|donor| self.carve(&mut plan, donor));
        self.take_out(&mut plan, range, &place, want.size, fresh, 0);
        self.start(&plan);
        Ok(Some(plan))
    }

    /// What the limit leaves, in whole granules, as far as it is less than `below`.
    fn available_below(&self, range: Range, below: u64) -> u64 {
        range.floor(self.growth.available().min(below.saturating_sub(1)))
    }

    /// Plans to give whole granules of free chunks back, the largest first, as long as `keep` bytes stay mapped.
    pub(crate) fn plan_trim(&mut self, keep: u64) -> Result<Plan, HostMemoryExhausted> {
        let mut plan = Plan::default();
        let Some(range) = self.range() else { return Ok(plan) };
        self.merge_safe();
        let mut donors = self.donors(range)?;
        let spare = range.floor(self.growth.pool_bytes.saturating_sub(keep));
        self.choose(&mut donors, spare);
        if donors.is_empty() {
            return Ok(plan);
        }
        plan.reserve(donors.len(), 0, 0)?;
        self.reserve_cuts(2 * donors.len())?;
        donors.iter().for_each(|donor| self.carve(&mut plan, donor));
        self.start(&plan);
        Ok(plan)
    }

    /// The plan is carried out, as far as it could be.
    pub(crate) fn commit(&mut self, plan: Plan) {
        let Plan { sources, fresh, targets, kept } = plan;
        let reserved = bytes(&fresh);
        let mut held = self.growth.pool_bytes - bytes(&sources);
        self.holes.bytes += bytes(&sources);
        self.holes.coming -= fresh.len() + targets.len();
        let changed = sources.iter().any(|piece| !piece.mapped)
            || fresh.iter().chain(&targets).any(|piece| piece.mapped);
        for piece in sources.iter().chain(&fresh).chain(&targets) {
            if piece.mapped {
                held += piece.span.bytes;
                self.holes.bytes -= piece.span.bytes;
                self.release_idle(piece.id);
            } else {
                self.disown(piece.id);
                self.make_hole(piece.id);
            }
        }
        kept.iter().for_each(|&id| self.release_idle(id));
        self.growth.settle(reserved, held);
        let region = self.regions.iter().map(|(region, _)| region).next();
        if let Some(region) = region {
            self.regions.get_mut(region).given = held;
        }
        // What failed and was restored is no progress for others.
        self.counters.remaps += u64::from(changed);
        self.holes.moving = false;
        self.close_range();
    }

    /// Free from now on, and one with its neighbours.
    fn release_idle(&mut self, id: ChunkId) {
        if self.settings.timestamps {
            self.release::<true>(id);
        } else if self.mixed {
            self.chunks.slab[..][id].mark_held();
            if self.unclaim(id) {
                self.settle(id);
            } else {
                self.give_to_all(id, None);
            }
        } else {
            self.release::<false>(id);
        }
    }

    /// Whether a chunk of a plan became a lane's while the plan was under way, when another stream came; from now on
    /// that lane does not wait for it.
    fn unclaim(&mut self, id: ChunkId) -> bool {
        let lane = self.lanes.note(id).lane;
        let claimed = lane != ANYONE;
        if claimed {
            self.lanes.row_mut(lane).end_waiting();
        }
        claimed
    }

    /// What is not mapped is in nobody's order.
    fn disown(&mut self, id: ChunkId) {
        if self.mixed && self.unclaim(id) {
            *self.lanes.note_mut(id) = Note::new(ANYONE, 0);
        }
    }

    fn start(&mut self, plan: &Plan) {
        debug_assert!(!self.holes.moving, "one plan at a time");
        self.growth.reserve(bytes(&plan.fresh));
        self.holes.coming += plan.fresh.len() + plan.targets.len();
        self.holes.moving = true;
    }

    fn begin_plan(&mut self, range: Range) -> Result<(), HostMemoryExhausted> {
        debug_assert!(!self.holes.moving);
        self.merge_safe();
        self.reserve_cuts(1)?;
        self.open_range(range)
    }

    fn reserve_cuts(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        self.reserve_chunks(count)?;
        self.starts.reserve(&self.chunks.slab, &mut self.regions, count)?;
        // Every piece may end as a hole of its own.
        let pieces = self.holes.coming + count;
        self.reserve_holes(pieces + 1)
    }

    /// Memory for everything that a plan for a place needs from here on.
    fn reserve_plan(
        &mut self,
        plan: &mut Plan,
        range: Range,
        place: &Place,
        size: u64,
        donors: usize,
    ) -> Result<(), HostMemoryExhausted> {
        let end = range.ceil(place.at + size);
        let (mut holes, mut free) = (0, 0);
        let mut id = ChunkId(place.first);
        while id != NIL && self.chunks.addr(id) < end {
            match self.chunks.state(id) {
                State::Hole => holes += 1,
                _ => free += 1,
            }
            id = self.chunks.next(id);
        }
        plan.reserve(donors, holes, free)?;
        // A donor is cut twice; so are the first and the last hole, and one where moved granules begin.
        self.reserve_cuts(2 * donors + holes + 4)
    }

    /// How much is mapped at once at least: what a request needs is mostly little, and a call of the backend is
    /// dear; but never more than a sixty-fourth of the pool.
    fn growth_step(&self, range: Range) -> u64 {
        if !self.settings.growth {
            return u64::MAX;
        }
        let initial = if self.growth.pool_bytes == 0 { self.settings.initial_region } else { 0 };
        let initial = range.floor(initial.saturating_add(range.granule - 1));
        range.floor(self.growth.pool_bytes / 64).max(initial).max(range.granule)
    }

    /// Free for a lane, or for all.
    fn is_free_for(&self, lane: Option<Lane>, id: ChunkId) -> bool {
        self.is_idle(id) || lane.is_some_and(|lane| self.is_own(lane, id))
    }

    /// Whether memory was freed since the request looked.
    fn is_served(&self, want: &Want<'_>, lane: Option<Lane>) -> bool {
        self.find_choosy(want).is_some() || lane.is_some_and(|lane| self.has_in_lane(want, lane))
    }

    /// Whether the limit allows to map granules.
    pub(in crate::core) fn can_map_more(&self) -> bool {
        self.range().is_some_and(|range| self.available_below(range, u64::MAX) != 0)
    }

    /// Where a request would be served that the limit allows to grow for, if it might use what `is_free` accepts, and a
    /// chunk at or before that.
    pub(in crate::core) fn place_to_grow_at(
        &self,
        want: &Want<'_>,
        is_free: impl Fn(ChunkId) -> bool,
    ) -> Option<(u64, ChunkId)> {
        let range = self.range()?;
        let available = self.available_below(range, u64::MAX);
        let place =
            self.best_place(range, want, is_free, |place| (1..=available).contains(&place.missing))?;
        Some((place.at, ChunkId(place.first)))
    }

    /// Whose chunks a request may use beside those that everybody may. They stay his and in circulation while a plan is
    /// under way: should they be taken meanwhile, the request looks again.
    fn lane_for(&self, want: &Want<'_>) -> Option<Lane> {
        if self.mixed { self.lanes.find(self.lanes.directed(want.stream)) } else { None }
    }

    /// The run that begins with a hole, or with a free chunk before it; `None` if the hole is not its run's first.
    fn run_of(&self, is_free: impl Fn(ChunkId) -> bool, hole: ChunkId) -> Option<Run> {
        let (mut first, mut last) = (hole, hole);
        let mut prev = self.chunks.prev(first);
        while prev != NIL && is_free(prev) {
            (first, prev) = (prev, self.chunks.prev(prev));
        }
        if prev != NIL && self.chunks.state(prev) == State::Hole {
            return None;
        }
        let mut next = self.chunks.next(last);
        while next != NIL && (self.chunks.state(next) == State::Hole || is_free(next)) {
            (last, next) = (next, self.chunks.next(next));
        }
        Some(Run {
            first,
            start: self.chunks.addr(first),
            end: self.chunks.addr(last) + self.chunks.size(last),
        })
    }

    /// The place in holes and what `is_free` accepts with the fewest bytes to map; among equals one that spares the end of the range, then the one in
    /// the smallest run, then the lowest. A run without a hole has no place, or the request were served already.
    ///
    /// It is enough to look where the request begins at the beginning of a chunk or ends at the end of one: moving
    /// it between two such places never helps, for holes begin and end at granule boundaries.
    fn best_place(
        &self,
        range: Range,
        want: &Want<'_>,
        is_free: impl Fn(ChunkId) -> bool,
        allowed: impl Fn(&Place) -> bool,
    ) -> Option<Place> {
        let (size, alignment) = (want.size, want.alignment.max(UNIT));
        let mut best: Option<Place> = None;
        for run in self.holes.list().iter().filter_map(|&hole| self.run_of(&is_free, hole)) {
            if run.end - run.start < size {
                continue;
            }
            let mut id = run.first;
            while id != NIL && self.chunks.addr(id) < run.end {
                let (addr, end) = (self.chunks.addr(id), self.chunks.addr(id) + self.chunks.size(id));
                let after = addr.checked_next_multiple_of(alignment);
                let before = end.checked_sub(size).map(|at| at & !(alignment - 1));
                for at in [after, before].into_iter().flatten() {
                    if at >= run.start && at <= run.end - size {
                        let place = self.place(range, &run, id, at, size);
                        let better = best.is_none_or(|best| place < best);
                        best = if better && allowed(&place) { Some(place) } else { best };
                    }
                }
                id = self.chunks.next(id);
            }
        }
        best
    }

    /// What there is at an address; `near` is a chunk of the run that is not far from it, where the look begins.
    fn place(&self, range: Range, run: &Run, near: ChunkId, at: u64, size: u64) -> Place {
        let (from, to) = (range.floor(at), range.ceil(at + size));
        let (mut missing, mut of_tail) = (0, 0);
        let mut first = NIL;
        let mut id = near;
        while id != run.first && self.chunks.addr(id) > from {
            id = self.chunks.prev(id);
        }
        while id != NIL && self.chunks.addr(id) < to {
            let (addr, end) = (self.chunks.addr(id), self.chunks.addr(id) + self.chunks.size(id));
            if end > from {
                first = if first == NIL { id } else { first };
                if self.chunks.state(id) == State::Hole {
                    let bytes = end.min(to) - addr.max(from);
                    missing += bytes;
                    of_tail += if end == range.end() { bytes } else { 0 };
                }
            }
            id = self.chunks.next(id);
            if id != NIL && self.chunks.addr(id) >= run.end {
                break;
            }
        }
        // The granules at the ends of the run may be partly in use.
        let (low, high) = (from < run.start, to > run.end);
        let shared =
            if low && high && to - from == range.granule { 1 } else { u64::from(low) + u64::from(high) };
        let granules = to - from - shared * range.granule;
        Place { missing, of_tail, run_bytes: run.end - run.start, at, granules, first: first.0 }
    }

    /// Cuts what a donor gives out of its chunk; what is left of that is free.
    fn carve(&mut self, plan: &mut Plan, donor: &Donor) {
        let Span { base, bytes } = donor.span;
        let mut id = donor.id;
        let changing = self.begin_change(id);
        self.unindex(id);
        let below = base - self.chunks.addr(id);
        if below != 0 {
            let rest = self.add_after(id, below);
            self.index.insert(&mut self.chunks.slab, id, below);
            id = rest;
        }
        let above = self.chunks.size(id) - bytes;
        if above != 0 {
            let rest = self.add_after(id, bytes);
            self.index.insert(&mut self.chunks.slab, rest, above);
        }
        self.chunks.slab[..][id].mark_away();
        self.end_change(changing, id);
        plan.sources.push(Piece { id, span: donor.span, mapped: true });
    }

    /// Takes the chunks of a place out of circulation. The first `fresh` bytes of its holes get new granules, and
    /// up to `extra` bytes more behind it.
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
        while id != NIL && self.chunks.addr(id) < to {
            let (addr, end) = (self.chunks.addr(id), self.chunks.addr(id) + self.chunks.size(id));
            let mut after = self.chunks.next(id);
            if self.chunks.state(id) == State::Hole {
                let more = if end >= to { extra.min(end - to) } else { 0 };
                fresh += more;
                let part = Span { base: addr.max(from), bytes: end.min(to) + more - addr.max(from) };
                let piece = self.cut_hole(id, part);
                after = self.chunks.next(piece);
                fresh -= self.assign(plan, piece, part, fresh);
            } else if end > from && self.is_idle(id) {
                let changing = self.begin_change(id);
                self.unindex(id);
                self.chunks.slab[..][id].mark_staying();
                self.end_change(changing, id);
                plan.kept.push(id);
            }
            id = after;
        }
    }

    /// Cuts a part out of a hole; what is left of it stays a hole.
    fn cut_hole(&mut self, hole: ChunkId, part: Span) -> ChunkId {
        self.unlist_hole(hole);
        let mut id = hole;
        let below = part.base - self.chunks.addr(id);
        if below != 0 {
            id = self.add_after(hole, below);
            self.list_hole(hole);
        }
        if self.chunks.size(id) != part.bytes {
            let rest = self.add_after(id, part.bytes);
            self.list_hole(rest);
        }
        self.chunks.slab[..][id].mark_coming();
        id
    }

    /// Up to `fresh` bytes of a piece get new granules, the rest moved ones. Returns how many are new.
    fn assign(&mut self, plan: &mut Plan, piece: ChunkId, span: Span, fresh: u64) -> u64 {
        let Span { base, bytes } = span;
        let new = bytes.min(fresh);
        let moved = Span { base: base + new, bytes: bytes - new };
        if new == 0 {
            plan.targets.push(Piece { id: piece, span, mapped: false });
            return 0;
        }
        if moved.bytes != 0 {
            let rest = self.add_after(piece, new);
            self.chunks.slab[..][rest].mark_coming();
            plan.targets.push(Piece { id: rest, span: moved, mapped: false });
        }
        plan.fresh.push(Piece { id: piece, span: Span { base, bytes: new }, mapped: false });
        new
    }
}
