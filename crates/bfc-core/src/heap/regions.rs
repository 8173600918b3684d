//! Regions obtained from the backend, in address order.

use super::chunk::MAX_REGIONS;
use super::size_classes::LARGE;
use crate::ids::{ChunkId, NIL};
use crate::tables::copy_table;
use crate::units::{Span, UNIT};
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;
use bfc_hostmem::LazyTable;
use core::cell::Cell;

/// Memory obtained from the backend at once.
pub struct Region {
    /// Its first address, a multiple of 256.
    pub base: u64,
    /// The bytes that chunks tile, a multiple of 256.
    pub bytes: u64,
    /// The size that the backend reported and expects back: `bytes`, perhaps plus a tail of less than a unit. For a
    /// reserved range it is the mapped size, which is less.
    pub given: u64,
    /// The chunk at `base`. It stays the same one, because splits leave it there and merges go into it.
    pub first: ChunkId,
    /// The end of the memory that was ever handed out, as far as is known.
    pub(crate) touched: u64,
    /// The address up to which pages were populated, before a request got them.
    pub(super) populated: u64,
    /// No more of it is to be populated.
    pub(super) is_left_unpopulated: bool,
    /// For each unit the chunk that begins there, or 0. Present while [`crate::heap::address_map`] is dense.
    flat: Option<LazyTable>,
}

impl Region {
    fn new(base: u64, bytes: u64, given: u64) -> Self {
        Region {
            base,
            bytes,
            given,
            first: NIL,
            touched: base,
            populated: base,
            is_left_unpopulated: false,
            flat: None,
        }
    }

    /// Returns the memory that the backend gave.
    pub fn span(&self) -> Span {
        Span { base: self.base, bytes: self.given }
    }

    /// Returns the position of an address in the region's flat table.
    #[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
    fn unit(&self, addr: u64) -> usize {
        ((addr - self.base) / UNIT) as usize
    }

    /// Returns the end of the resident pages, as far as is known.
    pub(crate) fn resident_to(&self) -> u64 {
        self.touched.max(self.populated)
    }

    pub(super) fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// For tests: returns whether there is a flat table.
    #[cfg(test)]
    pub(crate) fn has_flat(&self) -> bool {
        self.flat.is_some()
    }

    fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.bytes
    }
}

/// All regions of an arena.
pub struct Regions {
    /// The regions by number, to which chunks refer. A slot without a region has 0 bytes.
    slots: Vec<Region>,
    /// The first slot without a region, whose `first` is the next such slot, or [`NIL`].
    vacant: ChunkId,
    /// The bytes of all regions.
    bytes: u64,
    /// The bytes of those that are not [`LARGE`].
    small_bytes: u64,
    /// The numbers of the regions in address order.
    order: Vec<u32>,
    /// The region found last. Programs often free where they just freed.
    last: Cell<u32>,
    /// Counts up whenever a region is added, extended or removed.
    version: u64,
}

impl Regions {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Regions {
            slots: Vec::new(),
            vacant: NIL,
            bytes: 0,
            small_bytes: 0,
            order: Vec::new(),
            last: Cell::new(0),
            version: 0,
        }
    }

    /// Takes all regions out.
    pub(super) fn take(&mut self) -> Self {
        let none = Regions { version: self.version + 1, ..Regions::new() };
        core::mem::replace(self, none)
    }

    /// Returns a number that changes with the list of regions.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the number of slots for regions.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Makes room for a copy of `slots` slots.
    pub(crate) fn make_room(&mut self, slots: usize) -> Result<(), HostMemoryExhausted> {
        let count = slots + slots / 16 + 16;
        (self.slots, self.order) = (Vec::new(), Vec::new());
        self.slots.try_reserve_exact(count)?;
        Ok(self.order.try_reserve_exact(count)?)
    }

    /// Becomes a copy of `other` without flat tables. Returns false if there is not enough room.
    pub(crate) fn copy_from(&mut self, other: &Self) -> bool {
        if other.slots.len() > self.slots.capacity() || !copy_table(&mut self.order, &other.order) {
            return false;
        }
        (self.vacant, self.bytes, self.small_bytes) = (other.vacant, other.bytes, other.small_bytes);
        self.slots.clear();
        self.slots.extend(other.slots.iter().map(|region| {
            let Region { base, bytes, given, first, touched, populated, is_left_unpopulated, .. } = *region;
            Region { base, bytes, given, first, touched, populated, is_left_unpopulated, flat: None }
        }));
        true
    }

    /// Returns the region that contains an address.
    pub fn find(&self, addr: u64) -> Option<u32> {
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

    /// Returns how many regions end at or before an address.
    fn place_of(&self, addr: u64) -> usize {
        self.order.partition_point(|&id| self.get(id).end() <= addr)
    }

    /// Returns the last chunk that begins at or before an address of a region, if there is a flat table. Otherwise
    /// returns the first chunk of the region, where a walk can start.
    pub(super) fn chunk_before(&self, addr: u64) -> Option<ChunkId> {
        let region = self.get(self.find(addr)?);
        let table = region.flat.as_ref();
        let known = table.and_then(|table| table.last_at_or_before(region.unit(addr)));
        Some(known.map_or(region.first, |(_, entry)| ChunkId(entry)))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes of the regions that are not large.
    pub(super) fn small_bytes(&self) -> u64 {
        self.small_bytes
    }

    /// Returns the bytes that flat tables would take.
    pub(super) fn flat_bytes(&self) -> u64 {
        // A reserved range is a single region, of which less is mapped than it has.
        let given = if self.order.len() == 1 { self.get(self.order[0]).given } else { u64::MAX };
        self.bytes.min(given) / UNIT * size_of::<u32>() as u64
    }

    /// Gives an empty flat table to regions without one, for `count` region numbers starting at `first`. Returns the next
    /// number. On failure some of them may have one.
    pub(super) fn make_flat(&mut self, first: usize, count: usize) -> Result<usize, HostMemoryExhausted> {
        let end = first.saturating_add(count).min(self.slots.len());
        for region in self.slots.get_mut(first..end).unwrap_or_default() {
            if region.bytes != 0 && region.flat.is_none() {
                region.flat = Some(flat_for(region.bytes)?);
            }
        }
        Ok(end)
    }

    /// Returns how many region numbers there are, those without a region included.
    pub(super) fn numbers(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn drop_flat(&mut self) {
        self.slots.iter_mut().for_each(|region| region.flat = None);
    }

    /// Clears the flat tables and frees their memory.
    pub(super) fn clear_flat(&mut self) {
        self.slots.iter_mut().filter_map(|region| region.flat.as_mut()).for_each(LazyTable::clear);
    }

    /// Returns the flat table for an address, with the position in it.
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

    /// Returns a region by its number. Panics if there is none.
    #[inline]
    pub fn get(&self, id: u32) -> &Region {
        &self.slots[id as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> &mut Region {
        &mut self.slots[id as usize]
    }

    /// Returns whether memory overlaps any region, tails included.
    pub(crate) fn overlaps(&self, base: u64, bytes: u64) -> bool {
        let end = base.saturating_add(bytes);
        // Among the regions that begin before the end, the last one reaches farthest.
        let behind = self.order.partition_point(|&id| self.get(id).base < end);
        let last = behind.checked_sub(1).map(|place| self.get(self.order[place]));
        last.is_some_and(|region| base < region.base.saturating_add(region.given))
    }

    /// Returns the region that ends exactly at `base`, if it has no tail.
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
        let vacant = (self.vacant != NIL).then_some(self.vacant.index());
        let slot = vacant.unwrap_or(self.slots.len());
        if slot >= MAX_REGIONS {
            return Err(HostMemoryExhausted);
        }
        self.order.try_reserve(1)?;
        self.slots.try_reserve(1)?;
        let flat = if flat { Some(flat_for(bytes)?) } else { None };
        let region = Region { flat, ..Region::new(base, bytes, given) };
        let place = self.place_of(base);
        self.bytes += bytes;
        self.small_bytes += if_small(bytes);
        match vacant {
            Some(slot) => self.vacant = core::mem::replace(&mut self.slots[slot], region).first,
            None => self.slots.push(region),
        }
        #[allow(clippy::cast_possible_truncation)] // below MAX_REGIONS
        let id = slot as u32;
        self.order.insert(place, id);
        self.version += 1;
        Ok(id)
    }

    /// Extends a region at its end. On failure nothing changed.
    pub(super) fn extend(&mut self, id: u32, bytes: u64, given: u64) -> Result<(), HostMemoryExhausted> {
        let region = self.get_mut(id);
        let units = region.unit(region.end() + bytes);
        if let Some(table) = &mut region.flat {
            table.grow(units)?;
        }
        let before = region.bytes;
        region.bytes += bytes;
        region.given += given;
        self.bytes += bytes;
        self.small_bytes = self.small_bytes - if_small(before) + if_small(before + bytes);
        self.version += 1;
        Ok(())
    }

    pub(super) fn remove(&mut self, id: u32) -> Region {
        let place = self.place_of(self.get(id).base);
        self.order.remove(place);
        let nothing = Region { first: self.vacant, ..Region::new(0, 0, 0) };
        self.vacant = ChunkId(id);
        let removed = core::mem::replace(self.get_mut(id), nothing);
        self.bytes -= removed.bytes;
        self.small_bytes -= if_small(removed.bytes);
        self.version += 1;
        removed
    }

    /// Changes each region, in any order.
    pub(super) fn each_mut(&mut self, change: impl FnMut(&mut Region)) {
        self.slots.iter_mut().filter(|region| region.bytes != 0).for_each(change);
    }

    /// Returns the regions in address order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &Region)> + '_ {
        self.order.iter().map(|&id| (id, self.get(id)))
    }

    /// Returns a region by its position in address order.
    pub(crate) fn nth(&self, place: usize) -> Option<&Region> {
        self.order.get(place).map(|&id| self.get(id))
    }

    /// Records that memory of a region was handed out up to `end`.
    #[inline(always)]
    pub(super) fn touch(&mut self, id: u32, end: u64) {
        let region = &mut self.slots[id as usize];
        region.touched = region.touched.max(end);
    }

    /// Returns the number of regions.
    pub fn count(&self) -> usize {
        self.order.len()
    }

    /// Frees the lists if there is no region.
    pub(super) fn shrink(&mut self) {
        if self.order.is_empty() {
            *self = Regions { version: self.version, ..Regions::new() };
        }
    }

    /// Returns the host memory of the list and its tables, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        let lists = self.slots.capacity() * size_of::<Region>() + self.order.capacity() * size_of::<u32>();
        lists as u64 + self.flat_resident_bytes()
    }
}

/// Returns the bytes of a region that is not large, and otherwise 0.
fn if_small(bytes: u64) -> u64 {
    if bytes < LARGE { bytes } else { 0 }
}

#[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
fn flat_for(bytes: u64) -> Result<LazyTable, HostMemoryExhausted> {
    LazyTable::new((bytes / UNIT) as usize)
}
