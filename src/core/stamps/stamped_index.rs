//! The findable free chunks that carry a stamp, ordered by (size, address), with the least stamp below each.
//!
//! Such chunks are in no tree of the common index. So the best fit among those that were freed early enough is found
//! without a look at each that was freed too late. A treap linked through the chunks, as the trees of the common index are;
//! with quarantine it is empty, for what carries a stamp is not findable there.

use crate::core::heap::{Chunks, Hot};
use crate::core::ids::{ChunkId, NIL};
use crate::core::seed::Seed;
use crate::core::steps;
use crate::core::tables::{make_room, shrink_to};
use crate::core::tree::{Node, Tree};
use crate::sys::HostMemoryExhausted;

pub(super) struct StampedIndex {
    tree: Tree,
    seed: Seed,
    /// For each place of the slab: the least stamp of the chunk and of all below it in the tree.
    least: Vec<u64>,
    /// The latest stamp that there has been.
    latest: u64,
}

impl StampedIndex {
    pub(super) fn new(seed: Seed) -> Self {
        StampedIndex { tree: Tree::EMPTY, seed, least: Vec::new(), latest: 0 }
    }

    /// Forgets all chunks.
    pub(super) fn clear(&mut self) {
        *self = StampedIndex::new(self.seed);
    }

    /// Makes sure that no chunk of a slab of so many places needs memory for being inserted.
    pub(super) fn reserve(&mut self, places: usize) -> Result<(), HostMemoryExhausted> {
        make_room(&mut self.least, places)?;
        self.least.resize(places, 0);
        Ok(())
    }

    /// Leaves the first places only.
    pub(super) fn shrink(&mut self, places: usize) {
        shrink_to(&mut self.least, places);
    }

    /// Adds a chunk, which has its stamp already.
    pub(super) fn insert(&mut self, chunks: &mut Chunks, id: ChunkId) {
        self.tree.insert(chunks.slab_mut(), self.seed, id);
        // The tree that was at its place has been divided: one half is to its left, the other to its right.
        let hot = chunks.slab()[id];
        self.update_path(chunks, hot.left(), hot.key());
        self.update_path(chunks, hot.right(), hot.key());
        self.least[id.index()] = self.computed(chunks, id);
        let stamp = chunks.stamp(id);
        if stamp >= self.latest {
            // As nearly always. It is the least for nothing above it.
            self.latest = stamp;
            return;
        }
        let mut above = self.tree.root();
        while above != id {
            steps::count();
            let least = &mut self.least[above.index()];
            *least = stamp.min(*least);
            above = *towards(chunks.get_mut(above), hot.key());
        }
    }

    pub(super) fn remove(&mut self, chunks: &mut Chunks, id: ChunkId) {
        let (key, stamp) = (chunks.slab()[id].key(), chunks.stamp(id));
        // Nothing changes for those above it that have an older one below them.
        let (mut unchanged, mut node) = (NIL, self.tree.root());
        while node != id && self.least[node.index()] < stamp {
            steps::count();
            (unchanged, node) = (node, *towards(chunks.get_mut(node), key));
        }
        self.tree.remove(chunks.slab_mut(), self.seed, id);
        // What was below it is where a search for it leads to now.
        let top = if unchanged == NIL { self.tree.root() } else { *towards(chunks.get_mut(unchanged), key) };
        self.update_path(chunks, top, key);
    }

    /// Computes the least stamps again of all that a search for `key`, which is not there, passes below `top`. A node
    /// depends on those below it, and there is no way up: on the way down each link is turned to lead up.
    fn update_path(&mut self, chunks: &mut Chunks, top: ChunkId, key: (u64, u64)) {
        let (slab, stamps) = chunks.slab_and_stamps();
        let (mut above, mut node) = (NIL, top);
        while node != NIL {
            steps::count();
            let below = std::mem::replace(towards(&mut slab[node], key), above);
            (above, node) = (node, below);
        }
        while above != NIL {
            let next = std::mem::replace(towards(&mut slab[above], key), node);
            self.least[above.index()] = computed(&self.least, &slab[above], stamps[above.index()]);
            (node, above) = (above, next);
        }
    }

    /// The least stamp below a chunk, from those of its children.
    fn computed(&self, chunks: &Chunks, id: ChunkId) -> u64 {
        computed(&self.least, &chunks.slab()[id], chunks.stamp(id))
    }

    /// The least stamp of a tree.
    fn least_in(&self, root: ChunkId) -> u64 {
        least_in(&self.least, root)
    }

    /// The first chunk that is not below `key` and has a stamp of at most `newest`.
    #[inline]
    pub(super) fn first_from(&self, chunks: &Chunks, key: (u64, u64), newest: u64) -> Option<ChunkId> {
        if self.tree.is_empty() { None } else { self.search(chunks, key, newest) }
    }

    fn search(&self, chunks: &Chunks, key: (u64, u64), newest: u64) -> Option<ChunkId> {
        let slab = chunks.slab();
        let (mut node, mut best) = (self.tree.root(), NIL);
        while node != NIL {
            steps::count();
            let here = &slab[node];
            if here.key() < key {
                node = here.right();
                continue;
            }
            if chunks.stamp(node).min(self.least_in(here.right())) <= newest {
                best = node;
            }
            node = here.left();
        }
        if best == NIL || chunks.stamp(best) <= newest {
            return (best != NIL).then_some(best);
        }
        // It is right of that one, the first of them.
        node = slab[best].right();
        loop {
            steps::count();
            let (left, right) = (slab[node].left(), slab[node].right());
            if self.least_in(left) <= newest {
                node = left;
            } else if chunks.stamp(node) <= newest {
                return Some(node);
            } else {
                node = right;
            }
        }
    }

    /// The largest chunk.
    pub(super) fn largest(&self, chunks: &Chunks) -> Option<ChunkId> {
        let last = self.tree.last(chunks.slab());
        (last != NIL).then_some(last)
    }

    /// Every chunk, in (size, address) order.
    pub(super) fn iter<'a>(&'a self, chunks: &'a Chunks) -> impl Iterator<Item = ChunkId> + 'a {
        let mut key = (0, 0);
        std::iter::from_fn(move || {
            let id = self.first_from(chunks, key, u64::MAX)?;
            key = chunks.slab()[id].key();
            key.1 += 1;
            Some(id)
        })
    }

    /// Whether the least stamp below a chunk is right, provided that those of its children are.
    pub(super) fn is_right(&self, chunks: &Chunks, id: ChunkId) -> bool {
        self.least[id.index()] == self.computed(chunks, id)
    }

    /// For tests: says that a chunk, or one below it, has another stamp than it has.
    #[cfg(test)]
    pub(super) fn misstate(&mut self, id: ChunkId, least: u64) {
        self.least[id.index()] = least;
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        self.least.capacity() * size_of::<u64>()
    }
}

#[inline(always)]
fn least_in(least: &[u64], root: ChunkId) -> u64 {
    // NIL is behind all places.
    least.get(root.index()).copied().unwrap_or(u64::MAX)
}

#[inline(always)]
fn computed(least: &[u64], hot: &Hot, stamp: u64) -> u64 {
    stamp.min(least_in(least, hot.left())).min(least_in(least, hot.right()))
}

/// Where a search for a key goes from a chunk.
#[inline(always)]
fn towards(hot: &mut Hot, key: (u64, u64)) -> &mut ChunkId {
    if key < hot.key() { hot.left_mut() } else { hot.right_mut() }
}
