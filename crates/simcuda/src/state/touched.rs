//! The last uses of each byte of memory: the last write, and the reads since then that no other read comes after.

use std::collections::BTreeMap;

use super::stream::{Point, Role};

/// The most ranges that are remembered.
const MOST: usize = 1 << 16;

/// A use of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Use {
    pub(crate) at: Point,
    pub(crate) act: Act,
    /// The kind of work, such as a copy.
    pub(crate) work: &'static str,
    pub(crate) by: By,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    Reads,
    Writes,
    Allocates,
    Frees,
}

/// The stream, None for the host, and the driver's call with its number in the log, None for a call of `simcuda.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct By {
    pub(crate) stream: Option<Role>,
    pub(crate) call: Option<(&'static str, u64)>,
}

/// An earlier use that conflicts with a new one, and the range of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Conflict {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) with: Use,
}

#[derive(Clone)]
struct Range {
    end: u64,
    write: Option<Use>,
    reads: Vec<Use>,
}

/// The uses of all memory, by the start of disjoint ranges.
#[derive(Default)]
pub(crate) struct Touched {
    ranges: BTreeMap<u64, Range>,
}

impl Touched {
    /// Records a use of a range. Returns the earlier uses that conflict and are not before it, each once.
    pub(crate) fn touch(
        &mut self,
        start: u64,
        end: u64,
        new: Use,
        is_before: impl Fn(Point) -> bool,
    ) -> Vec<Conflict> {
        self.split(start);
        self.split(end);
        let writes = new.act != Act::Reads;
        let mut conflicts: Vec<Conflict> = Vec::new();
        for (start, range) in self.ranges.range(start..end) {
            let reads = range.reads.iter().filter(|_| writes);
            for with in range.write.iter().chain(reads).filter(|earlier| !is_before(earlier.at)) {
                match conflicts.iter_mut().find(|conflict| conflict.with == *with) {
                    Some(conflict) => conflict.end = range.end,
                    None => conflicts.push(Conflict { start: *start, end: range.end, with: *with }),
                }
            }
        }
        if writes {
            self.put(start, end, new);
            return conflicts;
        }
        for range in self.ranges.range_mut(start..end).map(|(_, range)| range) {
            range.reads.retain(|read| !is_before(read.at));
            range.reads.push(new);
        }
        let mut from = start;
        let mut gaps = Vec::new();
        for (start, range) in self.ranges.range(start..end) {
            gaps.push((from, *start));
            from = range.end;
        }
        gaps.push((from, end));
        for (start, end) in gaps.into_iter().filter(|(start, end)| start < end) {
            self.ranges.insert(start, Range { end, write: None, reads: vec![new] });
        }
        conflicts
    }

    /// Records a write of a range, which replaces all earlier uses.
    pub(crate) fn put(&mut self, start: u64, end: u64, new: Use) {
        self.forget(start, end);
        self.ranges.insert(start, Range { end, write: Some(new), reads: Vec::new() });
    }

    /// Forgets the uses of a range.
    pub(crate) fn forget(&mut self, start: u64, end: u64) {
        self.split(start);
        self.split(end);
        let gone: Vec<u64> = self.ranges.range(start..end).map(|(start, _)| *start).collect();
        for start in gone {
            self.ranges.remove(&start);
        }
    }

    /// Keeps to the limit: forgets the uses that come before all that is to come, and everything if that is not enough.
    pub(crate) fn trim(&mut self, is_past: impl Fn(Point) -> bool) {
        if self.ranges.len() <= MOST {
            return;
        }
        self.ranges.retain(|_, range| range.write.iter().chain(&range.reads).any(|one| !is_past(one.at)));
        if self.ranges.len() > MOST / 2 {
            self.ranges.clear();
        }
    }

    /// Makes a range end at an address if one contains it.
    fn split(&mut self, at: u64) {
        let Some((_, range)) = self.ranges.range_mut(..at).next_back() else { return };
        if range.end > at {
            let rest = range.clone();
            range.end = at;
            self.ranges.insert(at, rest);
        }
    }
}
