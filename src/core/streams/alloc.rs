//! Allocation in the order of streams, once a pool knows more than one queue.

use super::chunk_state::{ChunkStreamState, Extent, QueueId};
use super::free::Kind;
use super::free_spans::Changing;
use super::stream_heap::StreamHeap;
use crate::core::ids::{ChunkId, NIL};
use crate::core::request::AllocRequest;
use crate::core::request::MOST_MISALIGNED;
use crate::core::steps;
use crate::core::stream_id::Stream;
use crate::sys::HostMemoryExhausted;

impl StreamHeap {
    /// Hands out the best fit among what the queue of the request may use: the free span or the chunk which is first in
    /// (size, address) order and has a place at the alignment.
    #[inline(never)]
    pub(in crate::core) fn alloc(
        &mut self,
        request: &AllocRequest<'_>,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        if request.stream.is_any() {
            return self.alloc_for_any(request);
        }
        Ok(self.alloc_chunk(request)?.map(|(_, start)| start))
    }

    /// The same for requests that may use any stream: what they get has no order that it could be freed in. For a private
    /// pool it stays apart once it is freed, also from later requests for that pool, which may be another graph's.
    #[cold]
    fn alloc_for_any(&mut self, request: &AllocRequest<'_>) -> Result<Option<u64>, HostMemoryExhausted> {
        // Before, so that nothing fails once the chunk is found.
        let unknown = self.queues.enter(Stream::UNKNOWN.in_pool(request.stream.pool()))?;
        let Some((id, start)) = self.alloc_chunk(request)? else { return Ok(None) };
        self.queues.relabel(id, unknown, true);
        Ok(Some(start))
    }

    #[inline(always)]
    fn alloc_chunk(
        &mut self,
        request: &AllocRequest<'_>,
    ) -> Result<Option<(ChunkId, u64)>, HostMemoryExhausted> {
        let queue = self.queues.enter(self.queues.directed(request.stream))?;
        // What is cut off in front and behind.
        self.reserve_chunks(2)?;
        self.heap.reserve_starts(2)?;
        if self.is_sharing() {
            self.share_for(request, queue);
        }
        let found = self.find_in_queue(request, queue);
        let Some(Found { first, start, bytes, .. }) = found else { return Ok(None) };
        let size = if self.heap.splits(bytes, request.size) { request.size } else { bytes };
        let is_front = start == self.heap.addr(first) && size <= self.heap.size(first);
        let id = if is_front {
            self.alloc_front(first, queue, size)
        } else {
            self.carve_span(first, queue, start, size)
        };
        self.heap.hand_out(id, size, request.requested);
        Ok(Some((id, start)))
    }

    /// Whether a queue could be served now.
    pub(in crate::core) fn has_in_queue(&self, request: &AllocRequest<'_>, queue: QueueId) -> bool {
        self.find_in_queue(request, queue).is_some()
    }

    /// What is first in (size, address) order and has a place at the alignment; of what has none only a little is looked at,
    /// as in [`Self::find_choosy`].
    #[inline]
    pub(super) fn find_in_queue(&self, request: &AllocRequest<'_>, queue: QueueId) -> Option<Found> {
        let found = self.search_in_queue(request, queue, MOST_MISALIGNED);
        if found.is_none() && request.thorough {
            self.search_in_queue(request, queue, u32::MAX)
        } else {
            found
        }
    }

    #[inline]
    fn search_in_queue(
        &self,
        request: &AllocRequest<'_>,
        queue: QueueId,
        mut most_misaligned: u32,
    ) -> Option<Found> {
        let (slab, chunk_states, spans) =
            (self.heap.chunks().slab(), &self.queues.chunk_states[..], &self.queues.entry(queue).spans);
        let chunk_key = |id: ChunkId| if id == NIL { BEHIND_ALL } else { slab[id].key() };
        let span_key = |id: ChunkId| if id == NIL { BEHIND_ALL } else { chunk_states[id.index()].span_key() };
        let mut common = self.heap.best_fit(request.size).unwrap_or(NIL);
        let mut own = spans.best_fit(chunk_states, request.size);
        let (mut skipped, mut misaligned) = (0, 0);
        loop {
            steps::count();
            let (chunk, span) = (chunk_key(common), span_key(own));
            if span < chunk || skipped > MOST_SKIPPED && own != NIL {
                if let Some((start, bytes)) = request.place_in(span) {
                    return Some(Found { first: self.span_start(own), start, bytes, key: span });
                }
                misaligned += 1;
                own = spans.first_from(chunk_states, request.next_with_place(span));
            } else if common == NIL {
                return None;
            } else {
                // What is part of a free span is found with it.
                let is_part = self.is_in_span_of(queue, common);
                skipped += u32::from(is_part);
                let found = if is_part { None } else { request.place_in(chunk) };
                if let Some((start, bytes)) = found {
                    return Some(Found { first: common, start, bytes, key: chunk });
                }
                misaligned += u32::from(!is_part);
                let next = if is_part { (chunk.0, chunk.1 + 1) } else { request.next_with_place(chunk) };
                common = self.heap.first_from(next).unwrap_or(NIL);
            }
            if misaligned == most_misaligned {
                most_misaligned = u32::MAX;
                common = self.heap.first_from((request.size_that_always_fits(), 0)).unwrap_or(NIL);
                own = spans.best_fit(chunk_states, request.size_that_always_fits());
            }
        }
    }

    /// Takes the first `size` bytes of a free chunk that the queue may use.
    #[inline]
    fn alloc_front(&mut self, id: ChunkId, queue: QueueId, size: u64) -> ChunkId {
        if self.is_reusable(id) {
            self.alloc_reusable(id, size);
            self.queues.start_use(id, queue);
        } else {
            self.alloc_own(id, queue, size);
        }
        self.heap.mark_in_use(id);
        id
    }

    /// The first bytes of a queue's own chunk that is the first of its free span: that is all that changes.
    #[inline]
    fn alloc_own(&mut self, id: ChunkId, queue: QueueId, size: u64) {
        let StreamHeap { heap, queues, .. } = self;
        let (entry, chunk_states) = queues.parts(queue);
        let chunk = heap.chunks().get(id);
        let (at, left, next) = (chunk.addr() + size, chunk.size() - size, chunk.next());
        entry.live += 1;
        let span = entry.unlink_span(chunk_states, id);
        let bytes = span.bytes - size;
        if left != 0 {
            let rest = heap.split(id, size);
            heap.mark_held(rest);
            entry.replace(chunk_states, id, rest);
            entry.link_span(chunk_states, rest, Extent { addr: at, bytes, ..span });
            return;
        }
        let slab = heap.chunks().slab();
        entry.dequeue(chunk_states, id);
        if bytes != 0 {
            // The next is an own one, or common, and perhaps an own one is behind it.
            let is_own = |id: ChunkId| Kind::of(slab, chunk_states, queue, id) == Kind::Own;
            let head = if is_own(next) { next } else { slab[next].next() };
            if is_own(head) {
                entry.link_span(chunk_states, head, Extent { addr: at, bytes, chunks: span.chunks - 1 });
            }
        }
    }

    /// The first bytes of a chunk that anybody may have: the runs on both sides reach over it.
    #[inline]
    fn alloc_reusable(&mut self, id: ChunkId, size: u64) {
        let beside = |other: ChunkId| other != NIL && self.owner(other).is_some();
        let is_in_run = beside(self.heap.prev(id)) || beside(self.heap.next(id));
        let changing = is_in_run.then(|| self.begin_change(id));
        let left = self.heap.size(id) - size;
        self.heap.unindex(id);
        if left != 0 {
            let rest = self.heap.split(id, size);
            self.heap.add_to_index(rest);
        }
        if let Some(changing) = changing {
            self.end_change(changing, id);
        }
    }

    /// Takes the `bytes` at `start`, somewhere in the free span that begins with `first`, as one chunk. What is cut off
    /// stays whose it was.
    #[inline(never)]
    fn carve_span(&mut self, mut first: ChunkId, queue: QueueId, start: u64, bytes: u64) -> ChunkId {
        while self.heap.end_of(first) <= start {
            first = self.heap.next(first);
        }
        let end = start + bytes;
        let changing = self.begin_carving(first, end);
        let in_front = start - self.heap.addr(first);
        if in_front != 0 {
            first = self.split_free(first, in_front);
        }
        self.withdraw_to(first, end);
        while self.heap.end_of(first) < end {
            let next = self.heap.next(first);
            self.withdraw_to(next, end);
            self.fuse(first, next);
        }
        self.heap.mark_in_use(first);
        self.queues.start_use(first, queue);
        self.end_change(changing, first);
        first
    }

    /// Takes the free spans out of their indices that contain any of the chunks from `first` to the one that `end` lies in, all of
    /// them in one free span or a common chunk alone.
    fn begin_carving(&mut self, first: ChunkId, end: u64) -> Changing {
        let mut last = first;
        while self.heap.end_of(last) < end {
            last = self.heap.next(last);
        }
        let mut changing = Changing::default();
        // Behind a common chunk of the free span there is an own one.
        let own = if last != first && self.is_reusable(first) { self.heap.next(first) } else { first };
        self.take_beside(&mut changing, own);
        if self.is_reusable(first) {
            self.take_beside(&mut changing, self.heap.prev(first));
        }
        if self.is_reusable(last) {
            self.take_beside(&mut changing, self.heap.next(last));
        }
        changing
    }

    /// Takes a free chunk, which waits for nothing else, out of the index or its queue's list.
    fn withdraw(&mut self, id: ChunkId) {
        if self.is_reusable(id) {
            self.heap.unindex(id);
            self.heap.mark_held(id);
        } else {
            self.queues.dequeue(id);
        }
    }

    /// Cuts a free chunk in two; returns the second.
    pub(super) fn split_free(&mut self, id: ChunkId, at: u64) -> ChunkId {
        if self.is_reusable(id) {
            self.heap.unindex(id);
            let rest = self.heap.split(id, at);
            self.heap.add_to_index(id);
            self.heap.add_to_index(rest);
            return rest;
        }
        let ChunkStreamState { queue, point, .. } = *self.queues.chunk_state(id);
        let rest = self.heap.split(id, at);
        self.heap.mark_held(rest);
        *self.queues.chunk_state_mut(rest) = ChunkStreamState::new(queue, point);
        self.queues.enqueue_behind(rest, queue, id);
        rest
    }

    /// Takes a free chunk out as `withdraw`, but for what is behind `end`, which stays as a chunk.
    fn withdraw_to(&mut self, id: ChunkId, end: u64) {
        let behind = self.heap.end_of(id).saturating_sub(end);
        if behind == 0 {
            return self.withdraw(id);
        }
        let reusable = self.is_reusable(id);
        if reusable {
            self.withdraw(id);
        }
        let rest = self.heap.split(id, self.heap.size(id) - behind);
        if reusable {
            self.heap.add_to_index(rest);
        } else {
            self.heap.mark_held(rest);
            self.queues.replace(id, rest);
        }
    }
}

/// The best fit: the first chunk of the free span or the chunk, the place at the alignment, and the bytes from there on.
pub(super) struct Found {
    first: ChunkId,
    start: u64,
    bytes: u64,
    /// Size and address of the free span or the chunk.
    pub(super) key: (u64, u64),
}

/// In place of a key: nothing is left.
const BEHIND_ALL: (u64, u64) = (u64::MAX, u64::MAX);

/// Chunks that a search looks at and finds to be parts of the queue's own free spans; after so many it takes the best of the
/// free spans. Where two streams took turns and one of them is done, there may be thousands.
const MOST_SKIPPED: u32 = 32;
