//! A table of chunk numbers by address: a hash table with buckets of two slots.
//!
//! Keys are not stored: the chunk holds its address, and its cache line is needed anyway. A bucket is looked at as a
//! whole, so nearly every search, insertion and removal takes the same way through the code. With slots that are probed
//! one by one, a collision in one of eight calls costs a misprediction, which takes as long as a third of a free.
//!
//! A chunk whose bucket is full goes to the next empty slot. The farthest such chunk limits how far a search goes, so a
//! removal only empties a slot.

use super::chunk::Hot;
use crate::ids::ChunkId;
use crate::seed::Seed;
use bfc_hostmem::HostMemoryExhausted;
use bfc_hostmem::Zeroed;

/// A number that no chunk has. It is 0, so a new table is zeroed memory.
const EMPTY: u32 = 0;

/// A table being emptied frees its memory in steps of this many slots, because freeing all of it at the end would take
/// long.
const SLOTS_AT_ONCE: usize = 1 << 14;

pub(super) struct Probing {
    /// The slots. Their number is a power of two.
    slots: Zeroed<u32>,
    /// 64 minus the number of bits of a slot number.
    shift: u32,
    seed: Seed,
    /// An upper bound for the distance of a chunk from the first slot of its bucket.
    reach: usize,
}

impl Probing {
    /// Creates a table of `count` slots, a power of two and at least two.
    pub(super) fn new(count: usize, seed: Seed) -> Result<Self, HostMemoryExhausted> {
        Ok(Probing { slots: Zeroed::new(count)?, shift: 64 - count.trailing_zeros(), seed, reach: 0 })
    }

    /// Returns the number of slots.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn seed(&self) -> Seed {
        self.seed
    }

    pub(super) fn metadata_bytes(&self) -> u64 {
        self.slots.held_bytes()
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear(0..self.slots.len());
        self.reach = 0;
    }

    /// Returns the first slot of an address's bucket.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // shifted to the bits of a slot number
    fn home(&self, addr: u64) -> usize {
        (self.seed.hash(addr) >> self.shift) as usize & !1
    }

    fn behind(&self, home: usize, way: usize) -> usize {
        (home + way) & (self.slots.len() - 1)
    }

    /// Returns the chunk that begins at an address, and the slot that it is in.
    #[inline(always)]
    pub(super) fn find(&self, slab: &[Hot], addr: u64) -> Option<(ChunkId, usize)> {
        let home = self.home(addr);
        let begins_here = |slot: usize| {
            let id = self.slots[slot];
            id != EMPTY && slab.get(id as usize).is_some_and(|hot| hot.addr == addr)
        };
        let slot = home | usize::from(begins_here(home | 1));
        if begins_here(slot) {
            return Some((ChunkId(self.slots[slot]), slot));
        }
        self.find_far(home, |id| slab[id].addr == addr)
    }

    #[cold]
    #[inline(never)]
    fn find_far(&self, home: usize, is_it: impl Fn(ChunkId) -> bool) -> Option<(ChunkId, usize)> {
        let slots = (2..=self.reach).map(|way| self.behind(home, way));
        let chunks = slots.map(|slot| (ChunkId(self.slots[slot]), slot));
        chunks.filter(|(id, _)| id.0 != EMPTY).find(|&(id, _)| is_it(id))
    }

    /// Adds an address that is not in the table. Returns its distance from its bucket, or 0. There must be an empty
    /// slot.
    #[inline(always)]
    pub(super) fn insert(&mut self, addr: u64, id: ChunkId) -> usize {
        let home = self.home(addr);
        let slot = home | usize::from(self.slots[home] != EMPTY);
        if self.slots[slot] != EMPTY {
            return self.insert_far(home, id);
        }
        self.slots[slot] = id.0;
        0
    }

    #[cold]
    #[inline(never)]
    fn insert_far(&mut self, home: usize, id: ChunkId) -> usize {
        let mut way = 2;
        while self.slots[self.behind(home, way)] != EMPTY {
            way += 1;
        }
        let slot = self.behind(home, way);
        self.slots[slot] = id.0;
        self.reach = self.reach.max(way);
        way
    }

    /// Removes a chunk. Returns whether it was in the table.
    #[inline]
    pub(super) fn remove(&mut self, addr: u64, id: ChunkId) -> bool {
        let home = self.home(addr);
        let slot = match [home, home | 1].into_iter().find(|&slot| self.slots[slot] == id.0) {
            Some(slot) => slot,
            None => match self.find_far(home, |other| other == id) {
                Some((_, slot)) => slot,
                None => return false,
            },
        };
        self.remove_at(slot);
        true
    }

    /// Removes the chunk of a slot.
    #[inline(always)]
    pub(super) fn remove_at(&mut self, slot: usize) {
        self.slots[slot] = EMPTY;
    }
}

/// A table that is emptied step by step. It remains valid for lookups meanwhile, and nothing is added to it.
pub(super) struct Emptying {
    table: Probing,
    /// The first slot that is not emptied.
    next: usize,
}

impl Emptying {
    pub(super) fn new(table: Probing) -> Self {
        Emptying { table, next: 0 }
    }

    pub(super) fn table(&self) -> &Probing {
        &self.table
    }

    pub(super) fn remove(&mut self, addr: u64, id: ChunkId) -> bool {
        self.table.remove(addr, id)
    }

    /// Returns whether every slot was emptied.
    pub(super) fn is_done(&self) -> bool {
        self.next == self.table.len()
    }

    /// Returns how many slots are left to visit.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.table.len() - self.next
    }

    /// Visits the next slot and takes the chunk there, if there is one.
    pub(super) fn take(&mut self) -> Option<ChunkId> {
        let id = core::mem::replace(&mut self.table.slots[self.next], EMPTY);
        self.next += 1;
        if self.next.is_multiple_of(SLOTS_AT_ONCE) {
            self.table.slots.clear(self.next - SLOTS_AT_ONCE..self.next);
        }
        (id != EMPTY).then_some(ChunkId(id))
    }
}

/// The cost of searches: the sum over all chunks, and the maximum.
#[cfg(test)]
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Steps {
    /// Slots visited by the searches for all addresses. A bucket counts as one.
    pub(crate) search: usize,
    pub(crate) longest: usize,
}

#[cfg(test)]
impl Steps {
    pub(super) fn add(&mut self, other: Steps) {
        self.search += other.search;
        self.longest = self.longest.max(other.longest);
    }
}

#[cfg(test)]
impl Probing {
    pub(super) fn steps(&self, slab: &[Hot]) -> Steps {
        let mut steps = Steps::default();
        for (slot, &id) in self.slots.iter().enumerate().filter(|&(_, &id)| id != EMPTY) {
            let way = slot.wrapping_sub(self.home(slab[ChunkId(id)].addr)) & (self.len() - 1);
            steps.search += way.max(1);
            steps.longest = steps.longest.max(way);
        }
        steps
    }
}
