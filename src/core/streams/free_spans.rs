//! Free spans: neighbours that a queue may use, and that count as one chunk for it.
//!
//! A free span consists of the queue's own free chunks and of chunks that are reusable by every stream. At least one
//! chunk is the queue's own. A reusable chunk without such a neighbour is found in the common index. Reusable
//! neighbours are always coalesced. So a reusable chunk inside a free span has own chunks on both sides, except at the
//! ends of the span, and it is in the free spans of at most two queues: those of its two neighbours.
//!
//! Before chunks change, the free spans around them are removed from their indices. Afterwards what is left of the
//! spans is put back.

use super::chunk_state::{ChunkStreamState, Extent, QueueId, UNOWNED};
use super::stream_heap::StreamHeap;
use crate::core::heap::State;
use crate::core::ids::{ChunkId, NIL};

impl StreamHeap {
    /// Returns the queue that may use a free chunk at once, if not every queue may.
    #[inline]
    pub(in crate::core) fn owner(&self, id: ChunkId) -> Option<QueueId> {
        if !self.is_multi() || self.heap.state(id) != State::Held {
            return None;
        }
        let chunk_state = self.queues.chunk_state(id);
        (!chunk_state.has_uses() && chunk_state.queue != UNOWNED).then_some(chunk_state.queue)
    }

    /// Returns whether a free chunk is usable at once by this queue, but not by every queue.
    #[inline(always)]
    pub(in crate::core) fn is_own(&self, queue: QueueId, id: ChunkId) -> bool {
        if !self.heap.chunks().get(id).is_held() {
            return false;
        }
        let chunk_state = self.queues.chunk_state(id);
        chunk_state.queue == queue && !chunk_state.has_uses()
    }

    #[inline]
    pub(in crate::core) fn is_reusable(&self, id: ChunkId) -> bool {
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
    pub(super) fn own_behind(&self, id: ChunkId) -> Option<ChunkId> {
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
    pub(in crate::core) fn begin_change(&mut self, id: ChunkId) -> Changing {
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
    pub(in crate::core) fn end_change(&mut self, changing: Changing, id: ChunkId) {
        changing.0.into_iter().flatten().for_each(|(span, head_at)| self.put_rest(span, head_at, id));
    }

    /// Puts back what is left of a free span that lost a chunk: the part before the chunk and the part behind it, if
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
pub(in crate::core) struct Changing([Option<(FreeSpan, u64)>; 3]);

impl Changing {
    fn add(&mut self, span: FreeSpan, head_at: u64) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some((span, head_at));
        }
    }
}
