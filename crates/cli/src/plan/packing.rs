//! Placing items one after the other, each at the lowest address at which it overlaps no other in time and space.

use super::program::Program;

/// Times that share a list of items.
const TIMES_PER_LIST: u32 = 64;

/// Places items in a given order. Keeps its tables from one placement to the next.
pub struct Packer<'a> {
    program: &'a Program,
    /// For each stretch of time the items placed so far that live during it.
    lists: Vec<Vec<u32>>,
    /// For each item the last one that was found to overlap with it.
    met: Vec<u32>,
    /// The places that an item must not overlap: first byte and end.
    taken: Vec<(u64, u64)>,
}

/// A placement of all items.
#[derive(Clone, Debug)]
pub struct Packing {
    /// The items in the order in which they were placed.
    pub order: Vec<u32>,
    /// The place of each item.
    pub offsets: Vec<u64>,
    /// The end of the highest one.
    pub bytes: u64,
}

impl<'a> Packer<'a> {
    pub fn new(program: &'a Program) -> Self {
        let lists = vec![Vec::new(); (program.end / TIMES_PER_LIST + 1) as usize];
        Self { program, lists, met: vec![u32::MAX; program.items.len()], taken: Vec::new() }
    }

    /// Places items in the given order. The first `kept` have the places that `offsets` has. Returns nothing if more than
    /// `most` bytes would be taken.
    pub fn place(
        &mut self,
        order: Vec<u32>,
        mut offsets: Vec<u64>,
        kept: usize,
        most: u64,
    ) -> Option<Packing> {
        self.lists.iter_mut().for_each(Vec::clear);
        self.met.fill(u32::MAX);
        let mut bytes = 0;
        for (at, &item) in order.iter().enumerate() {
            if at >= kept {
                offsets[item as usize] = self.lowest(item, &offsets);
            }
            let end = offsets[item as usize].checked_add(self.program.items[item as usize].size)?;
            bytes = bytes.max(end);
            if bytes > most {
                return None;
            }
            self.note(item);
        }
        Some(Packing { order, offsets, bytes })
    }

    fn lowest(&mut self, item: u32, offsets: &[u64]) -> u64 {
        let Self { program, lists, met, taken } = self;
        let this = &program.items[item as usize];
        taken.clear();
        for (first, last) in this.spans() {
            for list in &lists[(first / TIMES_PER_LIST) as usize..=(last / TIMES_PER_LIST) as usize] {
                for &other in list {
                    let there = &program.items[other as usize];
                    let meets = |(from, to): (u32, u32)| from <= last && first <= to;
                    if met[other as usize] != item && there.spans().any(meets) {
                        met[other as usize] = item;
                        let offset = offsets[other as usize];
                        taken.push((offset, offset + there.size));
                    }
                }
            }
        }
        taken.sort_unstable();
        let mut lowest = 0;
        for &(first, end) in taken.iter() {
            if first >= lowest && first - lowest >= this.size {
                break;
            }
            lowest = lowest.max(end);
        }
        lowest
    }

    fn note(&mut self, item: u32) {
        for (first, last) in self.program.items[item as usize].spans() {
            for list in &mut self.lists[(first / TIMES_PER_LIST) as usize..=(last / TIMES_PER_LIST) as usize]
            {
                if list.last() != Some(&item) {
                    list.push(item);
                }
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::program::Item;
    use super::*;

    /// Whether no two items overlap in time and space, by looking at all pairs.
    pub fn is_valid(program: &Program, packing: &Packing) -> bool {
        let meet = |one: &Item, other: &Item| {
            one.spans().any(|(first, last)| other.spans().any(|(from, to)| from <= last && first <= to))
        };
        let place = |at: usize| (packing.offsets[at], packing.offsets[at] + program.items[at].size);
        let apart = |one: usize, other: usize| {
            let ((a, b), (c, d)) = (place(one), place(other));
            b <= c || d <= a
        };
        (0..program.items.len()).all(|one| {
            place(one).1 <= packing.bytes
                && (0..one)
                    .all(|other| apart(one, other) || !meet(&program.items[one], &program.items[other]))
        })
    }
}
