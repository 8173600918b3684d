//! What is known of each chunk once streams are told apart.

use super::span_index::ByAddress;
use crate::core::ids::{ChunkId, NIL};
use crate::core::tree::Node;

/// A queue's place in the table. Recycled once a queue is forgotten, or is a thread's, and nothing of it is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueId(pub(super) u32);

impl QueueId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }
}

/// No queue: whoever asks may have the chunk.
pub(super) const UNOWNED: QueueId = QueueId(u32::MAX);

/// What is known of a chunk beside its size, once queues are told apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkStreamState {
    /// In use: where it was allocated. Free: who may have it.
    pub(super) queue: QueueId,
    /// The first in the list of its uses, or 0. In use: queues that were recorded on it. Free: those of them that it
    /// still waits for.
    pub(super) uses: u32,
    /// The queue's point when it was freed.
    pub(super) point: u64,
    /// Its neighbours among the queue's free chunks in the order of points.
    pub(super) older: ChunkId,
    pub(super) newer: ChunkId,
    /// The free span that begins here, if this is the first chunk of a queue's in one; else of 0 bytes.
    pub(super) span: Extent,
    /// Its links in the order of sizes, and those of a long free span in the order of addresses.
    by_size: [ChunkId; 2],
    by_address: [ChunkId; 2],
}

/// Where a free span is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    pub(super) addr: u64,
    pub(super) bytes: u64,
    /// The queue's own chunks in it at most.
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
        let (older, newer, links) = (NIL, NIL, [NIL; 2]);
        ChunkStreamState {
            queue,
            uses: 0,
            point,
            older,
            newer,
            span: Extent::NONE,
            by_size: links,
            by_address: links,
        }
    }

    /// Whether it is the first of its queue's in a free span.
    #[inline(always)]
    pub(super) fn is_head(&self) -> bool {
        self.span.bytes != 0
    }

    /// The free span's bytes and address.
    #[inline(always)]
    pub(super) fn span_key(&self) -> (u64, u64) {
        (self.span.bytes, self.span.addr)
    }

    /// Of a chunk that waits for nothing and is in no list and no run: it is nobody's any more.
    #[inline(always)]
    pub(super) fn leave_queue(&mut self) {
        debug_assert!(self.uses == 0 && !self.is_head());
        self.queue = UNOWNED;
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
