//! A small ordered set with its links inside the nodes, so that no change needs memory: a doubly linked list, and a treap
//! once it is long.
//!
//! A node leaves a list without a search, and a walk along a list is predictable: up to [`LONGEST_LIST`] nodes it is
//! faster than a tree, whose comparisons are not.

use crate::ids::{ChunkId, NIL};
use crate::seed::Seed;
use crate::steps;
use crate::tree::{self, Node, Tree};

/// With one more node a set becomes a tree. Where small sizes are as likely as large ones, operations take up to a third
/// longer with 8, up to an eighth longer with 32, and up to a tenth less time with 128, when a bad pattern would walk twice
/// as far.
const LONGEST_LIST: u8 = if cfg!(test) { 4 } else { 64 };

/// In place of a length: the set is a tree.
const TREE: u8 = u8::MAX;

/// A set of nodes, which are in a slice that is passed to every call. A list has its first node on top and larger ones to
/// the right of each; a tree has its root on top.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ordered {
    top: ChunkId,
    /// The length of a list, or [`TREE`]. With one node or none it may be out of date.
    length: u8,
}

impl Ordered {
    pub(crate) const EMPTY: Self = Ordered { top: NIL, length: 0 };

    /// Puts a set together again from its [`Self::parts`].
    #[inline(always)]
    pub(crate) fn of(top: ChunkId, length: u8) -> Self {
        Ordered { top, length }
    }

    /// Returns the node on top, or [`NIL`], and what has to be known of the length.
    #[inline(always)]
    pub(crate) fn parts(self) -> (ChunkId, u8) {
        (self.top, self.length)
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.top == NIL
    }

    /// Returns whether a node on top is the only one.
    #[inline(always)]
    fn is_single<N: Node>(self, nodes: &[N]) -> bool {
        let top = &nodes[self.top.index()];
        top.left() == NIL && top.right() == NIL
    }

    /// Returns the first node that is not below `key`, or [`NIL`].
    #[inline]
    pub(crate) fn first_from<N: Node>(self, nodes: &[N], key: (u64, u64)) -> ChunkId {
        if self.length == TREE {
            return Tree::of(self.top).first_from(nodes, key);
        }
        let mut at = self.top;
        while at != NIL && nodes[at.index()].key() < key {
            steps::count();
            at = nodes[at.index()].right();
        }
        at
    }

    /// Returns the last node, or [`NIL`].
    pub(crate) fn last<N: Node>(self, nodes: &[N]) -> ChunkId {
        // In a list too it is the one furthest to the right.
        Tree::of(self.top).last(nodes)
    }

    /// Adds a node that is in no set.
    #[inline]
    pub(crate) fn insert<N: Node>(&mut self, nodes: &mut [N], seed: Seed, id: ChunkId) {
        if self.top == NIL {
            let here = &mut nodes[id.index()];
            (*here.left_mut(), *here.right_mut()) = (NIL, NIL);
            *self = Ordered { top: id, length: 1 };
            return;
        }
        if self.is_single(nodes) {
            self.length = 1;
        }
        if self.length >= LONGEST_LIST {
            return self.insert_in_tree(nodes, seed, id);
        }
        self.length += 1;
        let key = nodes[id.index()].key();
        let (mut before, mut behind) = (NIL, self.top);
        while behind != NIL && nodes[behind.index()].key() < key {
            steps::count();
            (before, behind) = (behind, nodes[behind.index()].right());
        }
        let here = &mut nodes[id.index()];
        (*here.left_mut(), *here.right_mut()) = (before, behind);
        self.link(nodes, before, id);
        if behind != NIL {
            *nodes[behind.index()].left_mut() = id;
        }
    }

    /// Returns whether a node of the set would be in the same place with another key. A tree says so only of a node that
    /// is alone.
    #[inline]
    pub(crate) fn keeps_place<N: Node>(self, nodes: &[N], id: ChunkId, key: (u64, u64)) -> bool {
        let (before, behind) = (nodes[id.index()].left(), nodes[id.index()].right());
        if self.length == TREE {
            return self.top == id && before == NIL && behind == NIL;
        }
        (before == NIL || nodes[before.index()].key() < key)
            && (behind == NIL || key < nodes[behind.index()].key())
    }

    #[inline(never)]
    fn insert_in_tree<N: Node>(&mut self, nodes: &mut [N], seed: Seed, id: ChunkId) {
        if self.length != TREE {
            self.top = root_of_list(nodes, seed, self.top);
        }
        let mut tree = Tree::of(self.top);
        tree.insert(nodes, seed, id);
        *self = Ordered { top: tree.root(), length: TREE };
    }

    /// Removes a node of the set.
    #[inline]
    pub(crate) fn remove<N: Node>(&mut self, nodes: &mut [N], seed: Seed, id: ChunkId) {
        if self.length == TREE {
            let mut tree = Tree::of(self.top);
            tree.remove(nodes, seed, id);
            self.top = tree.root();
            return;
        }
        self.length -= 1;
        let (before, behind) = (nodes[id.index()].left(), nodes[id.index()].right());
        self.link(nodes, before, behind);
        if behind != NIL {
            *nodes[behind.index()].left_mut() = before;
        }
    }

    /// Makes a node, or [`NIL`], the next of the list behind `before`.
    #[inline(always)]
    fn link<N: Node>(&mut self, nodes: &mut [N], before: ChunkId, next: ChunkId) {
        match before {
            NIL => self.top = next,
            _ => *nodes[before.index()].right_mut() = next,
        }
    }

    /// Returns whether a list is linked in both directions and has the length that is known. Trees are not examined.
    pub(crate) fn is_sound<N: Node>(self, nodes: &[N]) -> bool {
        if self.top == NIL || self.is_single(nodes) || self.length == TREE {
            return true;
        }
        let (mut before, mut at, mut count) = (NIL, self.top, 0);
        while at != NIL && count <= self.length && nodes[at.index()].left() == before {
            (before, at, count) = (at, nodes[at.index()].right(), count + 1);
        }
        at == NIL && count == self.length && count <= LONGEST_LIST
    }

    /// For tests: returns the root, if the set is a tree.
    #[cfg(test)]
    pub(crate) fn root(self) -> ChunkId {
        if self.length == TREE { self.top } else { NIL }
    }
}

/// Makes a list of at most [`LONGEST_LIST`] nodes a tree, and returns the root. Each node goes to the right end of the tree
/// of those before it, below the last one there with at least its priority (Vuillemin, 1980), which takes less than
/// inserting them.
fn root_of_list<N: Node>(nodes: &mut [N], seed: Seed, first: ChunkId) -> ChunkId {
    // From the root to the right, each with its priority.
    let mut spine = [(NIL, 0); LONGEST_LIST as usize];
    let (mut depth, mut at) = (0, first);
    while at != NIL {
        steps::count();
        let here = &nodes[at.index()];
        let (next, priority) = (here.right(), tree::priority(seed, here.key()));
        let mut below = NIL;
        while depth > 0 && spine[depth - 1].1 < priority {
            depth -= 1;
            below = spine[depth].0;
        }
        if depth > 0 {
            *nodes[spine[depth - 1].0.index()].right_mut() = at;
        }
        let here = &mut nodes[at.index()];
        (*here.left_mut(), *here.right_mut()) = (below, NIL);
        spine[depth] = (at, priority);
        (depth, at) = (depth + 1, next);
    }
    spine[0].0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    struct Number {
        key: (u64, u64),
        links: [ChunkId; 2],
    }

    impl Node for Number {
        fn key(&self) -> (u64, u64) {
            self.key
        }

        fn left(&self) -> ChunkId {
            self.links[0]
        }

        fn right(&self) -> ChunkId {
            self.links[1]
        }

        fn left_mut(&mut self) -> &mut ChunkId {
            &mut self.links[0]
        }

        fn right_mut(&mut self) -> &mut ChunkId {
            &mut self.links[1]
        }
    }

    /// Returns whether no node has a higher priority than the one above it.
    fn is_heap(nodes: &[Number], seed: Seed, at: ChunkId, most: u64) -> bool {
        let Some(here) = nodes.get(at.index()) else { return true };
        let priority = tree::priority(seed, here.key);
        priority <= most && here.links.iter().all(|&below| is_heap(nodes, seed, below, priority))
    }

    /// Lists become trees, trees shrink to one node and become lists again, and at each step the set is a `BTreeSet`.
    #[test]
    fn it_is_an_ordered_set_at_every_length() {
        let (seed, mut state) = (Seed::new(1), 7_u64);
        let mut random = move |below: u64| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 33) % below
        };
        let keys = (0..40).map(|number: u64| (number % 5, number));
        let mut nodes: Vec<Number> = keys.map(|key| Number { key, links: [NIL; 2] }).collect();
        let (mut set, mut model) = (Ordered::EMPTY, BTreeSet::new());
        let (mut lists, mut trees) = (0, 0);
        for step in 0..20_000 {
            // Waves, so that the set is both long and empty again and again.
            let grows = random(10) < if step / 50 % 2 == 0 { 7 } else { 3 };
            let key = match model.iter().nth(random(model.len().max(1) as u64) as usize) {
                Some(&key) if !grows => key,
                _ => nodes[random(nodes.len() as u64) as usize].key,
            };
            let id = ChunkId(key.1 as u32);
            if grows && model.insert(key) {
                set.insert(&mut nodes, seed, id);
            } else if !grows && model.remove(&key) {
                set.remove(&mut nodes, seed, id);
            }
            let place = |key: &(u64, u64)| ChunkId(key.1 as u32);
            for key in [(0, 0), key, (random(6), random(40))] {
                assert_eq!(set.first_from(&nodes, key), model.range(key..).next().map_or(NIL, place));
            }
            assert_eq!(set.last(&nodes), model.last().map_or(NIL, place));
            assert!(set.is_sound(&nodes) && set.is_empty() == model.is_empty());
            *(if set.root() == NIL { &mut lists } else { &mut trees }) += 1;
            assert!(is_heap(&nodes, seed, set.root(), u64::MAX));
        }
        assert!(lists > 1000 && trees > 1000, "{lists} {trees}");
    }
}
