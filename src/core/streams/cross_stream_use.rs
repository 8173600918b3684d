//! What chunks wait for beside the work of their own queue: work of the queues that were recorded on them.
//!
//! A use is in the list of its chunk, and once the chunk is free also in that of its queue, in the order of points.
//! So a free looks at the uses of its chunk only, and work that is done at those it ends.

use super::chunk_state::QueueId;
use crate::core::ids::{ChunkId, NIL};
use crate::sys::HostMemoryExhausted;

/// Work of a queue that a chunk waits for, or will when it is freed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrossStreamUse {
    /// [`NIL`]: a vacant place.
    pub(super) chunk: ChunkId,
    pub(super) queue: QueueId,
    /// Not before this is done; 0 while the chunk is in use.
    pub(super) point: u64,
    /// The next one of the chunk, or the next vacant place.
    pub(super) next: Link,
    /// Its neighbours in the queue's list.
    pub(super) older: Link,
    pub(super) newer: Link,
}

/// A place and one; 0 is none.
pub(super) type Link = u32;

pub(super) struct CrossStreamUses {
    pub(super) slab: Vec<CrossStreamUse>,
    pub(super) vacant: Link,
}

impl CrossStreamUses {
    pub(super) const fn new() -> Self {
        CrossStreamUses { slab: Vec::new(), vacant: 0 }
    }

    pub(super) fn get(&self, link: Link) -> &CrossStreamUse {
        &self.slab[link as usize - 1]
    }

    pub(super) fn get_mut(&mut self, link: Link) -> &mut CrossStreamUse {
        &mut self.slab[link as usize - 1]
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &CrossStreamUse> + '_ {
        self.slab.iter().filter(|used| used.chunk != NIL)
    }

    /// How many places there are, the vacant ones included.
    pub(super) fn places(&self) -> usize {
        self.slab.len()
    }

    /// Those of a chunk, whose state has the first.
    pub(super) fn of(&self, first: Link) -> impl Iterator<Item = &CrossStreamUse> + '_ {
        std::iter::successors(self.look(first), |used| self.look(used.next))
    }

    /// The one behind a use in the list of its queue.
    pub(super) fn newer_of(&self, link: Link) -> Option<(Link, &CrossStreamUse)> {
        let newer = self.get(link).newer;
        Some((newer, self.look(newer)?))
    }

    /// Those that free chunks wait for of a queue, whose entry has the oldest.
    pub(super) fn behind_oldest(&self, oldest: Link) -> impl Iterator<Item = &CrossStreamUse> + '_ {
        std::iter::successors(self.look(oldest), |used| self.look(used.newer))
    }

    pub(super) fn look(&self, link: Link) -> Option<&CrossStreamUse> {
        (link != 0).then(|| self.get(link))
    }

    /// Puts a use into a vacant place, or a new one.
    pub(super) fn add(&mut self, new: CrossStreamUse) -> Result<Link, HostMemoryExhausted> {
        let link = self.vacant;
        if link != 0 {
            self.vacant = self.get(link).next;
            *self.get_mut(link) = new;
            return Ok(link);
        }
        let link = Link::try_from(self.slab.len() + 1).map_err(|_| HostMemoryExhausted)?;
        self.slab.try_reserve(1)?;
        self.slab.push(new);
        Ok(link)
    }

    pub(super) fn metadata_bytes(&self) -> u64 {
        (self.slab.capacity() * size_of::<CrossStreamUse>()) as u64
    }
}
