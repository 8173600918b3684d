//! The map from addresses to the chunks in use that begin there.
//!
//! Free chunks have no entries. No request looks for one by its address, and so a split or a merge changes nothing here.
//!
//! It is a hash table of chunk numbers. It takes 32 to 64 bytes a chunk in use while it is small, and half of that when
//! it is large. With a thousand chunks it stays in the cache. Unlike a flat table (4 bytes for each 256 of a region), it
//! touches no new page when a chunk begins where none began before. With a flat table these page faults cost 3 to 6
//! times as much as everything else an operation does, measured on the recorded traces with a fresh pool.
//!
//! Once chunks are small and numerous enough that flat tables take less memory, the regions get flat tables. So the tables
//! never take more than half of what TensorFlow's take at once (8 bytes for each 256), except while chunks move.
//!
//! Chunks move from one table to the next a few at a time, with each allocation that adds a chunk. Until the move is
//! complete, an address that is not in the new table is looked up in the old one. No allocation waits for a whole
//! table.

use super::chunk::Hot;
#[cfg(test)]
use super::probing::Steps;
use super::probing::{Emptying, Probing};
use super::regions::Regions;
use crate::ids::ChunkId;
use crate::seed::Seed;
use crate::units::UNIT;
use bfc_hostmem::HostMemoryExhausted;

pub(crate) struct AddressMap {
    /// The hash table. It is not used while the tables are flat.
    table: Probing,
    /// How many more chunks fit before `make_room` has to act. Lowered by [`BUSY`], and so negative, while there is
    /// work to do at each allocation.
    room: isize,
    /// Whether the regions have flat tables.
    dense: bool,
    work: Work,
}

/// Work that is done step by step.
enum Work {
    Nothing,
    /// A search was so long that the table needs another hash function.
    Reseed,
    /// Regions get flat tables. Those with lower numbers have theirs.
    Flatten(usize),
    /// Chunks move to `table` from an older one.
    Move(Emptying),
}

/// More than the number of chunks can ever be.
const BUSY: isize = 1 << 40;
/// The room in the hash table while the tables are flat.
const NONE_AT_ALL: isize = -BUSY;

const FIRST_SLOTS: usize = 64;
/// Tables up to this size (64 KiB) stay seven eighths empty. A search then nearly always ends where it begins, which
/// matters because a misprediction costs more than the computation. Larger tables stay three quarters empty, because
/// cache misses dominate there.
const ROOMY_SLOTS: usize = 1 << 14;
/// In a table that is a quarter full, hardly any insertion ever has to go this far.
const LONGEST_WAY: usize = 128;
/// Slots emptied, and regions given flat tables, at each allocation. Eight slots would be enough: the next table has
/// room for as many more chunks as this one holds, and this one has at most eight slots a chunk.
const STEP: usize = 16;

/// Returns how many chunks a table of `slots` slots takes.
fn capacity(slots: usize) -> usize {
    slots / if slots <= ROOMY_SLOTS { 8 } else { 4 }
}

/// Returns how many chunks a table takes while regions get flat tables.
fn most(slots: usize) -> usize {
    slots / 8 * 7
}

impl AddressMap {
    pub(super) fn new(seed: u64) -> Result<Self, HostMemoryExhausted> {
        AddressMap::with_slots(FIRST_SLOTS, Seed::new(seed))
    }

    fn with_slots(count: usize, seed: Seed) -> Result<Self, HostMemoryExhausted> {
        let table = Probing::new(count, seed)?;
        let room = capacity(count).cast_signed();
        Ok(AddressMap { table, room, dense: false, work: Work::Nothing })
    }

    /// Returns the entry for an address: the chunk that begins there.
    #[inline(always)]
    pub(super) fn get(&self, slab: &[Hot], regions: &Regions, addr: u64) -> Option<ChunkId> {
        match self.find(slab, addr) {
            Some((id, _)) => Some(id),
            None => self.get_from_other_tables(slab, regions, addr),
        }
    }

    /// Returns the entry for an address and where it is, if that is in the hash table.
    #[inline(always)]
    pub(super) fn find(&self, slab: &[Hot], addr: u64) -> Option<(ChunkId, usize)> {
        self.table.find(slab, addr)
    }

    /// Removes an entry that [`Self::find`] has found in a slot.
    #[inline(always)]
    pub(super) fn remove(&mut self, slot: usize) {
        self.table.remove_at(slot);
        self.room += 1;
    }

    /// Returns whether one entry can be added by [`Self::add`].
    #[inline(always)]
    pub(super) fn takes_one(&self) -> bool {
        self.room > 0
    }

    /// Stores the start of a chunk as [`Self::set`] does, where [`Self::takes_one`].
    #[inline(always)]
    pub(super) fn add(&mut self, addr: u64, id: ChunkId) {
        self.room -= 1;
        if self.table.insert(addr, id) > LONGEST_WAY {
            self.found_long_way();
        }
    }

    #[cold]
    fn get_from_other_tables(&self, slab: &[Hot], regions: &Regions, addr: u64) -> Option<ChunkId> {
        let flat = if self.dense { get_flat(regions, addr) } else { None };
        match &self.work {
            Work::Move(older) if flat.is_none() => older.table().find(slab, addr).map(|(id, _)| id),
            _ => flat,
        }
    }

    /// Ensures that `count` calls of `set` need no memory.
    #[inline]
    pub(super) fn reserve(
        &mut self,
        slab: &[Hot],
        regions: &mut Regions,
        count: usize,
    ) -> Result<(), HostMemoryExhausted> {
        if self.room >= count.cast_signed() { Ok(()) } else { self.make_room(slab, regions, count) }
    }

    #[cold]
    #[inline(never)]
    fn make_room(
        &mut self,
        slab: &[Hot],
        regions: &mut Regions,
        count: usize,
    ) -> Result<(), HostMemoryExhausted> {
        let mut steps = STEP.max(4 * count);
        loop {
            let worked = self.work(slab, regions, steps);
            let busy = if matches!(self.work, Work::Nothing) { 0 } else { BUSY };
            if self.dense || self.room + busy >= count.cast_signed() {
                // If the work failed for lack of memory, the next allocation tries again.
                return Ok(());
            }
            worked?;
            if matches!(self.work, Work::Nothing) {
                self.begin_to_grow(regions, self.table.seed())?;
                steps = STEP.max(4 * count);
            } else {
                steps = usize::MAX;
            }
        }
    }

    /// Continues the work in progress.
    fn work(&mut self, slab: &[Hot], regions: &mut Regions, steps: usize) -> Result<(), HostMemoryExhausted> {
        match &mut self.work {
            Work::Nothing => {}
            Work::Reseed => {
                // Without memory for another table, this one stays.
                self.finish();
                let (slots, seed) = (self.table.len(), self.table.seed().next());
                if self.room < capacity(slots).cast_signed() / 2 {
                    let _ = self.begin_to_grow(regions, seed);
                } else if let Ok(table) = Probing::new(slots, seed) {
                    self.move_to(table);
                }
            }
            Work::Flatten(next) => {
                *next = regions.make_flat(*next, steps)?;
                if *next >= regions.numbers() {
                    let none = Probing::new(2, self.table.seed())?;
                    self.finish();
                    self.dense = true;
                    self.move_to(none);
                    self.room = NONE_AT_ALL - BUSY;
                }
            }
            Work::Move(older) => {
                for _ in 0..steps {
                    if older.is_done() {
                        self.finish();
                        break;
                    }
                    let Some(id) = older.take() else { continue };
                    if self.dense {
                        set_flat(regions, slab[id].addr, id);
                    } else {
                        self.table.insert(slab[id].addr, id);
                    }
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, work: Work) {
        self.work = work;
        self.room -= BUSY;
    }

    fn finish(&mut self) {
        self.work = Work::Nothing;
        self.room += BUSY;
    }

    /// Begins to move all chunks to another table.
    fn move_to(&mut self, table: Probing) {
        let more = capacity(table.len()).cast_signed() - capacity(self.table.len()).cast_signed();
        let older = core::mem::replace(&mut self.table, table);
        self.room += more;
        self.begin(Work::Move(Emptying::new(older)));
    }

    fn begin_to_grow(&mut self, regions: &Regions, seed: Seed) -> Result<(), HostMemoryExhausted> {
        let now = self.table.len();
        let slots = 2 * now;
        let larger_than_flat = (slots * size_of::<ChunkId>()) as u64 > regions.flat_bytes();
        if larger_than_flat && slots > FIRST_SLOTS * 2 {
            self.room += (most(now) - capacity(now)).cast_signed();
            self.begin(Work::Flatten(0));
            return Ok(());
        }
        self.move_to(Probing::new(slots, seed)?);
        Ok(())
    }

    /// Returns whether a new region needs a flat table.
    pub(super) fn needs_flat(&self) -> bool {
        self.dense || matches!(self.work, Work::Flatten(_))
    }

    /// Stores the start of a chunk. There must be no entry for the address yet, and the caller must have reserved room.
    #[inline]
    pub(super) fn set(&mut self, regions: &mut Regions, addr: u64, id: ChunkId) {
        if self.dense {
            return set_flat(regions, addr, id);
        }
        self.add(addr, id);
    }

    #[cold]
    #[inline(never)]
    fn found_long_way(&mut self) {
        if matches!(self.work, Work::Nothing) {
            self.begin(Work::Reseed);
        }
    }

    /// Removes the start of a chunk.
    #[inline]
    pub(super) fn clear(&mut self, regions: &mut Regions, addr: u64, id: ChunkId) {
        if self.table.remove(addr, id) {
            self.room += 1;
        } else {
            self.clear_in_other_tables(regions, addr, id);
        }
    }

    #[cold]
    fn clear_in_other_tables(&mut self, regions: &mut Regions, addr: u64, id: ChunkId) {
        if self.dense && get_flat(regions, addr) == Some(id) {
            return set_flat(regions, addr, NONE);
        }
        if let Work::Move(older) = &mut self.work
            && older.remove(addr, id)
            && !self.dense
        {
            self.room += 1;
        }
    }

    /// Shrinks the tables to what `chunks` need, which must be all existing chunks. Without memory the tables stay as
    /// they are.
    pub(super) fn rebuild(
        &mut self,
        slab: &[Hot],
        regions: &mut Regions,
        chunks: impl Iterator<Item = ChunkId> + Clone,
    ) {
        let count = chunks.clone().count();
        let slots = (count * 8).next_power_of_two().max(FIRST_SLOTS);
        let smaller = self.dense || slots < self.table.len();
        if smaller && (slots * size_of::<ChunkId>()) as u64 <= regions.flat_bytes().max(4096) {
            if let Ok(mut sparse) = AddressMap::with_slots(slots, self.table.seed()) {
                chunks.for_each(|id| sparse.set(regions, slab[id].addr, id));
                *self = sparse;
                regions.drop_flat();
            }
        } else if self.dense && matches!(self.work, Work::Nothing) {
            regions.clear_flat();
            chunks.for_each(|id| set_flat(regions, slab[id].addr, id));
        }
    }

    /// Forgets all chunks. The regions, and with them their flat tables, are gone too.
    pub(super) fn clear_all(&mut self) {
        self.table.clear();
        self.work = Work::Nothing;
        self.room = if self.dense { NONE_AT_ALL } else { capacity(self.table.len()).cast_signed() };
    }

    /// Returns the host memory held beside the regions' flat tables, in bytes.
    pub(super) fn metadata_bytes(&self) -> u64 {
        self.table.metadata_bytes() + self.older_bytes()
    }

    /// Returns how much of this memory belongs to the table that chunks move from.
    fn older_bytes(&self) -> u64 {
        if let Work::Move(older) = &self.work { older.table().metadata_bytes() } else { 0 }
    }
}

/// The entry of a flat table where no chunk begins.
const NONE: ChunkId = ChunkId(0);

fn get_flat(regions: &Regions, addr: u64) -> Option<ChunkId> {
    if !addr.is_multiple_of(UNIT) {
        return None;
    }
    let (table, unit) = regions.flat(addr)?;
    Some(ChunkId(table.get(unit))).filter(|&id| id != NONE)
}

fn set_flat(regions: &mut Regions, addr: u64, id: ChunkId) {
    if let Some((table, unit)) = regions.flat_mut(addr) {
        table.set(unit, id.0);
    }
}

#[cfg(test)]
impl AddressMap {
    /// Returns the cost of searches in the tables.
    pub(super) fn steps(&self, slab: &[Hot]) -> Steps {
        assert!(!self.dense);
        let mut steps = self.table.steps(slab);
        if let Work::Move(older) = &self.work {
            steps.add(older.table().steps(slab));
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::NIL;
    use std::collections::HashMap;

    /// Compares random stores and removals of chunks with a map of the standard library, in one or two regions.
    fn agree(count: u64, units: u64, live: u64) -> AddressMap {
        let mut starts = AddressMap::new(units).unwrap();
        let mut regions = Regions::new();
        for base in [1 << 40, 1 << 50].into_iter().take(count as usize) {
            regions.add(base, units * UNIT, units * UNIT, false).unwrap();
        }
        // A chunk for every address that the test uses.
        let addr = |i: u64| (1 << (40 + 10 * (i % count))) + i % live * (units / live) * UNIT;
        let chunk = |addr| Hot::new(addr, UNIT, 0, NIL, NIL);
        let slab: Vec<Hot> = std::iter::once(chunk(0)).chain((0..live).map(addr).map(chunk)).collect();
        let mut model = HashMap::new();
        let mut random = 1u64;
        for _ in 0..live * 8 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let i = (random >> 33) % live;
            let (id, addr) = (ChunkId(i as u32 + 1), addr(i));
            // Removals are rarer than insertions, so the number of chunks rises.
            if random.is_multiple_of(8) && model.remove(&addr).is_some() {
                starts.clear(&mut regions, addr, id);
            } else if model.insert(addr, id).is_none() {
                starts.reserve(&slab, &mut regions, 1).unwrap();
                starts.set(&mut regions, addr, id);
            }
            assert_eq!(starts.get(&slab, &regions, addr), model.get(&addr).copied());
            let tables = starts.metadata_bytes() - starts.older_bytes() + regions.flat_resident_bytes();
            // The smallest tables are a page each.
            let half = units * count * 4 + count * 2 * 4096;
            assert!(tables <= half, "{tables}: never more than half of 8 bytes a unit");
            assert!(starts.older_bytes() <= half, "nor the table that is given up");
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

    /// Returns how many slots of an older table are left to be emptied.
    fn left(starts: &AddressMap) -> usize {
        if let Work::Move(older) = &starts.work { older.left() } else { 0 }
    }

    #[test]
    fn a_table_grows_by_a_few_slots_with_each_allocation() {
        const COUNT: u64 = 150_000;
        // Large chunks, and chunks so small that the tables become flat.
        for (distance, dense) in [(100 * UNIT, false), (UNIT, true)] {
            let (mut starts, mut regions) = (AddressMap::new(3).unwrap(), Regions::new());
            regions.add(0, distance * COUNT, distance * COUNT, false).unwrap();
            let slab: Vec<Hot> = (0..=COUNT)
                .map(|i| Hot::new(i.wrapping_sub(1).wrapping_mul(distance), UNIT, 0, NIL, NIL))
                .collect();
            let mut moves = 0;
            for id in (1..=COUNT as u32).map(ChunkId) {
                let before = left(&starts);
                starts.reserve(&slab, &mut regions, 1).unwrap();
                let after = left(&starts);
                // The next table begins when the last one is empty.
                assert!(after + STEP >= before && (after <= before || before == 0), "{before} to {after}");
                moves += u64::from(after > before);
                starts.set(&mut regions, slab[..][id].addr, id);
                for id in [ChunkId(1), ChunkId(id.0 / 2 + 1), id] {
                    assert_eq!(starts.get(&slab, &regions, slab[..][id].addr), Some(id));
                }
            }
            assert!(moves > 8 && starts.dense == dense, "{moves}");
            // The last chunks are removed first, so that the move stops where it is.
            for id in (1..=COUNT as u32).rev().map(ChunkId) {
                starts.clear(&mut regions, slab[..][id].addr, id);
                assert_eq!(starts.get(&slab, &regions, slab[..][id].addr), None);
            }
        }
    }

    #[test]
    fn many_regions_get_flat_tables_a_few_at_a_time() {
        const REGIONS: u64 = 500;
        let (mut starts, mut regions) = (AddressMap::new(3).unwrap(), Regions::new());
        let base = |i: u64| i.wrapping_mul(4096).wrapping_add(1 << 40);
        let slab: Vec<Hot> = (0..=8 * REGIONS)
            .map(|i| i.wrapping_sub(1))
            .map(|i| Hot::new(base(i / 8).wrapping_add(i % 8 * UNIT), UNIT, 0, NIL, NIL))
            .collect();
        for i in 0..REGIONS {
            regions.add(base(i), 8 * UNIT, 8 * UNIT, starts.needs_flat()).unwrap();
        }
        let flat = |regions: &Regions| regions.iter().filter(|(_, region)| region.has_flat()).count();
        for id in (1..=8 * REGIONS as u32).map(ChunkId) {
            let before = flat(&regions);
            starts.reserve(&slab, &mut regions, 1).unwrap();
            assert!(flat(&regions) <= before + STEP);
            starts.set(&mut regions, slab[..][id].addr, id);
            assert!((1..=id.0).step_by(97).map(ChunkId).all(|id| starts.get(
                &slab,
                &regions,
                slab[..][id].addr
            ) == Some(id)));
        }
        assert!(starts.dense && flat(&regions) == REGIONS as usize);
    }

    #[test]
    fn a_long_search_leads_to_another_hash() {
        let (mut starts, mut regions) = (AddressMap::new(3).unwrap(), Regions::new());
        regions.add(0, 1 << 50, 1 << 50, false).unwrap();
        // All at the same place of a table with 2048 slots, and of all smaller ones.
        let seed = Seed::new(3);
        let addrs = (1..).map(|unit| unit * UNIT).filter(|&addr| seed.hash(addr) >> 53 == 77);
        let slab: Vec<Hot> =
            std::iter::once(0).chain(addrs.take(400)).map(|addr| Hot::new(addr, UNIT, 0, NIL, NIL)).collect();
        for id in (1..=400).map(ChunkId) {
            starts.reserve(&slab, &mut regions, 1).unwrap();
            starts.set(&mut regions, slab[..][id].addr, id);
            assert!(
                (1..=id.0).map(ChunkId).all(|id| starts.get(&slab, &regions, slab[..][id].addr) == Some(id))
            );
        }
        let steps = starts.steps(&slab);
        assert!(steps.longest < LONGEST_WAY && steps.search < 3 * 400, "{steps:?}");
    }

    #[test]
    fn a_trim_makes_dense_sparse_again() {
        let mut starts = agree(1, 1 << 14, 1 << 14);
        let mut regions = Regions::new();
        regions.add(1 << 40, 1 << 30, 1 << 30, true).unwrap();
        let slab = [1, 1 << 40].map(|addr| Hot::new(addr, UNIT, 0, NIL, NIL));
        starts.rebuild(&slab, &mut regions, [ChunkId(1)].into_iter());
        assert!(!starts.dense && regions.flat_resident_bytes() == 0);
        assert_eq!(starts.get(&slab, &regions, 1 << 40), Some(ChunkId(1)));
    }
}
