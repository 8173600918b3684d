//! The state of each chunk that only several streams need, and the uses of other queues that are recorded on chunks.
//!
//! A recorded use is in the list of its chunk. Once the chunk is free, the recorded use is also in the list of its
//! queue, in the order of points. So a free visits only the recorded uses of its chunk, and finished work only those
//! that it ends.

use super::span_index::ByAddress;
use crate::ids::{ChunkId, NIL};
use crate::list::{Linked, Links, List, Number};
use crate::tree::Node;
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// The position of a queue in the table. A position is recycled once its queue is forgotten, or belongs to a thread,
/// and nothing refers to the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueId(pub(super) u32);

impl QueueId {
    /// Returns the number of the queue, from 0.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// No queue: every queue may use the chunk.
pub(super) const UNOWNED: QueueId = QueueId(u32::MAX);

impl Number for QueueId {
    const NONE: Self = UNOWNED;

    #[inline(always)]
    fn place(self) -> usize {
        self.index()
    }
}

/// The number of a recorded use: its place plus one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct UseId(u32);

impl UseId {
    pub(super) const NONE: Self = UseId(0);

    /// Returns the number of the use at a place.
    pub(super) fn at(place: usize) -> Result<Self, HostMemoryExhausted> {
        u32::try_from(place + 1).map(UseId).map_err(|_| HostMemoryExhausted)
    }
}

impl Number for UseId {
    const NONE: Self = UseId::NONE;

    #[inline]
    fn place(self) -> usize {
        self.0 as usize - 1
    }
}

/// The state of a chunk beside its size, once queues are told apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkStreamState {
    /// For a chunk in use, the queue it was allocated in. For a free chunk, the queue that may reuse it.
    pub(super) queue: QueueId,
    /// The first of the chunk's recorded uses, or none. For a chunk in use, these are the queues recorded on it. For a
    /// free chunk, they are those of these queues that it still waits for.
    pub(super) uses: UseId,
    /// The queue's point when the chunk was freed.
    pub(super) point: u64,
    /// The chunk's neighbours among the queue's free chunks, in the order of points.
    by_point: Links<ChunkId>,
    /// The free span that begins here, if this is the first own chunk of a queue in it. Otherwise its size is 0.
    pub(super) span: Extent,
    /// Links in the order of sizes, and for a long free span those in the order of addresses.
    by_size: [ChunkId; 2],
    by_address: [ChunkId; 2],
}

/// The location of a free span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) addr: u64,
    pub(super) bytes: u64,
    /// An upper bound for the number of the queue's own chunks in it.
    pub(super) chunks: u32,
}

impl Extent {
    pub(super) const NONE: Self = Extent { addr: 0, bytes: 0, chunks: 0 };

    pub(super) fn contains(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.addr) < self.bytes
    }
}

impl ChunkStreamState {
    pub(super) fn new(queue: QueueId, point: u64) -> Self {
        ChunkStreamState {
            queue,
            uses: UseId::NONE,
            point,
            by_point: Links::NONE,
            span: Extent::NONE,
            by_size: [NIL; 2],
            by_address: [NIL; 2],
        }
    }

    /// Returns whether uses of other queues are recorded on a chunk in use, or waited for by a free one.
    #[inline(always)]
    pub(super) fn has_uses(&self) -> bool {
        self.uses != UseId::NONE
    }

    /// Returns whether the chunk is the first of its queue's own chunks in a free span.
    #[inline(always)]
    pub(super) fn is_head(&self) -> bool {
        self.span.bytes != 0
    }

    /// Returns the free span's bytes and address.
    #[inline(always)]
    pub(super) fn span_key(&self) -> (u64, u64) {
        (self.span.bytes, self.span.addr)
    }

    /// Makes a new chunk in use a queue's.
    #[inline(always)]
    pub(super) fn enter_queue(&mut self, queue: QueueId) {
        debug_assert!(!self.has_uses() && !self.is_head());
        self.queue = queue;
    }

    /// Ends the chunk's membership in its queue. The chunk waits for nothing and is in no list and no free span.
    #[inline(always)]
    pub(super) fn leave_queue(&mut self) {
        debug_assert!(!self.has_uses() && !self.is_head());
        self.queue = UNOWNED;
    }
}

impl Linked<ChunkId> for ChunkStreamState {
    #[inline(always)]
    fn links(&self, (): ()) -> &Links<ChunkId> {
        &self.by_point
    }

    #[inline(always)]
    fn links_mut(&mut self, (): ()) -> &mut Links<ChunkId> {
        &mut self.by_point
    }
}

impl Node for ChunkStreamState {
    fn key(&self) -> (u64, u64) {
        self.span_key()
    }

    fn left(&self) -> ChunkId {
        self.by_size[0]
    }

    fn right(&self) -> ChunkId {
        self.by_size[1]
    }

    fn left_mut(&mut self) -> &mut ChunkId {
        &mut self.by_size[0]
    }

    fn right_mut(&mut self) -> &mut ChunkId {
        &mut self.by_size[1]
    }
}

impl Node<ByAddress> for ChunkStreamState {
    fn key(&self) -> (u64, u64) {
        (self.span.addr, 0)
    }

    fn left(&self) -> ChunkId {
        self.by_address[0]
    }

    fn right(&self) -> ChunkId {
        self.by_address[1]
    }

    fn left_mut(&mut self) -> &mut ChunkId {
        &mut self.by_address[0]
    }

    fn right_mut(&mut self) -> &mut ChunkId {
        &mut self.by_address[1]
    }
}

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
        core::iter::successors(self.look(first), |used| self.look(used.next))
    }

    /// Returns the recorded use after another in the list of its queue.
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
