//! Stream-ordered allocation, once a pool knows more than one queue.

use super::chunk_state::{ChunkStreamState, QueueId};
use super::free_spans::Changing;
use super::stream_heap::StreamHeap;
use crate::ids::{ChunkId, NIL};
use crate::request::MOST_MISALIGNED;
use crate::request::Request;
use crate::steps;
use crate::stream_id::Stream;
use crate::units::UNIT;
use bfc_hostmem::HostMemoryExhausted;
use core::num::NonZeroU64;

impl StreamHeap {
    /// Allocates the best fit among the memory that the request's queue may use: the free span or chunk that is first
    /// in (size, address) order and has a place at the alignment.
    #[inline(never)]
    pub(crate) fn alloc(&mut self, request: &Request<'_>) -> Result<Option<u64>, HostMemoryExhausted> {
        if request.stream.is_any() {
            return self.alloc_for_any(request);
        }
        Ok(self.alloc_chunk(request)?.map(|(_, start)| start))
    }

    /// Allocates as [`Self::alloc`] does, for a size and a stream and no other constraint, if the stream asked recently,
    /// a free span that begins with one of its own chunks is the best fit, and the tables have room. Otherwise nothing
    /// changes. Out of line, so that all of it stays in registers.
    #[inline(never)]
    pub(crate) fn try_alloc(&mut self, size: u64, requested: u64, stream: Stream) -> Option<NonZeroU64> {
        let queue = self.queues.usual(stream)?;
        let mut own = self.own_chunks(queue);
        let head = own.entry.spans.best_fit(own.chunk_states, size);
        if head == NIL || !own.heap.has_room() {
            return None;
        }
        let (span, chunk) = (own.chunk_states[head.index()].span_key(), own.heap.slab[head]);
        let mut common = own.heap.best_fit(size);
        for look in 0.. {
            if common == NIL || span < own.heap.slab[common].key() {
                break;
            }
            steps::count();
            // A part of a free span is found with that span.
            if look == LOOKS || !own.is_in_span(common) {
                return None;
            }
            let (bytes, addr) = own.heap.slab[common].key();
            common = own.heap.first_from((bytes, addr + 1));
        }
        if own.heap.spares(size, span.0) {
            return None;
        }
        let size = if own.heap.splits(span.0, size) { size } else { span.0 };
        // Otherwise the span begins with a chunk that every stream may use, or the chunk is too small.
        if chunk.addr() != span.1 || chunk.size() < size {
            return None;
        }
        let front = own.take_front(head, size);
        NonZeroU64::new(own.heap.hand_out::<true>(front, size, requested))
    }

    /// Serves a request that may use any stream. The chunk it gets has no order that it could be freed in. Once freed,
    /// a chunk of a private pool is not available to later requests for that pool either, because they may belong to
    /// another graph.
    #[cold]
    fn alloc_for_any(&mut self, request: &Request<'_>) -> Result<Option<u64>, HostMemoryExhausted> {
        // This comes first, so that nothing can fail once the chunk is found.
        let unknown = self.queues.enter(Stream::UNKNOWN.in_pool(request.stream.pool()))?;
        let Some((id, start)) = self.alloc_chunk(request)? else { return Ok(None) };
        self.queues.relabel(id, unknown, true);
        Ok(Some(start))
    }

    #[inline(always)]
    fn alloc_chunk(&mut self, request: &Request<'_>) -> Result<Option<(ChunkId, u64)>, HostMemoryExhausted> {
        let queue = self.queues.enter(self.queues.directed(request.stream))?;
        // Room for the pieces split off before and after.
        self.reserve_chunks(2)?;
        self.heap.reserve_start()?;
        if self.is_sharing() {
            self.share_for(request, queue);
        }
        let found = self.find_in_queue(request, queue);
        let Some(Found { first, start, bytes, .. }) = found else { return Ok(None) };
        if self.spares(request, bytes) {
            return Ok(None);
        }
        let size = if self.heap.splits(bytes, request.size) { request.size } else { bytes };
        let is_front = start == self.heap.addr(first) && size <= self.heap.size(first);
        let id = if is_front {
            self.alloc_front(first, queue, size)
        } else {
            self.carve_span(first, queue, start, size)
        };
        self.heap.hand_out(id, request.requested);
        self.heap.touch(id, start + size);
        Ok(Some((id, start)))
    }

    /// Returns whether a request must not split free memory of `bytes` bytes.
    pub(crate) fn spares(&self, request: &Request<'_>, bytes: u64) -> bool {
        request.leaves_large() && self.heap.spares(request.size, bytes)
    }

    /// Returns the bytes of the free memory that a request would take, even if it must spare it.
    pub(crate) fn best_fit_bytes(&self, request: &Request<'_>, queue: QueueId) -> Option<u64> {
        self.find_in_queue(request, queue).map(|found| found.bytes)
    }

    /// Returns whether a request in a queue could be served now.
    pub(crate) fn has_in_queue(&self, request: &Request<'_>, queue: QueueId) -> bool {
        self.find_in_queue(request, queue).is_some()
    }

    /// Finds the memory that is first in (size, address) order and has a place at the alignment. Only a few candidates
    /// without such a place are examined, as in [`find_constrained`](crate::arena::Arena::find_constrained).
    #[inline]
    pub(super) fn find_in_queue(&self, request: &Request<'_>, queue: QueueId) -> Option<Found> {
        steps::count();
        let (slab, chunk_states) = (self.heap.chunks().slab(), &self.queues.chunk_states[..]);
        let common = self.heap.best_fit(request.size).unwrap_or(NIL);
        let own = self.queues.entry(queue).spans.best_fit(chunk_states, request.size);
        if common == NIL && own == NIL {
            return None;
        }
        // Mostly the first of the two is it.
        if request.alignment <= UNIT {
            let chunk = if common == NIL { AFTER_ALL } else { slab[common].key() };
            let span = if own == NIL { AFTER_ALL } else { chunk_states[own.index()].span_key() };
            if span < chunk {
                return Some(Found { first: self.span_start(own), start: span.1, bytes: span.0, key: span });
            }
            // A part of a free span is found with that span.
            if !self.is_in_span_of(queue, common) {
                return Some(Found { first: common, start: chunk.1, bytes: chunk.0, key: chunk });
            }
        }
        self.find_from(request, queue, common, own)
    }

    /// Goes on from the smallest chunk that every stream may use, and from the head of the smallest free span.
    #[inline(never)]
    fn find_from(
        &self,
        request: &Request<'_>,
        queue: QueueId,
        mut common: ChunkId,
        mut own: ChunkId,
    ) -> Option<Found> {
        let (slab, chunk_states, spans) =
            (self.heap.chunks().slab(), &self.queues.chunk_states[..], &self.queues.entry(queue).spans);
        let chunk_key = |id: ChunkId| if id == NIL { AFTER_ALL } else { slab[id].key() };
        let span_key = |id: ChunkId| if id == NIL { AFTER_ALL } else { chunk_states[id.index()].span_key() };
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
                let is_cut_short = misaligned > MOST_MISALIGNED;
                return if is_cut_short && request.thorough {
                    self.find_among_all(request, queue)
                } else {
                    None
                };
            } else {
                // A part of a free span is found with that span.
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
            if misaligned == MOST_MISALIGNED {
                misaligned += 1;
                // From here on every free span has a place, and every chunk that is not a part of one.
                common = self.heap.first_from((request.size_that_always_fits(), 0)).unwrap_or(NIL);
                own = spans.best_fit(chunk_states, request.size_that_always_fits());
            }
        }
    }

    /// Finds the memory that [`Self::find_from`] looks for by reading every chunk once, as the arena's search for a pool with
    /// one stream does.
    fn find_among_all(&self, request: &Request<'_>, queue: QueueId) -> Option<Found> {
        let (mut best, mut least) = (NIL, AFTER_ALL);
        self.heap.chunks().each_findable(request.size, |id, key| {
            // A part of a free span is found with that span.
            if request.place_in(key).is_some() && key < least && !self.is_in_span_of(queue, id) {
                (best, least) = (id, key);
            }
        });
        for (place, state) in self.queues.chunk_states.iter().enumerate() {
            steps::count();
            if state.queue == queue && state.is_head() && request.place_in(state.span_key()).is_some() {
                let key = state.span_key();
                #[allow(clippy::cast_possible_truncation)] // as many as the slab has places
                let id = ChunkId(place as u32);
                (best, least) = if key < least { (id, key) } else { (best, least) };
            }
        }
        if best == NIL {
            return None;
        }
        let (start, bytes) = request.place_in(least)?;
        let first = if self.is_reusable(best) { best } else { self.span_start(best) };
        Some(Found { first, start, bytes, key: least })
    }

    /// Allocates the first `size` bytes of a free chunk that the queue may use.
    #[inline]
    fn alloc_front(&mut self, id: ChunkId, queue: QueueId, size: u64) -> ChunkId {
        if !self.is_reusable(id) {
            return self.own_chunks(queue).take_front(id, size);
        }
        self.alloc_reusable(id, size);
        self.queues.start_use(id, queue);
        id
    }

    /// Allocates the first bytes of a chunk that is reusable by every stream. Free spans on both sides include that
    /// chunk.
    #[inline]
    fn alloc_reusable(&mut self, id: ChunkId, size: u64) {
        let beside = |other: ChunkId| other != NIL && self.owner(other).is_some();
        let is_in_span = beside(self.heap.prev(id)) || beside(self.heap.next(id));
        let changing = is_in_span.then(|| self.begin_change(id));
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

    /// Allocates the `bytes` at `start`, inside the free span that begins with `first`, as one chunk. The remainders
    /// stay with their owners.
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
        self.queues.start_use(first, queue);
        self.end_change(changing, first);
        first
    }

    /// Removes from their indices the free spans that contain any of the chunks from `first` to the one that contains
    /// `end`. These chunks lie in one free span, or are a single chunk reusable by every stream.
    fn begin_carving(&mut self, first: ChunkId, end: u64) -> Changing {
        let mut last = first;
        while self.heap.end_of(last) < end {
            last = self.heap.next(last);
        }
        let mut changing = Changing::default();
        // A chunk of the free span that is reusable by every stream is followed by one of the queue's own.
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

    /// Removes a free chunk that waits for nothing else from the index, or from its queue's list.
    fn withdraw(&mut self, id: ChunkId) {
        if self.is_reusable(id) {
            self.heap.unindex(id);
            self.heap.mark_held(id);
        } else {
            self.queues.dequeue(id);
        }
    }

    /// Splits a free chunk in two. Returns the second part.
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
        *self.queues.chunk_state_mut(rest) = ChunkStreamState::new(queue, point);
        self.queues.enqueue_after(rest, queue, id);
        rest
    }

    /// Removes a free chunk as `withdraw` does, except for the part after `end`, which stays a chunk.
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
            self.queues.replace(id, rest);
        }
    }
}

/// The best fit: the first chunk of the free span or the chunk itself, the place at the alignment, and the bytes from
/// there on.
pub(super) struct Found {
    first: ChunkId,
    start: u64,
    bytes: u64,
    /// Size and address of the free span or the chunk.
    pub(super) key: (u64, u64),
}

/// How many chunks that are parts of the queue's own free spans an allocation at once may find.
const LOOKS: u32 = 4;

/// Stands for the key of an exhausted search.
const AFTER_ALL: (u64, u64) = (u64::MAX, u64::MAX);

/// How many chunks a search may find to be parts of the queue's own free spans. After that many it takes the best of
/// the free spans. There may be thousands of such chunks where two streams took turns and the work of one is done.
const MOST_SKIPPED: u32 = 32;
