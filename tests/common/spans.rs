//! Live allocations as intervals: a model without bins that finds every overlap.

use std::collections::BTreeMap;

/// Disjoint ranges of addresses, each with something attached.
pub struct Spans<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Spans<T> {
    fn default() -> Self {
        Spans(BTreeMap::new())
    }
}

impl<T> Spans<T> {
    /// Adds a range, which must not overlap another.
    #[track_caller]
    pub fn insert(&mut self, start: u64, bytes: u64, with: T) {
        assert!(bytes != 0 && start.checked_add(bytes).is_some(), "{start:#x} + {bytes:#x} is no range");
        if let Some((at, length)) = self.overlapping(start, bytes) {
            panic!("{start:#x} + {bytes:#x} overlaps {at:#x} + {length:#x}");
        }
        self.0.insert(start, (bytes, with));
    }

    /// Returns a range that overlaps this one.
    pub fn overlapping(&self, start: u64, bytes: u64) -> Option<(u64, u64)> {
        let (&at, &(length, _)) = self.0.range(..start + bytes).next_back()?;
        (at + length > start).then_some((at, length))
    }

    /// Removes the range that begins there.
    pub fn remove(&mut self, start: u64) -> Option<(u64, T)> {
        self.0.remove(&start)
    }

    /// Returns the range that begins there.
    pub fn get(&self, start: u64) -> Option<&(u64, T)> {
        self.0.get(&start)
    }

    /// Returns start, bytes and attachment of the range around an address.
    pub fn around(&self, address: u64) -> Option<(u64, u64, &T)> {
        let (&start, (bytes, with)) = self.0.range(..=address).next_back()?;
        (address - start < *bytes).then_some((start, *bytes, with))
    }

    /// All ranges in address order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &T)> {
        self.0.iter().map(|(&start, (bytes, with))| (start, *bytes, with))
    }

    /// Returns the start of the `place`th range.
    pub fn nth(&self, place: usize) -> Option<u64> {
        self.0.keys().nth(place).copied()
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sum of their bytes.
    pub fn bytes(&self) -> u64 {
        self.0.values().map(|(bytes, _)| bytes).sum()
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
