//! Sharing: what was freed on a stream becomes reusable by every stream once the work before the free is done.
//!
//! Work that is done may concern any number of chunks, so a verdict on it only says up to which point a queue's work is
//! done. The chunks are shared a few at a time, by that call and by the allocations and frees that follow. Until then each is
//! its queue's own, and its stream finds it as before. A request of another stream first has those shared that serve it best
//! ([`Arena::share_for`]); where nothing fits at all the pool has the rest shared, in pieces with the lock open between them,
//! before it grows or waits.

use super::chunk_state::{QueueId, UNOWNED};
use super::queue_lists::List;
use super::queues::StreamQueues;
use super::stream_heap::StreamHeap;
use crate::core::ids::{ChunkId, NIL};
use crate::core::request::AllocRequest;

/// How many chunks an allocation or a free has shared, and how many a verdict has. The programs of tests are small, and
/// chunks are to be left over there too.
pub(super) const SHARED_PER_CALL: usize = if cfg!(test) { 1 } else { 2 };
const SHARED_PER_VERDICT: usize = if cfg!(test) { 1 } else { 8 };

impl StreamQueues {
    /// Whether chunks may be left that are to be shared.
    #[inline]
    pub(super) fn is_sharing(&self) -> bool {
        !self.lists.is_empty(List::Sharing)
    }
}

impl StreamHeap {
    /// The work before the queue's frees up to `point` is done. Returns whether that is news.
    pub(crate) fn queue_done(&mut self, queue: QueueId, point: u64) -> bool {
        let Some(entry) = self.queues.entry_if_any(queue) else { return false };
        let point = point.min(entry.point);
        if point <= entry.done {
            return false;
        }
        if point == entry.point {
            self.queues.unlist(List::Unfinished, queue);
        }
        self.queues.entry_mut(queue).done = point;
        self.queues.list(List::Sharing, queue);
        self.queues.advances += 1;
        self.share_some(SHARED_PER_VERDICT);
        true
    }

    /// Whether chunks may be left that are to be shared.
    #[inline]
    pub(crate) fn is_sharing(&self) -> bool {
        self.queues.is_sharing()
    }

    /// Shares so many chunks, if there are as many.
    pub(crate) fn share_some(&mut self, most: usize) {
        for _ in 0..most {
            if !self.share_next() {
                return;
            }
        }
    }

    /// Shares one chunk, or takes a step on the way to that; false where all is done.
    fn share_next(&mut self) -> bool {
        let Some(queue) = self.queues.lists.first(List::Sharing) else { return false };
        if let Some(id) = self.queues.first_done(queue) {
            self.share(id, queue);
        } else if let Some(id) = self.queues.end_done_use(queue) {
            if self.queues.chunk_state(id).uses == 0 {
                let own = self.queues.chunk_state(id).queue;
                self.queues.entry_mut(own).end_waiting();
                self.settle(id);
            }
        } else {
            self.queues.unlist(List::Sharing, queue);
        }
        true
    }

    /// Shares a chunk of a queue's own; returns what it is part of then.
    fn share(&mut self, id: ChunkId, queue: QueueId) -> ChunkId {
        let was = self.take_span(queue, id);
        self.queues.dequeue(id);
        self.release_to_all(id, Some(was))
    }

    /// Whether a chunk is its queue's own, and the work before its free is done.
    pub(super) fn is_to_be_shared(&self, id: ChunkId) -> bool {
        self.owner(id).is_some_and(|queue| self.queues.chunk_state(id).point <= self.queues.entry(queue).done)
    }

    /// Shares the neighbours of a chunk that is about to become its queue's own: merged with it they would have to wait as
    /// long as it has to.
    pub(super) fn share_around(&mut self, id: ChunkId, queue: QueueId) {
        // It is in no run yet.
        self.queues.chunk_state_mut(id).queue = UNOWNED;
        for neighbour in [self.heap.prev(id), self.heap.next(id)] {
            if neighbour != NIL && self.is_own(queue, neighbour) && self.is_to_be_shared(neighbour) {
                self.share(neighbour, queue);
            }
        }
        self.queues.chunk_state_mut(id).queue = queue;
    }

    /// Shares a few chunks, and first those that would serve a request better than what its queue may use by now.
    pub(super) fn share_for(&mut self, request: &AllocRequest<'_>, queue: QueueId) {
        const ROUNDS: usize = 2;
        for _ in 0..ROUNDS {
            let found = self.find_in_queue(request, queue).map(|found| found.key);
            let Some((key, head)) = self.best_to_be_shared(request.size, queue) else { break };
            if found.is_some_and(|found| found <= key) || !self.share_span(head) {
                break;
            }
        }
        self.share_some(SHARED_PER_CALL);
    }

    /// The best fit among the free spans of some other queues whose work is done, with its head.
    fn best_to_be_shared(&self, bytes: u64, queue: QueueId) -> Option<((u64, u64), ChunkId)> {
        const LANES: usize = 4;
        let chunk_states = &self.queues.chunk_states[..];
        let others = self.queues.listed(List::Sharing).take(LANES).filter(|&(other, _)| other != queue);
        let heads =
            others.map(|(_, entry)| entry.spans.best_fit(chunk_states, bytes)).filter(|&head| head != NIL);
        heads.map(|head| (chunk_states[head.index()].span_key(), head)).min_by_key(|&(key, _)| key)
    }

    /// Shares chunks of a free span, from its first own one on; whether there was one to share.
    fn share_span(&mut self, head: ChunkId) -> bool {
        const CHUNKS: usize = 3;
        let queue = self.queues.chunk_state(head).queue;
        let (mut at, mut shared) = (head, false);
        for _ in 0..CHUNKS {
            if at == NIL || !self.may_use(queue, at) {
                break;
            }
            if self.is_to_be_shared(at) {
                (at, shared) = (self.share(at, queue), true);
            }
            at = self.heap.next(at);
        }
        shared
    }
}
