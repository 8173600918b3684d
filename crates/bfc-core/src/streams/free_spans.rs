//! Free spans: neighbours that a queue may use, and that count as one chunk for it.
//!
//! A free span consists of the queue's own free chunks and of chunks that are reusable by every stream. At least one
//! chunk is the queue's own. A reusable chunk without such a neighbour is found in the common index. Reusable
//! neighbours are always coalesced. So a reusable chunk inside a free span has own chunks on both sides, except at the
//! ends of the span, and it is in the free spans of at most two queues: those of its two neighbours.
//!
//! Before chunks change, the free spans around them are removed from their indices. Afterwards what is left of the
//! spans is put back.
//!
//! [`OwnChunks`] adds a chunk to a queue's own free chunks, and takes one from them, with all that this changes.

use super::chunk_state::{ChunkStreamState, Extent, QueueId, UNOWNED};
use super::queue::{QueueList, StreamQueue};
use super::queues::StreamQueues;
use super::stream_heap::StreamHeap;
use crate::heap::{Hot, Lent, State};
use crate::ids::{ChunkId, NIL};

impl StreamHeap {
    /// Returns the queue that may use a free chunk at once, if not every queue may.
    #[inline]
    pub(crate) fn owner(&self, id: ChunkId) -> Option<QueueId> {
        if !self.is_multi() || self.heap.state(id) != State::Held {
            return None;
        }
        let chunk_state = self.queues.chunk_state(id);
        (!chunk_state.has_uses() && chunk_state.queue != UNOWNED).then_some(chunk_state.queue)
    }

    /// Returns whether a free chunk is usable at once by this queue, but not by every queue.
    #[inline(always)]
    pub(crate) fn is_own(&self, queue: QueueId, id: ChunkId) -> bool {
        if !self.heap.chunks().get(id).is_held() {
            return false;
        }
        let chunk_state = self.queues.chunk_state(id);
        chunk_state.queue == queue && !chunk_state.has_uses()
    }

    #[inline]
    pub(crate) fn is_reusable(&self, id: ChunkId) -> bool {
        self.heap.chunks().get(id).is_findable()
    }

    #[inline]
    pub(super) fn may_use(&self, queue: QueueId, id: ChunkId) -> bool {
        self.is_reusable(id) || self.is_own(queue, id)
    }

    /// Returns whether a chunk that is reusable by every stream is part of a free span of a queue.
    #[inline]
    pub(super) fn is_in_span_of(&self, queue: QueueId, id: ChunkId) -> bool {
        let beside = |other: ChunkId| other != NIL && self.is_own(queue, other);
        beside(self.heap.prev(id)) || beside(self.heap.next(id))
    }

    /// Returns the first chunk of a free span, given its first own chunk.
    pub(super) fn span_start(&self, own: ChunkId) -> ChunkId {
        let prev = self.heap.prev(own);
        if prev != NIL && self.is_reusable(prev) { prev } else { own }
    }

    /// Returns the last own chunk, of whichever queue, whose free span reaches `id` from below.
    #[inline(always)]
    pub(super) fn own_before(&self, id: ChunkId) -> Option<ChunkId> {
        let prev = self.heap.prev(id);
        let own = if prev != NIL && self.is_reusable(prev) { self.heap.prev(prev) } else { prev };
        (own != NIL && self.owner(own).is_some()).then_some(own)
    }

    /// Returns the first own chunk, of whichever queue, whose free span reaches `id` from above.
    #[inline(always)]
    pub(super) fn own_after(&self, id: ChunkId) -> Option<ChunkId> {
        let next = self.heap.next(id);
        let own = if next != NIL && self.is_reusable(next) { self.heap.next(next) } else { next };
        (own != NIL && self.owner(own).is_some()).then_some(own)
    }

    /// Removes the free span around a queue's own chunk from the index. All free spans must be in their indices.
    #[inline]
    pub(super) fn take_span(&mut self, queue: QueueId, own: ChunkId) -> FreeSpan {
        let (entry, chunk_states) = self.queues.parts(queue);
        let head = entry.linked_head(self.heap.chunks().slab(), chunk_states, own);
        let Extent { addr, bytes, chunks } = entry.unlink_span(chunk_states, head);
        FreeSpan { queue, head, addr, end: addr + bytes, chunks }
    }

    #[inline]
    pub(super) fn put_span(&mut self, span: FreeSpan) {
        let FreeSpan { queue, head, addr, end, chunks } = span;
        self.queues.link_span(queue, head, Extent { addr, bytes: end - addr, chunks });
    }

    /// Removes the free spans that contain a reusable chunk from their indices. The chunk is about to be split, or to
    /// be no longer reusable.
    pub(crate) fn begin_change(&mut self, id: ChunkId) -> Changing {
        let mut changing = Changing::default();
        if self.is_multi() {
            self.take_beside(&mut changing, self.heap.prev(id));
            self.take_beside(&mut changing, self.heap.next(id));
        }
        changing
    }

    /// Removes the free span around a chunk from its index, if the chunk is some queue's own and its span is in an
    /// index.
    pub(super) fn take_beside(&mut self, changing: &mut Changing, own: ChunkId) {
        let Some(queue) = self.owner_if_any(own) else { return };
        let addr = self.heap.addr(own);
        if changing.0.iter().flatten().all(|(span, _)| span.queue != queue || !span.contains(addr)) {
            let span = self.take_span(queue, own);
            changing.add(span, self.heap.addr(span.head));
        }
    }

    fn owner_if_any(&self, id: ChunkId) -> Option<QueueId> {
        if id == NIL { None } else { self.owner(id) }
    }

    /// Ends a change: `id` is no longer in any of the free spans.
    pub(crate) fn end_change(&mut self, changing: Changing, id: ChunkId) {
        changing.0.into_iter().flatten().for_each(|(span, head_at)| self.put_rest(span, head_at, id));
    }

    /// Puts back what is left of a free span that lost a chunk: the part before the chunk and the part after it, if
    /// they contain own chunks. The span's first own chunk was at `head_at`, and may be part of the lost one.
    pub(super) fn put_rest(&mut self, span: FreeSpan, head_at: u64, lost: ChunkId) {
        let (from, to) = (self.heap.addr(lost), self.heap.end_of(lost));
        if head_at < from {
            self.put_span(FreeSpan { end: span.end.min(from), ..span });
        }
        if to < span.end {
            let mut head = self.heap.next(lost);
            if self.is_reusable(head) {
                head = self.heap.next(head);
            }
            if head != NIL && self.is_own(span.queue, head) {
                self.put_span(FreeSpan { head, addr: span.addr.max(to), ..span });
            }
        }
    }

    /// Merges two neighbours that are in no index and no list into one chunk. The second chunk's stream state is reset.
    pub(super) fn fuse(&mut self, first: ChunkId, second: ChunkId) {
        debug_assert!(self.heap.next(first) == second);
        *self.queues.chunk_state_mut(second) = ChunkStreamState::new(UNOWNED, 0);
        self.heap.absorb_next(first);
    }
}

/// The free span around a queue's own chunk: its addresses, and its head in the index.
#[derive(Clone, Copy)]
pub(super) struct FreeSpan {
    pub(super) queue: QueueId,
    /// The first own chunk of the span.
    pub(super) head: ChunkId,
    pub(super) addr: u64,
    pub(super) end: u64,
    /// An upper bound for the number of own chunks in the span.
    pub(super) chunks: u32,
}

impl FreeSpan {
    fn contains(&self, addr: u64) -> bool {
        (self.addr..self.end).contains(&addr)
    }
}

/// Free spans that are in no index while some of their chunks change: those around these chunks and those on both sides
/// of them. Each has the address of its first own chunk.
#[derive(Default)]
pub(crate) struct Changing([Option<(FreeSpan, u64)>; 3]);

impl Changing {
    fn add(&mut self, span: FreeSpan, head_at: u64) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some((span, head_at));
        }
    }
}

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
    pub(super) fn can_free(&self, id: ChunkId) -> bool {
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
        let (is_one_before, is_one_after) = (is_one(before, prev), is_one(behind, next));
        // The free span that begins after the chunk.
        let own_after = match behind {
            Kind::Own => next,
            Kind::Reusable if kind(chunk_states, slab[next].next()) == Kind::Own => slab[next].next(),
            _ => NIL,
        };
        // It keeps its place if its head becomes that of the whole.
        let is_extended = is_one_after && !is_one_before && head == NIL;
        if own_after != NIL {
            let span = chunk_states[own_after.index()].span;
            (bytes, chunks) = (bytes + span.bytes, chunks.saturating_add(span.chunks));
            if !is_extended {
                entry.unlink_span(chunk_states, own_after);
            }
        } else if behind == Kind::Reusable {
            bytes += slab[next].size();
        }
        // The neighbour keeps its number. It is in the queue's list already.
        let whole = match (is_one_before, is_one_after) {
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
            chunks -= 1 + u32::from(is_one_before && is_one_after);
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
