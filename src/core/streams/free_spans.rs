//! Free spans: neighbours that a queue may use, and which count for it as one chunk.
//!
//! A free span is made of the queue's own free chunks and of common ones, which every queue may have, with at least one of its own;
//! what has no such neighbour is found in the common index. Common neighbours are one chunk, so on both sides of one in a free span
//! are own chunks, but for the ends of the free span, and it is in the free spans of at most two queues: those beside it.
//!
//! Before chunks are changed the free spans around them are taken out of their indices; afterwards what is left of them is put back.

use super::chunk_state::{ChunkStreamState, Extent, QueueId, UNOWNED};
use super::stream_heap::StreamHeap;
use crate::core::heap::State;
use crate::core::ids::{ChunkId, NIL};

impl StreamHeap {
    /// The queue that may use a free chunk at once, where not everybody may.
    #[inline]
    pub(in crate::core) fn owner(&self, id: ChunkId) -> Option<QueueId> {
        if !self.is_multi() || self.heap.state(id) != State::Held {
            return None;
        }
        let chunk_state = self.queues.chunk_state(id);
        (chunk_state.uses == 0 && chunk_state.queue != UNOWNED).then_some(chunk_state.queue)
    }

    /// Whether a queue may use a free chunk at once that not everybody may.
    #[inline(always)]
    pub(in crate::core) fn is_own(&self, queue: QueueId, id: ChunkId) -> bool {
        if !self.heap.chunks().get(id).is_held() {
            return false;
        }
        let chunk_state = self.queues.chunk_state(id);
        chunk_state.queue == queue && chunk_state.uses == 0
    }

    #[inline]
    pub(in crate::core) fn is_reusable(&self, id: ChunkId) -> bool {
        self.heap.chunks().get(id).is_findable()
    }

    #[inline]
    pub(super) fn may_use(&self, queue: QueueId, id: ChunkId) -> bool {
        self.is_reusable(id) || self.is_own(queue, id)
    }

    /// Whether a chunk that anybody may have is part of a queue's run.
    #[inline]
    pub(super) fn is_in_span_of(&self, queue: QueueId, id: ChunkId) -> bool {
        let beside = |other: ChunkId| other != NIL && self.is_own(queue, other);
        beside(self.heap.prev(id)) || beside(self.heap.next(id))
    }

    /// The first chunk of a free span, given its first own one.
    pub(super) fn span_start(&self, own: ChunkId) -> ChunkId {
        let prev = self.heap.prev(own);
        if prev != NIL && self.is_reusable(prev) { prev } else { own }
    }

    /// The last own chunk of some queue's that a free span reaches `id` from, from before it.
    #[inline(always)]
    pub(super) fn own_before(&self, id: ChunkId) -> Option<ChunkId> {
        let prev = self.heap.prev(id);
        let own = if prev != NIL && self.is_reusable(prev) { self.heap.prev(prev) } else { prev };
        (own != NIL && self.owner(own).is_some()).then_some(own)
    }

    /// The first one behind it.
    #[inline(always)]
    pub(super) fn own_behind(&self, id: ChunkId) -> Option<ChunkId> {
        let next = self.heap.next(id);
        let own = if next != NIL && self.is_reusable(next) { self.heap.next(next) } else { next };
        (own != NIL && self.owner(own).is_some()).then_some(own)
    }

    /// Takes the free span around a queue's own chunk out of the index; all free spans are in theirs.
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

    /// Takes the free spans out of their indices that contain a common chunk: it is about to be cut, or to be none any more.
    pub(in crate::core) fn begin_change(&mut self, id: ChunkId) -> Changing {
        let mut changing = Changing::default();
        if self.is_multi() {
            self.take_beside(&mut changing, self.heap.prev(id));
            self.take_beside(&mut changing, self.heap.next(id));
        }
        changing
    }

    /// Takes the free span around a chunk out of its index, if it is some queue's own and its free span is in one.
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

    /// The change is over: `id` is in none of the free spans any more.
    pub(in crate::core) fn end_change(&mut self, changing: Changing, id: ChunkId) {
        changing.0.into_iter().flatten().for_each(|(span, head_at)| self.put_rest(span, head_at, id));
    }

    /// Puts what is left of a free span that lost a chunk: the part before it and the part behind it, as far as there are own
    /// chunks in them. The first was at `head_at`, and may be a part of what is lost.
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

    /// Makes one chunk of two neighbours that are in no index and no list. Of what is known beside their size nothing
    /// is left of the second.
    pub(super) fn fuse(&mut self, first: ChunkId, second: ChunkId) {
        debug_assert!(self.heap.next(first) == second);
        *self.queues.chunk_state_mut(second) = ChunkStreamState::new(UNOWNED, 0);
        self.heap.absorb_next(first);
    }
}

/// The free span around an own chunk of a queue's: between which addresses, and where the index has it.
#[derive(Clone, Copy)]
pub(super) struct FreeSpan {
    pub(super) queue: QueueId,
    /// Its first own chunk.
    pub(super) head: ChunkId,
    pub(super) addr: u64,
    pub(super) end: u64,
    /// Its own chunks at most.
    pub(super) chunks: u32,
}

impl FreeSpan {
    fn contains(&self, addr: u64) -> bool {
        (self.addr..self.end).contains(&addr)
    }
}

/// Free spans that are in no index while chunks of theirs are changed, on both sides of these and around them, each with the
/// address of its first own chunk.
#[derive(Default)]
pub(in crate::core) struct Changing([Option<(FreeSpan, u64)>; 3]);

impl Changing {
    fn add(&mut self, span: FreeSpan, head_at: u64) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some((span, head_at));
        }
    }
}
