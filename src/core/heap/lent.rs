//! The parts of a heap that every operation works on, borrowed one by one.
//!
//! Through the heap the compiler would have to reload pointer and length of a table after every store.

use super::address_map::AddressMap;
use super::chunk::{Cold, Hot};
use super::chunks::{Chunks, Vacant};
use super::free_index::FreeIndex;
use super::heap::Heap;
use super::regions::Regions;
use crate::core::ids::{ChunkId, NIL};
use crate::core::stats::Counters;

pub(in crate::core) struct Lent<'a> {
    pub(in crate::core) slab: &'a mut [Hot],
    vacant: &'a mut Vacant,
    cold: &'a mut [Cold],
    index: &'a FreeIndex,
    regions: &'a mut Regions,
    starts: &'a mut AddressMap,
    counters: &'a mut Counters,
    max_slack: u64,
}

impl Heap {
    #[inline(always)]
    pub(in crate::core) fn lend(&mut self) -> Lent<'_> {
        let Heap { chunks, index, regions, starts, counters, max_slack, .. } = self;
        let Chunks { slab, vacant, cold, .. } = chunks;
        Lent { slab, vacant, cold, index, regions, starts, counters, max_slack: *max_slack }
    }
}

impl Lent<'_> {
    /// Returns whether there is room for one more chunk, and in the hash table for one more chunk in use.
    #[inline(always)]
    pub(in crate::core) fn has_room(&self) -> bool {
        !self.vacant.is_empty() && self.starts.takes_one()
    }

    /// Returns the best fit of the index, or [`NIL`].
    #[inline(always)]
    pub(in crate::core) fn best_fit(&self, size: u64) -> ChunkId {
        self.index.best_fit(self.slab, size).unwrap_or(NIL)
    }

    /// Returns the first chunk of the index that is not below a size and an address, or [`NIL`].
    #[inline]
    pub(in crate::core) fn first_from(&self, key: (u64, u64)) -> ChunkId {
        self.index.first_from(self.slab, key).unwrap_or(NIL)
    }

    /// Returns whether a chunk of `whole` bytes is split for a request of `wanted` bytes.
    #[inline(always)]
    pub(in crate::core) fn splits(&self, whole: u64, wanted: u64) -> bool {
        splits(whole, wanted, self.max_slack)
    }

    /// Returns whether a request of `size` bytes must not split free memory of `bytes` bytes.
    #[inline(always)]
    pub(in crate::core) fn spares(&self, size: u64, bytes: u64) -> bool {
        self.index.spares(size, bytes)
    }

    /// Splits the first `bytes` bytes off a chunk that is in no index. Returns that part, which is free and in no index
    /// either. A vacant place must be reserved, and there must be no stamps.
    #[inline(always)]
    pub(in crate::core) fn split_front(&mut self, id: ChunkId, bytes: u64) -> ChunkId {
        let Lent { slab, vacant, regions, .. } = self;
        let Hot { addr, prev, .. } = slab[id];
        let (left, region) = (slab[id].size() - bytes, slab[id].region());
        let front = vacant.fill(slab, Hot::held(addr, bytes, region, prev, id));
        match prev {
            NIL => regions.get_mut(region).first = front,
            _ => slab[prev].next = front,
        }
        let rest = &mut slab[id];
        (rest.addr, rest.prev) = (addr + bytes, front);
        rest.set_size_in(left, region);
        front
    }

    /// Merges a chunk that is in no index with the given neighbours, which are in no index either. Returns the result.
    #[inline(always)]
    pub(in crate::core) fn coalesce(&mut self, id: ChunkId, with_prev: bool, with_next: bool) -> ChunkId {
        let Lent { slab, vacant, .. } = self;
        let Hot { prev, mut next, .. } = slab[id];
        let (mut size, mut whole) = (slab[id].size(), id);
        if with_next {
            let gone = slab[next];
            vacant.add(slab, next);
            (size, next) = (size + gone.size(), gone.next);
        }
        if with_prev {
            vacant.add(slab, id);
            (size, whole) = (size + slab[prev].size(), prev);
        }
        slab[whole].set_size(size);
        slab[whole].next = next;
        if next != NIL {
            slab[next].prev = whole;
        }
        whole
    }

    /// Merges a chunk that is in no index into the one in front of it, which is in no index either. Returns that one.
    #[inline(always)]
    pub(in crate::core) fn merge_into_prev(&mut self, id: ChunkId) -> ChunkId {
        let Lent { slab, vacant, .. } = self;
        let Hot { prev, next, .. } = slab[id];
        let size = slab[prev].size() + slab[id].size();
        slab[prev].set_size(size);
        slab[prev].next = next;
        if next != NIL {
            slab[next].prev = prev;
        }
        vacant.add(slab, id);
        prev
    }

    /// Merges a chunk that is in no index into the one behind it, which is in no index either. Returns that one.
    #[inline(always)]
    pub(in crate::core) fn merge_into_next(&mut self, id: ChunkId) -> ChunkId {
        let Lent { slab, vacant, regions, .. } = self;
        let Hot { addr, prev, next, .. } = slab[id];
        let size = slab[id].size() + slab[next].size();
        let region = slab[id].region();
        slab[next].set_size_in(size, region);
        (slab[next].addr, slab[next].prev) = (addr, prev);
        match prev {
            NIL => regions.get_mut(region).first = next,
            _ => slab[prev].next = next,
        }
        vacant.add(slab, id);
        next
    }

    /// Hands out a chunk whose memory was handed out before. There must be room in the hash table. Returns its address.
    #[inline(always)]
    pub(in crate::core) fn hand_out(&mut self, id: ChunkId, requested: u64) -> u64 {
        let chunk = &mut self.slab[id];
        chunk.mark_in_use();
        let addr = chunk.addr;
        let allocation_id = self.counters.allocated(chunk.size(), requested);
        self.cold[id.index()] = Cold { requested, allocation_id };
        self.starts.add(addr, id);
        addr
    }

    /// Returns the chunk in use at an address, and where the hash table has it, if it has.
    #[inline(always)]
    pub(in crate::core) fn find_in_use(&self, addr: u64) -> Option<(ChunkId, usize)> {
        self.starts.find(self.slab, addr).filter(|&(id, _)| self.slab[id].in_use())
    }

    /// Counts a chunk as freed that [`Self::find_in_use`] has found, and marks it as free and in no index.
    #[inline(always)]
    pub(in crate::core) fn take_back(&mut self, (id, slot): (ChunkId, usize)) {
        let chunk = &mut self.slab[id];
        chunk.mark_held();
        self.counters.freed(chunk.size(), self.cold[id.index()].requested);
        self.starts.remove(slot);
    }
}

/// TensorFlow's rule for whether a chunk of `whole` bytes is split for a request of `wanted` bytes.
#[inline]
pub(super) fn splits(whole: u64, wanted: u64, max_slack: u64) -> bool {
    let remainder = whole - wanted;
    remainder >= wanted || remainder >= max_slack
}
