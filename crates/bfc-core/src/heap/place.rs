//! Allocation at a given place.

use super::heap::Heap;
use crate::ids::{ChunkId, NIL};
use crate::steps;
use crate::units::Span;
use bfc_hostmem::HostMemoryExhausted;

/// How many chunks a search for a place examines, so that no request takes long.
const MOST_EXAMINED: u32 = 4096;

/// How many chunks after an address a search for room there examines.
const MOST_AFTER: u32 = 64;

impl Heap {
    /// Returns the free chunk that a place lies in. `below` is the address of a chunk in use from which to search, or any
    /// other address. Without such a chunk the search begins at the region's first one. It may give up.
    pub(crate) fn free_chunk_at(&self, place: Span, below: Option<u64>) -> Option<ChunkId> {
        let region = self.regions.get(self.regions.find(place.base)?);
        let end = place.base.checked_add(place.bytes)?;
        let is_near = |addr: &u64| (region.base..place.base).contains(addr);
        let near = below.filter(is_near).and_then(|addr| self.entry_at(addr));
        let mut id = near.unwrap_or(region.first);
        for _ in 0..MOST_EXAMINED {
            steps::count();
            if self.end_of(id) > place.base {
                return Some(id).filter(|&id| self.is_idle(id) && self.end_of(id) >= end);
            }
            id = self.next(id);
        }
        None
    }

    /// Returns the smallest free chunk that has room for `bytes` bytes at or above an address of a region, and the place.
    /// `below` is the address of a chunk in use from which to search, or any other address; the result also has the one of
    /// the last chunk in use before `from`. Examines only a few chunks.
    pub(crate) fn free_chunk_after(
        &self,
        from: u64,
        bytes: u64,
        alignment: u64,
        below: Option<u64>,
    ) -> (Option<(ChunkId, Span)>, Option<u64>) {
        let Some(region) = self.regions.find(from).map(|region| self.regions.get(region)) else {
            return (None, None);
        };
        let is_near = |addr: &u64| (region.base..from).contains(addr);
        let mut below = below.filter(is_near).filter(|&addr| self.entry_at(addr).is_some());
        let mut id = below.and_then(|addr| self.entry_at(addr)).unwrap_or(region.first);
        let (mut best, mut steps, mut behind) = (None, 0, 0);
        while id != NIL && steps < MOST_EXAMINED && behind < MOST_AFTER {
            steps::count();
            (steps, behind) = (steps + 1, behind + u32::from(self.end_of(id) > from));
            if behind == 0 && self.chunks.in_use(id) {
                below = Some(self.addr(id));
            }
            let start = self.addr(id).max(from).checked_next_multiple_of(alignment);
            let room = start.and_then(|start| self.end_of(id).checked_sub(start)).unwrap_or(0);
            let is_better = best.is_none_or(|(_, _, least)| room < least);
            if let Some(base) = start
                && behind != 0
                && room >= bytes
                && is_better
                && self.is_idle(id)
            {
                best = Some((id, Span { base, bytes }, room));
            }
            id = self.next(id);
        }
        (best.map(|(id, place, _)| (id, place)), below)
    }

    /// Allocates a place that lies in a free chunk of the index. What is before and after it stays free. There must
    /// be neither stamps nor several streams. On failure nothing changed.
    pub(crate) fn alloc_at(
        &mut self,
        chunk: ChunkId,
        place: Span,
        requested: u64,
    ) -> Result<u64, HostMemoryExhausted> {
        self.reserve_chunks(2)?;
        self.reserve_start()?;
        self.unindex(chunk);
        let id = self.carve(chunk, place, Self::add_to_index);
        self.hand_out(id, requested);
        self.touch(id, place.base + place.bytes);
        Ok(place.base)
    }
}
