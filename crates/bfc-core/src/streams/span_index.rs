//! The free spans of one queue in (bytes, address) order: a set for each half octave of sizes.
//!
//! There is one such index for each stream, so it is small, and coarser than the index of chunks reusable by every
//! stream.

use crate::ids::{ChunkId, NIL};
use crate::ordered::Ordered;
use crate::seed::Seed;
use crate::tree::Node;
use crate::units::UNIT;

/// The order of the addresses at which free spans begin.
pub(super) enum ByAddress {}

const CLASSES: usize = 64;

pub(super) struct SpanIndex {
    sets: [Ordered; CLASSES],
    /// The classes that have a free span.
    marks: u64,
    seed: Seed,
}

/// Returns the class of a size in bytes, which is not 0. There are two classes an octave, and one for all sizes from
/// 768 GiB on.
#[inline]
fn class_of(bytes: u64) -> usize {
    let units = (bytes / UNIT) | u64::from(bytes < UNIT);
    let octave = units.ilog2();
    let upper = (units << 1 >> octave) & 1;
    ((octave as usize) * 2 + upper as usize).min(CLASSES - 1)
}

impl SpanIndex {
    pub(super) fn new(seed: Seed) -> Self {
        SpanIndex { sets: [Ordered::EMPTY; CLASSES], marks: 0, seed }
    }

    /// Returns the shortest free span of at least `bytes`, the one at the lowest address among equals, or [`NIL`].
    #[inline]
    pub(super) fn best_fit<N: Node>(&self, nodes: &[N], bytes: u64) -> ChunkId {
        self.first_from(nodes, (bytes, 0))
    }

    /// Returns the first free span that is not below a key, or [`NIL`].
    #[inline]
    pub(super) fn first_from<N: Node>(&self, nodes: &[N], key: (u64, u64)) -> ChunkId {
        let class = class_of(key.0);
        let found = self.sets[class].first_from(nodes, key);
        if found != NIL {
            return found;
        }
        // Two shifts, because one shift by 64 bits would overflow for the last class.
        let others = self.marks & (u64::MAX << class << 1);
        if others == 0 {
            return NIL;
        }
        self.sets[others.trailing_zeros() as usize % CLASSES].first_from(nodes, (0, 0))
    }

    /// Returns the longest free span, or [`NIL`].
    pub(super) fn largest<N: Node>(&self, nodes: &[N]) -> ChunkId {
        self.marks.checked_ilog2().map_or(NIL, |class| self.sets[class as usize].last(nodes))
    }

    /// Adds a free span of `bytes` bytes that is in no index.
    #[inline]
    pub(super) fn insert<N: Node>(&mut self, nodes: &mut [N], id: ChunkId, bytes: u64) {
        let class = class_of(bytes);
        self.sets[class].insert(nodes, self.seed, id);
        self.marks |= 1 << class;
    }

    #[inline]
    pub(super) fn remove<N: Node>(&mut self, nodes: &mut [N], id: ChunkId, bytes: u64) {
        let class = class_of(bytes);
        let set = &mut self.sets[class];
        set.remove(nodes, self.seed, id);
        if set.is_empty() {
            self.marks &= !(1 << class);
        }
    }

    /// Returns whether a free span of `bytes` bytes would be in the same place with another key.
    #[inline]
    pub(super) fn keeps_place<N: Node>(&self, nodes: &[N], id: ChunkId, bytes: u64, key: (u64, u64)) -> bool {
        let class = class_of(bytes);
        class == class_of(key.0) && self.sets[class].keeps_place(nodes, id, key)
    }

    /// Returns the free spans that are not below a key, in order.
    pub(super) fn iter_from<'a, N: Node>(
        &'a self,
        nodes: &'a [N],
        mut key: (u64, u64),
    ) -> impl Iterator<Item = ChunkId> + 'a {
        core::iter::from_fn(move || {
            let id = Some(self.first_from(nodes, key)).filter(|&id| id != NIL)?;
            key = nodes[id.index()].key();
            key.1 += 1;
            Some(id)
        })
    }

    /// Returns whether exactly the classes that have a free span are marked, and all lists are sound.
    pub(super) fn is_sound<N: Node>(&self, nodes: &[N]) -> bool {
        let is_sound = |(class, set): (usize, &Ordered)| {
            (self.marks >> class & 1 == 1) != set.is_empty() && set.is_sound(nodes)
        };
        self.sets.iter().enumerate().all(is_sound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MAX_CHUNK;

    #[test]
    fn classes_rise_with_the_size() {
        let near = (0..38u32).flat_map(|octave| [-1i64, 0, 1].map(|more| (1i64 << octave) + more));
        let mut units: Vec<i64> = near.filter(|&units| units > 0).collect();
        units.extend([5, 6, 7, 11, 12, 13]);
        units.sort_unstable();
        let classes: Vec<usize> = units.iter().map(|&units| class_of(units as u64 * UNIT)).collect();
        assert!(classes.is_sorted(), "{classes:?}");
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(|units| class_of(units * UNIT)), [0, 2, 3, 4, 4, 5, 5]);
        assert_eq!([class_of((768 << 30) - UNIT), class_of(768 << 30), class_of(MAX_CHUNK)], [62, 63, 63]);
    }
}
