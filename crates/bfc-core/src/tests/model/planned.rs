//! The model of a plan: a list of requests with places, searched from end to end.

use crate::plan::{PlacementPlan, with_checksum};
use crate::testing::Random;
use crate::units::UNIT;
use std::fmt::Write;

/// How many sizes in a row tell where a program is.
const RUN: usize = 4;

#[derive(Clone, Debug)]
pub(super) struct Planned {
    /// Sizes and offsets. Some entries have no place.
    entries: Vec<(u64, Option<u64>)>,
    repeated_from: usize,
    pub(super) bytes: u64,
    next: usize,
    recent: Vec<u64>,
    /// The entry that the last jump passed over, while that may have been wrong, and for how many requests more.
    passed_over: Option<(usize, u32)>,
    /// Whether the last request matched.
    is_in_step: bool,
    trust: u32,
    pub(super) base: Option<u64>,
}

impl Planned {
    /// Creates a plan of at most 16 requests whose places may overlap, be out of order, or lie beyond the pool.
    pub(super) fn any(random: &mut Random, largest: u64, limit: u64) -> Self {
        let count = 1 + random.below(16);
        let bytes = (random.pick(&[limit / 2, limit, limit.saturating_mul(2)]).min(1 << 45) & !(UNIT - 1))
            .max(largest.next_multiple_of(UNIT) * 4);
        let few: Vec<u64> = (0..3).map(|_| units(1 + random.below(largest))).collect();
        let mut end = 0;
        let entries = (0..count).map(|_| {
            let size = if random.chance(50) { random.pick(&few) } else { units(1 + random.below(largest)) };
            let offset = match random.below(10) {
                0 => return (size, None),
                1..3 => random.below(bytes - size + 1) & !(UNIT - 1),
                // One behind the other, as long as there is room.
                _ if end + size <= bytes => end,
                _ => 0,
            };
            end = offset + size;
            (size, Some(offset))
        });
        let entries: Vec<_> = entries.collect();
        let repeated_from = random.below(count + 1) as usize;
        Planned {
            entries,
            repeated_from,
            bytes,
            next: 0,
            recent: Vec::new(),
            passed_over: None,
            is_in_step: true,
            trust: 120,
            base: None,
        }
    }

    /// Returns the arena's plan.
    pub(super) fn plan(&self) -> Box<PlacementPlan> {
        let (prologue, repeated) = (self.repeated_from, self.entries.len() - self.repeated_from);
        let mut text = format!(
            "bfc-plan 1\nalignment 256\nbytes {}\nprologue {prologue}\nrepeated {repeated}\n",
            self.bytes
        );
        for (size, offset) in &self.entries {
            match offset {
                Some(offset) => writeln!(text, "{size} {offset}").unwrap(),
                None => writeln!(text, "{size} -").unwrap(),
            }
        }
        Box::new(PlacementPlan::parse(with_checksum(&text).as_bytes()).unwrap())
    }

    /// Returns the size of a request that follows the plan, or of one that leaves it.
    pub(super) fn likely(&self, random: &mut Random) -> Option<u64> {
        let next =
            if random.chance(80) { self.next } else { random.below(self.entries.len() as u64) as usize };
        let (size, _) = self.entries.get(next)?;
        random.chance(85).then_some(size - random.below(UNIT))
    }

    /// Returns the entry that a request matches.
    fn find(&self, size: u64, is_empty: bool) -> Option<usize> {
        if is_empty && self.repeated_from != 0 && self.entries[0].0 == size {
            return Some(0);
        }
        if self.entries.get(self.next).is_some_and(|entry| entry.0 == size) {
            return Some(self.next);
        }
        let is_at = |at: &usize| self.entries.get(*at).is_some_and(|entry| entry.0 == size);
        let passed_over = self.passed_over.filter(|over| over.1 > 0).map(|over| over.0).filter(is_at);
        let ahead = (self.next + 1..self.next + 9).filter(|_| self.is_in_step).find(is_at);
        if let Some(near) = passed_over.or(ahead) {
            return Some(near);
        }
        let mut run = self.recent.clone();
        run.push(size);
        let ends = |&at: &usize| self.run_to(at).is_some_and(|sizes| run.ends_with(&sizes));
        (self.next..self.entries.len()).chain(0..self.next.min(self.entries.len())).find(ends)
    }

    /// Returns the sizes of the requests up to an entry.
    fn run_to(&self, mut at: usize) -> Option<Vec<u64>> {
        let mut sizes = vec![self.entries[at].0];
        while sizes.len() < RUN {
            let is_first = at == self.repeated_from;
            at = if is_first { self.entries.len() } else { at };
            at = at.checked_sub(1)?;
            sizes.insert(0, self.entries[at].0);
        }
        Some(sizes)
    }

    /// Returns the entry of a request, and the address of its place.
    pub(super) fn place(&self, size: u64, is_empty: bool) -> (Option<usize>, Option<u64>) {
        let entry = self.find(size, is_empty);
        let offset = entry.and_then(|entry| self.entries[entry].1);
        (entry, offset.and_then(|offset| self.base?.checked_add(offset)))
    }

    /// Returns the end of the planned bytes, if requests without a place had better lie behind it.
    pub(super) fn end(&self) -> Option<u64> {
        self.base.filter(|_| self.trust >= 128)?.checked_add(self.bytes)
    }

    /// Records a request that was served, at its place or not.
    pub(super) fn served(&mut self, size: u64, entry: Option<usize>, at_place: bool) {
        self.recent.push(size);
        self.trust = if at_place { 256.min(self.trust + 1) } else { self.trust.saturating_sub(2) };
        self.is_in_step = entry.is_some();
        self.passed_over = match (entry, self.passed_over) {
            (Some(entry), _) if entry != self.next => Some((self.next, 4)),
            (Some(_), Some((over, left @ 1..))) => Some((over, left - 1)),
            (None, Some((over, 1..))) => {
                self.next = over;
                None
            }
            _ => None,
        };
        if let Some(entry) = entry {
            self.next = if entry + 1 == self.entries.len() { self.repeated_from } else { entry + 1 };
        }
    }
}

fn units(bytes: u64) -> u64 {
    bytes.next_multiple_of(UNIT)
}
