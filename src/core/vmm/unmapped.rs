//! Holes: the granules of a reserved range that are not mapped.
//!
//! Some backends reserve one range of addresses and map physical granules into it wherever they are wanted. Such
//! a pool is one region from the beginning to the end of the range. What is not mapped is a third kind of chunk, a
//! hole: whole granules, at granule boundaries, in no tree of the index, so that no request finds them and no free
//! neighbour merges with them. Holes that touch are one. The part of the range that was never used is the last
//! hole; that it is a chunk keeps the chunk before it in reach.
//!
//! ```text
//!   granules   |       |       |       |       |       |       |
//!   chunks     |use|free|   hole       |use|free|     hole ...      the end of the range
//! ```
//!
//! Whoever looks for a hole is about to make system calls, so that a plain list of them is good enough.

use crate::core::arena::Arena;
use crate::core::heap::chunks::{Hot, State};
use crate::core::heap::regions::Region;
use crate::core::ids::{ChunkId, NIL};
use crate::core::tables::shrink_to;
use crate::core::units::{Span, UNIT};
use crate::sys::HostMemoryExhausted;

/// Addresses that are reserved for one arena, to be mapped by the granule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    /// A multiple of the granule, as is `bytes`, which is at most [`crate::core::units::MAX_CHUNK`].
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// A power of two, not below [`UNIT`].
    pub(crate) granule: u64,
}

impl Range {
    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// The granule boundary at or below an address or size.
    pub(in crate::core) fn floor(&self, at: u64) -> u64 {
        at & !(self.granule - 1)
    }

    /// The granule boundary at or above an address of the range, or a size in it.
    pub(in crate::core) fn ceil(&self, at: u64) -> u64 {
        self.floor(at + (self.granule - 1))
    }

    /// The numbers of a span's granules, for those who have a table of them.
    #[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
    pub(crate) fn numbers(&self, span: Span) -> std::ops::Range<usize> {
        let first = ((span.base - self.base) / self.granule) as usize;
        first..first + (span.bytes / self.granule) as usize
    }

    /// Where the granule with a number is.
    pub(crate) fn address(&self, number: usize) -> u64 {
        self.base + number as u64 * self.granule
    }
}

#[derive(Default)]
pub(crate) struct Holes {
    pub(in crate::core) range: Option<Range>,
    /// In no order. Each knows its place here.
    list: Vec<ChunkId>,
    /// The sizes of those in the list and of those that are coming.
    pub(in crate::core) bytes: u64,
    /// How many are coming.
    pub(in crate::core) coming: usize,
    /// The backend is mapping or unmapping: one at a time.
    pub(in crate::core) moving: bool,
}

impl Holes {
    pub(in crate::core) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Chunks without memory.
    pub(in crate::core) fn count(&self) -> usize {
        self.list.len() + self.coming
    }

    pub(in crate::core) fn list(&self) -> &[ChunkId] {
        &self.list
    }

    /// Gives back what the holes of today do not need.
    pub(in crate::core) fn shrink(&mut self) {
        let holes = self.list.len();
        shrink_to(&mut self.list, holes);
    }

    pub(in crate::core) fn metadata_bytes(&self) -> u64 {
        (self.list.capacity() * size_of::<ChunkId>()) as u64
    }
}

impl Arena {
    /// From now on regions come by the granule from this range. There is none yet.
    pub(crate) fn set_range(&mut self, range: Range) {
        debug_assert!(range.granule.is_power_of_two() && range.granule >= UNIT);
        debug_assert!(range.base.is_multiple_of(range.granule) && range.bytes.is_multiple_of(range.granule));
        self.holes.range = Some(range);
    }

    /// The reserved range, if the backend has granules.
    pub(crate) fn range(&self) -> Option<Range> {
        self.holes.range
    }

    /// Whether an address is in a region, and not in a part of a range that is not mapped.
    pub(crate) fn has_memory_at(&self, addr: u64) -> bool {
        let Some(region) = self.regions.find(addr) else { return false };
        self.range().is_none()
            || self.regions.get(region).first != NIL
                && self.chunk_around(addr).is_some_and(|id| !self.is_unmapped(id))
    }

    /// Whether a chunk is a hole.
    pub(crate) fn is_unmapped(&self, id: ChunkId) -> bool {
        matches!(self.chunks.state(id), State::Hole | State::Coming)
    }

    /// Bytes inside the region that no memory is mapped to, but for the end of the range.
    pub(crate) fn hole_bytes(&self) -> u64 {
        self.holes.bytes - self.tail()
    }

    /// The bytes of a region as far as it was ever used: a range without its last hole.
    pub(crate) fn extent(&self, region: &Region) -> u64 {
        region.bytes - self.tail()
    }

    /// The bytes of the hole at the end of the range, if there is one.
    pub(in crate::core) fn tail(&self) -> u64 {
        self.holes.list.iter().map(|&id| self.tail_bytes(id)).max().unwrap_or(0)
    }

    /// The first piece of neighbours with memory from a chunk on, and the chunk behind it.
    pub(crate) fn mapped_from(&self, first: ChunkId) -> Option<(Span, ChunkId)> {
        self.chunks.piece_from(first, |id| !self.is_unmapped(id))
    }

    /// The size of a chunk if it is a hole at the end of the range, else 0.
    pub(crate) fn tail_bytes(&self, id: ChunkId) -> u64 {
        let ends = self.chunks.next(id) == NIL && self.chunks.state(id) == State::Hole;
        if ends { self.chunks.size(id) } else { 0 }
    }

    /// Makes the range a region that is one hole, if it is none yet. The caller has reserved a chunk, its start
    /// and its place in the list.
    pub(in crate::core) fn open_range(&mut self, range: Range) -> Result<(), HostMemoryExhausted> {
        if self.regions.count() != 0 {
            return Ok(());
        }
        let Range { base, bytes, .. } = range;
        let region = self.regions.add(base, bytes, 0, self.starts.needs_flat())?;
        let id = self.chunks.vacant.fill(&mut self.chunks.slab, Hot::new(base, bytes, region, NIL, NIL));
        let opened = self.regions.get_mut(region);
        // How far somebody had its memory is not followed where a hole is last: nothing is taken for untouched.
        (opened.first, opened.touched) = (id, range.end());
        self.chunks.set_stamp(id, 0);
        self.starts.set(&mut self.regions, base, id);
        self.list_hole(id);
        self.holes.bytes = bytes;
        Ok(())
    }

    /// Forgets the region if it is one hole.
    pub(in crate::core) fn close_range(&mut self) {
        let only = self.regions.iter().map(|(number, region)| (number, region.first)).next();
        let Some((region, id)) = only else { return };
        if self.chunks.next(id) == NIL && self.chunks.state(id) == State::Hole {
            self.detach(region);
        }
    }

    /// Makes sure that so many more holes need no memory.
    pub(in crate::core) fn reserve_holes(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        Ok(self.holes.list.try_reserve(count)?)
    }

    /// Takes a hole out of the books; for the end of its region.
    pub(in crate::core) fn forget_hole(&mut self, id: ChunkId) {
        self.unlist_hole(id);
        self.holes.bytes -= self.chunks.size(id);
    }

    /// A chunk in no tree is a hole from now on, and one with the holes that it touches. Its bytes are counted.
    pub(in crate::core) fn make_hole(&mut self, id: ChunkId) {
        let (prev, next) = (self.chunks.prev(id), self.chunks.next(id));
        if next != NIL && self.chunks.state(next) == State::Hole {
            self.unlist_hole(next);
            self.absorb_next(id);
        }
        if prev != NIL && self.chunks.state(prev) == State::Hole {
            self.absorb_next(prev);
        } else {
            self.list_hole(id);
        }
    }

    pub(in crate::core) fn list_hole(&mut self, id: ChunkId) {
        let place = self.holes.list.len();
        self.holes.list.push(id);
        self.chunks.slab[..][id].mark_hole(place);
    }

    /// A hole that is none any more; it is in no tree and no list.
    pub(in crate::core) fn unlist_hole(&mut self, id: ChunkId) {
        let place = self.chunks.slab[..][id].hole_place();
        self.holes.list.swap_remove(place);
        if let Some(&moved) = self.holes.list.get(place) {
            self.chunks.slab[..][moved].mark_hole(place);
        }
        self.chunks.slab[..][id].mark_away();
    }
}
