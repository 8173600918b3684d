//! Regions: what the backend gave, in address order.

use super::chunks::{ChunkId, MAX_REGIONS, NIL};
use super::units::UNIT;
use crate::sys::HostMemoryExhausted;
use crate::sys::table::LazyTable;
use std::cell::Cell;

pub(crate) struct Region {
    pub(crate) base: u64,
    /// What chunks tile: a multiple of 256.
    pub(crate) bytes: u64,
    /// What the backend said it gave and gets back: `bytes`, perhaps with a tail of less than a unit. Of a
    /// reserved range what is mapped, which is less.
    pub(crate) given: u64,
    /// The chunk at `base`, which stays the same one: splits leave it there and merges go into it.
    pub(crate) first: ChunkId,
    /// Nobody ever had anything from here on, as far as is known.
    pub(super) touched: u64,
    /// For each unit the chunk that begins there, plus 1; while [`super::starts`] is dense.
    flat: Option<LazyTable>,
}

impl Region {
    /// The place of an address of the region in its table.
    #[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
    fn unit(&self, addr: u64) -> usize {
        ((addr - self.base) / UNIT) as usize
    }

    pub(super) fn end(&self) -> u64 {
        self.base + self.bytes
    }

    fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.bytes
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

impl Regions {
    pub(super) fn new() -> Self {
        Regions { slots: Vec::new(), order: Vec::new(), last: Cell::new(0) }
    }

    /// The region around an address.
    pub(crate) fn find(&self, addr: u64) -> Option<u32> {
        let last = self.last.get();
        if self.slots.get(last as usize).is_some_and(|region| region.contains(addr)) {
            return Some(last);
        }
        let id = *self.order.get(self.place_of(addr))?;
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

    /// The last chunk that begins at or before an address of a region, if there is a flat table to tell;
    /// else the first chunk of the region, from which a walk finds it.
    pub(super) fn chunk_before(&self, addr: u64) -> Option<ChunkId> {
        let region = self.get(self.find(addr)?);
        let table = region.flat.as_ref();
        let known = table.and_then(|table| table.last_at_or_before(region.unit(addr)));
        Some(known.map_or(region.first, |(_, entry)| ChunkId(entry - 1)))
    }

    /// What flat tables would take, in bytes.
    pub(super) fn flat_bytes(&self) -> u64 {
        self.iter().map(|(_, region)| region.bytes.min(region.given) / UNIT * size_of::<u32>() as u64).sum()
    }

    /// Gives every region a flat table without entries. On failure nothing changed.
    pub(super) fn make_flat(&mut self) -> Result<(), HostMemoryExhausted> {
        for region in self.slots.iter_mut().filter(|region| region.bytes != 0) {
            match flat_for(region.bytes) {
                Ok(table) => region.flat = Some(table),
                Err(exhausted) => {
                    self.drop_flat();
                    return Err(exhausted);
                }
            }
        }
        Ok(())
    }

    pub(super) fn drop_flat(&mut self) {
        self.slots.iter_mut().for_each(|region| region.flat = None);
    }

    /// Forgets all entries of the flat tables and gives their memory back.
    pub(super) fn clear_flat(&mut self) {
        self.slots.iter_mut().filter_map(|region| region.flat.as_mut()).for_each(LazyTable::clear);
    }

    /// The flat table for an address, with the place in it.
    pub(super) fn flat(&self, addr: u64) -> Option<(&LazyTable, usize)> {
        let region = self.get(self.find(addr)?);
        Some((region.flat.as_ref()?, region.unit(addr)))
    }

    pub(super) fn flat_mut(&mut self, addr: u64) -> Option<(&mut LazyTable, usize)> {
        let id = self.find(addr)?;
        let region = self.get_mut(id);
        let unit = region.unit(addr);
        Some((region.flat.as_mut()?, unit))
    }

    pub(super) fn flat_resident_bytes(&self) -> u64 {
        self.slots.iter().filter_map(|region| region.flat.as_ref()).map(LazyTable::resident_bytes).sum()
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
    pub(super) fn add(
        &mut self,
        base: u64,
        bytes: u64,
        given: u64,
        flat: bool,
    ) -> Result<u32, HostMemoryExhausted> {
        let vacant = self.slots.iter().position(|region| region.bytes == 0);
        let slot = vacant.unwrap_or(self.slots.len());
        if slot >= MAX_REGIONS {
            return Err(HostMemoryExhausted);
        }
        self.order.try_reserve(1)?;
        self.slots.try_reserve(1)?;
        let flat = if flat { Some(flat_for(bytes)?) } else { None };
        let region = Region { base, bytes, given, first: NIL, touched: base, flat };
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

    /// Makes a region longer at its end. On failure nothing changed.
    pub(super) fn extend(&mut self, id: u32, bytes: u64, given: u64) -> Result<(), HostMemoryExhausted> {
        let region = self.get_mut(id);
        let units = region.unit(region.end() + bytes);
        if let Some(table) = &mut region.flat {
            table.grow(units)?;
        }
        region.bytes += bytes;
        region.given += given;
        Ok(())
    }

    pub(super) fn remove(&mut self, id: u32) -> Region {
        self.order.retain(|&other| other != id);
        let nothing = Region { base: 0, bytes: 0, given: 0, first: NIL, touched: 0, flat: None };
        std::mem::replace(self.get_mut(id), nothing)
    }

    /// The regions in address order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &Region)> + '_ {
        self.order.iter().map(|&id| (id, self.get(id)))
    }

    /// The regions in address order, by place.
    pub(super) fn nth(&self, place: usize) -> Option<&Region> {
        self.order.get(place).map(|&id| self.get(id))
    }

    /// Somebody had memory of a region up to here.
    #[inline(always)]
    pub(super) fn touch(&mut self, id: u32, end: u64) {
        let region = &mut self.slots[id as usize];
        region.touched = region.touched.max(end);
    }

    pub(crate) fn count(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn metadata_bytes(&self) -> u64 {
        let lists = self.slots.capacity() * size_of::<Region>() + self.order.capacity() * size_of::<u32>();
        lists as u64 + self.flat_resident_bytes()
    }
}

#[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
fn flat_for(bytes: u64) -> Result<LazyTable, HostMemoryExhausted> {
    LazyTable::new((bytes / UNIT) as usize)
}
