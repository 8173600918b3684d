//! The index of findable free chunks with a stamp, ordered by (size, address), with the least stamp below each.
//!
//! These chunks are in no tree of the common index. So the best fit among chunks that were freed early enough is found
//! without examining each chunk that was freed too late. The index is a treap linked through the chunks, like the trees
//! of the common index. With quarantine it is empty, because chunks with a stamp are not findable there.

use crate::heap::{Chunks, Hot};
use crate::ids::{ChunkId, NIL};
use crate::seed::Seed;
use crate::steps;
use crate::tables::{make_room, shrink_to};
use crate::tree::{Node, Tree};
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

pub(super) struct StampedIndex {
    tree: Tree,
    seed: Seed,
    /// For each place of the slab, the least stamp of the chunk and of all nodes below it in the tree.
    least: Vec<u64>,
    /// The latest stamp ever inserted.
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

    /// Ensures that inserting any chunk of a slab of `places` places needs no memory.
    pub(super) fn reserve(&mut self, places: usize) -> Result<(), HostMemoryExhausted> {
        make_room(&mut self.least, places)?;
        self.least.resize(places, 0);
        Ok(())
    }

    /// Keeps only the first `places` places.
    pub(super) fn shrink(&mut self, places: usize) {
        shrink_to(&mut self.least, places);
    }

    /// Adds a chunk that has its stamp already.
    pub(super) fn insert(&mut self, chunks: &mut Chunks, id: ChunkId) {
        self.tree.insert(chunks.slab_mut(), self.seed, id);
        // The tree previously at this place has been split into the two subtrees of the chunk.
        let hot = chunks.slab()[id];
        self.update_path(chunks, hot.left(), hot.key());
        self.update_path(chunks, hot.right(), hot.key());
        self.least[id.index()] = self.computed(chunks, id);
        let stamp = chunks.stamp(id);
        if stamp >= self.latest {
            // The usual case: the stamp is the latest, so the least stamps above stay as they are.
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
        // Nothing changes for nodes above the chunk that have an older stamp below them.
        let (mut unchanged, mut node) = (NIL, self.tree.root());
        while node != id && self.least[node.index()] < stamp {
            steps::count();
            (unchanged, node) = (node, *towards(chunks.get_mut(node), key));
        }
        self.tree.remove(chunks.slab_mut(), self.seed, id);
        // The nodes formerly below the chunk are where a search for its key leads to now.
        let top = if unchanged == NIL { self.tree.root() } else { *towards(chunks.get_mut(unchanged), key) };
        self.update_path(chunks, top, key);
    }

    /// Recomputes the least stamps of all nodes that a search for the absent `key` passes below `top`. A node depends
    /// on those below it, and nodes have no parent links. So on the way down each link is reversed to lead up.
    fn update_path(&mut self, chunks: &mut Chunks, top: ChunkId, key: (u64, u64)) {
        let (slab, stamps) = chunks.slab_and_stamps();
        let (mut above, mut node) = (NIL, top);
        while node != NIL {
            steps::count();
            let below = core::mem::replace(towards(&mut slab[node], key), above);
            (above, node) = (node, below);
        }
        while above != NIL {
            let next = core::mem::replace(towards(&mut slab[above], key), node);
            self.least[above.index()] = computed(&self.least, &slab[above], stamps[above.index()]);
            (node, above) = (above, next);
        }
    }

    /// Returns the least stamp below a chunk, computed from those of its children.
    fn computed(&self, chunks: &Chunks, id: ChunkId) -> u64 {
        computed(&self.least, &chunks.slab()[id], chunks.stamp(id))
    }

    /// Returns the least stamp of a tree.
    fn least_in(&self, root: ChunkId) -> u64 {
        least_in(&self.least, root)
    }

    /// Returns the first chunk that is not below `key` and has a stamp of at most `newest`.
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
        // The result is the first such chunk to the right of that node.
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

    /// Returns the largest chunk.
    pub(super) fn largest(&self, chunks: &Chunks) -> Option<ChunkId> {
        let last = self.tree.last(chunks.slab());
        (last != NIL).then_some(last)
    }

    /// Returns all chunks, in (size, address) order.
    pub(super) fn iter<'a>(&'a self, chunks: &'a Chunks) -> impl Iterator<Item = ChunkId> + 'a {
        let mut key = (0, 0);
        core::iter::from_fn(move || {
            let id = self.first_from(chunks, key, u64::MAX)?;
            key = chunks.slab()[id].key();
            key.1 += 1;
            Some(id)
        })
    }

    /// Returns whether the least stamp below a chunk is right, provided that those of its children are.
    pub(super) fn is_right(&self, chunks: &Chunks, id: ChunkId) -> bool {
        self.least[id.index()] == self.computed(chunks, id)
    }

    /// For tests: records a wrong least stamp for a chunk.
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
    // NIL is past all places.
    least.get(root.index()).copied().unwrap_or(u64::MAX)
}

#[inline(always)]
fn computed(least: &[u64], hot: &Hot, stamp: u64) -> u64 {
    stamp.min(least_in(least, hot.left())).min(least_in(least, hot.right()))
}

/// Returns the link that a search for a key follows from a chunk.
#[inline(always)]
fn towards(hot: &mut Hot, key: (u64, u64)) -> &mut ChunkId {
    if key < hot.key() { hot.left_mut() } else { hot.right_mut() }
}
