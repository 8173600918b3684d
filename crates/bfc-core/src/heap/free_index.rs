//! Free chunks ordered by (size, address), for exact best fit.
//!
//! Each size class is an [`Ordered`] set, linked through the chunks themselves, so that a free never needs memory. Real
//! programs have about a hundred free chunks of nearly as many sizes, so most sets are one chunk.
//!
//! ```text
//!   classes   . . # . # # . .      a bit for each class with a chunk
//!   tops          |   | |
//!                 c   c c-c-c      larger (size, address) to the right
//! ```

use super::chunk::Hot;
use super::size_classes::{CLASSES, ClassSet, LARGE, SMALL, class_of};
use crate::ids::{ChunkId, NIL};
use crate::ordered::Ordered;
use crate::seed::Seed;
use alloc::boxed::Box;
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

pub(crate) struct FreeIndex {
    classes: ClassSet,
    tables: Tables,
    seed: Seed,
    /// Small requests take no chunk of this class or a larger one. [`CLASSES`] is none.
    large_from: usize,
}

/// The set of each class in its two parts: mostly only the first is needed, and then half as many cache lines are.
pub(super) struct Tables {
    /// [`NIL`] where there is no chunk.
    tops: Box<[ChunkId; CLASSES]>,
    lengths: Box<[u8; CLASSES]>,
}

impl Tables {
    pub(super) fn new() -> Result<Self, HostMemoryExhausted> {
        Ok(Tables { tops: table(NIL)?, lengths: table(0)? })
    }
}

fn table<T: Copy>(content: T) -> Result<Box<[T; CLASSES]>, HostMemoryExhausted> {
    let mut table = Vec::new();
    table.try_reserve_exact(CLASSES)?;
    table.resize(CLASSES, content);
    // The capacity is exact, so neither step allocates.
    table.into_boxed_slice().try_into().map_err(|_| HostMemoryExhausted)
}

impl FreeIndex {
    #[inline(always)]
    pub(super) fn with(tables: Tables, seed: u64) -> Self {
        FreeIndex { classes: ClassSet::new(), tables, seed: Seed::new(seed), large_from: CLASSES }
    }

    /// Sets the lowest class that small requests take no chunk of. Returns the previous one.
    pub(super) fn set_large_from(&mut self, class: usize) -> usize {
        core::mem::replace(&mut self.large_from, class)
    }

    /// Returns whether a request of `size` bytes does not take a chunk of `bytes` bytes.
    #[inline(always)]
    pub(super) fn spares(&self, size: u64, bytes: u64) -> bool {
        bytes >= LARGE && size <= SMALL && self.large_from != CLASSES
    }

    /// Forgets all chunks.
    pub(super) fn clear(&mut self) {
        self.tables.tops.fill(NIL);
        self.classes = ClassSet::new();
    }

    /// Returns the smallest chunk of at least `size` bytes, at the lowest address among equals.
    #[inline(always)]
    pub(super) fn best_fit(&self, slab: &[Hot], size: u64) -> Option<ChunkId> {
        let top = self.tables.tops[self.classes.first_from(class_of(size))?];
        // Nearly always the top is the smallest of its class. In the request's own class it must also be large enough.
        let here = &slab[top];
        if here.left == NIL && here.size() >= size {
            return Some(top);
        }
        self.best_fit_below(slab, size)
    }

    #[cold]
    #[inline(never)]
    fn best_fit_below(&self, slab: &[Hot], size: u64) -> Option<ChunkId> {
        self.first_from(slab, (size, 0))
    }

    /// Removes the smallest chunk of at least `size` bytes, at the lowest address among equals, and returns it. Returns
    /// `None` if there is none, or if a small request would get a large one.
    #[inline(always)]
    pub(super) fn take_best_fit(&mut self, slab: &mut [Hot], size: u64) -> Option<ChunkId> {
        let class = self.classes.first_from(class_of(size))?;
        if class >= self.large_from && size <= SMALL {
            return None;
        }
        let top = self.tables.tops[class];
        let here = &slab[top];
        if here.left != NIL || here.size() < size {
            return self.take_best_fit_below(slab, size);
        }
        // Nearly always the top is the only chunk of its class.
        if here.right == NIL {
            self.empty(class);
        } else {
            self.remove_among(slab, class, top);
        }
        Some(top)
    }

    #[inline(never)]
    fn take_best_fit_below(&mut self, slab: &mut [Hot], size: u64) -> Option<ChunkId> {
        let id = self.first_from(slab, (size, 0))?;
        let whole = slab[id].size();
        // The request's own class may have only smaller chunks.
        if self.spares(size, whole) {
            return None;
        }
        self.remove(slab, id, whole);
        Some(id)
    }

    /// Removes the only chunk of a class.
    #[inline(always)]
    fn empty(&mut self, class: usize) {
        self.tables.tops[class] = NIL;
        self.classes.remove(class);
    }

    /// Returns the first chunk that is not below `key`.
    pub(super) fn first_from(&self, slab: &[Hot], key: (u64, u64)) -> Option<ChunkId> {
        let class = class_of(key.0);
        let found = self.set(class).first_from(slab, key);
        if found != NIL {
            return Some(found);
        }
        let class = self.classes.next_after(class)?;
        Some(self.set(class).first_from(slab, (0, 0)))
    }

    /// Returns the largest chunk.
    pub(super) fn largest(&self, slab: &[Hot]) -> Option<ChunkId> {
        Some(self.set(self.classes.last()?).last(slab))
    }

    /// Adds a chunk of `size` bytes that is in no class.
    #[inline(always)]
    pub(super) fn insert(&mut self, slab: &mut [Hot], id: ChunkId, size: u64) {
        let class = class_of(size);
        if self.tables.tops[class] != NIL {
            return self.insert_among(slab, class, id);
        }
        self.classes.insert(class);
        self.tables.tops[class] = id;
        (slab[id].left, slab[id].right) = (NIL, NIL);
    }

    /// Adds a chunk to a class that is not empty.
    #[inline(never)]
    fn insert_among(&mut self, slab: &mut [Hot], class: usize, id: ChunkId) {
        let mut set = self.set(class);
        set.insert(slab, self.seed, id);
        self.store_set(class, set);
    }

    /// Removes a chunk of `size` bytes.
    #[inline(always)]
    pub(super) fn remove(&mut self, slab: &mut [Hot], id: ChunkId, size: u64) {
        let class = class_of(size);
        let Hot { left, right, .. } = slab[id];
        if left == NIL && right == NIL && self.tables.tops[class] == id {
            return self.empty(class);
        }
        self.remove_among(slab, class, id);
    }

    /// Removes a chunk of a class that has more of them.
    #[inline(never)]
    fn remove_among(&mut self, slab: &mut [Hot], class: usize, id: ChunkId) {
        let mut set = self.set(class);
        set.remove(slab, self.seed, id);
        self.store_set(class, set);
    }

    #[inline(always)]
    fn set(&self, class: usize) -> Ordered {
        Ordered::of(self.tables.tops[class], self.tables.lengths[class])
    }

    #[inline(always)]
    fn store_set(&mut self, class: usize, set: Ordered) {
        (self.tables.tops[class], self.tables.lengths[class]) = set.parts();
    }

    /// Returns the chunks that are not below a key, in (size, address) order.
    pub(super) fn iter_from<'a>(
        &'a self,
        slab: &'a [Hot],
        mut key: (u64, u64),
    ) -> impl Iterator<Item = ChunkId> + 'a {
        core::iter::from_fn(move || {
            let id = self.first_from(slab, key)?;
            key = slab[id].key();
            key.1 += 1;
            Some(id)
        })
    }

    /// Returns whether a class is marked as holding a chunk exactly if it does, and whether its list is sound.
    pub(super) fn is_sound(&self, slab: &[Hot], class: usize) -> bool {
        let set = self.set(class);
        self.classes.contains(class) != set.is_empty() && set.is_sound(slab)
    }

    /// For tests: marks a class as holding a chunk, or not.
    #[cfg(test)]
    pub(super) fn mark(&mut self, class: usize, marked: bool) {
        if marked { self.classes.insert(class) } else { self.classes.remove(class) }
    }

    /// For tests: replaces every top by a chunk that does not exist, so that the next use of the index panics.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn break_tops(&mut self) {
        self.tables.tops.fill(ChunkId(u32::MAX - 100));
    }

    /// For tests: returns the depth of the deepest tree.
    #[cfg(test)]
    pub(super) fn depth(&self, slab: &[Hot]) -> usize {
        let mut below: Vec<(ChunkId, usize)> =
            (0..CLASSES).map(|class| (self.set(class).root(), 1)).collect();
        let mut deepest = 0;
        while let Some((node, depth)) = below.pop() {
            if node != NIL {
                deepest = deepest.max(depth);
                below.extend([(slab[node].left, depth + 1), (slab[node].right, depth + 1)]);
            }
        }
        deepest
    }

    /// Returns the host memory held beside the struct itself.
    pub fn metadata_bytes(&self) -> u64 {
        let Tables { tops, lengths } = &self.tables;
        (size_of_val(&**tops) + size_of_val(&**lengths)) as u64
    }
}
