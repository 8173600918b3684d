//! Stream-ordered frees, once a pool knows more than one queue.

use super::chunk_state::{ChunkStreamState, QueueId, UNOWNED, UseId};
use super::free_spans::{FreeSpan, OwnChunks};
use super::pending_work::Work;
use super::sharing::SHARED_PER_CALL;
use super::stream_heap::{LastFree, StreamHeap};
use crate::heap::Refused;
use crate::ids::{ChunkId, NIL};
use crate::steps;
use crate::stream_id::Stream;

/// The result of a free, and what remains to be done. It takes one byte, including an error: a `Result` in a `Result`
/// would be returned in two registers, which costs each free five instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freed {
    /// Nothing remains to be done: there is a single stream, stamps are in use, or the backend has no events.
    Done,
    /// Other streams may use the chunk once some work is done, so that work needs an event:
    /// [`StreamHeap::work_behind_last_free`].
    InQueue,
    /// There is no such chunk in use.
    Refused(Refused),
}

#[cfg(test)]
impl Freed {
    pub(crate) fn is_ok(self) -> bool {
        !matches!(self, Freed::Refused(_))
    }

    #[track_caller]
    pub(crate) fn unwrap(self) {
        assert!(self.is_ok(), "{self:?}");
    }
}

impl StreamHeap {
    /// Frees a chunk in use in the order of a queue.
    #[inline(always)]
    pub(super) fn free_in_queue(&mut self, id: ChunkId, queue: QueueId) {
        let (is_sharing, point) = (self.queues.is_sharing(), self.queues.next_point());
        let own = self.own_chunks(queue);
        if is_sharing || !own.can_free(id) {
            return self.free_uncommon(id, queue);
        }
        own.free(id, point);
        self.last_free = LastFree { queue, waiting: NIL };
    }

    /// Frees a chunk in the order of a stream, or with [`Stream::NONE`] on the stream it was allocated on, if it was
    /// allocated on that stream, no event is to be recorded, and no chunk waits for anything else. Otherwise nothing
    /// changes. Out of line, so that all of it stays in registers.
    #[inline(never)]
    pub(crate) fn try_free(&mut self, addr: u64, stream: Stream) -> bool {
        if !self.is_multi() || self.settings.events || self.queues.is_sharing() {
            return false;
        }
        let heap = self.heap.lend();
        let Some(found) = heap.find_hashed(addr) else { return false };
        let (id, point) = (found.id, self.queues.next_point());
        let queue = self.queues.chunk_state(id).queue;
        let mut own = OwnChunks::with(heap, &mut self.queues, queue);
        let is_named = stream == Stream::NONE || stream == own.entry.stream;
        if !is_named || !own.can_free(id) {
            return false;
        }
        own.heap.count_free(found);
        own.free(id, point);
        true
    }

    /// Frees a chunk in the order that it was allocated in. The free is already counted.
    pub(crate) fn free(&mut self, id: ChunkId) -> Freed {
        let queue = self.queues.chunk_state(id).queue;
        self.free_in_queue(id, queue);
        self.freed_in_queue()
    }

    /// Frees a chunk as [`Self::free_in_queue`] does, in the less common cases: the chunk belongs to another queue or
    /// has recorded uses, the queue's stream is gone or all its work was done, or chunks remain to be shared.
    #[inline(never)]
    fn free_uncommon(&mut self, id: ChunkId, queue: QueueId) {
        self.share_some(SHARED_PER_CALL);
        self.heap.mark_held(id);
        let point = self.queues.advance(queue);
        let chunk_state = self.queues.chunk_state_mut(id);
        let (allocated_in, uses) = (core::mem::replace(&mut chunk_state.queue, queue), chunk_state.uses);
        chunk_state.point = point;
        self.queues.entry_mut(allocated_in).live -= 1;
        self.last_free = LastFree { queue, waiting: NIL };
        if uses != UseId::NONE && self.queues.await_uses(id, queue) {
            // The chunk is in no list, but the queue must not end before it.
            self.queues.entry_mut(queue).begin_waiting();
            self.last_free.waiting = id;
        } else {
            self.settle(id);
        }
    }

    /// Returns whether the last free, in the order of a queue, needs events that other queues can wait for.
    #[inline]
    pub(super) fn freed_in_queue(&self) -> Freed {
        if self.settings.events { Freed::InQueue } else { Freed::Done }
    }

    /// Returns the work that other queues must wait for before they may use the memory freed last: first that of the
    /// queue it was freed in, then that of recorded uses. Work without a stream or of a forgotten stream is left out.
    /// Work of a private pool needs no event, because no other stream may use the memory.
    pub fn work_behind_last_free(&self) -> impl Iterator<Item = FreedWork> + '_ {
        let LastFree { queue, waiting } = self.last_free;
        let point = self.queues.entry(queue).point;
        let uses = if waiting == NIL { UseId::NONE } else { self.queues.chunk_state(waiting).uses };
        let own = (Work { queue, point }, waiting != NIL);
        let others =
            self.queues.uses.of(uses).map(|used| (Work { queue: used.queue, point: used.point }, false));
        core::iter::once(own).chain(others).filter_map(|(work, waits_for_others)| {
            let entry = self.queues.entry(work.queue);
            let can_be_queried = entry.stream.exists() && !entry.forgotten;
            can_be_queried.then_some(FreedWork { work, stream: entry.stream, waits_for_others })
        })
    }

    /// Puts a chunk that waits only for its own queue into the structures for its state. Returns the chunk that it
    /// became part of.
    #[inline(never)]
    pub(super) fn settle(&mut self, id: ChunkId) -> ChunkId {
        let ChunkStreamState { queue, point, .. } = *self.queues.chunk_state(id);
        if point <= self.queues.entry(queue).done {
            return self.release_to_all(id, None);
        }
        if self.is_sharing() {
            self.share_around(id, queue);
        }
        self.own_chunks(queue).join(id, point)
    }

    /// Makes a chunk reusable by every stream. The chunk waits for nothing and is in no list. `was` is the free span
    /// that the chunk was part of, if any. Returns the chunk that it became part of.
    pub(super) fn release_to_all(&mut self, id: ChunkId, was: Option<FreeSpan>) -> ChunkId {
        steps::count();
        self.queues.chunk_state_mut(id).leave_queue();
        let before = self.own_before(id).map(|own| self.reach(own, was));
        let behind = self.own_after(id).map(|own| FreeSpan { head: own, ..self.reach(own, was) });
        let whole = self.heap.release::<false>(id);
        let (addr, end) = (self.heap.addr(whole), self.heap.end_of(whole));
        match (before, behind) {
            (Some(before), Some(behind)) if before.queue == behind.queue => {
                // Two free spans become one, or these are both ends of the span that the chunk was part of.
                let more = if was.is_some_and(|was| was.queue == before.queue) { 0 } else { behind.chunks };
                self.put_span(FreeSpan {
                    end: behind.end,
                    chunks: before.chunks.saturating_add(more),
                    ..before
                });
            }
            _ => {
                before.into_iter().for_each(|span| self.put_span(FreeSpan { end, ..span }));
                behind.into_iter().for_each(|span| self.put_span(FreeSpan { addr, ..span }));
            }
        }
        whole
    }

    /// Gives a free chunk to another queue, at one of that queue's points. Returns the chunk that it became part of.
    pub(super) fn hand_over(&mut self, id: ChunkId, queue: QueueId, point: u64) -> ChunkId {
        if let Some(before) = self.owner(id) {
            let span = self.take_span(before, id);
            let head_at = self.heap.addr(span.head);
            self.queues.dequeue(id);
            // The chunk briefly has no queue, and the free spans around it end there.
            self.queues.chunk_state_mut(id).queue = UNOWNED;
            self.put_rest(span, head_at, id);
        } else {
            self.queues.end_uses(id);
            let before = self.queues.chunk_state(id).queue;
            self.queues.entry_mut(before).end_waiting();
        }
        *self.queues.chunk_state_mut(id) = ChunkStreamState::new(queue, point);
        self.settle(id)
    }

    /// Frees a chunk that a plan of granules leaves mapped, and coalesces it with its neighbours.
    pub(crate) fn put_back(&mut self, id: ChunkId) {
        self.heap.mark_held(id);
        if self.unclaim(id) {
            self.settle(id);
        } else {
            self.release_to_all(id, None);
        }
    }

    /// Removes a chunk that a plan of granules leaves unmapped from every stream's order.
    pub(crate) fn disown(&mut self, id: ChunkId) {
        if self.is_multi() && self.unclaim(id) {
            *self.queues.chunk_state_mut(id) = ChunkStreamState::new(UNOWNED, 0);
        }
    }

    /// Returns whether a queue got the chunk of a plan while the plan was under way, because another stream appeared.
    /// The queue no longer waits for the chunk after this call.
    fn unclaim(&mut self, id: ChunkId) -> bool {
        let queue = self.queues.chunk_state(id).queue;
        let claimed = queue != UNOWNED;
        if claimed {
            self.queues.entry_mut(queue).end_waiting();
        }
        claimed
    }

    /// Returns the free span around an own chunk, removed from its index. `was` is a span that is in no index already.
    fn reach(&mut self, own: ChunkId, was: Option<FreeSpan>) -> FreeSpan {
        let queue = self.queues.chunk_state(own).queue;
        was.filter(|was| was.queue == queue).unwrap_or_else(|| self.take_span(queue, own))
    }
}

/// Work that the memory freed last waits for.
#[derive(Clone, Copy, Debug)]
pub struct FreedWork {
    pub work: Work,
    pub stream: Stream,
    /// The chunk also waits for recorded uses, so it is not in its queue's list of free chunks.
    pub waits_for_others: bool,
}
