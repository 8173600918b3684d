//! A queue's own free chunks, and all that changes when one is added to them or taken from them.

use super::chunk_state::{ChunkStreamState, Extent, QueueId};
use super::queue::{QueueList, StreamQueue};
use super::queues::StreamQueues;
use super::stream_heap::StreamHeap;
use crate::core::heap::{Hot, Lent};
use crate::core::ids::{ChunkId, NIL};

/// What changes with a queue's own free chunks, borrowed one by one.
pub(super) struct OwnChunks<'a> {
    pub(super) heap: Lent<'a>,
    /// As many as the slab has places.
    pub(super) chunk_states: &'a mut [ChunkStreamState],
    pub(super) entry: &'a mut StreamQueue,
}

impl StreamHeap {
    #[inline(always)]
    pub(super) fn own_chunks(&mut self, queue: QueueId) -> OwnChunks<'_> {
        OwnChunks::with(self.heap.lend(), &mut self.queues, queue)
    }
}

impl<'a> OwnChunks<'a> {
    #[inline(always)]
    pub(super) fn with(heap: Lent<'a>, queues: &'a mut StreamQueues, queue: QueueId) -> Self {
        let (entry, chunk_states) = queues.parts(queue);
        // One bounds check for both. There is a state for each place of the slab.
        let chunk_states = &mut chunk_states[..heap.slab.len()];
        OwnChunks { heap, chunk_states, entry }
    }

    /// Returns whether a chunk in use can be freed in the order of this queue by [`Self::free`]: it was allocated there
    /// and has no recorded uses, and the queue has unfinished work and is not forgotten.
    #[inline(always)]
    pub(super) fn frees_plainly(&self, id: ChunkId) -> bool {
        let chunk_state = &self.chunk_states[id.index()];
        chunk_state.queue == self.entry.queue()
            && !chunk_state.has_uses()
            && self.entry.is_in(QueueList::Unfinished)
            && !self.entry.forgotten
    }

    /// Adds a chunk that was in use, at the queue's next point.
    #[inline(always)]
    pub(super) fn free(self, id: ChunkId, point: u64) {
        self.heap.slab[id].mark_held();
        self.entry.live -= 1;
        self.entry.point = point;
        self.join(id, point);
    }

    /// Adds a chunk to a queue's own free chunks. Returns the chunk that it became part of.
    ///
    /// Only free spans of this queue change, namely those that end or begin at the chunk. No queue could use the chunk
    /// before, and no other queue can use it now.
    #[inline(always)]
    pub(super) fn join(self, id: ChunkId, mut point: u64) -> ChunkId {
        let OwnChunks { mut heap, chunk_states, entry } = self;
        let (slab, queue) = (&*heap.slab, entry.queue());
        let kind = |chunk_states: &[ChunkStreamState], at: ChunkId| Kind::of(slab, chunk_states, queue, at);
        let (mut addr, mut bytes, mut chunks) = (slab[id].addr(), slab[id].size(), 1u32);
        let (prev, next) = (slab[id].prev(), slab[id].next());
        let (before, behind) = (kind(chunk_states, prev), kind(chunk_states, next));
        // The free span that ends at the chunk, or the chunk there that is reusable by every stream.
        let own = match before {
            Kind::Own => prev,
            Kind::Reusable if kind(chunk_states, slab[prev].prev()) == Kind::Own => slab[prev].prev(),
            _ => NIL,
        };
        let head = if own == NIL { NIL } else { entry.linked_head(slab, chunk_states, own) };
        if head != NIL {
            let span = chunk_states[head.index()].span;
            (addr, bytes, chunks) = (span.addr, bytes + span.bytes, chunks.saturating_add(span.chunks));
        } else if before == Kind::Reusable {
            addr = slab[prev].addr();
            bytes += slab[prev].size();
        }
        // Own neighbours stay apart where an event tells their points apart. Otherwise the later point counts for both.
        let merges = entry.merges;
        let is_one = |kind: Kind, other: ChunkId| {
            kind == Kind::Own && (merges || chunk_states[other.index()].point == point)
        };
        let (is_one_before, is_one_behind) = (is_one(before, prev), is_one(behind, next));
        // The free span that begins behind the chunk.
        let own_behind = match behind {
            Kind::Own => next,
            Kind::Reusable if kind(chunk_states, slab[next].next()) == Kind::Own => slab[next].next(),
            _ => NIL,
        };
        // It keeps its place if its head becomes that of the whole.
        let is_extended = is_one_behind && !is_one_before && head == NIL;
        if own_behind != NIL {
            let span = chunk_states[own_behind.index()].span;
            (bytes, chunks) = (bytes + span.bytes, chunks.saturating_add(span.chunks));
            if !is_extended {
                entry.unlink_span(chunk_states, own_behind);
            }
        } else if behind == Kind::Reusable {
            bytes += slab[next].size();
        }
        // The neighbour keeps its number. It is in the queue's list already.
        let whole = match (is_one_before, is_one_behind) {
            (false, false) => id,
            (true, false) => {
                heap.absorb_next(prev);
                prev
            }
            (false, true) => heap.merge_into_next(id),
            (true, true) => {
                entry.dequeue(chunk_states, next);
                point = point.max(chunk_states[next.index()].point);
                chunk_states[next.index()].leave_queue();
                heap.absorb_next(id);
                heap.absorb_next(prev);
                prev
            }
        };
        if whole == id {
            chunk_states[id.index()].point = point;
            entry.enqueue(chunk_states, id);
        } else {
            chunks -= 1 + u32::from(is_one_before && is_one_behind);
            chunk_states[id.index()].leave_queue();
            entry.renew(chunk_states, whole, point);
        }
        let span = Extent { addr, bytes, chunks };
        if head != NIL {
            entry.resize_span(chunk_states, head, span);
        } else if is_extended {
            entry.resize_span(chunk_states, whole, span);
        } else {
            entry.link_span(chunk_states, whole, span);
        }
        whole
    }

    /// Allocates the first `size` bytes of an own chunk that is the first of its free span, and returns that part. Only
    /// that span changes. Unless the whole chunk is wanted, a vacant place must be reserved.
    #[inline(always)]
    pub(super) fn take_front(&mut self, id: ChunkId, size: u64) -> ChunkId {
        let OwnChunks { heap, chunk_states, entry } = self;
        let chunk = heap.slab[id];
        let (at, left, next) = (chunk.addr() + size, chunk.size() - size, chunk.next());
        entry.live += 1;
        let span = chunk_states[id.index()].span;
        let bytes = span.bytes - size;
        if left != 0 {
            let front = heap.split_front(id, size);
            chunk_states[front.index()].enter_queue(entry.queue());
            entry.resize_span(chunk_states, id, Extent { addr: at, bytes, ..span });
            return front;
        }
        entry.unlink_span(chunk_states, id);
        entry.dequeue(chunk_states, id);
        if bytes != 0 {
            // The next chunk is the queue's own, or reusable by every stream and perhaps followed by one of the queue's
            // own.
            let is_own = |id: ChunkId| Kind::of(heap.slab, chunk_states, entry.queue(), id) == Kind::Own;
            let head = if is_own(next) { next } else { heap.slab[next].next() };
            if is_own(head) {
                entry.link_span(chunk_states, head, Extent { addr: at, bytes, chunks: span.chunks - 1 });
            }
        }
        id
    }

    /// Returns whether a chunk that is reusable by every stream is part of one of the queue's free spans.
    #[inline(always)]
    pub(super) fn is_in_span(&self, id: ChunkId) -> bool {
        let is_own = |id| Kind::of(self.heap.slab, self.chunk_states, self.entry.queue(), id) == Kind::Own;
        is_own(self.heap.slab[id].prev()) || is_own(self.heap.slab[id].next())
    }
}

/// The kind of a chunk from a queue's point of view.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// No chunk at all, or a chunk that the queue may not use.
    Barrier,
    Reusable,
    Own,
}

impl Kind {
    #[inline(always)]
    pub(super) fn of(slab: &[Hot], chunk_states: &[ChunkStreamState], queue: QueueId, id: ChunkId) -> Self {
        if id == NIL {
            return Kind::Barrier;
        }
        let hot = &slab[id];
        if hot.is_findable() {
            return Kind::Reusable;
        }
        let chunk_state = &chunk_states[id.index()];
        // None of these conditions is predictable, so there are no branches.
        let is_own = hot.is_held() & (chunk_state.queue == queue) & !chunk_state.has_uses();
        if is_own { Kind::Own } else { Kind::Barrier }
    }
}
