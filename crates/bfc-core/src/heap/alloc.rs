//! Allocations of the best fit, and frees. Nothing here depends on streams.

use super::chunk::Hot;
use super::heap::Heap;
use super::lent::{InUse, splits};
use crate::ids::{ChunkId, NIL};
use crate::units::Span;
use bfc_hostmem::HostMemoryExhausted;
use core::num::NonZeroU64;

/// Why a free was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The address is not the start of a chunk. The chunk around it, if it is in a region.
    NotAChunk(Option<ChunkId>),
    /// The address is the start of a free chunk.
    AlreadyFree(ChunkId),
}

impl Heap {
    /// Allocates the best fit of the index for `size` bytes. Returns `None` if nothing fits.
    #[inline(never)]
    pub(crate) fn alloc(&mut self, size: u64, requested: u64) -> Result<Option<u64>, HostMemoryExhausted> {
        self.chunks.reserve(1)?;
        self.reserve_start()?;
        Ok(self.alloc_in_room::<false>(size, requested).map(NonZeroU64::get))
    }

    /// Allocates as [`Self::alloc`] does if the tables have room. Otherwise nothing changes. Out of line, so that all of
    /// it stays in registers.
    #[inline(never)]
    pub(crate) fn try_alloc(&mut self, size: u64, requested: u64) -> Option<NonZeroU64> {
        if !self.starts.takes_one() {
            return None;
        }
        self.alloc_in_room::<true>(size, requested)
    }

    /// Allocates as [`Self::try_alloc`] does, from a best fit that is aligned as it is and has no stamp. Otherwise
    /// nothing changes. `alignment` is a power of two.
    #[inline(never)]
    pub(crate) fn try_alloc_aligned(&mut self, size: u64, requested: u64, alignment: u64) -> Option<u64> {
        let id = self.index.best_fit(self.chunks.slab(), size)?;
        if self.chunks.addr(id) & (alignment - 1) != 0 || !self.starts.takes_one() {
            return None;
        }
        self.alloc_in_room::<true>(size, requested).map(NonZeroU64::get)
    }

    /// Allocates the best fit. There must be room in the address map, in its hash table if `HASHED`.
    #[inline(always)]
    fn alloc_in_room<const HASHED: bool>(&mut self, size: u64, requested: u64) -> Option<NonZeroU64> {
        let mut heap = self.lend();
        if heap.vacant.is_empty() {
            return None;
        }
        let id = heap.index.take_best_fit(heap.slab, size)?;
        let Hot { addr, next, .. } = heap.slab[id];
        let (whole, region) = (heap.slab[id].size(), heap.slab[id].region());
        let mut taken = whole;
        if heap.splits(whole, size) {
            taken = size;
            let rest = heap.split(id, size);
            heap.index.insert(heap.slab, rest, whole - size);
        }
        if next == NIL {
            heap.regions.touch(region, addr + taken);
        }
        NonZeroU64::new(heap.hand_out::<HASHED>(id, taken, requested))
    }

    /// Hands out a chunk. Room for its entry in the address map must be reserved.
    #[inline]
    pub(crate) fn hand_out(&mut self, id: ChunkId, requested: u64) {
        let size = self.chunks.size(id);
        self.lend().hand_out::<false>(id, size, requested);
    }

    /// Frees the chunk that begins at an address and coalesces it with its free neighbours, if its entry is in the hash
    /// table. Otherwise nothing changes. There must be no stamps. Out of line, so that all of it stays in registers.
    #[inline(never)]
    pub(crate) fn try_free(&mut self, addr: u64) -> bool {
        let mut heap = self.lend();
        let Some(found) = heap.find_hashed(addr) else { return false };
        heap.count_free(found);
        heap.release::<false>(found.id);
        true
    }

    /// Finds the chunk in use at an address and counts it as freed.
    #[inline(always)]
    pub(crate) fn begin_free(&mut self, addr: u64) -> Result<ChunkId, Refused> {
        let found = self.find_in_use(addr)?;
        self.count_free(found);
        Ok(found.id)
    }

    /// Returns the chunk in use that begins at an address, or why a free of that address is refused.
    #[inline(always)]
    pub(crate) fn find_in_use(&self, addr: u64) -> Result<InUse, Refused> {
        match self.starts.find(self.chunks.slab(), addr) {
            Some((id, slot)) if self.chunks.in_use(id) => Ok(InUse { id, slot: Some(slot) }),
            _ => self.find_in_use_by_walk(addr),
        }
    }

    #[cold]
    fn find_in_use_by_walk(&self, addr: u64) -> Result<InUse, Refused> {
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
    pub(crate) fn count_free(&mut self, found: InUse) {
        self.lend().count_free(found);
    }

    /// Reserves room for `count` more chunks.
    #[inline]
    pub(crate) fn reserve_chunks(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        self.chunks.reserve(count)
    }

    /// Reserves room for the entry of one more chunk in use in the address map.
    #[inline]
    pub(crate) fn reserve_start(&mut self) -> Result<(), HostMemoryExhausted> {
        self.starts.reserve(self.chunks.slab(), &mut self.regions, 1)
    }

    /// Coalesces a chunk that is in no index with its free neighbours and puts the result into the index. Returns the
    /// result. A neighbour with a stamp is not merged. The chunk itself has no stamp.
    #[inline(always)]
    pub(crate) fn release<const STAMPED: bool>(&mut self, id: ChunkId) -> ChunkId {
        self.lend().release::<STAMPED>(id)
    }

    /// Puts a chunk that is in no index into the index.
    #[inline]
    pub(crate) fn add_to_index(&mut self, id: ChunkId) {
        let slab = self.chunks.slab_mut();
        let size = slab[id].size();
        self.index.insert(slab, id, size);
    }

    /// Removes a free chunk from the index.
    #[inline]
    pub(crate) fn unindex(&mut self, id: ChunkId) {
        let slab = self.chunks.slab_mut();
        let size = slab[id].size();
        self.index.remove(slab, id, size);
    }

    /// Splits a chunk that is in no index at `at` bytes. Returns the second part, which is free and in no index either.
    /// The caller must have reserved a chunk.
    #[inline]
    pub(crate) fn split(&mut self, id: ChunkId, at: u64) -> ChunkId {
        self.lend().split(id, at)
    }

    /// Splits a chunk that is in no index so that a span of it is a chunk, which is returned. `leave` gets what is left
    /// before and after the span, free and in no index. The caller must have reserved two chunks.
    pub(crate) fn carve(
        &mut self,
        id: ChunkId,
        span: Span,
        mut leave: impl FnMut(&mut Self, ChunkId),
    ) -> ChunkId {
        let (mut part, before) = (id, span.base - self.addr(id));
        if before != 0 {
            part = self.split(id, before);
            leave(self, id);
        }
        if self.size(part) != span.bytes {
            let rest = self.split(part, span.bytes);
            leave(self, rest);
        }
        part
    }

    /// Merges the chunk after `id` into `id`. Neither is in an index.
    #[inline]
    pub(crate) fn absorb_next(&mut self, id: ChunkId) {
        self.lend().absorb_next(id);
    }

    /// Returns whether a chunk of `whole` bytes is split for a request of `wanted` bytes.
    #[inline]
    pub(crate) fn splits(&self, whole: u64, wanted: u64) -> bool {
        splits(whole, wanted, self.max_slack)
    }

    /// Records that memory of the chunk's region was handed out up to an address.
    #[inline]
    pub(crate) fn touch(&mut self, id: ChunkId, end: u64) {
        let region = self.chunks.region(id);
        self.regions.touch(region, end);
    }
}
