//! Ranges of addresses that do not overlap, in order.
//!
//! A history is not trusted, so the cost of an event must not depend on the number of ranges. Queries therefore return
//! iterators, which a caller that needs only the first item does not exhaust, and a change takes time in proportion to
//! the ranges that it ends, each of which was added once.

use std::collections::BTreeMap;

/// Ranges with a value each.
#[derive(Clone, Debug)]
pub struct Ranges<T = ()> {
    /// The ends and the values, by the beginnings.
    by_begin: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Ranges { by_begin: BTreeMap::new() }
    }
}

impl<T: Copy> Ranges<T> {
    /// Begin, end and value of each range.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, T)> {
        self.by_begin.iter().map(|(&begin, &(end, value))| (begin, end, value))
    }

    /// The range that an address is in.
    pub fn at(&self, address: u64) -> Option<(u64, u64, T)> {
        let (&begin, &(end, value)) = self.by_begin.range(..=address).next_back()?;
        (address < end).then_some((begin, end, value))
    }

    /// Whether a range begins at an address.
    pub fn begins_at(&self, address: u64) -> bool {
        self.by_begin.contains_key(&address)
    }

    /// The ranges that overlap with one.
    pub fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, T)> {
        let first = if from < to { self.at(from).map_or(from, |(begin, ..)| begin) } else { to };
        let found = self.by_begin.range(first.min(to)..to);
        found.map(|(&begin, &(end, value))| (begin, end, value))
    }

    /// The parts of a range that no other range covers.
    pub fn gaps(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut at = from;
        let ends = self.overlapping(from, to).map(|(begin, end, _)| (begin, end)).chain([(to, to)]);
        ends.filter_map(move |(begin, end)| {
            let gap = (at, begin);
            at = end;
            (gap.0 < gap.1).then_some(gap)
        })
    }

    /// Removes a range, which may be the middle of another. Returns the parts that existed.
    pub fn remove(&mut self, from: u64, to: u64) -> Vec<(u64, u64, T)> {
        let touched: Vec<_> = self.overlapping(from, to).collect();
        for &(begin, end, value) in &touched {
            self.by_begin.remove(&begin);
            if begin < from {
                self.by_begin.insert(begin, (from, value));
            }
            if to < end {
                self.by_begin.insert(to, (end, value));
            }
        }
        touched.into_iter().map(|(begin, end, value)| (begin.max(from), end.min(to), value)).collect()
    }

    /// Adds a range, which replaces what overlaps with it. Returns the replaced parts.
    pub fn insert(&mut self, from: u64, to: u64, value: T) -> Vec<(u64, u64, T)> {
        let before = self.remove(from, to);
        if from < to {
            self.by_begin.insert(from, (to, value));
        }
        before
    }
}

impl Ranges {
    /// Adds a range, merged with those that overlap with it or touch it.
    pub fn merge(&mut self, mut from: u64, mut to: u64) {
        if from >= to {
            return;
        }
        let neighbours: Vec<_> = self.overlapping(from.saturating_sub(1), to.saturating_add(1)).collect();
        for (begin, end, ()) in neighbours {
            self.by_begin.remove(&begin);
            (from, to) = (from.min(begin), to.max(end));
        }
        self.by_begin.insert(from, (to, ()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ranges: &[(u64, u64, char)]) -> Ranges<char> {
        let mut found = Ranges::default();
        ranges.iter().for_each(|&(from, to, value)| drop(found.insert(from, to, value)));
        found
    }

    #[test]
    fn a_range_takes_the_place_of_what_it_overlaps() {
        let mut ranges = of(&[(10, 20, 'a'), (20, 30, 'b'), (40, 50, 'c')]);
        assert_eq!(ranges.insert(15, 45, 'd'), [(15, 20, 'a'), (20, 30, 'b'), (40, 45, 'c')]);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(10, 15, 'a'), (15, 45, 'd'), (45, 50, 'c')]);
        assert_eq!(ranges.remove(20, 30), [(20, 30, 'd')]);
        assert_eq!(
            ranges.iter().collect::<Vec<_>>(),
            [(10, 15, 'a'), (15, 20, 'd'), (30, 45, 'd'), (45, 50, 'c')]
        );
        assert_eq!((ranges.insert(12, 12, 'e'), ranges.remove(14, 11)), (vec![], vec![]));
        assert_eq!(
            [9, 10, 14, 29, 49, 50].map(|at| ranges.at(at).map(|found| found.2)),
            [None, Some('a'), Some('a'), None, Some('c'), None]
        );
    }

    #[test]
    fn what_overlaps_and_what_is_between_is_in_order() {
        let ranges = of(&[(10, 20, 'a'), (20, 30, 'b'), (40, u64::MAX, 'c')]);
        let overlapping = |from, to| ranges.overlapping(from, to).map(|found| found.2).collect::<String>();
        assert_eq!([overlapping(0, 10), overlapping(19, 41), overlapping(30, 40)], ["", "abc", ""]);
        assert_eq!([overlapping(25, 25), overlapping(45, 5), overlapping(0, u64::MAX)], ["", "", "abc"]);
        let gaps = |from, to| ranges.gaps(from, to).collect::<Vec<_>>();
        assert_eq!(gaps(0, u64::MAX), [(0, 10), (30, 40)]);
        assert_eq!((gaps(12, 28), gaps(32, 35), gaps(5, 5)), (vec![], vec![(32, 35)], vec![]));
    }

    #[test]
    fn ranges_that_touch_merge_on_request() {
        let mut ranges = Ranges::default();
        [(0, 10), (20, 30), (12, 15), (10, 12), (30, u64::MAX), (5, 5)]
            .into_iter()
            .for_each(|(from, to)| ranges.merge(from, to));
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 15, ()), (20, u64::MAX, ())]);
    }
}
