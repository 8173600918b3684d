//! Best fit, split and coalesce. Nothing here depends on streams.

use super::chunk::{Cold, Hot};
use super::chunks::Chunks;
use super::heap::Heap;
use super::lent::splits;
use crate::core::ids::{ChunkId, NIL};
use crate::sys::HostMemoryExhausted;
use std::num::NonZeroU64;

/// Why a free was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// The address is not the start of a chunk. The chunk around it, if it is in a region.
    NotAChunk(Option<ChunkId>),
    /// The address is the start of a free chunk.
    AlreadyFree(ChunkId),
}

/// A chunk in use that was found by its address.
#[derive(Clone, Copy)]
pub(in crate::core) struct InUse {
    pub(in crate::core) id: ChunkId,
    /// Where the address map has it, if that is in the hash table.
    slot: Option<usize>,
}

impl InUse {
    /// Returns a chunk that is known to be in use.
    pub(in crate::core) fn of(id: ChunkId) -> Self {
        InUse { id, slot: None }
    }
}

impl Heap {
    /// Allocates the best fit of the index for `size` bytes. Returns `None` if nothing fits.
    #[inline(never)]
    pub(in crate::core) fn alloc(
        &mut self,
        size: u64,
        requested: u64,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        self.chunks.reserve(1)?;
        self.reserve_start()?;
        Ok(self.alloc_in_room::<false>(size, requested).map(NonZeroU64::get))
    }

    /// Allocates as [`Self::alloc`] does if the tables have room. Otherwise nothing changes. Out of line, so that all of
    /// it stays in registers.
    #[inline(never)]
    pub(in crate::core) fn alloc_at_once(&mut self, size: u64, requested: u64) -> Option<NonZeroU64> {
        if !self.starts.takes_one() {
            return None;
        }
        self.alloc_in_room::<true>(size, requested)
    }

    /// Allocates as [`Self::alloc_at_once`] does, from a best fit that is aligned as it is and has no stamp. Otherwise
    /// nothing changes. `alignment` is a power of two.
    #[inline(never)]
    pub(in crate::core) fn alloc_aligned_at_once(
        &mut self,
        size: u64,
        requested: u64,
        alignment: u64,
    ) -> Option<u64> {
        let id = self.index.best_fit(self.chunks.slab(), size)?;
        let whole = self.chunks.size(id);
        if self.chunks.addr(id) & (alignment - 1) != 0 || !self.starts.takes_one() {
            return None;
        }
        let addr = self.alloc_in_room::<true>(size, requested)?;
        if self.chunks.size(id) != whole {
            self.chunks.set_stamp(self.chunks.next(id), 0);
        }
        Some(addr.get())
    }

    /// Allocates the best fit. There must be room in the address map, in its hash table if `HASHED`.
    #[inline(always)]
    fn alloc_in_room<const HASHED: bool>(&mut self, size: u64, requested: u64) -> Option<NonZeroU64> {
        let Heap { chunks, index, regions, starts, counters, max_slack, .. } = self;
        let Chunks { slab, vacant, cold, .. } = chunks;
        let slab = &mut slab[..];
        if vacant.is_empty() {
            return None;
        }
        let id = index.take_best_fit(slab, size)?;
        let Hot { addr, next, .. } = slab[id];
        let (whole, region) = (slab[id].size(), slab[id].region());
        let mut taken = whole;
        if splits(whole, size, *max_slack) {
            taken = size;
            let left = whole - size;
            let rest = vacant.fill(slab, Hot::held(addr + size, left, region, id, next));
            index.insert(slab, rest, left);
            slab[id].set_size_in(size, region);
            slab[id].next = rest;
            if next != NIL {
                slab[next].prev = rest;
            }
        }
        if next == NIL {
            regions.touch(region, addr + taken);
        }
        slab[id].mark_in_use();
        let allocation_id = counters.allocated(taken, requested);
        cold[id.index()] = Cold { requested, allocation_id };
        if HASHED {
            starts.add(addr, id);
        } else {
            starts.set(regions, addr, id);
        }
        NonZeroU64::new(addr)
    }

    /// Records that a chunk is in use from now on. Room for its entry in the address map must be reserved.
    #[inline]
    pub(in crate::core) fn hand_out(&mut self, id: ChunkId, size: u64, requested: u64) {
        let Heap { chunks, regions, starts, counters, .. } = self;
        let allocation_id = counters.allocated(size, requested);
        chunks.set_cold(id, Cold { requested, allocation_id });
        starts.set(regions, chunks.addr(id), id);
    }

    /// Frees the chunk that begins at an address and coalesces it with its free neighbours. There must be no stamps.
    #[inline(never)]
    pub(in crate::core) fn free(&mut self, addr: u64) -> Result<(), Refused> {
        let id = self.begin_free(addr)?;
        self.release::<false>(id);
        Ok(())
    }

    /// Frees as [`Self::free`] does if the chunk's entry is in the hash table. Otherwise nothing changes. Out of line,
    /// so that all of it stays in registers.
    #[inline(never)]
    pub(in crate::core) fn free_at_once(&mut self, addr: u64) -> bool {
        let Heap { chunks, index, starts, counters, .. } = self;
        let Chunks { slab, vacant, cold, .. } = chunks;
        let slab = &mut slab[..];
        let Some((id, slot)) = starts.find(slab, addr) else { return false };
        let Hot { prev, mut next, .. } = slab[id];
        let size = slab[id].size();
        if !slab[id].in_use() {
            return false;
        }
        counters.freed(size, cold[id.index()].requested);
        starts.remove(slot);
        let (mut whole, mut merged) = (size, id);
        if next != NIL && slab[next].is_findable() {
            let gone = slab[next];
            index.remove(slab, next, gone.size());
            vacant.add(slab, next);
            (whole, next) = (whole + gone.size(), gone.next);
        }
        if prev != NIL && slab[prev].is_findable() {
            let before = slab[prev].size();
            index.remove(slab, prev, before);
            vacant.add(slab, id);
            (whole, merged) = (whole + before, prev);
        }
        slab[merged].set_size(whole);
        slab[merged].next = next;
        if next != NIL {
            slab[next].prev = merged;
        }
        index.insert(slab, merged, whole);
        true
    }

    /// Finds the chunk in use at an address and counts it as freed.
    #[inline(always)]
    pub(in crate::core) fn begin_free(&mut self, addr: u64) -> Result<ChunkId, Refused> {
        let found = self.find_in_use(addr)?;
        self.count_free(found);
        Ok(found.id)
    }

    /// Returns the chunk in use that begins at an address, or why a free of that address is refused.
    #[inline(always)]
    pub(in crate::core) fn find_in_use(&self, addr: u64) -> Result<InUse, Refused> {
        match self.starts.find(self.chunks.slab(), addr) {
            Some((id, slot)) if self.chunks.in_use(id) => Ok(InUse { id, slot: Some(slot) }),
            _ => self.find_in_use_elsewhere(addr),
        }
    }

    #[cold]
    fn find_in_use_elsewhere(&self, addr: u64) -> Result<InUse, Refused> {
        match self.chunk_around(addr) {
            Some(id) if self.chunks.addr(id) != addr => Err(Refused::NotAChunk(Some(id))),
            Some(id) if self.chunks.in_use(id) => Ok(InUse { id, slot: None }),
            Some(id) => Err(Refused::AlreadyFree(id)),
            None => Err(Refused::NotAChunk(None)),
        }
    }

    /// Counts a chunk in use as freed, and removes its entry from the address map. The map must not have changed since
    /// the chunk was found.
    #[inline(always)]
    pub(in crate::core) fn count_free(&mut self, InUse { id, slot }: InUse) {
        let Heap { chunks, regions, starts, counters, .. } = self;
        counters.freed(chunks.size(id), chunks.cold(id).requested);
        match slot {
            Some(slot) => starts.remove(slot),
            None => starts.clear(regions, chunks.addr(id), id),
        }
    }

    /// Reserves room for `count` more chunks.
    #[inline]
    pub(in crate::core) fn reserve_chunks(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        self.chunks.reserve(count)
    }

    /// Reserves room for the entry of one more chunk in use in the address map.
    #[inline]
    pub(in crate::core) fn reserve_start(&mut self) -> Result<(), HostMemoryExhausted> {
        self.starts.reserve(self.chunks.slab(), &mut self.regions, 1)
    }

    /// Coalesces a chunk that is in no index with its free neighbours and puts the result into the index. Returns the
    /// result. A neighbour with a stamp is not merged. The chunk itself has no stamp.
    #[inline(always)]
    pub(in crate::core) fn release<const STAMPED: bool>(&mut self, id: ChunkId) -> ChunkId {
        let Heap { chunks, index, .. } = self;
        let Chunks { slab, vacant, stamps, .. } = chunks;
        let slab = &mut slab[..];
        let stamps = if STAMPED { stamps.as_deref().unwrap_or_default() } else { &[] };
        let Hot { prev, mut next, .. } = slab[id];
        let (mut size, mut whole) = (slab[id].size(), id);
        let merges = |hot: &Hot, id: ChunkId| hot.is_findable() && (!STAMPED || stamps[id.index()] == 0);
        if next != NIL && merges(&slab[next], next) {
            let hot = slab[next];
            index.remove(slab, next, hot.size());
            vacant.add(slab, next);
            (size, next) = (size + hot.size(), hot.next);
        }
        if prev != NIL && merges(&slab[prev], prev) {
            let before = slab[prev].size();
            index.remove(slab, prev, before);
            vacant.add(slab, id);
            (size, whole) = (size + before, prev);
        }
        let hot = &mut slab[whole];
        hot.set_size(size);
        hot.next = next;
        if next != NIL {
            slab[next].prev = whole;
        }
        index.insert(slab, whole, size);
        whole
    }

    /// Merges a chunk that is in no index with the given neighbours, which are in no index either. Returns the result.
    #[inline(always)]
    pub(in crate::core) fn coalesce(&mut self, id: ChunkId, with_prev: bool, with_next: bool) -> ChunkId {
        self.lend().coalesce(id, with_prev, with_next)
    }

    /// Puts a chunk that is in no index into the index.
    #[inline]
    pub(in crate::core) fn add_to_index(&mut self, id: ChunkId) {
        let slab = self.chunks.slab_mut();
        let size = slab[id].size();
        self.index.insert(slab, id, size);
    }

    /// Removes a free chunk from the index.
    #[inline]
    pub(in crate::core) fn unindex(&mut self, id: ChunkId) {
        let slab = self.chunks.slab_mut();
        let size = slab[id].size();
        self.index.remove(slab, id, size);
    }

    /// Splits a chunk that is in no index at `at` bytes. Returns the second part, which is marked as in use. The caller
    /// must have reserved a chunk.
    #[inline]
    pub(in crate::core) fn split(&mut self, id: ChunkId, at: u64) -> ChunkId {
        let (slab, vacant) = self.chunks.slab_and_vacant();
        let Hot { addr, next, .. } = slab[id];
        let (size, region) = (slab[id].size(), slab[id].region());
        let rest = vacant.fill(slab, Hot::new(addr + at, size - at, region, id, next));
        if next != NIL {
            slab[next].prev = rest;
        }
        slab[id].set_size(at);
        slab[id].next = rest;
        self.chunks.set_stamp(rest, 0);
        rest
    }

    /// Merges the chunk behind `id`, which is in no index, into `id`.
    #[inline]
    pub(in crate::core) fn absorb_next(&mut self, id: ChunkId) {
        self.coalesce(id, false, true);
    }

    /// Returns whether a chunk of `whole` bytes is split for a request of `wanted` bytes.
    #[inline]
    pub(in crate::core) fn splits(&self, whole: u64, wanted: u64) -> bool {
        splits(whole, wanted, self.max_slack)
    }

    /// Records that memory of the chunk's region was handed out up to an address.
    #[inline]
    pub(in crate::core) fn touch(&mut self, id: ChunkId, end: u64) {
        let region = self.chunks.region(id);
        self.regions.touch(region, end);
    }
}
