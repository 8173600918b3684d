//! One table of chunk numbers by address: open addressing with linear probing (Knuth, volume 3, algorithms 6.4 L
//! and R).
//!
//! There are no keys: the chunk itself tells its address, and its cache line is needed anyway.

use super::chunks::Hot;
use crate::core::ids::ChunkId;
use crate::core::seed::Seed;
use crate::sys::HostMemoryExhausted;
use crate::sys::zeroed::Zeroed;

/// A number that no chunk has, so that a new table is zeros.
const EMPTY: u32 = 0;

/// An emptied table gives its memory back by so many slots: all of it at the end would take long.
const SLOTS_AT_ONCE: usize = 1 << 14;

pub(super) struct Probing {
    /// A power of two of them.
    slots: Zeroed<u32>,
    /// 64 less the bits of a place.
    shift: u32,
    seed: Seed,
}

impl Probing {
    /// A table of `count` slots, a power of two and at least two.
    pub(super) fn new(count: usize, seed: Seed) -> Result<Self, HostMemoryExhausted> {
        Ok(Probing { slots: Zeroed::new(count)?, shift: 64 - count.trailing_zeros(), seed })
    }

    /// How many slots it has.
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
    }

    /// Where the search for an address begins.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // shifted to the bits of a place
    fn home(&self, addr: u64) -> usize {
        (self.seed.hash(addr) >> self.shift) as usize
    }

    #[inline(always)]
    pub(super) fn get(&self, slab: &[Hot], addr: u64) -> Option<ChunkId> {
        let mask = self.slots.len() - 1;
        let mut place = self.home(addr);
        loop {
            let id = ChunkId(self.slots[place]);
            if id.0 == EMPTY {
                return None;
            }
            if slab[id].addr == addr {
                return Some(id);
            }
            place = (place + 1) & mask;
        }
    }

    /// Adds an address that is not there; returns how far from its home it had to go. There is an empty slot.
    #[inline(always)]
    pub(super) fn insert(&mut self, addr: u64, id: ChunkId) -> usize {
        let mask = self.slots.len() - 1;
        let (mut place, mut way) = (self.home(addr), 0);
        while self.slots[place] != EMPTY {
            (place, way) = ((place + 1) & mask, way + 1);
        }
        self.slots[place] = id.0;
        way
    }

    /// Removes a chunk, and says whether it was there. All chunks of the table still know their addresses.
    #[inline]
    pub(super) fn remove(&mut self, slab: &[Hot], addr: u64, id: ChunkId) -> bool {
        let mask = self.slots.len() - 1;
        let mut hole = self.home(addr);
        while self.slots[hole] != id.0 {
            if self.slots[hole] == EMPTY {
                return false;
            }
            hole = (hole + 1) & mask;
        }
        let mut place = hole;
        // Later entries move up instead of leaving a tombstone, so that searches stay short.
        loop {
            place = (place + 1) & mask;
            let id = ChunkId(self.slots[place]);
            if id.0 == EMPTY {
                break;
            }
            let way = place.wrapping_sub(self.home(slab[id].addr)) & mask;
            if way >= place.wrapping_sub(hole) & mask {
                self.slots[hole] = id.0;
                hole = place;
            }
        }
        self.slots[hole] = EMPTY;
        true
    }
}

/// A table that is emptied step by step. It stays a valid one meanwhile, to which nothing is added.
pub(super) struct Emptying {
    table: Probing,
    /// An empty slot that no search has to pass, since the emptying begins before it and goes downwards. So behind a slot
    /// whose turn it is there is always an empty one, and taking its chunk breaks no search.
    next: usize,
    left: usize,
}

impl Emptying {
    pub(super) fn new(table: Probing) -> Self {
        // At least one in eight is empty.
        let first = table.slots.iter().position(|&id| id == EMPTY).unwrap_or(0);
        let left = table.len();
        Emptying { table, next: first, left }
    }

    pub(super) fn table(&self) -> &Probing {
        &self.table
    }

    pub(super) fn remove(&mut self, slab: &[Hot], addr: u64, id: ChunkId) -> bool {
        self.table.remove(slab, addr, id)
    }

    /// Whether there is nothing left.
    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// How many slots are left to look at.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Looks at the next slot and takes the chunk there, if there is one.
    pub(super) fn take(&mut self) -> Option<ChunkId> {
        self.next = self.next.wrapping_sub(1) & (self.table.len() - 1);
        self.left -= 1;
        let id = std::mem::replace(&mut self.table.slots[self.next], EMPTY);
        let emptied = self.table.len() - self.left;
        if self.next.is_multiple_of(SLOTS_AT_ONCE) && emptied >= SLOTS_AT_ONCE {
            let end = (self.next + SLOTS_AT_ONCE).min(self.table.len());
            self.table.slots.clear(self.next..end);
        }
        (id != EMPTY).then_some(ChunkId(id))
    }
}

/// What searches cost: sums over all chunks, and the most.
#[cfg(test)]
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::core) struct Steps {
    /// Slots that the searches for all addresses look at.
    pub(in crate::core) search: usize,
    /// Slots that the removals of each of them look at.
    pub(in crate::core) removal: usize,
    pub(in crate::core) longest: usize,
}

#[cfg(test)]
impl Steps {
    pub(super) fn add(&mut self, other: Steps) {
        self.search += other.search;
        self.removal += other.removal;
        self.longest = self.longest.max(other.longest);
    }
}

#[cfg(test)]
impl Probing {
    pub(super) fn steps(&self, slab: &[Hot]) -> Steps {
        let (length, mask) = (self.len(), self.len() - 1);
        let (mut steps, mut behind) = (Steps::default(), 0);
        // Twice around: the first time finds out what is behind the last slot.
        for place in (0..2 * length).rev() {
            let id = ChunkId(self.slots[place & mask]);
            if id.0 == EMPTY {
                behind = 0;
                continue;
            }
            behind += 1;
            if place < length {
                let way = place.wrapping_sub(self.home(slab[id].addr)) & mask;
                steps.search += way + 1;
                steps.removal += behind;
                steps.longest = steps.longest.max(way);
            }
        }
        steps
    }
}
