//! The state of each chunk that only several streams need.

use super::span_index::ByAddress;
use crate::core::ids::{ChunkId, NIL};
use crate::core::tree::Node;

/// The position of a queue in the table. A position is recycled once its queue is forgotten, or belongs to a thread,
/// and nothing refers to the queue.
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

/// No queue: every queue may use the chunk.
pub(super) const UNOWNED: QueueId = QueueId(u32::MAX);

/// The state of a chunk beside its size, once queues are told apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkStreamState {
    /// For a chunk in use, the queue it was allocated in. For a free chunk, the queue that may reuse it.
    pub(super) queue: QueueId,
    /// The first of the chunk's recorded uses, or 0. For a chunk in use, these are the queues recorded on it. For a
    /// free chunk, they are those of these queues that it still waits for.
    pub(super) uses: u32,
    /// The queue's point when the chunk was freed.
    pub(super) point: u64,
    /// The chunk's neighbours among the queue's free chunks, in the order of points.
    pub(super) older: ChunkId,
    pub(super) newer: ChunkId,
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
        debug_assert!(self.uses == 0 && !self.is_head());
        self.queue = queue;
    }

    /// Ends the chunk's membership in its queue. The chunk waits for nothing and is in no list and no free span.
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
