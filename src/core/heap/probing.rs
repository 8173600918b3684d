//! A table of chunk numbers by address: open addressing with linear probing (Knuth, volume 3, algorithms 6.4 L and R).
//!
//! Keys are not stored: the chunk holds its address, and its cache line is needed anyway.

use super::chunk::Hot;
use crate::core::ids::ChunkId;
use crate::core::seed::Seed;
use crate::sys::HostMemoryExhausted;
use crate::sys::zeroed::Zeroed;

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
}

impl Probing {
    /// Creates a table of `count` slots, a power of two and at least two.
    pub(super) fn new(count: usize, seed: Seed) -> Result<Self, HostMemoryExhausted> {
        Ok(Probing { slots: Zeroed::new(count)?, shift: 64 - count.trailing_zeros(), seed })
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
    }

    /// Returns the slot where the search for an address begins.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // shifted to the bits of a slot number
    fn home(&self, addr: u64) -> usize {
        (self.seed.hash(addr) >> self.shift) as usize
    }

    /// Returns the chunk that begins at an address, and the slot that it is in.
    #[inline(always)]
    pub(super) fn find(&self, slab: &[Hot], addr: u64) -> Option<(ChunkId, usize)> {
        let mask = self.slots.len() - 1;
        let mut place = self.home(addr);
        loop {
            let id = ChunkId(self.slots[place]);
            if id.0 == EMPTY {
                return None;
            }
            if slab[id].addr == addr {
                return Some((id, place));
            }
            place = (place + 1) & mask;
        }
    }

    /// Adds an address that is not in the table. Returns its distance from the slot where its search begins. There must
    /// be an empty slot.
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

    /// Removes a chunk. Returns whether it was in the table. All chunks of the table must still have their addresses.
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
        self.remove_at(slab, hole);
        true
    }

    /// Removes the chunk of a slot. All chunks of the table must still have their addresses.
    #[inline(always)]
    pub(super) fn remove_at(&mut self, slab: &[Hot], slot: usize) {
        let mask = self.slots.len() - 1;
        if self.slots[(slot + 1) & mask] == EMPTY {
            self.slots[slot] = EMPTY;
        } else {
            self.close(slab, slot);
        }
    }

    /// Empties a slot that another one behind it may be reached through.
    #[cold]
    #[inline(never)]
    fn close(&mut self, slab: &[Hot], mut hole: usize) {
        let mask = self.slots.len() - 1;
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
    }
}

/// A table that is emptied step by step. It remains valid for lookups meanwhile, and nothing is added to it.
pub(super) struct Emptying {
    table: Probing,
    /// The last emptied slot. The emptying begins at an empty slot and goes downwards, so the slot behind the next one
    /// to be emptied is always empty. No search has to pass it, so removing the chunk before it breaks no search.
    next: usize,
    left: usize,
}

impl Emptying {
    pub(super) fn new(table: Probing) -> Self {
        // At least one slot in eight is empty.
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

    /// Returns whether every slot was emptied.
    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Returns how many slots are left to visit.
    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Visits the next slot and takes the chunk there, if there is one.
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

/// The cost of searches: sums over all chunks, and the maximum.
#[cfg(test)]
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::core) struct Steps {
    /// Slots visited by the searches for all addresses.
    pub(in crate::core) search: usize,
    /// Slots visited by the removals of each address.
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
        // Twice around: the first pass finds out what is behind the last slot.
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
