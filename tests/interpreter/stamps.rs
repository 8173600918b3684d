//! The last free of each byte.

use std::collections::BTreeMap;

/// Ranges of free memory with the count of the free.
#[derive(Default)]
pub(crate) struct Freed(BTreeMap<u64, (u64, u64)>);

impl Freed {
    /// Records that everything in the range was freed now, whatever its state before.
    pub(crate) fn set(&mut self, start: u64, bytes: u64, stamp: u64) {
        self.clear(start, bytes);
        self.0.insert(start, (start + bytes, stamp));
    }

    /// Records that the range is in use.
    pub(crate) fn clear(&mut self, start: u64, bytes: u64) {
        let end = start + bytes;
        let overlapping = |freed: &Self| {
            let (&at, &(until, stamp)) = freed.0.range(..end).next_back()?;
            (until > start).then_some((at, until, stamp))
        };
        while let Some((at, until, stamp)) = overlapping(self) {
            self.0.remove(&at);
            if at < start {
                self.0.insert(at, (start, stamp));
            }
            if until > end {
                self.0.insert(end, (until, stamp));
            }
        }
    }

    /// Returns the latest free of anything in the range.
    pub(crate) fn latest(&self, start: u64, bytes: u64) -> u64 {
        let before = self.0.range(..start + bytes).rev();
        let overlapping = before.take_while(|&(_, &(until, _))| until > start);
        overlapping.map(|(_, &(_, stamp))| stamp).max().unwrap_or(0)
    }
}
