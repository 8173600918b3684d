//! Work that chunks wait for beside that of their own queue: the work of queues that were recorded on them.
//!
//! A recorded use is in the list of its chunk. Once the chunk is free, the recorded use is also in the list of its
//! queue, in the order of points. So a free visits only the recorded uses of its chunk, and finished work only those
//! that it ends.

use super::chunk_state::{QueueId, UseId};
use crate::core::ids::{ChunkId, NIL};
use crate::core::list::{Linked, Links, List, Number};
use crate::sys::HostMemoryExhausted;

/// Work of a queue that a chunk waits for, or will wait for once it is freed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrossStreamUse {
    /// The chunk, or [`NIL`] for a vacant place.
    pub(super) chunk: ChunkId,
    pub(super) queue: QueueId,
    /// The point up to which the queue must be done before the chunk is reusable. 0 while the chunk is in use.
    pub(super) point: u64,
    /// The next recorded use of the chunk, or the next vacant place.
    pub(super) next: UseId,
    /// The neighbours in the queue's list, in the order of points.
    pub(super) in_queue: Links<UseId>,
}

impl Linked<UseId> for CrossStreamUse {
    fn links(&self, (): ()) -> &Links<UseId> {
        &self.in_queue
    }

    fn links_mut(&mut self, (): ()) -> &mut Links<UseId> {
        &mut self.in_queue
    }
}

pub(super) struct CrossStreamUses {
    pub(super) slab: Vec<CrossStreamUse>,
    pub(super) vacant: UseId,
}

impl CrossStreamUses {
    pub(super) const fn new() -> Self {
        CrossStreamUses { slab: Vec::new(), vacant: UseId::NONE }
    }

    pub(super) fn get(&self, link: UseId) -> &CrossStreamUse {
        &self.slab[link.place()]
    }

    pub(super) fn get_mut(&mut self, link: UseId) -> &mut CrossStreamUse {
        &mut self.slab[link.place()]
    }

    /// Returns all recorded uses, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &CrossStreamUse> + '_ {
        self.slab.iter().filter(|used| used.chunk != NIL)
    }

    /// Returns the number of places, the vacant ones included.
    pub(super) fn places(&self) -> usize {
        self.slab.len()
    }

    /// Returns the recorded uses of a chunk, given the first, which the chunk's state holds.
    pub(super) fn of(&self, first: UseId) -> impl Iterator<Item = &CrossStreamUse> + '_ {
        std::iter::successors(self.look(first), |used| self.look(used.next))
    }

    /// Returns the recorded use behind another in the list of its queue.
    pub(super) fn newer_of(&self, link: UseId) -> Option<(UseId, &CrossStreamUse)> {
        let newer = self.get(link).in_queue.after;
        Some((newer, self.look(newer)?))
    }

    /// Returns the recorded uses in a queue's list, the oldest point first.
    pub(super) fn listed<'a>(
        &'a self,
        list: &List<UseId>,
    ) -> impl Iterator<Item = &'a CrossStreamUse> + use<'a> {
        list.iter(&self.slab).map(|link| self.get(link))
    }

    pub(super) fn look(&self, link: UseId) -> Option<&CrossStreamUse> {
        (link != UseId::NONE).then(|| self.get(link))
    }

    /// Puts a recorded use into a vacant place, or into a new one.
    pub(super) fn add(&mut self, new: CrossStreamUse) -> Result<UseId, HostMemoryExhausted> {
        let link = self.vacant;
        if link != UseId::NONE {
            self.vacant = self.get(link).next;
            *self.get_mut(link) = new;
            return Ok(link);
        }
        let link = UseId::at(self.slab.len())?;
        self.slab.try_reserve(1)?;
        self.slab.push(new);
        Ok(link)
    }

    pub(super) fn metadata_bytes(&self) -> u64 {
        (self.slab.capacity() * size_of::<CrossStreamUse>()) as u64
    }
}
