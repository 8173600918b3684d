//! Adding and removing regions, and which memory is to be populated before a request gets it.

use super::chunk::Hot;
use super::chunks::Chunks;
use super::heap::Heap;
use super::regions::{Region, Regions};
use crate::ids::{ChunkId, NIL};
use crate::units::{MAX_CHUNK, Span};
use bfc_hostmem::HostMemoryExhausted;

impl Heap {
    /// Adds `bytes` of memory at `base` as one chunk that is in no tree, and returns the chunk. `given` is the size
    /// that the backend gave. With `coalesce` the memory becomes part of the region that ends there. The caller must
    /// have reserved a chunk.
    pub(crate) fn add_region(
        &mut self,
        base: u64,
        bytes: u64,
        given: u64,
        coalesce: bool,
    ) -> Result<ChunkId, HostMemoryExhausted> {
        let below = if coalesce { self.regions.ending_at(base) } else { None };
        let below = below.filter(|&id| self.regions.get(id).bytes + bytes <= MAX_CHUNK);
        let (region, last) = match below {
            Some(id) => {
                let last = self.last_chunk(id);
                self.regions.extend(id, bytes, given)?;
                (id, last)
            }
            None => (self.regions.add(base, bytes, given, self.starts.needs_flat())?, NIL),
        };
        let (slab, vacant) = self.chunks.slab_and_vacant();
        let id = vacant.fill(slab, Hot::held(base, bytes, region, last, NIL));
        if last == NIL {
            self.regions.get_mut(region).first = id;
        } else {
            slab[last].next = id;
        }
        self.renew_sparing();
        Ok(id)
    }

    fn last_chunk(&self, region: u32) -> ChunkId {
        let region = self.regions.get(region);
        self.chunk_around(region.base + region.bytes - 1).unwrap_or(NIL)
    }

    /// Records that memory of the region around `base` may have been used up to `end`.
    pub(crate) fn touch_region(&mut self, base: u64, end: u64) {
        if let Some(region) = self.regions.find(base) {
            self.regions.touch(region, end);
        }
    }

    /// Records how much of the only region of a reserved range is mapped.
    pub(crate) fn set_given(&mut self, given: u64) {
        let region = self.regions.iter().map(|(region, _)| region).next();
        if let Some(region) = region {
            self.regions.get_mut(region).given = given;
        }
    }

    /// Ends a chunk of a detached region. No tree or list may refer to it.
    pub(crate) fn end_chunk(&mut self, id: ChunkId) {
        let (slab, vacant) = self.chunks.slab_and_vacant();
        vacant.add(slab, id);
    }

    /// Removes a region whose chunks have ended.
    pub(crate) fn remove_region(&mut self, region: u32) -> Region {
        let removed = self.regions.remove(region);
        self.renew_sparing();
        removed
    }

    /// Forgets all chunks and regions, and returns them.
    pub(crate) fn forget_all(&mut self, has_stamps: bool) -> (Chunks, Regions) {
        let chunks = core::mem::replace(&mut self.chunks, Chunks::new(has_stamps));
        let regions = self.regions.take();
        self.index.clear();
        self.starts.clear_all();
        self.counters.lost_all(regions.count() as u64);
        self.growth.forget_held();
        self.renew_sparing();
        (chunks, regions)
    }

    /// Frees places of the slab and lists that the current chunks and regions do not need.
    pub(crate) fn shrink(&mut self) {
        self.chunks.shrink();
        self.regions.shrink();
    }

    /// Shrinks the address map to what the current chunks need.
    pub(crate) fn shrink_starts(&mut self) {
        let Heap { chunks, regions, starts, .. } = self;
        let in_use = chunks.ids().filter(|&id| chunks.in_use(id));
        starts.rebuild(chunks.slab(), regions, in_use);
    }
}

impl Heap {
    /// Returns memory of a region that is to be populated, up to a multiple of `piece`, a power of two, and how many such
    /// bytes the region has.
    pub(crate) fn unpopulated(&self, piece: u64) -> Option<(Span, u64)> {
        let regions =
            self.regions.iter().map(|(_, region)| region).filter(|region| !region.is_left_unpopulated);
        let mut rests = regions.map(|region| (region.resident_to(), region.base + region.bytes));
        let (base, end) = rests.find(|(base, end)| base < end)?;
        // The last piece may end at the end of the address space.
        let next = (base | (piece - 1)).saturating_add(1);
        Some((Span { base, bytes: next.min(end) - base }, end - base))
    }

    /// Records that memory of a region was populated, and all before it.
    pub(crate) fn note_populated(&mut self, span: Span) {
        if let Some(id) = self.regions.find(span.base) {
            self.regions.get_mut(id).populated = span.base + span.bytes;
        }
    }

    /// Leaves what the region around an address has left to the requests.
    pub(crate) fn leave_unpopulated(&mut self, addr: u64) {
        if let Some(id) = self.regions.find(addr) {
            self.regions.get_mut(id).is_left_unpopulated = true;
        }
    }

    /// Leaves what all regions have left to the requests.
    pub(crate) fn leave_all_unpopulated(&mut self) {
        self.regions.each_mut(|region| region.is_left_unpopulated = true);
    }
}
