//! The free chunks, ordered by (size, address): exact best fit.
//!
//! One treap (Seidel and Aragon, 1996) for each size class, linked through the chunks themselves, so
//! that a free never needs memory. Priorities are a hash of the chunk's place in the slab and are stored
//! nowhere. Real programs have about a hundred free chunks of nearly as many sizes: most trees are one
//! chunk. Many chunks of one size make one deep tree, O(log n) as `std::set` has it.
//!
//! ```text
//!   classes   . . # . # # . .      a bit for each class with a chunk
//!   roots         |   | |
//!                 c   c c          left: smaller (size, address)
//!                    / \
//!                   c   c
//! ```

use super::chunks::{ChunkId, Hot, NIL};
use super::classes::{CLASSES, ClassSet, class_of};
use crate::sys::HostMemoryExhausted;

pub(crate) struct FreeIndex {
    roots: Box<[ChunkId; CLASSES]>,
    classes: ClassSet,
}

/// The link that leads to a node.
#[derive(Clone, Copy)]
enum Link {
    Root(usize),
    Left(ChunkId),
    Right(ChunkId),
}

impl FreeIndex {
    pub(super) fn new() -> Result<Self, HostMemoryExhausted> {
        let mut roots = Vec::new();
        roots.try_reserve_exact(CLASSES)?;
        roots.resize(CLASSES, NIL);
        // The capacity is exact, so neither step allocates.
        let roots = roots.into_boxed_slice().try_into().map_err(|_| HostMemoryExhausted)?;
        Ok(FreeIndex { roots, classes: ClassSet::new() })
    }

    /// The smallest chunk of at least `size` bytes, the lowest address among equals, with its class.
    #[inline(always)]
    pub(super) fn best_fit(&self, slab: &[Hot], size: u64) -> Option<(ChunkId, usize)> {
        let class = class_of(size);
        let first = self.classes.first_from(class)?;
        let root = self.roots[first];
        let hot = &slab[root];
        // Nearly always: the least of its class, and if that is the request's own, large enough.
        if hot.left == NIL && hot.size() >= size {
            return Some((root, first));
        }
        self.best_fit_below(slab, class, size)
    }

    #[inline(never)]
    fn best_fit_below(&self, slab: &[Hot], class: usize, size: u64) -> Option<(ChunkId, usize)> {
        let found = self.first_in(slab, class, (size, 0));
        if found != NIL {
            return Some((found, class));
        }
        let class = self.classes.next_after(class)?;
        Some((self.first_of(slab, class), class))
    }

    /// The chunk that follows one with `key` in (size, address) order.
    pub(super) fn following(&self, slab: &[Hot], key: (u64, u64)) -> Option<ChunkId> {
        self.first_from(slab, (key.0, key.1 + 1))
    }

    /// The first chunk of at least `size` bytes.
    pub(super) fn first_of_size(&self, slab: &[Hot], size: u64) -> Option<ChunkId> {
        self.first_from(slab, (size, 0))
    }

    fn first_from(&self, slab: &[Hot], key: (u64, u64)) -> Option<ChunkId> {
        let class = class_of(key.0);
        let found = self.first_in(slab, class, key);
        if found == NIL { self.first_after(slab, class) } else { Some(found) }
    }

    /// The first chunk of a class that is not below `key`, or [`NIL`].
    fn first_in(&self, slab: &[Hot], class: usize, key: (u64, u64)) -> ChunkId {
        let mut node = self.roots[class];
        let mut best = NIL;
        while node != NIL {
            let hot = &slab[node];
            if hot.key() >= key {
                best = node;
                node = hot.left;
            } else {
                node = hot.right;
            }
        }
        best
    }

    /// The first chunk of the classes behind one.
    fn first_after(&self, slab: &[Hot], class: usize) -> Option<ChunkId> {
        Some(self.first_of(slab, self.classes.next_after(class)?))
    }

    /// The first chunk of a class that has one.
    fn first_of(&self, slab: &[Hot], class: usize) -> ChunkId {
        let mut node = self.roots[class];
        loop {
            let left = slab[node].left;
            if left == NIL {
                return node;
            }
            node = left;
        }
    }

    /// The largest chunk.
    pub(super) fn largest(&self, slab: &[Hot]) -> Option<ChunkId> {
        let mut node = self.roots[self.classes.last()?];
        while slab[node].right != NIL {
            node = slab[node].right;
        }
        Some(node)
    }

    /// Adds a chunk of `size` bytes that is in no tree.
    #[inline(always)]
    pub(super) fn insert(&mut self, slab: &mut [Hot], id: ChunkId, size: u64) {
        let class = class_of(size);
        if self.roots[class] != NIL {
            return self.insert_below(slab, class, id);
        }
        self.classes.insert(class);
        self.roots[class] = id;
        let hot = &mut slab[id];
        (hot.left, hot.right) = (NIL, NIL);
    }

    #[inline(never)]
    fn insert_below(&mut self, slab: &mut [Hot], class: usize, id: ChunkId) {
        let (key, priority) = (slab[id].key(), priority(id));
        let (mut node, mut link) = (self.roots[class], Link::Root(class));
        while node != NIL && self::priority(node) >= priority {
            let hot = &slab[node];
            (node, link) =
                if key < hot.key() { (hot.left, Link::Left(node)) } else { (hot.right, Link::Right(node)) };
        }
        split(slab, node, key, id);
        self.set(slab, link, id);
    }

    /// Removes a chunk of `size` bytes.
    #[inline(always)]
    pub(super) fn remove(&mut self, slab: &mut [Hot], id: ChunkId, size: u64) {
        self.remove_from(slab, class_of(size), id);
    }

    /// Removes a chunk from its class.
    #[inline(always)]
    pub(super) fn remove_from(&mut self, slab: &mut [Hot], class: usize, id: ChunkId) {
        if self.roots[class] != id {
            return self.remove_below(slab, class, id);
        }
        let Hot { left, right, .. } = slab[id];
        // Nearly always the root is alone.
        if left == NIL && right == NIL {
            self.roots[class] = NIL;
            return self.classes.remove(class);
        }
        self.join(slab, Link::Root(class), left, right);
    }

    #[inline(never)]
    fn remove_below(&mut self, slab: &mut [Hot], class: usize, id: ChunkId) {
        let link = self.search(slab, class, id);
        let Hot { left, right, .. } = slab[id];
        self.join(slab, link, left, right);
    }

    /// The link to a chunk that is in the tree of `class` below its root.
    fn search(&self, slab: &[Hot], class: usize, id: ChunkId) -> Link {
        let key = slab[id].key();
        let (mut node, mut link) = (self.roots[class], Link::Root(class));
        while node != id {
            let hot = &slab[node];
            (node, link) =
                if key < hot.key() { (hot.left, Link::Left(node)) } else { (hot.right, Link::Right(node)) };
        }
        link
    }

    /// Hangs two trees, every key of the first below every key of the second, under `link` as one.
    #[inline(never)]
    fn join(&mut self, slab: &mut [Hot], mut link: Link, mut low: ChunkId, mut high: ChunkId) {
        while low != NIL && high != NIL {
            if priority(low) >= priority(high) {
                self.set(slab, link, low);
                (link, low) = (Link::Right(low), slab[low].right);
            } else {
                self.set(slab, link, high);
                (link, high) = (Link::Left(high), slab[high].left);
            }
        }
        self.set(slab, link, if low == NIL { high } else { low });
    }

    #[inline]
    fn set(&mut self, slab: &mut [Hot], link: Link, to: ChunkId) {
        match link {
            Link::Root(class) => self.roots[class] = to,
            Link::Left(node) => slab[node].left = to,
            Link::Right(node) => slab[node].right = to,
        }
    }

    /// Every chunk of the index, in (size, address) order.
    pub(super) fn iter<'a>(&'a self, slab: &'a [Hot]) -> impl Iterator<Item = ChunkId> + 'a {
        let mut key = (super::units::UNIT, 0);
        std::iter::from_fn(move || {
            let id = self.first_from(slab, key)?;
            key = slab[id].key();
            key.1 += 1;
            Some(id)
        })
    }

    /// Whether a class is marked as holding a chunk, and whether it does.
    pub(super) fn class_marks(&self, class: usize) -> (bool, bool) {
        (self.classes.contains(class), self.roots[class] != NIL)
    }

    /// For tests: marks a class as holding a chunk, or not.
    #[cfg(test)]
    pub(super) fn mark(&mut self, class: usize, marked: bool) {
        if marked { self.classes.insert(class) } else { self.classes.remove(class) }
    }

    /// Host memory beside the struct itself.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        size_of_val(&*self.roots) as u64
    }
}

/// Divides the tree at `node` by `key` and hangs the halves under `id`.
fn split(slab: &mut [Hot], mut node: ChunkId, key: (u64, u64), id: ChunkId) {
    let (mut low, mut high) = (Link::Left(id), Link::Right(id));
    while node != NIL {
        if slab[node].key() < key {
            hang(slab, low, node);
            (low, node) = (Link::Right(node), slab[node].right);
        } else {
            hang(slab, high, node);
            (high, node) = (Link::Left(node), slab[node].left);
        }
    }
    hang(slab, low, NIL);
    hang(slab, high, NIL);
}

#[inline]
fn hang(slab: &mut [Hot], link: Link, to: ChunkId) {
    match link {
        Link::Left(node) => slab[node].left = to,
        Link::Right(node) => slab[node].right = to,
        Link::Root(_) => unreachable!("a split hangs its halves below a node"),
    }
}

/// Mixes the bits of a place (the finalizer of MurmurHash3): neighbours in the slab are neighbours in
/// memory, and their priorities must not be in order.
#[inline]
fn priority(id: ChunkId) -> u32 {
    let mut bits = id.0;
    bits = (bits ^ (bits >> 16)).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ (bits >> 13)).wrapping_mul(0xc2b2_ae35);
    bits ^ (bits >> 16)
}
