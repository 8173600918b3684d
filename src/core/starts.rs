//! Which chunk begins at an address.
//!
//! A hash table of chunk numbers, without keys: the chunk itself tells its address, and its cache line is
//! needed anyway. It takes 8 to 16 bytes a chunk while it is small and half of that when it is large,
//! stays in the cache with a thousand chunks, and touches no new page where a chunk begins that none began
//! before: with a flat table (4 bytes for each 256 of a region) those page faults cost 3 to 6 times as much
//! as everything else an operation does, measured on the recorded traces with a fresh pool.
//!
//! Once chunks are so small and many that flat tables are the smaller, the regions get them. So the tables
//! never take more than half of what TensorFlow's take at once (8 bytes for each 256).

use super::chunks::{ChunkId, Hot, NIL};
use super::regions::Regions;
use super::units::UNIT;
use crate::sys::HostMemoryExhausted;
use crate::sys::table::LazyTable;

/// Open addressing with linear probing (Knuth, volume 3, algorithms 6.4 L and R).
pub(super) struct Starts {
    /// A power of two of them; [`NIL`] is empty.
    slots: Vec<ChunkId>,
    count: usize,
    /// How many more there may be before it grows.
    room: usize,
    /// 64 less the bits of a place.
    shift: u32,
    /// The regions have flat tables, and there are no slots.
    dense: bool,
}

const FIRST_SLOTS: usize = 64;
/// Tables up to here (64 KiB) stay three quarters empty: a search then nearly always ends where it begins,
/// and what a processor mispredicts costs more than what it computes. Larger ones stay half empty, for
/// there the cache counts.
const ROOMY_SLOTS: usize = 1 << 14;

impl Starts {
    pub(super) fn new() -> Result<Self, HostMemoryExhausted> {
        Starts::with_slots(FIRST_SLOTS)
    }

    fn with_slots(count: usize) -> Result<Self, HostMemoryExhausted> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(count)?;
        slots.resize(count, NIL);
        let room = count / if count <= ROOMY_SLOTS { 4 } else { 2 };
        Ok(Starts { slots, count: 0, room, shift: 64 - count.trailing_zeros(), dense: false })
    }

    /// Where the search for an address begins (Fibonacci hashing).
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // shifted to the bits of a place
    fn home(&self, addr: u64) -> usize {
        ((addr / UNIT).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// The chunk that begins at an address, in use or free.
    #[inline(always)]
    pub(super) fn get(&self, slab: &[Hot], regions: &Regions, addr: u64) -> Option<ChunkId> {
        if self.dense {
            return get_flat(regions, addr);
        }
        let mask = self.slots.len() - 1;
        let mut place = self.home(addr);
        loop {
            let id = self.slots[place];
            if id == NIL {
                return None;
            }
            if slab[id].addr == addr {
                return Some(id);
            }
            place = (place + 1) & mask;
        }
    }

    /// Makes sure that `count` calls of `set` need no memory.
    #[inline]
    pub(super) fn reserve(
        &mut self,
        slab: &[Hot],
        regions: &mut Regions,
        count: usize,
    ) -> Result<(), HostMemoryExhausted> {
        if self.room >= count { Ok(()) } else { self.make_room(slab, regions, count) }
    }

    #[cold]
    fn make_room(
        &mut self,
        slab: &[Hot],
        regions: &mut Regions,
        count: usize,
    ) -> Result<(), HostMemoryExhausted> {
        while self.room < count {
            self.grow(slab, regions)?;
        }
        Ok(())
    }

    fn grow(&mut self, slab: &[Hot], regions: &mut Regions) -> Result<(), HostMemoryExhausted> {
        let slots = self.slots.len() * 2;
        let larger_than_flat = (slots * size_of::<ChunkId>()) as u64 > regions.flat_bytes();
        if larger_than_flat && slots > FIRST_SLOTS * 2 {
            return self.become_dense(slab, regions);
        }
        *self = self.resized(slab, slots)?;
        Ok(())
    }

    fn resized(&self, slab: &[Hot], slots: usize) -> Result<Self, HostMemoryExhausted> {
        let mut resized = Starts::with_slots(slots)?;
        self.slots.iter().filter(|&&id| id != NIL).for_each(|&id| resized.insert(slab[id].addr, id));
        Ok(resized)
    }

    fn become_dense(&mut self, slab: &[Hot], regions: &mut Regions) -> Result<(), HostMemoryExhausted> {
        regions.make_flat()?;
        self.dense = true;
        for id in std::mem::take(&mut self.slots).into_iter().filter(|&id| id != NIL) {
            set_flat(regions, slab[id].addr, id);
        }
        // There is a place for every unit.
        self.room = usize::MAX / 2;
        Ok(())
    }

    /// Whether a new region needs a flat table.
    pub(super) fn is_dense(&self) -> bool {
        self.dense
    }

    /// Stores where a chunk begins, where none did. The caller has reserved the place.
    #[inline]
    pub(super) fn set(&mut self, regions: &mut Regions, addr: u64, id: ChunkId) {
        if self.dense {
            return set_flat(regions, addr, id);
        }
        self.insert(addr, id);
    }

    #[inline]
    fn insert(&mut self, addr: u64, id: ChunkId) {
        let mask = self.slots.len() - 1;
        let mut place = self.home(addr);
        while self.slots[place] != NIL {
            place = (place + 1) & mask;
        }
        self.slots[place] = id;
        (self.count, self.room) = (self.count + 1, self.room - 1);
    }

    /// Forgets where a chunk begins. All chunks of the table still know their addresses.
    #[inline]
    pub(super) fn clear(&mut self, slab: &[Hot], regions: &mut Regions, addr: u64, id: ChunkId) {
        if self.dense {
            return clear_flat(regions, addr);
        }
        let mask = self.slots.len() - 1;
        let mut hole = self.home(addr);
        while self.slots[hole] != id {
            hole = (hole + 1) & mask;
        }
        (self.count, self.room) = (self.count - 1, self.room + 1);
        let mut place = hole;
        // Later entries move up instead of leaving a tombstone, so that searches stay short.
        loop {
            place = (place + 1) & mask;
            let id = self.slots[place];
            if id == NIL {
                break;
            }
            let way = place.wrapping_sub(self.home(slab[id].addr)) & mask;
            if way >= place.wrapping_sub(hole) & mask {
                self.slots[hole] = id;
                hole = place;
            }
        }
        self.slots[hole] = NIL;
    }

    /// Shrinks to what `chunks` need, which are all that there are. Without memory it stays as it is.
    pub(super) fn rebuild(
        &mut self,
        slab: &[Hot],
        regions: &mut Regions,
        chunks: impl Iterator<Item = ChunkId> + Clone,
    ) {
        let count = chunks.clone().count();
        let slots = (count * 4).next_power_of_two().max(FIRST_SLOTS);
        let smaller = self.dense || slots < self.slots.len();
        if smaller && (slots * size_of::<ChunkId>()) as u64 <= regions.flat_bytes().max(4096) {
            if let Ok(mut sparse) = Starts::with_slots(slots) {
                chunks.for_each(|id| sparse.insert(slab[id].addr, id));
                *self = sparse;
                regions.drop_flat();
            }
        } else if self.dense {
            regions.clear_flat();
            chunks.for_each(|id| set_flat(regions, slab[id].addr, id));
        }
    }

    /// Forgets all chunks, with the regions whose tables may have known them.
    pub(super) fn clear_all(&mut self) {
        self.slots.fill(NIL);
        (self.count, self.room) = (0, self.room + self.count);
    }

    /// Host memory beside that of the regions' flat tables, in bytes.
    pub(super) fn metadata_bytes(&self) -> u64 {
        (self.slots.capacity() * size_of::<ChunkId>()) as u64
    }
}

#[cold]
fn get_flat(regions: &Regions, addr: u64) -> Option<ChunkId> {
    if !addr.is_multiple_of(UNIT) {
        return None;
    }
    let (table, unit) = regions.flat(addr)?;
    Some(ChunkId(table.get(unit).wrapping_sub(1))).filter(|&id| id.0 != u32::MAX)
}

fn set_flat(regions: &mut Regions, addr: u64, id: ChunkId) {
    with_flat(regions, addr, |table, unit| table.set(unit, id.0 + 1));
}

fn clear_flat(regions: &mut Regions, addr: u64) {
    with_flat(regions, addr, |table, unit| table.set(unit, 0));
}

fn with_flat(regions: &mut Regions, addr: u64, change: impl FnOnce(&mut LazyTable, usize)) {
    if let Some((table, unit)) = regions.flat_mut(addr) {
        change(table, unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Random stores and removals of chunks against a map of the standard library, in one or two regions.
    fn agree(count: u64, units: u64, live: u64) -> Starts {
        let mut starts = Starts::new().unwrap();
        let mut regions = Regions::new();
        for base in [1 << 40, 1 << 50].into_iter().take(count as usize) {
            regions.add(base, units * UNIT, units * UNIT, false).unwrap();
        }
        // A chunk for every address that the test uses.
        let addr = |i: u64| (1 << (40 + 10 * (i % count))) + i % live * (units / live) * UNIT;
        let slab: Vec<Hot> = (0..live).map(|i| Hot::new(addr(i), UNIT, 0, NIL, NIL)).collect();
        let mut model = HashMap::new();
        let mut random = 1u64;
        for _ in 0..live * 8 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let i = (random >> 33) % live;
            let (id, addr) = (ChunkId(i as u32), addr(i));
            // Ever more of them live.
            if random.is_multiple_of(8) && model.remove(&addr).is_some() {
                starts.clear(&slab, &mut regions, addr, id);
            } else if model.insert(addr, id).is_none() {
                starts.reserve(&slab, &mut regions, 1).unwrap();
                starts.set(&mut regions, addr, id);
            }
            assert_eq!(starts.get(&slab, &regions, addr), model.get(&addr).copied());
            let tables = starts.metadata_bytes() + regions.flat_resident_bytes();
            // But for the pages of the least tables.
            let half = units * count * 4 + count * 2 * 4096;
            assert!(tables <= half, "{tables}: never more than half of 8 bytes a unit");
        }
        let all = (0..live).map(addr).chain([(1 << 40) + 1, 1 << 39, 0, u64::MAX]);
        all.clone().for_each(|addr| assert_eq!(starts.get(&slab, &regions, addr), model.get(&addr).copied()));
        let left: Vec<ChunkId> = model.values().copied().collect();
        starts.rebuild(&slab, &mut regions, left.iter().copied());
        all.for_each(|addr| assert_eq!(starts.get(&slab, &regions, addr), model.get(&addr).copied()));
        starts
    }

    #[test]
    fn sparse_and_dense_agree_with_a_map() {
        assert!(!agree(2, 1 << 30, 1000).dense);
        assert!(agree(1, 1 << 14, 1 << 14).dense, "small chunks, packed");
        for units in [2, 17, 63, 64, 100, 1000] {
            agree(1, units, units);
            agree(2, units, units);
        }
    }

    #[test]
    fn a_trim_makes_dense_sparse_again() {
        let mut starts = agree(1, 1 << 14, 1 << 14);
        let mut regions = Regions::new();
        regions.add(1 << 40, 1 << 30, 1 << 30, true).unwrap();
        let slab = [Hot::new(1 << 40, UNIT, 0, NIL, NIL)];
        starts.rebuild(&slab, &mut regions, [ChunkId(0)].into_iter());
        assert!(!starts.dense && regions.flat_resident_bytes() == 0);
        assert_eq!(starts.get(&slab, &regions, 1 << 40), Some(ChunkId(0)));
    }
}
