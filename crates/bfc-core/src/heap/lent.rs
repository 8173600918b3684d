//! The parts of a heap that every operation works on, borrowed one by one, and the operations on them: the only split
//! and the only coalescing of chunks.
//!
//! Through the heap the compiler would have to reload pointer and length of a table after every store.

use super::address_map::AddressMap;
use super::chunk::{Cold, Hot};
use super::chunks::{Chunks, Vacant};
use super::free_index::FreeIndex;
use super::heap::Heap;
use super::regions::Regions;
use crate::ids::{ChunkId, NIL};
use crate::stats::Counters;
use alloc::vec::Vec;

/// A chunk in use that was found by its address.
#[derive(Clone, Copy)]
pub(crate) struct InUse {
    pub(crate) id: ChunkId,
    /// Where the address map has it, if that is in the hash table.
    pub(super) slot: Option<usize>,
}

impl InUse {
    /// Returns a chunk that is known to be in use.
    pub(crate) fn of(id: ChunkId) -> Self {
        InUse { id, slot: None }
    }
}

pub(crate) struct Lent<'a> {
    pub(crate) slab: &'a mut [Hot],
    pub(super) vacant: &'a mut Vacant,
    // Loaded where it is used, as `max_slack` is: loaded in advance, it would be spilled to the stack.
    cold: &'a mut Vec<Cold>,
    stamps: &'a [u64],
    pub(super) index: &'a mut FreeIndex,
    pub(super) regions: &'a mut Regions,
    starts: &'a mut AddressMap,
    counters: &'a mut Counters,
    max_slack: &'a u64,
}

impl Heap {
    #[inline(always)]
    pub(crate) fn lend(&mut self) -> Lent<'_> {
        let Heap { chunks, index, regions, starts, counters, max_slack, .. } = self;
        let Chunks { slab, vacant, cold, stamps, .. } = chunks;
        let stamps = stamps.as_deref().unwrap_or_default();
        Lent { slab, vacant, cold, stamps, index, regions, starts, counters, max_slack }
    }
}

impl Lent<'_> {
    /// Returns whether there is room for one more chunk, and in the hash table for one more chunk in use.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        !self.vacant.is_empty() && self.starts.takes_one()
    }

    /// Returns the best fit of the index, or [`NIL`].
    #[inline(always)]
    pub(crate) fn best_fit(&self, size: u64) -> ChunkId {
        self.index.best_fit(self.slab, size).unwrap_or(NIL)
    }

    /// Returns the first chunk of the index that is not below a size and an address, or [`NIL`].
    #[inline]
    pub(crate) fn first_from(&self, key: (u64, u64)) -> ChunkId {
        self.index.first_from(self.slab, key).unwrap_or(NIL)
    }

    /// Returns whether a chunk of `whole` bytes is split for a request of `wanted` bytes.
    #[inline(always)]
    pub(crate) fn splits(&self, whole: u64, wanted: u64) -> bool {
        splits(whole, wanted, *self.max_slack)
    }

    /// Returns whether a request of `size` bytes must not split free memory of `bytes` bytes.
    #[inline(always)]
    pub(crate) fn spares(&self, size: u64, bytes: u64) -> bool {
        self.index.spares(size, bytes)
    }

    /// Splits a chunk that is in no index at `at` bytes. Returns the second part, which is free and in no index either.
    /// A vacant place must be reserved.
    #[inline(always)]
    pub(crate) fn split(&mut self, id: ChunkId, at: u64) -> ChunkId {
        let Lent { slab, vacant, .. } = self;
        let Hot { addr, next, .. } = slab[id];
        let (left, region) = (slab[id].size() - at, slab[id].region());
        let rest = vacant.fill(slab, Hot::held(addr + at, left, region, id, next));
        slab[id].set_size_in(at, region);
        slab[id].next = rest;
        if next != NIL {
            slab[next].prev = rest;
        }
        rest
    }

    /// Splits a chunk as [`Self::split`] does, except that the second part keeps the chunk's number and may stay in an
    /// index. Returns the first part.
    #[inline(always)]
    pub(crate) fn split_front(&mut self, id: ChunkId, at: u64) -> ChunkId {
        let Lent { slab, vacant, .. } = self;
        let Hot { addr, prev, .. } = slab[id];
        let (left, region) = (slab[id].size() - at, slab[id].region());
        let front = vacant.fill(slab, Hot::held(addr, at, region, prev, id));
        self.link_first(region, prev, front);
        let rest = &mut self.slab[id];
        (rest.addr, rest.prev) = (addr + at, front);
        rest.set_size_in(left, region);
        front
    }

    /// Merges the chunk after `id` into `id`. Neither is in an index.
    #[inline(always)]
    pub(crate) fn absorb_next(&mut self, id: ChunkId) {
        let Lent { slab, vacant, .. } = self;
        let gone = slab[id].next;
        let Hot { next, .. } = slab[gone];
        let size = slab[id].size() + slab[gone].size();
        slab[id].set_size(size);
        slab[id].next = next;
        if next != NIL {
            slab[next].prev = id;
        }
        vacant.add(slab, gone);
    }

    /// Merges `id` into the chunk after it, which keeps its number and may be in an index. Returns that chunk.
    #[inline(always)]
    pub(crate) fn merge_into_next(&mut self, id: ChunkId) -> ChunkId {
        let Lent { slab, vacant, .. } = self;
        let Hot { addr, prev, next, .. } = slab[id];
        let (size, region) = (slab[id].size() + slab[next].size(), slab[id].region());
        slab[next].set_size_in(size, region);
        (slab[next].addr, slab[next].prev) = (addr, prev);
        vacant.add(slab, id);
        self.link_first(region, prev, next);
        next
    }

    /// Makes a chunk the one after `prev`, or the first of its region.
    #[inline(always)]
    fn link_first(&mut self, region: u32, prev: ChunkId, id: ChunkId) {
        match prev {
            NIL => self.regions.get_mut(region).first = id,
            _ => self.slab[prev].next = id,
        }
    }

    /// Coalesces a chunk that is in no index with its free neighbours and puts the result into the index. Returns the
    /// result. A neighbour with a stamp is not merged. The chunk itself has no stamp.
    #[inline(always)]
    pub(crate) fn release<const STAMPED: bool>(&mut self, id: ChunkId) -> ChunkId {
        let Hot { prev, next, .. } = self.slab[id];
        let mut whole = id;
        if self.take_neighbour::<STAMPED>(next) {
            self.absorb_next(id);
        }
        if self.take_neighbour::<STAMPED>(prev) {
            self.absorb_next(prev);
            whole = prev;
        }
        let size = self.slab[whole].size();
        self.index.insert(self.slab, whole, size);
        whole
    }

    /// Removes a chunk from the index, if there is one that a released neighbour merges with.
    #[inline(always)]
    fn take_neighbour<const STAMPED: bool>(&mut self, id: ChunkId) -> bool {
        if id == NIL || !self.slab[id].is_findable() || STAMPED && self.stamps[id.index()] != 0 {
            return false;
        }
        let size = self.slab[id].size();
        self.index.remove(self.slab, id, size);
        true
    }

    /// Hands out a chunk of `size` bytes. There must be room for its entry in the address map, in its hash table if
    /// `HASHED`. Returns the address.
    #[inline(always)]
    pub(crate) fn hand_out<const HASHED: bool>(&mut self, id: ChunkId, size: u64, requested: u64) -> u64 {
        let chunk = &mut self.slab[id];
        chunk.mark_in_use();
        let addr = chunk.addr;
        let allocation_id = self.counters.allocated(size, requested);
        self.cold[id.index()] = Cold { requested, allocation_id };
        if HASHED {
            self.starts.add(addr, id);
        } else {
            self.starts.set(self.regions, addr, id);
        }
        addr
    }

    /// Returns the chunk in use at an address, if the hash table has its entry.
    #[inline(always)]
    pub(crate) fn find_hashed(&self, addr: u64) -> Option<InUse> {
        let (id, slot) = self.starts.find(self.slab, addr)?;
        self.slab[id].in_use().then_some(InUse { id, slot: Some(slot) })
    }

    /// Counts a chunk in use as freed, and removes its entry from the address map. The map must not have changed since
    /// the chunk was found.
    #[inline(always)]
    pub(crate) fn count_free(&mut self, InUse { id, slot }: InUse) {
        self.counters.freed(self.slab[id].size(), self.cold[id.index()].requested);
        match slot {
            Some(slot) => self.starts.remove(slot),
            None => self.starts.clear(self.regions, self.slab[id].addr, id),
        }
    }
}

/// TensorFlow's rule for whether a chunk of `whole` bytes is split for a request of `wanted` bytes.
#[inline]
pub(super) fn splits(whole: u64, wanted: u64, max_slack: u64) -> bool {
    let remainder = whole - wanted;
    remainder >= wanted || remainder >= max_slack
}
