//! Where a request needs the fewest granules mapped.

use super::range::Range;
use super::unmapped::VmRange;
use crate::core::heap::{Heap, State};
use crate::core::ids::{ChunkId, NIL};
use crate::core::request::AllocRequest;
use crate::core::units::UNIT;

/// A place for a request between two chunks that are no part of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::core) struct Place {
    /// Bytes of unmapped chunks that it touches: what has to be mapped. The first thing to compare by.
    pub(in crate::core) missing: u64,
    /// How much of that is the end of the range.
    pub(in crate::core) of_tail: u64,
    /// The bytes of the run of chunks that it lies in.
    pub(in crate::core) run_bytes: u64,
    pub(in crate::core) at: u64,
    /// Whole granules that it takes, mapped or not: the others are partly in use.
    pub(in crate::core) granules: u64,
    /// A chunk of the run at or before it.
    pub(in crate::core) first: u32,
}

/// Neighbouring chunks that are free or unmapped chunks, between two that are neither.
struct FreeRun {
    first: ChunkId,
    start: u64,
    end: u64,
}

impl VmRange {
    /// Whether the limit allows to map granules.
    pub(in crate::core) fn can_map_more(&self, heap: &Heap) -> bool {
        self.range().is_some_and(|range| available_below(heap, range, u64::MAX) != 0)
    }

    /// Where a request would be served that the limit allows to grow for, if it might use what `is_free` accepts, and a
    /// chunk at or before that.
    pub(in crate::core) fn place_to_grow_at(
        &self,
        heap: &Heap,
        request: &AllocRequest<'_>,
        is_free: impl Fn(ChunkId) -> bool,
    ) -> Option<(u64, ChunkId)> {
        let range = self.range()?;
        let available = available_below(heap, range, u64::MAX);
        let place =
            self.best_place(heap, range, request, is_free, |place| (1..=available).contains(&place.missing))?;
        Some((place.at, ChunkId(place.first)))
    }

    /// The run that begins with an unmapped chunk, or with a free chunk before it; `None` if the unmapped chunk is not its run's first.
    fn run_of(&self, heap: &Heap, is_free: impl Fn(ChunkId) -> bool, hole: ChunkId) -> Option<FreeRun> {
        let (mut first, mut last) = (hole, hole);
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

    /// The place in unmapped chunks and what `is_free` accepts with the fewest bytes to map; among equals one that spares the end of the range, then the one in
    /// the smallest run, then the lowest. A run without an unmapped chunk has no place, or the request were served already.
    ///
    /// It is enough to look where the request begins at the beginning of a chunk or ends at the end of one: moving
    /// it between two such places never helps, for unmapped chunks begin and end at granule boundaries.
    pub(in crate::core) fn best_place(
        &self,
        heap: &Heap,
        range: Range,
        request: &AllocRequest<'_>,
        is_free: impl Fn(ChunkId) -> bool,
        allowed: impl Fn(&Place) -> bool,
    ) -> Option<Place> {
        let (size, alignment) = (request.size, request.alignment.max(UNIT));
        let mut best: Option<Place> = None;
        for run in self.list().iter().filter_map(|&hole| self.run_of(heap, &is_free, hole)) {
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

    /// What there is at an address; `near` is a chunk of the run that is not far from it, where the look begins.
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
        // The granules at the ends of the run may be partly in use.
        let (low, high) = (from < run.start, to > run.end);
        let shared =
            if low && high && to - from == range.granule { 1 } else { u64::from(low) + u64::from(high) };
        let granules = to - from - shared * range.granule;
        Place { missing, of_tail, run_bytes: run.end - run.start, at, granules, first: first.0 }
    }
}

/// What the limit leaves, in whole granules, as far as it is less than `below`.
pub(in crate::core) fn available_below(heap: &Heap, range: Range, below: u64) -> u64 {
    range.floor(heap.growth().available().min(below.saturating_sub(1)))
}
