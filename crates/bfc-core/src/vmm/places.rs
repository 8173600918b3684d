//! Search for the place where a request needs the fewest granules mapped.

use super::unmapped::{Range, VmRange};
use crate::heap::{Heap, State};
use crate::ids::{ChunkId, NIL};
use crate::request::Request;
use crate::units::UNIT;

/// A place for a request among free and unmapped chunks. Places are compared by their fields, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    /// Bytes of unmapped chunks that the place overlaps, in whole granules. These have to be mapped.
    pub(crate) missing: u64,
    /// How many of these bytes are at the end of the range.
    pub(crate) of_tail: u64,
    /// The bytes of the stretch of free and unmapped chunks that contains the place.
    pub(crate) run_bytes: u64,
    pub(crate) at: u64,
    /// The bytes of whole granules that the place takes, mapped or not. Granules that are partly in use are not
    /// counted.
    pub(crate) granules: u64,
    /// A chunk of the stretch at or before the place.
    pub(crate) first: u32,
}

/// A maximal stretch of neighbouring chunks that are free or unmapped.
struct FreeRun {
    first: ChunkId,
    start: u64,
    end: u64,
}

impl VmRange {
    /// Returns whether the limit allows mapping another granule.
    pub(crate) fn can_map_more(&self, heap: &Heap) -> bool {
        self.range().is_some_and(|range| available_below(heap, range, u64::MAX) != 0)
    }

    /// Finds where a request that may use what `is_free` accepts could be served by growth within the limit. Returns
    /// the address and a chunk at or before it.
    pub(crate) fn place_to_grow_at(
        &self,
        heap: &Heap,
        request: &Request<'_>,
        is_free: impl Fn(ChunkId) -> bool,
    ) -> Option<(u64, ChunkId)> {
        let range = self.range()?;
        let available = available_below(heap, range, u64::MAX);
        let place =
            self.best_place(heap, range, request, is_free, |place| (1..=available).contains(&place.missing))?;
        Some((place.at, ChunkId(place.first)))
    }

    /// Returns the stretch that contains an unmapped chunk. Returns `None` if that chunk is not the first unmapped one
    /// of its stretch.
    fn run_of(&self, heap: &Heap, is_free: impl Fn(ChunkId) -> bool, unmapped: ChunkId) -> Option<FreeRun> {
        let (mut first, mut last) = (unmapped, unmapped);
        let mut prev = heap.prev(first);
        while prev != NIL && is_free(prev) {
            (first, prev) = (prev, heap.prev(prev));
        }
        if prev != NIL && heap.state(prev) == State::Unmapped {
            return None;
        }
        let mut next = heap.next(last);
        while next != NIL && (heap.state(next) == State::Unmapped || is_free(next)) {
            (last, next) = (next, heap.next(next));
        }
        Some(FreeRun { first, start: heap.addr(first), end: heap.end_of(last) })
    }

    /// Returns the place, among unmapped chunks and what `is_free` accepts, with the fewest bytes to map. Among equals
    /// it prefers the place that spares the end of the range, then the smallest stretch, then the lowest address. A
    /// stretch without an unmapped chunk has no place, because otherwise the request would already have been served.
    ///
    /// It suffices to examine places where the request begins at the start of a chunk or ends at the end of one.
    /// Unmapped chunks begin and end at granule boundaries, so moving a place between two such positions never helps.
    pub(crate) fn best_place(
        &self,
        heap: &Heap,
        range: Range,
        request: &Request<'_>,
        is_free: impl Fn(ChunkId) -> bool,
        allowed: impl Fn(&Place) -> bool,
    ) -> Option<Place> {
        let (size, alignment) = (request.size, request.alignment.max(UNIT));
        let mut best: Option<Place> = None;
        for run in self.list().iter().filter_map(|&unmapped| self.run_of(heap, &is_free, unmapped)) {
            if run.end - run.start < size {
                continue;
            }
            let mut id = run.first;
            while id != NIL && heap.addr(id) < run.end {
                let (addr, end) = (heap.addr(id), heap.end_of(id));
                let after = addr.checked_next_multiple_of(alignment);
                let before = end.checked_sub(size).map(|at| at & !(alignment - 1));
                for at in [after, before].into_iter().flatten() {
                    if at >= run.start && at <= run.end - size {
                        let place = self.place(heap, range, &run, id, at, size);
                        let better = best.is_none_or(|best| place < best);
                        best = if better && allowed(&place) { Some(place) } else { best };
                    }
                }
                id = heap.next(id);
            }
        }
        best
    }

    /// Describes the place at an address. `near` is a chunk of the stretch close to it, where the walk begins.
    fn place(&self, heap: &Heap, range: Range, run: &FreeRun, near: ChunkId, at: u64, size: u64) -> Place {
        let (from, to) = (range.floor(at), range.ceil(at + size));
        let (mut missing, mut of_tail) = (0, 0);
        let mut first = NIL;
        let mut id = near;
        while id != run.first && heap.addr(id) > from {
            id = heap.prev(id);
        }
        while id != NIL && heap.addr(id) < to {
            let (addr, end) = (heap.addr(id), heap.end_of(id));
            if end > from {
                first = if first == NIL { id } else { first };
                if heap.state(id) == State::Unmapped {
                    let bytes = end.min(to) - addr.max(from);
                    missing += bytes;
                    of_tail += if end == range.end() { bytes } else { 0 };
                }
            }
            id = heap.next(id);
            if id != NIL && heap.addr(id) >= run.end {
                break;
            }
        }
        // The granules at the ends of the stretch may be partly in use.
        let (low, high) = (from < run.start, to > run.end);
        let shared =
            if low && high && to - from == range.granule { 1 } else { u64::from(low) + u64::from(high) };
        let granules = to - from - shared * range.granule;
        Place { missing, of_tail, run_bytes: run.end - run.start, at, granules, first: first.0 }
    }
}

/// Returns what the limit leaves, in whole granules, capped to less than `below`.
pub(crate) fn available_below(heap: &Heap, range: Range, below: u64) -> u64 {
    range.floor(heap.growth().available().min(below.saturating_sub(1)))
}
