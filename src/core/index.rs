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

use super::chunks::{ChunkId, Chunks, NIL};
use super::classes::{CLASSES, ClassSet, class_of};
use crate::sys::HostMemoryExhausted;

pub(crate) struct FreeIndex {
    roots: Vec<ChunkId>,
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
        Ok(FreeIndex { roots, classes: ClassSet::new() })
    }

    /// The smallest chunk of at least `size` bytes, the lowest address among equals.
    #[inline]
    pub(crate) fn best_fit(&self, chunks: &Chunks, size: u64) -> Option<ChunkId> {
        self.first_from(chunks, (size, 0))
    }

    /// The chunk that follows one with `key` in (size, address) order.
    pub(crate) fn following(&self, chunks: &Chunks, key: (u64, u64)) -> Option<ChunkId> {
        self.first_from(chunks, (key.0, key.1 + 1))
    }

    #[inline]
    fn first_from(&self, chunks: &Chunks, key: (u64, u64)) -> Option<ChunkId> {
        let class = class_of(key.0);
        let mut node = self.roots[class];
        let mut best = NIL;
        while node != NIL {
            if chunks.key(node) >= key {
                best = node;
                node = chunks.left(node);
            } else {
                node = chunks.right(node);
            }
        }
        if best != NIL {
            return Some(best);
        }
        let mut node = self.roots[self.classes.next_after(class)?];
        loop {
            let left = chunks.left(node);
            if left == NIL {
                return Some(node);
            }
            node = left;
        }
    }

    /// The largest chunk.
    pub(crate) fn largest(&self, chunks: &Chunks) -> Option<ChunkId> {
        let mut node = self.roots[self.classes.last()?];
        while chunks.right(node) != NIL {
            node = chunks.right(node);
        }
        Some(node)
    }

    #[inline]
    pub(super) fn insert(&mut self, chunks: &mut Chunks, id: ChunkId) {
        let key = chunks.key(id);
        let class = class_of(key.0);
        let mut link = Link::Root(class);
        let mut node = self.roots[class];
        if node == NIL {
            self.classes.insert(class);
        } else {
            let priority = priority(id);
            while node != NIL && self::priority(node) >= priority {
                if key < chunks.key(node) {
                    link = Link::Left(node);
                    node = chunks.left(node);
                } else {
                    link = Link::Right(node);
                    node = chunks.right(node);
                }
            }
        }
        split(chunks, node, key, id);
        self.set(chunks, link, id);
    }

    #[inline]
    pub(super) fn remove(&mut self, chunks: &mut Chunks, id: ChunkId) {
        let key = chunks.key(id);
        let class = class_of(key.0);
        let mut link = Link::Root(class);
        let mut node = self.roots[class];
        while node != id {
            if key < chunks.key(node) {
                link = Link::Left(node);
                node = chunks.left(node);
            } else {
                link = Link::Right(node);
                node = chunks.right(node);
            }
        }
        self.join(chunks, link, chunks.left(id), chunks.right(id));
        if self.roots[class] == NIL {
            self.classes.remove(class);
        }
    }

    /// Hangs two trees, every key of the first below every key of the second, under `link` as one.
    #[inline]
    fn join(&mut self, chunks: &mut Chunks, mut link: Link, mut low: ChunkId, mut high: ChunkId) {
        loop {
            if low == NIL || high == NIL {
                let rest = if low == NIL { high } else { low };
                return self.set(chunks, link, rest);
            }
            if priority(low) >= priority(high) {
                self.set(chunks, link, low);
                link = Link::Right(low);
                low = chunks.right(low);
            } else {
                self.set(chunks, link, high);
                link = Link::Left(high);
                high = chunks.left(high);
            }
        }
    }

    #[inline]
    fn set(&mut self, chunks: &mut Chunks, link: Link, to: ChunkId) {
        match link {
            Link::Root(class) => self.roots[class] = to,
            Link::Left(node) => chunks.set_left(node, to),
            Link::Right(node) => chunks.set_right(node, to),
        }
    }

    /// Every chunk of the index, in (size, address) order.
    pub(crate) fn iter<'a>(&'a self, chunks: &'a Chunks) -> impl Iterator<Item = ChunkId> + 'a {
        let mut key = (super::units::UNIT, 0);
        std::iter::from_fn(move || {
            let id = self.first_from(chunks, key)?;
            key = chunks.key(id);
            key.1 += 1;
            Some(id)
        })
    }

    /// Whether the class of `size` is marked as holding a chunk, and whether it does.
    pub(super) fn class_marks(&self, class: usize) -> (bool, bool) {
        (self.classes.contains(class), self.roots[class] != NIL)
    }

    pub(crate) fn metadata_bytes(&self) -> u64 {
        (self.roots.capacity() * size_of::<ChunkId>() + size_of::<ClassSet>()) as u64
    }
}

/// Divides the tree at `node` by `key` and hangs the halves under `id`.
#[inline]
fn split(chunks: &mut Chunks, mut node: ChunkId, key: (u64, u64), id: ChunkId) {
    let (mut low, mut high) = (Link::Left(id), Link::Right(id));
    while node != NIL {
        if chunks.key(node) < key {
            hang(chunks, low, node);
            low = Link::Right(node);
            node = chunks.right(node);
        } else {
            hang(chunks, high, node);
            high = Link::Left(node);
            node = chunks.left(node);
        }
    }
    hang(chunks, low, NIL);
    hang(chunks, high, NIL);
}

#[inline]
fn hang(chunks: &mut Chunks, link: Link, to: ChunkId) {
    match link {
        Link::Left(node) => chunks.set_left(node, to),
        Link::Right(node) => chunks.set_right(node, to),
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
