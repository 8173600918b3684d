//! Sharing: memory freed on a stream becomes reusable by every stream once the work before the free is done.
//!
//! Finished work may concern any number of chunks. So a report of finished work only raises the point up to which a
//! queue's work is done. That call, and the allocations and frees that follow, share a few chunks each. Until then a
//! chunk is its queue's own, and requests of its stream find it as before. A request of another stream first shares the
//! chunks that serve it best ([`StreamHeap::share_for`]). If nothing fits at all, the pool shares the remaining chunks
//! before it grows or waits. It does so in pieces, with the lock opened between them.

use super::chunk_state::{QueueId, UNOWNED};
use super::free_spans::FreeSpan;
use super::queue::QueueList;
use super::queues::StreamQueues;
use super::stream_heap::StreamHeap;
use crate::ids::{ChunkId, NIL};
use crate::request::Request;
use crate::steps;

/// How many chunks an allocation or a free shares, and how many a report of finished work shares. Tests run small
/// programs and use lower numbers, so that chunks remain to be shared there too.
pub(super) const SHARED_PER_CALL: usize = if cfg!(test) { 1 } else { 2 };
const SHARED_PER_REPORT: usize = if cfg!(test) { 1 } else { 3 };

/// How many neighbours are shared together with a chunk. That takes a small part of what sharing them one by one takes.
const SHARED_AS_ONE: usize = if cfg!(test) { 2 } else { 16 };

impl StreamQueues {
    /// Returns whether chunks may remain to be shared.
    #[inline]
    pub(super) fn is_sharing(&self) -> bool {
        !self.lists[QueueList::Sharing as usize].is_empty()
    }
}

impl StreamHeap {
    /// Declares that the work before the queue's frees up to `point` is done. Returns whether that was not known
    /// before.
    pub fn queue_done(&mut self, queue: QueueId, point: u64) -> bool {
        let Some(entry) = self.queues.entry_if_any(queue) else { return false };
        let point = point.min(entry.point);
        if point <= entry.done {
            return false;
        }
        if point == entry.point {
            self.queues.unlist(QueueList::Unfinished, queue);
        }
        self.queues.entry_mut(queue).done = point;
        self.queues.newest_done = self.queues.newest_done.max(point);
        self.queues.list(QueueList::Sharing, queue);
        self.queues.advances += 1;
        self.share_some(SHARED_PER_REPORT);
        true
    }

    /// Returns whether chunks may remain to be shared.
    #[inline]
    pub fn is_sharing(&self) -> bool {
        self.queues.is_sharing()
    }

    /// Shares up to `most` chunks.
    pub fn share_some(&mut self, most: usize) {
        for _ in 0..most {
            if !self.share_next() {
                return;
            }
        }
    }

    /// Shares one chunk, or takes a step towards that. Returns false if nothing remains to be done.
    fn share_next(&mut self) -> bool {
        let Some((queue, _)) = self.queues.listed(QueueList::Sharing).next() else { return false };
        if let Some(id) = self.queues.first_done(queue) {
            self.share(id, queue);
        } else if let Some(id) = self.queues.end_done_use(queue) {
            if !self.queues.chunk_state(id).has_uses() {
                let own = self.queues.chunk_state(id).queue;
                self.queues.entry_mut(own).end_waiting();
                self.settle(id);
            }
        } else {
            self.queues.unlist(QueueList::Sharing, queue);
        }
        true
    }

    /// Shares one of a queue's own chunks, as one with neighbours that can be shared too. Returns the chunk that it became
    /// part of.
    fn share(&mut self, id: ChunkId, queue: QueueId) -> ChunkId {
        let span = self.take_span(queue, id);
        self.queues.dequeue(id);
        let (mut whole, mut chunks) = (id, span.chunks);
        for _ in 0..SHARED_AS_ONE {
            let (prev, next) = (self.heap.prev(whole), self.heap.next(whole));
            let is_shared =
                |other: ChunkId| other != NIL && self.is_own(queue, other) && self.is_to_be_shared(other);
            let (first, second, other) = match (is_shared(next), is_shared(prev)) {
                (true, _) => (whole, next, next),
                (_, true) => (prev, whole, prev),
                _ => break,
            };
            steps::count();
            self.queues.dequeue(other);
            self.fuse(first, second);
            (whole, chunks) = (first, chunks - 1);
        }
        self.release_to_all(whole, Some(FreeSpan { chunks, ..span }))
    }

    /// Returns whether a chunk is its queue's own, and the work before its free is done.
    pub(super) fn is_to_be_shared(&self, id: ChunkId) -> bool {
        self.owner(id).is_some_and(|queue| self.queues.chunk_state(id).point <= self.queues.entry(queue).done)
    }

    /// Shares those neighbours of a chunk whose work is done. The chunk is about to become its queue's own, and
    /// neighbours merged with it would have to wait as long as it does.
    pub(super) fn share_around(&mut self, id: ChunkId, queue: QueueId) {
        // The chunk is in no free span yet.
        self.queues.chunk_state_mut(id).queue = UNOWNED;
        for neighbour in [self.heap.prev(id), self.heap.next(id)] {
            if neighbour != NIL && self.is_own(queue, neighbour) && self.is_to_be_shared(neighbour) {
                self.share(neighbour, queue);
            }
        }
        self.queues.chunk_state_mut(id).queue = queue;
    }

    /// Shares a few chunks. Those that serve a request better than the memory its queue may use now come first.
    pub(super) fn share_for(&mut self, request: &Request<'_>, queue: QueueId) {
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

    /// Returns the best fit among the free spans of some other queues with finished work, with its head.
    fn best_to_be_shared(&self, bytes: u64, queue: QueueId) -> Option<((u64, u64), ChunkId)> {
        const QUEUES: usize = 4;
        let chunk_states = &self.queues.chunk_states[..];
        let others = self.queues.listed(QueueList::Sharing).take(QUEUES).filter(|&(other, _)| other != queue);
        let heads =
            others.map(|(_, entry)| entry.spans.best_fit(chunk_states, bytes)).filter(|&head| head != NIL);
        heads.map(|head| (chunk_states[head.index()].span_key(), head)).min_by_key(|&(key, _)| key)
    }

    /// Shares chunks of a free span, starting at its first own chunk. Returns whether there was one to share.
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
