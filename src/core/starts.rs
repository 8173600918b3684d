//! Which chunk begins at which unit of a region.
//!
//! A hash table as long as it is the smaller of two: it takes 16 to 64 bytes a chunk, stays in the cache
//! with a thousand chunks, and touches no new page where a chunk begins that none began before. Once the
//! chunks are so small and many that a table with 4 bytes for each unit is no larger, the region has that.
//! So a region's table never takes more than half of what TensorFlow's takes at once (8 bytes a unit).
//! Measured on the recorded traces with a fresh pool the flat table alone cost 3 to 6 times as much as
//! everything else an operation does, all of it page faults.

use crate::sys::HostMemoryExhausted;
use crate::sys::table::LazyTable;

pub(super) enum Starts {
    Sparse(Sparse),
    Dense(LazyTable),
}

/// Open addressing with linear probing (Knuth, volume 3, algorithms 6.4 L and R).
#[derive(Default)]
pub(super) struct Sparse {
    /// A unit in the upper half, a value that is not 0 in the lower; 0 is empty. A power of two of them.
    slots: Vec<u64>,
    count: usize,
    /// How many more there may be.
    room: usize,
    /// 64 less the bits of a place.
    shift: u32,
}

const FIRST_SLOTS: usize = 16;
/// Tables up to here (64 KiB) stay three quarters empty: a search then nearly always ends where it begins,
/// and what a processor mispredicts costs more than what it computes. Larger ones stay half empty, for
/// there the cache counts.
const ROOMY_SLOTS: usize = 8192;
/// Units beyond do not fit a slot: regions above 1 TiB.
const SPARSE_UNITS: usize = 1 << 32;

impl Starts {
    pub(super) fn new(units: usize) -> Result<Self, HostMemoryExhausted> {
        if units > SPARSE_UNITS {
            return Ok(Starts::Dense(LazyTable::new(units)?));
        }
        Ok(Starts::Sparse(Sparse::new(FIRST_SLOTS)?))
    }

    /// The value of a unit; 0 if it has none.
    #[inline]
    pub(super) fn get(&self, unit: usize) -> u32 {
        match self {
            Starts::Sparse(sparse) => sparse.get(unit),
            Starts::Dense(table) => table.get(unit),
        }
    }

    /// Makes sure that `count` calls of `set` need no memory. `units` is the region's length.
    #[inline]
    pub(super) fn reserve(&mut self, count: usize, units: usize) -> Result<(), HostMemoryExhausted> {
        match self {
            Starts::Sparse(sparse) if !sparse.has_room(count) => self.grow(units),
            _ => Ok(()),
        }
    }

    #[cold]
    fn grow(&mut self, units: usize) -> Result<(), HostMemoryExhausted> {
        let Starts::Sparse(sparse) = self else { return Ok(()) };
        let slots = sparse.slots.len() * 2;
        let smaller = slots * size_of::<u64>() <= units * size_of::<u32>();
        *self = if smaller || units < FIRST_SLOTS * 4 {
            Starts::Sparse(sparse.resized(slots)?)
        } else {
            let mut table = LazyTable::new(units)?;
            sparse.iter().for_each(|(unit, value)| table.set(unit, value));
            Starts::Dense(table)
        };
        Ok(())
    }

    /// Stores a value that is not 0 at a unit that has none. The caller has reserved the place.
    #[inline]
    pub(super) fn set(&mut self, unit: usize, value: u32) {
        match self {
            Starts::Sparse(sparse) => sparse.insert(unit, value),
            Starts::Dense(table) => table.set(unit, value),
        }
    }

    /// Removes the value of a unit that has one.
    #[inline]
    pub(super) fn clear(&mut self, unit: usize) {
        match self {
            Starts::Sparse(sparse) => sparse.remove(unit),
            Starts::Dense(table) => table.set(unit, 0),
        }
    }

    /// The last value at or before a unit, where that is fast to find: `None` in a sparse table.
    pub(super) fn last_at_or_before(&self, unit: usize) -> Option<u32> {
        match self {
            Starts::Sparse(_) => None,
            Starts::Dense(table) => table.last_at_or_before(unit).map(|(_, value)| value),
        }
    }

    /// The region grew to so many units. On failure nothing changed.
    pub(super) fn extend(&mut self, units: usize) -> Result<(), HostMemoryExhausted> {
        match self {
            Starts::Dense(table) => table.grow(units),
            Starts::Sparse(sparse) if units > SPARSE_UNITS => {
                let mut table = LazyTable::new(units)?;
                sparse.iter().for_each(|(unit, value)| table.set(unit, value));
                *self = Starts::Dense(table);
                Ok(())
            }
            Starts::Sparse(_) => Ok(()),
        }
    }

    /// Shrinks to what `values` need, which are all that is stored. Without memory it stays as it is.
    pub(super) fn rebuild(&mut self, values: impl Iterator<Item = (usize, u32)>) {
        match self {
            Starts::Dense(table) => {
                table.clear();
                values.for_each(|(unit, value)| table.set(unit, value));
            }
            Starts::Sparse(sparse) => {
                let fits = (sparse.count * 4).next_power_of_two().max(FIRST_SLOTS);
                if fits < sparse.slots.len() {
                    *sparse = sparse.resized(fits).unwrap_or_else(|_| std::mem::take(sparse));
                }
            }
        }
    }

    /// Host memory that it keeps resident, in bytes.
    pub(super) fn resident_bytes(&self) -> u64 {
        match self {
            Starts::Sparse(sparse) => (sparse.slots.capacity() * size_of::<u64>()) as u64,
            Starts::Dense(table) => table.resident_bytes(),
        }
    }
}

impl Default for Starts {
    /// A table that nothing is asked of.
    fn default() -> Self {
        Starts::Sparse(Sparse::default())
    }
}

impl Sparse {
    fn new(slots: usize) -> Result<Self, HostMemoryExhausted> {
        let mut all = Vec::new();
        all.try_reserve_exact(slots)?;
        all.resize(slots, 0);
        let room = slots / if slots <= ROOMY_SLOTS { 4 } else { 2 };
        Ok(Sparse { slots: all, count: 0, room, shift: 64 - slots.trailing_zeros() })
    }

    #[inline]
    fn has_room(&self, count: usize) -> bool {
        self.room >= count
    }

    fn resized(&self, slots: usize) -> Result<Self, HostMemoryExhausted> {
        let mut resized = Sparse::new(slots)?;
        self.iter().for_each(|(unit, value)| resized.insert(unit, value));
        Ok(resized)
    }

    /// Where the search for a unit begins (Fibonacci hashing).
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // shifted to the bits of a place
    fn home(&self, unit: u64) -> usize {
        (unit.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// The place where a unit is, or where its search ended at an empty one.
    #[inline]
    fn find(&self, unit: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut place = self.home(unit);
        loop {
            let slot = self.slots[place];
            if slot == 0 || slot >> 32 == unit {
                return place;
            }
            place = (place + 1) & mask;
        }
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the lower half
    fn get(&self, unit: usize) -> u32 {
        self.slots[self.find(unit as u64)] as u32
    }

    #[inline]
    fn insert(&mut self, unit: usize, value: u32) {
        let place = self.find(unit as u64);
        (self.count, self.room) = (self.count + 1, self.room - 1);
        self.slots[place] = (unit as u64) << 32 | u64::from(value);
    }

    /// Moves later entries up instead of leaving a tombstone, so that searches stay short.
    #[inline]
    fn remove(&mut self, unit: usize) {
        let mask = self.slots.len() - 1;
        let mut hole = self.find(unit as u64);
        (self.count, self.room) = (self.count - 1, self.room + 1);
        let mut place = hole;
        loop {
            place = (place + 1) & mask;
            let slot = self.slots[place];
            if slot == 0 {
                break;
            }
            let way = place.wrapping_sub(self.home(slot >> 32)) & mask;
            if way >= place.wrapping_sub(hole) & mask {
                self.slots[hole] = slot;
                hole = place;
            }
        }
        self.slots[hole] = 0;
    }

    #[allow(clippy::cast_possible_truncation)] // the two halves
    fn iter(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.slots.iter().filter(|&&slot| slot != 0).map(|&slot| ((slot >> 32) as usize, slot as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Random stores and removals against a map of the standard library.
    fn agree(units: usize, live: usize) -> Starts {
        let mut starts = Starts::new(units).unwrap();
        let mut model = HashMap::new();
        let mut random = 1u64;
        for _ in 0..live * 8 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Also units that share many low bits, as large chunks have them.
            let unit = ((random >> 33) as usize % live) * (units / live);
            if model.remove(&unit).is_some() {
                starts.clear(unit);
            } else {
                starts.reserve(1, units).unwrap();
                starts.set(unit, unit as u32 + 1);
                model.insert(unit, unit as u32 + 1);
            }
            assert_eq!(starts.get(unit), model.get(&unit).copied().unwrap_or(0));
        }
        for unit in (0..live).map(|i| i * (units / live)) {
            assert_eq!(starts.get(unit), model.get(&unit).copied().unwrap_or(0));
        }
        let values: Vec<(usize, u32)> = model.iter().map(|(&unit, &value)| (unit, value)).collect();
        starts.rebuild(values.iter().copied());
        values.iter().for_each(|&(unit, value)| assert_eq!(starts.get(unit), value));
        starts
    }

    #[test]
    fn sparse_and_dense_agree_with_a_map() {
        assert!(matches!(agree(1 << 20, 1000), Starts::Sparse(_)));
        assert!(matches!(agree(1 << 16, 1 << 16), Starts::Dense(_)), "small chunks, packed");
        assert!(matches!(agree(SPARSE_UNITS + 1, 1000), Starts::Dense(_)), "too many units for a slot");
        for units in [1, 2, 17, 63, 64, 100] {
            agree(units, units);
        }
    }

    #[test]
    fn never_more_than_half_of_eight_bytes_a_unit() {
        let units = 1 << 18;
        let mut starts = Starts::new(units).unwrap();
        for unit in 0..units {
            starts.reserve(1, units).unwrap();
            starts.set(unit, 1);
            // The least regions are smaller than a page, which is what a flat table takes at the least.
            assert!(starts.resident_bytes() <= (units * 4 + 4096) as u64);
        }
    }

    #[test]
    fn grows_past_what_a_slot_can_hold() {
        let mut starts = Starts::new(1000).unwrap();
        starts.set(999, 7);
        starts.extend(SPARSE_UNITS * 2).unwrap();
        starts.set(SPARSE_UNITS + 999, 8);
        assert_eq!((starts.get(999), starts.get(SPARSE_UNITS + 999)), (7, 8));
    }
}
