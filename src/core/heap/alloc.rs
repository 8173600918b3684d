//! Best fit, split and coalesce. Nothing here depends on streams.

use super::chunk::{Cold, Hot};
use super::chunks::Chunks;
use super::heap::Heap;
use crate::core::ids::{ChunkId, NIL};
use crate::sys::HostMemoryExhausted;

/// Why a free was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// The address is not the start of a chunk.
    NotAChunk,
    AlreadyFree,
}

impl Heap {
    /// Allocates the best fit of the index for `size` bytes, without any other attempt. Returns `None` if nothing fits.
    #[inline(always)]
    pub(in crate::core) fn alloc(
        &mut self,
        size: u64,
        requested: u64,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        self.chunks.reserve(1)?;
        let Heap { chunks, index, regions, starts, .. } = self;
        let Chunks { slab, vacant, .. } = chunks;
        let slab = &mut slab[..];
        let Some((id, class)) = index.best_fit(slab, size) else { return Ok(None) };
        let hot = slab[id];
        let whole = hot.size();
        if !splits(whole, size, self.max_slack) {
            index.remove_from(slab, class, id);
            slab[id].mark_in_use();
            if hot.next == NIL {
                regions.touch(hot.region(), hot.addr + whole);
            }
            self.hand_out(id, whole, requested);
            return Ok(Some(hot.addr));
        }
        starts.reserve(slab, regions, 1)?;
        index.remove_from(slab, class, id);
        let at = hot.addr + size;
        let rest = vacant.fill(slab, Hot::new(at, whole - size, hot.region(), id, hot.next));
        if hot.next != NIL {
            slab[hot.next].prev = rest;
        } else {
            regions.touch(hot.region(), at);
        }
        let hot = &mut slab[id];
        hot.set_size(size);
        hot.next = rest;
        hot.mark_in_use();
        starts.set(regions, at, rest);
        index.insert(slab, rest, whole - size);
        self.hand_out(id, size, requested);
        Ok(Some(at - size))
    }

    /// Records that a chunk is in use from now on.
    #[inline]
    pub(in crate::core) fn hand_out(&mut self, id: ChunkId, size: u64, requested: u64) {
        let Heap { chunks, counters, .. } = self;
        let allocation_id = counters.allocated(size, requested);
        chunks.set_cold(id, Cold { requested, allocation_id });
    }

    /// Frees the chunk that begins at an address and coalesces it with its free neighbours.
    #[inline(always)]
    pub(in crate::core) fn free(&mut self, addr: u64) -> Result<(), Refused> {
        let id = self.begin_free(addr)?;
        self.release::<false>(id);
        Ok(())
    }

    /// Finds the chunk in use at an address and counts it as freed.
    #[inline(always)]
    pub(in crate::core) fn begin_free(&mut self, addr: u64) -> Result<ChunkId, Refused> {
        let Heap { chunks, regions, starts, .. } = self;
        let Some(id) = starts.get(chunks.slab(), regions, addr) else { return Err(Refused::NotAChunk) };
        let hot = &chunks.slab()[id];
        if !hot.in_use() {
            return Err(Refused::AlreadyFree);
        }
        self.counters.freed(hot.size(), chunks.cold(id).requested);
        Ok(id)
    }

    /// Counts a chunk in use as freed.
    pub(in crate::core) fn count_free(&mut self, id: ChunkId) {
        self.counters.freed(self.chunks.size(id), self.chunks.cold(id).requested);
    }

    /// Reserves room for `count` more chunks, without their entries in the address map.
    #[inline]
    pub(in crate::core) fn reserve_chunks(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        self.chunks.reserve(count)
    }

    /// Reserves room for `count` more entries in the address map.
    #[inline]
    pub(in crate::core) fn reserve_starts(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        self.starts.reserve(self.chunks.slab(), &mut self.regions, count)
    }

    /// Coalesces a chunk that is in no tree with its free neighbours and puts the result into the index. Returns the
    /// result. A neighbour with a stamp is not merged. The chunk itself has no stamp.
    #[inline(always)]
    pub(in crate::core) fn release<const STAMPED: bool>(&mut self, id: ChunkId) -> ChunkId {
        let Heap { chunks, index, regions, starts, .. } = self;
        let Chunks { slab, vacant, stamps, .. } = chunks;
        let slab = &mut slab[..];
        let stamps = if STAMPED { stamps.as_deref().unwrap_or_default() } else { &[] };
        let Hot { addr, prev, mut next, .. } = slab[id];
        let (mut size, mut whole) = (slab[id].size(), id);
        let merges = |hot: &Hot, id: ChunkId| hot.is_findable() && (!STAMPED || stamps[id.index()] == 0);
        if next != NIL && merges(&slab[next], next) {
            let hot = slab[next];
            index.remove(slab, next, hot.size());
            starts.clear(slab, regions, hot.addr, next);
            vacant.add(slab, next);
            (size, next) = (size + hot.size(), hot.next);
        }
        if prev != NIL && merges(&slab[prev], prev) {
            let before = slab[prev].size();
            index.remove(slab, prev, before);
            starts.clear(slab, regions, addr, id);
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

    /// Merges a chunk that is in no tree with the given neighbours, which are in no tree either. Returns the result.
    #[inline(always)]
    pub(in crate::core) fn coalesce(&mut self, id: ChunkId, with_prev: bool, with_next: bool) -> ChunkId {
        let Heap { chunks, regions, starts, .. } = self;
        let (slab, vacant) = chunks.slab_and_vacant();
        let Hot { addr, prev, mut next, .. } = slab[id];
        let (mut size, mut whole) = (slab[id].size(), id);
        if with_next {
            let gone = slab[next];
            starts.clear(slab, regions, gone.addr, next);
            vacant.add(slab, next);
            (size, next) = (size + gone.size(), gone.next);
        }
        if with_prev {
            starts.clear(slab, regions, addr, id);
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

    /// Puts a chunk that is in no tree into the index.
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

    /// Splits a chunk that is in no tree at `at` bytes. Returns the second part, which is marked as in use. The caller
    /// must have reserved a chunk and its entry in the address map.
    #[inline]
    pub(in crate::core) fn split(&mut self, id: ChunkId, at: u64) -> ChunkId {
        let Heap { chunks, regions, starts, .. } = self;
        let (slab, vacant) = chunks.slab_and_vacant();
        let Hot { addr, next, .. } = slab[id];
        let (size, region) = (slab[id].size(), slab[id].region());
        let rest = vacant.fill(slab, Hot::new(addr + at, size - at, region, id, next));
        if next != NIL {
            slab[next].prev = rest;
        }
        slab[id].set_size(at);
        slab[id].next = rest;
        chunks.set_stamp(rest, 0);
        starts.set(regions, addr + at, rest);
        rest
    }

    /// Merges the chunk behind `id`, which is in no tree and no list, into `id`.
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

/// TensorFlow's rule for whether a chunk of `whole` bytes is split for a request of `wanted` bytes.
#[inline]
fn splits(whole: u64, wanted: u64, max_slack: u64) -> bool {
    let remainder = whole - wanted;
    remainder >= wanted || remainder >= max_slack
}
