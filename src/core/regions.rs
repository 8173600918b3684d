//! Regions: what the backend gave, in address order, and which chunk begins where.

use super::chunks::{ChunkId, Chunks, MAX_REGIONS, NIL};
use super::starts::Starts;
use super::units::UNIT;
use crate::sys::HostMemoryExhausted;
use std::cell::Cell;

pub(crate) struct Region {
    pub(crate) base: u64,
    /// What chunks tile: a multiple of 256.
    pub(crate) bytes: u64,
    /// What the backend said it gave and gets back: `bytes`, perhaps with a tail of less than a unit.
    pub(crate) given: u64,
    /// For each unit the chunk that begins there, plus 1.
    starts: Starts,
}

impl Region {
    /// The place of an address of the region in its table.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
    fn unit(&self, addr: u64) -> usize {
        ((addr - self.base) / UNIT) as usize
    }

    #[allow(clippy::cast_possible_truncation)] // as above
    fn units(&self) -> usize {
        (self.bytes / UNIT) as usize
    }

    fn end(&self) -> u64 {
        self.base + self.bytes
    }

    #[inline]
    fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.bytes
    }

    /// The chunk that begins at an address of the region.
    #[inline]
    pub(super) fn start(&self, addr: u64) -> Option<ChunkId> {
        if !addr.is_multiple_of(UNIT) {
            return None;
        }
        let entry = self.starts.get(self.unit(addr));
        (entry != 0).then_some(ChunkId(entry.wrapping_sub(1)))
    }

    #[inline]
    pub(super) fn set_start(&mut self, addr: u64, chunk: ChunkId) {
        self.starts.set(self.unit(addr), chunk.0 + 1);
    }

    #[inline]
    pub(super) fn clear_start(&mut self, addr: u64) {
        self.starts.clear(self.unit(addr));
    }

    /// Makes sure that `count` calls of `set_start` need no memory.
    #[inline]
    pub(super) fn reserve_starts(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        let units = self.units();
        self.starts.reserve(count, units)
    }
}

/// All regions of an arena.
pub(crate) struct Regions {
    /// By number, which chunks know. A slot without a region has 0 bytes.
    slots: Vec<Region>,
    /// The numbers of the regions in address order.
    order: Vec<u32>,
    /// The region that answered last: programs free where they just freed.
    last: Cell<u32>,
}

/// What lies at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// A chunk begins here, in use or free.
    Start(ChunkId),
    /// In a region, but no chunk begins here.
    Inside,
    Foreign,
}

impl Regions {
    pub(super) fn new() -> Self {
        Regions { slots: Vec::new(), order: Vec::new(), last: Cell::new(0) }
    }

    /// The region around an address.
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> Option<u32> {
        let last = self.last.get();
        match self.slots.get(last as usize) {
            Some(region) if region.contains(addr) => Some(last),
            _ => self.search(addr),
        }
    }

    /// As `find`, to change the region.
    #[inline]
    pub(super) fn find_mut(&mut self, addr: u64) -> Option<&mut Region> {
        let mut id = self.last.get();
        if !self.slots.get(id as usize).is_some_and(|region| region.contains(addr)) {
            id = self.search(addr)?;
        }
        self.slots.get_mut(id as usize)
    }

    #[cold]
    fn search(&self, addr: u64) -> Option<u32> {
        let place = self.place_of(addr);
        let id = *self.order.get(place)?;
        if !self.get(id).contains(addr) {
            return None;
        }
        self.last.set(id);
        Some(id)
    }

    /// How many regions end at or before an address.
    fn place_of(&self, addr: u64) -> usize {
        self.order.partition_point(|&id| self.get(id).end() <= addr)
    }

    pub(crate) fn lookup(&self, addr: u64) -> Lookup {
        match self.find(addr).map(|id| self.get(id).start(addr)) {
            None => Lookup::Foreign,
            Some(None) => Lookup::Inside,
            Some(Some(id)) => Lookup::Start(id),
        }
    }

    /// The last chunk that begins at or before an address of a region, if the region's table can tell
    /// fast; else the first chunk of the region, from which a walk finds it.
    pub(super) fn chunk_before(&self, addr: u64) -> Option<ChunkId> {
        let region = self.get(self.find(addr)?);
        match region.starts.last_at_or_before(region.unit(addr)) {
            Some(entry) => Some(ChunkId(entry - 1)),
            None => region.start(region.base),
        }
    }

    /// The first chunk of a region.
    pub(crate) fn first_chunk(&self, id: u32) -> ChunkId {
        let region = self.get(id);
        region.start(region.base).unwrap_or(NIL)
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> &Region {
        &self.slots[id as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> &mut Region {
        &mut self.slots[id as usize]
    }

    /// Whether memory overlaps what the backend gave before, tails included.
    pub(super) fn overlaps(&self, base: u64, bytes: u64) -> bool {
        let end = base.saturating_add(bytes);
        self.iter().any(|(_, region)| region.base < end && base < region.base.saturating_add(region.given))
    }

    /// The region that ends exactly where another would begin.
    pub(super) fn ending_at(&self, base: u64) -> Option<u32> {
        let id = *self.order.get(self.place_of(base).checked_sub(1)?)?;
        let region = self.get(id);
        (region.end() == base && region.given == region.bytes).then_some(id)
    }

    /// Adds a region that overlaps no other. On failure nothing changed.
    pub(super) fn add(&mut self, base: u64, bytes: u64, given: u64) -> Result<u32, HostMemoryExhausted> {
        let vacant = self.slots.iter().position(|region| region.bytes == 0);
        let slot = vacant.unwrap_or(self.slots.len());
        if slot >= MAX_REGIONS {
            return Err(HostMemoryExhausted);
        }
        self.order.try_reserve(1)?;
        self.slots.try_reserve(1)?;
        let mut region = Region { base, bytes, given, starts: Starts::default() };
        region.starts = Starts::new(region.units())?;
        let place = self.place_of(base);
        match vacant {
            Some(slot) => self.slots[slot] = region,
            None => self.slots.push(region),
        }
        #[allow(clippy::cast_possible_truncation)] // below MAX_REGIONS
        let id = slot as u32;
        self.order.insert(place, id);
        Ok(id)
    }

    /// Makes a region longer at its end, with room for one more start. On failure nothing changed.
    pub(super) fn extend(&mut self, id: u32, bytes: u64, given: u64) -> Result<(), HostMemoryExhausted> {
        let region = self.get_mut(id);
        region.bytes += bytes;
        let units = region.units();
        let grown = region.starts.extend(units).and_then(|()| region.starts.reserve(1, units));
        match grown {
            Ok(()) => region.given += given,
            Err(HostMemoryExhausted) => region.bytes -= bytes,
        }
        grown
    }

    pub(super) fn remove(&mut self, id: u32) -> Region {
        self.order.retain(|&other| other != id);
        let nothing = Region { base: 0, bytes: 0, given: 0, starts: Starts::default() };
        std::mem::replace(self.get_mut(id), nothing)
    }

    /// The regions in address order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &Region)> + '_ {
        self.order.iter().map(|&id| (id, self.get(id)))
    }

    pub(crate) fn count(&self) -> usize {
        self.order.len()
    }

    /// Shrinks the tables to what the chunks of today need.
    pub(super) fn rebuild_starts(&mut self, chunks: &Chunks) {
        for region in self.slots.iter_mut().filter(|region| region.bytes != 0) {
            let following = |&id: &ChunkId| Some(chunks.next(id)).filter(|&next| next != NIL);
            let all = std::iter::successors(region.start(region.base), following);
            let base = region.base;
            #[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
            let entries = all.map(|id| (((chunks.addr(id) - base) / UNIT) as usize, id.0 + 1));
            region.starts.rebuild(entries);
        }
    }

    pub(crate) fn metadata_bytes(&self) -> u64 {
        let lists = self.slots.capacity() * size_of::<Region>() + self.order.capacity() * size_of::<u32>();
        lists as u64 + self.iter().map(|(_, region)| region.starts.resident_bytes()).sum::<u64>()
    }
}
