//! What is free in a pool, and how much of it is in one piece.

use std::collections::BTreeMap;

/// The free ranges inside what is held.
#[derive(Default)]
pub struct FreeSpace {
    /// The ends of free ranges, by their beginnings. They do not touch, except at a wall.
    ranges: BTreeMap<u64, u64>,
    /// How many ranges have each size.
    sizes: BTreeMap<u64, usize>,
    total: u64,
}

impl FreeSpace {
    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn largest(&self) -> u64 {
        self.sizes.last_key_value().map_or(0, |(&size, _)| size)
    }

    /// Takes a range out of what is free.
    pub fn take(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        // From the last one that begins before the end downwards, as long as they overlap with it.
        while let Some((begin, end)) = self.before(to).filter(|&(_, end)| end > from) {
            self.remove(begin, end);
            self.insert(begin, from.min(end));
            self.insert(to.max(begin), end);
        }
    }

    /// Adds a free range. It merges with free neighbours, unless there is a wall in between: the end of a region.
    pub fn give(&mut self, mut from: u64, mut to: u64, is_wall: impl Fn(u64) -> bool) {
        self.take(from, to);
        if from >= to {
            return;
        }
        if let Some((begin, end)) = self.before(from).filter(|&(_, end)| end == from && !is_wall(from)) {
            self.remove(begin, end);
            from = begin;
        }
        if let Some(&end) = self.ranges.get(&to).filter(|_| !is_wall(to)) {
            self.remove(to, end);
            to = end;
        }
        self.insert(from, to);
    }

    /// The last range that begins before an address.
    fn before(&self, address: u64) -> Option<(u64, u64)> {
        self.ranges.range(..address).next_back().map(|(&begin, &end)| (begin, end))
    }

    fn insert(&mut self, from: u64, to: u64) {
        if from < to {
            self.ranges.insert(from, to);
            *self.sizes.entry(to - from).or_default() += 1;
            self.total += to - from;
        }
    }

    fn remove(&mut self, from: u64, to: u64) {
        self.ranges.remove(&from);
        self.total -= to - from;
        if let Some(count) = self.sizes.get_mut(&(to - from)) {
            *count -= 1;
            if *count == 0 {
                self.sizes.remove(&(to - from));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(space: &FreeSpace) -> (u64, u64, Vec<(u64, u64)>) {
        (space.total(), space.largest(), space.ranges.iter().map(|(&a, &b)| (a, b)).collect())
    }

    #[test]
    fn free_neighbours_merge_unless_a_wall_is_between() {
        let mut space = FreeSpace::default();
        let is_wall = |address| address == 100;
        space.give(0, 100, is_wall);
        space.give(100, 200, is_wall);
        assert_eq!(of(&space), (200, 100, vec![(0, 100), (100, 200)]));
        space.take(120, 140);
        space.take(150, 160);
        assert_eq!(of(&space), (170, 100, vec![(0, 100), (100, 120), (140, 150), (160, 200)]));
        space.give(120, 140, is_wall);
        assert_eq!(of(&space), (190, 100, vec![(0, 100), (100, 150), (160, 200)]));
        space.give(150, 160, is_wall);
        assert_eq!(of(&space), (200, 100, vec![(0, 100), (100, 200)]));
    }

    #[test]
    fn a_range_that_is_partly_free_is_free_once() {
        let mut space = FreeSpace::default();
        space.give(10, 20, |_| false);
        space.give(15, 40, |_| false);
        assert_eq!(of(&space), (30, 30, vec![(10, 40)]));
        space.take(0, u64::MAX);
        assert_eq!(of(&space), (0, 0, vec![]));
        space.take(5, 5);
        space.give(7, 7, |_| false);
        assert_eq!(of(&space), (0, 0, vec![]));
    }
}
