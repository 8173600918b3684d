//! The heap's type and its accessors.

use super::address_map::AddressMap;
use super::chunk::State;
use super::chunks::Chunks;
use super::free_index::{FreeIndex, Tables};
#[cfg(test)]
use super::probing::Steps;
use super::region_growth::Growth;
use super::regions::Regions;
use crate::ids::{ChunkId, NIL};
use crate::stats::Counters;
use bfc_hostmem::HostMemoryExhausted;

/// Regions, their chunks, and the index of the free ones.
pub struct Heap {
    pub(super) chunks: Chunks,
    pub(super) index: FreeIndex,
    pub(super) regions: Regions,
    pub(super) starts: AddressMap,
    pub(super) counters: Counters,
    pub(super) growth: Growth,
    /// A remainder of this many bytes is split off, however large the request is.
    pub(super) max_slack: u64,
    /// Small requests do not split large chunks where the pool can grow by a small region; see `small_requests`.
    pub(super) may_spare_large: bool,
}

/// The parts of a new heap whose allocation may fail.
pub struct Parts {
    tables: Tables,
    starts: AddressMap,
}

impl Parts {
    /// Allocates the first tables.
    pub fn new(seed: u64) -> Result<Self, HostMemoryExhausted> {
        Ok(Parts { tables: Tables::new()?, starts: AddressMap::new(seed)? })
    }
}

impl Heap {
    /// Creates a heap. This cannot fail, so that an arena can be built in place.
    #[inline(always)]
    pub(crate) fn with(parts: Parts, seed: u64, has_stamps: bool, growth: Growth, max_slack: u64) -> Self {
        Heap {
            chunks: Chunks::new(has_stamps),
            index: FreeIndex::with(parts.tables, seed),
            regions: Regions::new(),
            starts: parts.starts,
            growth,
            counters: Counters::default(),
            max_slack,
            may_spare_large: false,
        }
    }

    /// Returns the chunks.
    #[inline]
    pub fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    #[inline]
    pub(crate) fn chunks_mut(&mut self) -> &mut Chunks {
        &mut self.chunks
    }

    /// Returns the regions.
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Returns the state of growth.
    pub fn growth(&self) -> &Growth {
        &self.growth
    }

    pub(crate) fn growth_mut(&mut self) -> &mut Growth {
        &mut self.growth
    }

    /// Returns the counters.
    #[inline]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    pub(crate) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    pub(crate) fn set_max_slack(&mut self, max_slack: u64) {
        self.max_slack = max_slack;
    }

    #[inline]
    pub(crate) fn addr(&self, id: ChunkId) -> u64 {
        self.chunks.addr(id)
    }

    #[inline]
    pub(crate) fn size(&self, id: ChunkId) -> u64 {
        self.chunks.size(id)
    }

    /// Returns the end address of a chunk.
    #[inline]
    pub(crate) fn end_of(&self, id: ChunkId) -> u64 {
        self.chunks.addr(id) + self.chunks.size(id)
    }

    #[inline]
    pub(crate) fn prev(&self, id: ChunkId) -> ChunkId {
        self.chunks.prev(id)
    }

    #[inline]
    pub(crate) fn next(&self, id: ChunkId) -> ChunkId {
        self.chunks.next(id)
    }

    pub(crate) fn state(&self, id: ChunkId) -> State {
        self.chunks.state(id)
    }

    /// Returns whether a chunk is free and without a stamp, so that no pending work concerns it.
    pub(crate) fn is_idle(&self, id: ChunkId) -> bool {
        self.chunks.state(id) == State::Free && self.chunks.stamp(id) == 0
    }

    /// Marks a free chunk as being in no tree of the index. Other structures may hold it.
    #[inline]
    pub(crate) fn mark_held(&mut self, id: ChunkId) {
        self.chunks.get_mut(id).mark_held();
    }

    /// Returns a chunk and those after it in its region.
    pub(crate) fn from(&self, first: ChunkId) -> impl Iterator<Item = ChunkId> + use<'_> {
        let next = |&id: &ChunkId| Some(self.chunks.next(id)).filter(|&id| id != NIL);
        core::iter::successors(Some(first).filter(|&id| id != NIL), next)
    }

    /// Returns the chunk that begins at an address, in use or free. For a free chunk without an entry in the address
    /// map, and if there is no such chunk, this walks as [`Self::chunk_around`] does.
    #[inline]
    pub(crate) fn chunk_at(&self, addr: u64) -> Option<ChunkId> {
        match self.entry_at(addr) {
            Some(id) => Some(id),
            None => self.walk_to(addr).filter(|&id| self.chunks.addr(id) == addr),
        }
    }

    /// Returns the chunk in use that begins at an address. Every one has an entry in the address map.
    pub(crate) fn chunk_in_use(&self, addr: u64) -> Option<ChunkId> {
        self.entry_at(addr).filter(|&id| self.chunks.in_use(id))
    }

    /// Returns the entry of the address map for an address.
    #[inline(always)]
    pub(crate) fn entry_at(&self, addr: u64) -> Option<ChunkId> {
        self.starts.get(self.chunks.slab(), &self.regions, addr)
    }

    /// Returns the chunk that contains an address of a region. Unless the address map is dense, this walks along the
    /// chunks of the region. Allocations and frees only look up starts of chunks.
    pub(crate) fn chunk_around(&self, addr: u64) -> Option<ChunkId> {
        self.entry_at(addr).or_else(|| self.walk_to(addr))
    }

    /// Returns the chunk that contains an address of a region for which there is no entry.
    #[cold]
    fn walk_to(&self, addr: u64) -> Option<ChunkId> {
        let mut id = self.regions.chunk_before(addr)?;
        while addr - self.chunks.addr(id) >= self.chunks.size(id) {
            id = self.chunks.next(id);
            if id == NIL {
                return None;
            }
        }
        Some(id)
    }

    /// Returns the best fit of the index: the smallest chunk of at least `size` bytes, at the lowest address.
    #[inline]
    pub(crate) fn best_fit(&self, size: u64) -> Option<ChunkId> {
        self.index.best_fit(self.chunks.slab(), size)
    }

    /// Returns the first chunk of the index that is not below a size and an address.
    #[inline]
    pub(crate) fn first_from(&self, key: (u64, u64)) -> Option<ChunkId> {
        self.index.first_from(self.chunks.slab(), key)
    }

    /// Returns the chunks of the index of at least `size` bytes, in (size, address) order.
    pub(crate) fn indexed_from(&self, size: u64) -> impl Iterator<Item = ChunkId> + '_ {
        let slab = self.chunks.slab();
        self.index.iter_from(slab, (size, 0))
    }

    /// Returns the largest chunk of the index.
    pub(crate) fn largest(&self) -> Option<ChunkId> {
        self.index.largest(self.chunks.slab())
    }

    /// Returns whether a size class of the index is marked and linked as it must be.
    pub(crate) fn is_class_sound(&self, class: usize) -> bool {
        self.index.is_sound(self.chunks.slab(), class)
    }

    /// Returns the host memory held beside the struct itself, in bytes.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        self.chunks.metadata_bytes()
            + self.index.metadata_bytes()
            + self.regions.metadata_bytes()
            + self.starts.metadata_bytes()
    }

    /// Makes the next use of the index panic.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn break_index(&mut self) {
        self.index.break_tops();
    }

    /// Returns the cost of searches in the address map.
    #[cfg(test)]
    pub(crate) fn search_steps(&self) -> Steps {
        self.starts.steps(self.chunks.slab())
    }

    /// Returns the depth of the deepest tree of the index.
    #[cfg(test)]
    pub(crate) fn deepest_tree(&self) -> usize {
        self.index.depth(self.chunks.slab())
    }
}
