//! One queue: its points, the list of its free chunks, the index of its free spans.
//!
//! The list and the index are linked through the chunk states, which all queues share.

use super::chunk_state::{ChunkStreamState, Extent, QueueId, UNOWNED, UseId};
use super::span_index::{ByAddress, SpanIndex};
use crate::heap::Hot;
use crate::ids::{ChunkId, NIL};
use crate::list::{Linked, Links, List};
use crate::seed::Seed;
use crate::steps;
use crate::stream_id::Stream;
use crate::tree::Node;
use crate::tree::Tree;

/// The lists of queues.
#[derive(Clone, Copy)]
pub(super) enum QueueList {
    /// Queues whose work is not known to be done, whether memory waits for it or not.
    Unfinished,
    /// Queues with finished work. Chunks that waited for it may remain to be shared.
    Sharing,
    /// Queues whose positions may be reused for another stream, once nothing refers to them.
    Recyclable,
}

impl QueueList {
    pub(super) const ALL: [Self; 3] = [QueueList::Unfinished, QueueList::Sharing, QueueList::Recyclable];
}

/// The links of a queue that is not in a list. No queue has this number.
pub(super) const NOT_IN: Links<QueueId> = Links { before: QueueId(u32::MAX - 1), after: UNOWNED };

pub(super) struct StreamQueue {
    pub(super) stream: Stream,
    /// The point of the last free.
    pub(super) point: u64,
    /// The point up to which the queue is done: all work queued before the frees up to it.
    pub(super) done: u64,
    /// The queue's free chunks that wait for nothing else, the oldest point first.
    pub(super) own: List<ChunkId>,
    /// The chunk inserted last that was not the newest. Chunks with such points come in order.
    pub(super) last_inserted: ChunkId,
    /// The recorded uses through which free chunks wait for this queue's work, the oldest point first.
    pub(super) uses: List<UseId>,
    /// The free spans of the queue, each with at least one chunk of its own.
    pub(super) spans: SpanIndex,
    /// The free spans that may have more than [`LONG`] own chunks. They are found by the address of any of their
    /// chunks.
    long_spans: Tree<ByAddress>,
    /// The seed of both indices.
    seed: Seed,
    /// The head of the free span that was linked last.
    recent: ChunkId,
    /// The number of chunks in use that were allocated here, of uses recorded here, of the queue's free chunks that
    /// wait for other queues, and of chunks that a plan of granules held when they became the queue's.
    pub(super) live: u64,
    /// How many of them are not due to a chunk in use.
    pub(super) waiting: u64,
    /// How many of the waiting ones are recorded uses.
    pub(super) waiting_uses: u64,
    /// The queue's stream is about to end, or has ended.
    pub(super) forgotten: bool,
    /// Free neighbours coalesce and keep the later point.
    pub(super) merges: bool,
    /// The links in each of the lists of queues.
    lists: [Links<QueueId>; QueueList::ALL.len()],
    queue: QueueId,
    /// Links in the tree of names, or in that of forgotten streams.
    left: ChunkId,
    right: ChunkId,
}

/// In a free span with at most this many own chunks, the head is found by a walk.
const LONG: u32 = if cfg!(test) { 2 } else { 8 };

impl StreamQueue {
    /// Creates a queue whose points begin after `point`.
    pub(super) fn new(queue: QueueId, stream: Stream, point: u64, merges: bool, seed: Seed) -> Self {
        StreamQueue {
            stream,
            point,
            done: point,
            own: List::new(()),
            last_inserted: NIL,
            uses: List::new(()),
            spans: SpanIndex::new(seed),
            long_spans: Tree::EMPTY,
            seed,
            recent: NIL,
            live: 0,
            waiting: 0,
            waiting_uses: 0,
            forgotten: false,
            merges,
            lists: [NOT_IN; QueueList::ALL.len()],
            queue,
            left: NIL,
            right: NIL,
        }
    }

    pub(super) fn queue(&self) -> QueueId {
        self.queue
    }

    /// Forgets the free span that was linked last, because its place in the slab may no longer exist.
    pub(super) fn forget_recent(&mut self) {
        self.recent = NIL;
    }

    /// Returns whether the queue is in a list.
    #[inline(always)]
    pub(super) fn is_in(&self, list: QueueList) -> bool {
        self.lists[list as usize] != NOT_IN
    }

    /// Returns whether nothing refers to the queue any more.
    pub(super) fn is_idle(&self) -> bool {
        self.own.is_empty() && self.live == 0
    }

    /// Returns whether the queue's position may be reused for another stream. Nothing may refer to the queue,
    /// and its stream must be forgotten, or end without notice.
    pub(super) fn is_vacant(&self) -> bool {
        self.is_idle() && (self.forgotten || self.stream.ends_unnoticed())
    }

    /// Returns whether a free chunk of the queue's own waits for work of other queues.
    pub(super) fn has_chunks_that_wait(&self) -> bool {
        self.waiting != self.waiting_uses
    }

    /// Returns whether a chunk in use was allocated or recorded here.
    pub(super) fn has_chunks_in_use(&self) -> bool {
        self.live != self.waiting
    }

    /// Counts a chunk that is not in use, and in none of the queue's lists. It keeps the queue from ending.
    pub(super) fn begin_waiting(&mut self) {
        (self.live, self.waiting) = (self.live + 1, self.waiting + 1);
    }

    pub(super) fn end_waiting(&mut self) {
        (self.live, self.waiting) = (self.live - 1, self.waiting - 1);
    }

    /// Inserts a chunk into the queue's list by its point, which mostly is the newest.
    #[inline(always)]
    pub(super) fn enqueue(&mut self, chunk_states: &mut [ChunkStreamState], id: ChunkId) {
        let point = chunk_states[id.index()].point;
        let newest = self.own.last();
        if newest != NIL && chunk_states[newest.index()].point > point {
            self.enqueue_among(chunk_states, id, point);
        } else {
            self.enqueue_after(chunk_states, id, newest);
        }
    }

    /// Moves a chunk of the queue's list to a point, if that is later than its own.
    #[inline(always)]
    pub(super) fn renew(&mut self, chunk_states: &mut [ChunkStreamState], id: ChunkId, point: u64) {
        let chunk_state = &mut chunk_states[id.index()];
        if chunk_state.point >= point {
            return;
        }
        if self.own.last() == id {
            chunk_state.point = point;
            return;
        }
        self.dequeue(chunk_states, id);
        chunk_states[id.index()].point = point;
        self.enqueue(chunk_states, id);
    }

    #[cold]
    fn enqueue_among(&mut self, chunk_states: &mut [ChunkStreamState], id: ChunkId, point: u64) {
        let is_before = |at: ChunkId| at != NIL && chunk_states[at.index()].point <= point;
        let mut older = if self.last_inserted == NIL { self.own.last() } else { self.last_inserted };
        while older != NIL && !is_before(older) {
            older = chunk_states[older.index()].links(()).before;
        }
        while is_before(self.own.after(chunk_states, older)) {
            older = self.own.after(chunk_states, older);
        }
        self.enqueue_after(chunk_states, id, older);
        self.last_inserted = id;
    }

    /// Inserts a chunk into the queue's list after another, or first.
    #[inline(always)]
    pub(super) fn enqueue_after(
        &mut self,
        chunk_states: &mut [ChunkStreamState],
        id: ChunkId,
        older: ChunkId,
    ) {
        self.own.insert_after(chunk_states, id, older);
    }

    /// Removes a chunk from the queue's list.
    #[inline(always)]
    pub(super) fn dequeue(&mut self, chunk_states: &mut [ChunkStreamState], id: ChunkId) {
        if self.last_inserted == id {
            self.last_inserted = chunk_states[id.index()].links(()).before;
        }
        self.own.remove(chunk_states, id);
    }

    /// Replaces a chunk in the list by another, which takes over its queue and point.
    #[inline(always)]
    pub(super) fn replace(&mut self, chunk_states: &mut [ChunkStreamState], id: ChunkId, by: ChunkId) {
        let ChunkStreamState { queue, point, .. } = chunk_states[id.index()];
        chunk_states[by.index()] = ChunkStreamState::new(queue, point);
        if self.last_inserted == id {
            self.last_inserted = by;
        }
        self.own.replace(chunk_states, id, by);
    }

    /// Adds one of the queue's free spans to the index, under its first own chunk.
    #[inline]
    pub(super) fn link_span(&mut self, chunk_states: &mut [ChunkStreamState], id: ChunkId, span: Extent) {
        chunk_states[id.index()].span = span;
        self.spans.insert(chunk_states, id, span.bytes);
        if span.chunks > LONG {
            self.long_spans.insert(chunk_states, self.seed, id);
        }
        self.recent = id;
    }

    /// Changes the extent of a free span whose head stays the same.
    #[inline(always)]
    pub(super) fn resize_span(&mut self, chunk_states: &mut [ChunkStreamState], id: ChunkId, span: Extent) {
        let before = chunk_states[id.index()].span;
        let is_short = before.chunks.max(span.chunks) <= LONG;
        if is_short && self.spans.keeps_place(chunk_states, id, before.bytes, (span.bytes, span.addr)) {
            chunk_states[id.index()].span = span;
            self.recent = id;
            return;
        }
        self.unlink_span(chunk_states, id);
        self.link_span(chunk_states, id, span);
    }

    /// Returns the head of the free span around one of the queue's own chunks. All free spans must be in their indices.
    #[inline]
    pub(super) fn linked_head(
        &self,
        slab: &[Hot],
        chunk_states: &[ChunkStreamState],
        own: ChunkId,
    ) -> ChunkId {
        if chunk_states[own.index()].is_head() {
            own
        } else {
            self.linked_head_before(slab, chunk_states, own)
        }
    }

    fn linked_head_before(&self, slab: &[Hot], chunk_states: &[ChunkStreamState], own: ChunkId) -> ChunkId {
        let addr = slab[own].addr();
        // Mostly it is the head that was linked last.
        if self.recent != NIL {
            let recent = &chunk_states[self.recent.index()];
            // Only a head has a span with bytes.
            if recent.queue == chunk_states[own.index()].queue && recent.span.contains(addr) {
                return self.recent;
            }
        }
        let mut at = own;
        // At most one chunk lies between two successive own chunks of a span.
        for _ in 0..2 * LONG {
            steps::count();
            at = slab[at].prev();
            if at == NIL || chunk_states[at.index()].is_head() {
                return at;
            }
        }
        self.long_spans.last_to(chunk_states, (addr, 0))
    }

    /// Removes the free span with a given head from the index, if there is one. Returns its extent.
    #[inline]
    pub(super) fn unlink_span(&mut self, chunk_states: &mut [ChunkStreamState], id: ChunkId) -> Extent {
        let span = chunk_states[id.index()].span;
        if span.bytes != 0 {
            self.spans.remove(chunk_states, id, span.bytes);
            if span.chunks > LONG {
                self.long_spans.remove(chunk_states, self.seed, id);
            }
            chunk_states[id.index()].span.bytes = 0;
        }
        span
    }

    /// Returns whether a free span is in the index by address exactly if it may be long.
    pub(super) fn finds_long(&self, chunk_states: &[ChunkStreamState], head: ChunkId) -> bool {
        let span = chunk_states[head.index()].span;
        (self.long_spans.find(chunk_states, (span.addr, 0)) == head) == (span.chunks > LONG)
    }
}

impl Linked<QueueId, QueueList> for StreamQueue {
    #[inline]
    fn links(&self, list: QueueList) -> &Links<QueueId> {
        &self.lists[list as usize]
    }

    #[inline]
    fn links_mut(&mut self, list: QueueList) -> &mut Links<QueueId> {
        &mut self.lists[list as usize]
    }
}

/// Ordered by name. Several forgotten streams may have the same name.
impl Node for StreamQueue {
    fn key(&self) -> (u64, u64) {
        if self.forgotten { self.stream.key_of_forgotten(self.queue.number()) } else { self.stream.key() }
    }

    fn left(&self) -> ChunkId {
        self.left
    }

    fn right(&self) -> ChunkId {
        self.right
    }

    fn left_mut(&mut self) -> &mut ChunkId {
        &mut self.left
    }

    fn right_mut(&mut self) -> &mut ChunkId {
        &mut self.right
    }
}
