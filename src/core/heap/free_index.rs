//! Free chunks ordered by (size, address), for exact best fit.
//!
//! There is one treap (Seidel and Aragon, 1996) for each size class, linked through the chunks themselves, so that a
//! free never needs memory. Priorities are a hash of the address with the pool's seed and are stored nowhere. So the
//! shape of a tree depends only on its chunks and the seed. Real programs have about a hundred free chunks of nearly as
//! many sizes, so most trees are one chunk. Many chunks of one size make one deep tree, O(log n) like `std::set`.
//!
//! ```text
//!   classes   . . # . # # . .      a bit for each class with a chunk
//!   roots         |   | |
//!                 c   c c          left: smaller (size, address)
//!                    / \
//!                   c   c
//! ```
//!
//! Trees are linked through [`Node`]s. A node is the chunk itself or, where several streams share a pool, the stream
//! state beside it, which stands for a free span.

use super::size_classes::{CLASSES, ClassSet, class_of};
use crate::core::ids::{ChunkId, NIL};
use crate::core::seed::Seed;
use crate::core::tree::Node;
use crate::sys::HostMemoryExhausted;

pub(in crate::core) struct FreeIndex {
    roots: Box<[ChunkId; CLASSES]>,
    classes: ClassSet,
    seed: Seed,
}

/// The link that leads to a node.
#[derive(Clone, Copy)]
enum Link {
    Root(usize),
    Left(ChunkId),
    Right(ChunkId),
}

impl FreeIndex {
    /// Allocates the root table.
    pub(super) fn roots() -> Result<Box<[ChunkId; CLASSES]>, HostMemoryExhausted> {
        let mut roots = Vec::new();
        roots.try_reserve_exact(CLASSES)?;
        roots.resize(CLASSES, NIL);
        // The capacity is exact, so neither step allocates.
        roots.into_boxed_slice().try_into().map_err(|_| HostMemoryExhausted)
    }

    #[inline(always)]
    pub(super) fn with(roots: Box<[ChunkId; CLASSES]>, seed: u64) -> Self {
        FreeIndex { roots, classes: ClassSet::new(), seed: Seed::new(seed) }
    }

    /// Forgets all chunks.
    pub(super) fn clear(&mut self) {
        self.roots.fill(NIL);
        self.classes = ClassSet::new();
    }

    /// Returns the smallest chunk of at least `size` bytes, at the lowest address among equals.
    #[inline(always)]
    pub(super) fn best_fit<N: Node>(&self, nodes: &[N], size: u64) -> Option<ChunkId> {
        let root = self.roots[self.classes.first_from(class_of(size))?];
        // Nearly always the root is the smallest of its class. In the request's own class it must also be large enough.
        let here = &nodes[root.index()];
        if here.left() == NIL && here.key().0 >= size {
            return Some(root);
        }
        self.best_fit_below(nodes, size)
    }

    #[cold]
    #[inline(never)]
    fn best_fit_below<N: Node>(&self, nodes: &[N], size: u64) -> Option<ChunkId> {
        self.first_from(nodes, (size, 0))
    }

    /// Removes the smallest chunk of at least `size` bytes, at the lowest address among equals, and returns it.
    #[inline(always)]
    pub(super) fn take_best_fit<N: Node>(&mut self, nodes: &mut [N], size: u64) -> Option<ChunkId> {
        let class = self.classes.first_from(class_of(size))?;
        let root = self.roots[class];
        let here = &nodes[root.index()];
        if here.left() != NIL || here.key().0 < size {
            return self.take_best_fit_below(nodes, size);
        }
        self.remove_least(class, here.right());
        Some(root)
    }

    #[cold]
    #[inline(never)]
    fn take_best_fit_below<N: Node>(&mut self, nodes: &mut [N], size: u64) -> Option<ChunkId> {
        let id = self.best_fit_below(nodes, size)?;
        self.remove(nodes, id, nodes[id.index()].key().0);
        Some(id)
    }

    /// Removes the root of a class that has only a right subtree, or none.
    #[inline(always)]
    fn remove_least(&mut self, class: usize, right: ChunkId) {
        self.roots[class] = right;
        // Nearly always the root is the only node.
        if right == NIL {
            self.classes.remove(class);
        }
    }

    /// Returns the first chunk that is not below `key`.
    pub(super) fn first_from<N: Node>(&self, nodes: &[N], key: (u64, u64)) -> Option<ChunkId> {
        let class = class_of(key.0);
        let found = self.first_in(nodes, class, key);
        if found == NIL { self.first_after(nodes, class) } else { Some(found) }
    }

    /// Returns the first chunk of a class that is not below `key`, or [`NIL`].
    fn first_in<N: Node>(&self, nodes: &[N], class: usize, key: (u64, u64)) -> ChunkId {
        let mut node = self.roots[class];
        let mut best = NIL;
        while node != NIL {
            let here = &nodes[node.index()];
            if here.key() >= key {
                best = node;
                node = here.left();
            } else {
                node = here.right();
            }
        }
        best
    }

    /// Returns the first chunk of the classes after `class`.
    fn first_after<N: Node>(&self, nodes: &[N], class: usize) -> Option<ChunkId> {
        Some(self.first_of(nodes, self.classes.next_after(class)?))
    }

    /// Returns the first chunk of a class that is not empty.
    fn first_of<N: Node>(&self, nodes: &[N], class: usize) -> ChunkId {
        let mut node = self.roots[class];
        loop {
            let left = nodes[node.index()].left();
            if left == NIL {
                return node;
            }
            node = left;
        }
    }

    /// Returns the largest chunk.
    pub(super) fn largest<N: Node>(&self, nodes: &[N]) -> Option<ChunkId> {
        let mut node = self.roots[self.classes.last()?];
        while nodes[node.index()].right() != NIL {
            node = nodes[node.index()].right();
        }
        Some(node)
    }

    /// Adds a chunk of `size` bytes that is in no tree.
    #[inline(always)]
    pub(super) fn insert<N: Node>(&mut self, nodes: &mut [N], id: ChunkId, size: u64) {
        let class = class_of(size);
        if self.roots[class] != NIL {
            return self.insert_below(nodes, class, id);
        }
        self.classes.insert(class);
        self.roots[class] = id;
        let here = &mut nodes[id.index()];
        (*here.left_mut(), *here.right_mut()) = (NIL, NIL);
    }

    #[cold]
    #[inline(never)]
    fn insert_below<N: Node>(&mut self, nodes: &mut [N], class: usize, id: ChunkId) {
        let key = nodes[id.index()].key();
        let (seed, priority) = (self.seed, self.seed.hash(key.1));
        let (mut node, mut link) = (self.roots[class], Link::Root(class));
        while node != NIL {
            let here = &nodes[node.index()];
            if seed.hash(here.key().1) < priority {
                break;
            }
            (node, link) = if key < here.key() {
                (here.left(), Link::Left(node))
            } else {
                (here.right(), Link::Right(node))
            };
        }
        split(nodes, node, key, id);
        self.set(nodes, link, id);
    }

    /// Removes a chunk of `size` bytes.
    #[inline(always)]
    pub(super) fn remove<N: Node>(&mut self, nodes: &mut [N], id: ChunkId, size: u64) {
        let class = class_of(size);
        if self.roots[class] != id {
            return self.remove_below(nodes, class, id);
        }
        let (left, right) = (nodes[id.index()].left(), nodes[id.index()].right());
        if left != NIL {
            return self.remove_root(nodes, class, left, right);
        }
        self.remove_least(class, right);
    }

    #[cold]
    #[inline(never)]
    fn remove_root<N: Node>(&mut self, nodes: &mut [N], class: usize, left: ChunkId, right: ChunkId) {
        self.join(nodes, Link::Root(class), left, right);
    }

    #[cold]
    #[inline(never)]
    fn remove_below<N: Node>(&mut self, nodes: &mut [N], class: usize, id: ChunkId) {
        let link = self.search(nodes, class, id);
        let (left, right) = (nodes[id.index()].left(), nodes[id.index()].right());
        self.join(nodes, link, left, right);
    }

    /// Returns the link to a chunk that is below the root of the tree of `class`.
    fn search<N: Node>(&self, nodes: &[N], class: usize, id: ChunkId) -> Link {
        let key = nodes[id.index()].key();
        let (mut node, mut link) = (self.roots[class], Link::Root(class));
        while node != id {
            let here = &nodes[node.index()];
            (node, link) = if key < here.key() {
                (here.left(), Link::Left(node))
            } else {
                (here.right(), Link::Right(node))
            };
        }
        link
    }

    /// Joins two trees into one at `link`. Every key of `low` is below every key of `high`.
    #[inline(never)]
    fn join<N: Node>(&mut self, nodes: &mut [N], mut link: Link, mut low: ChunkId, mut high: ChunkId) {
        let seed = self.seed;
        let priority = |nodes: &[N], node: ChunkId| seed.hash(nodes[node.index()].key().1);
        if low != NIL && high != NIL {
            let (mut of_low, mut of_high) = (priority(nodes, low), priority(nodes, high));
            loop {
                if of_low >= of_high {
                    self.set(nodes, link, low);
                    (link, low) = (Link::Right(low), nodes[low.index()].right());
                    if low == NIL {
                        break;
                    }
                    of_low = priority(nodes, low);
                } else {
                    self.set(nodes, link, high);
                    (link, high) = (Link::Left(high), nodes[high.index()].left());
                    if high == NIL {
                        break;
                    }
                    of_high = priority(nodes, high);
                }
            }
        }
        self.set(nodes, link, if low == NIL { high } else { low });
    }

    #[inline]
    fn set<N: Node>(&mut self, nodes: &mut [N], link: Link, to: ChunkId) {
        match link {
            Link::Root(class) => self.roots[class] = to,
            Link::Left(node) => *nodes[node.index()].left_mut() = to,
            Link::Right(node) => *nodes[node.index()].right_mut() = to,
        }
    }

    /// Returns the chunks that are not below a key, in (size, address) order.
    pub(super) fn iter_from<'a, N: Node>(
        &'a self,
        nodes: &'a [N],
        mut key: (u64, u64),
    ) -> impl Iterator<Item = ChunkId> + 'a {
        std::iter::from_fn(move || {
            let id = self.first_from(nodes, key)?;
            key = nodes[id.index()].key();
            key.1 += 1;
            Some(id)
        })
    }

    /// Returns whether a class is marked as holding a chunk, and whether it does.
    pub(super) fn class_marks(&self, class: usize) -> (bool, bool) {
        (self.classes.contains(class), self.roots[class] != NIL)
    }

    /// For tests: marks a class as holding a chunk, or not.
    #[cfg(test)]
    pub(super) fn mark(&mut self, class: usize, marked: bool) {
        if marked { self.classes.insert(class) } else { self.classes.remove(class) }
    }

    /// For tests: replaces every root by a chunk that does not exist, so that the next use of the index panics.
    #[cfg(test)]
    pub(super) fn break_roots(&mut self) {
        self.roots.fill(ChunkId(u32::MAX - 100));
    }

    /// For tests: returns the depth of the deepest tree.
    #[cfg(test)]
    pub(super) fn depth<N: Node>(&self, nodes: &[N]) -> usize {
        let mut below: Vec<(ChunkId, usize)> = self.roots.iter().map(|&root| (root, 1)).collect();
        let mut deepest = 0;
        while let Some((node, depth)) = below.pop() {
            if node != NIL {
                deepest = deepest.max(depth);
                let here = &nodes[node.index()];
                below.extend([(here.left(), depth + 1), (here.right(), depth + 1)]);
            }
        }
        deepest
    }

    /// Returns the host memory held beside the struct itself.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        size_of_val(&*self.roots) as u64
    }
}

/// Splits the tree at `node` by `key` and makes the halves the children of `id`.
fn split<N: Node>(nodes: &mut [N], mut node: ChunkId, key: (u64, u64), id: ChunkId) {
    let (mut low, mut high) = (Link::Left(id), Link::Right(id));
    while node != NIL {
        if nodes[node.index()].key() < key {
            hang(nodes, low, node);
            (low, node) = (Link::Right(node), nodes[node.index()].right());
        } else {
            hang(nodes, high, node);
            (high, node) = (Link::Left(node), nodes[node.index()].left());
        }
    }
    hang(nodes, low, NIL);
    hang(nodes, high, NIL);
}

#[inline]
fn hang<N: Node>(nodes: &mut [N], link: Link, to: ChunkId) {
    match link {
        Link::Left(node) => *nodes[node.index()].left_mut() = to,
        Link::Right(node) => *nodes[node.index()].right_mut() = to,
        Link::Root(_) => unreachable!("a split hangs its halves below a node"),
    }
}
