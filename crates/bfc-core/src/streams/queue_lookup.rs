//! Finding the queue of a stream, and forgetting queues that are idle: nothing waits for their work, and they have no
//! memory.
//!
//! The program need not forget an idle stream, and may have destroyed it. So each stream that is added forgets a few idle
//! ones, whose positions are then reused. An idle stream that comes back gets another position.

use super::chunk_state::QueueId;
use super::idle_search::LOOKS;
use super::queue::StreamQueue;
use super::queues::{RECENT, StreamQueues};
use crate::ids::{ChunkId, NIL};
use crate::steps;
use crate::stream_id::Stream;
use bfc_hostmem::HostMemoryExhausted;

/// Returns the place of a stream among the queues that were entered last. Handles are mostly addresses, whose lower bits
/// do not differ.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // three bits
fn place_of(stream: Stream) -> usize {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    (stream.handle().wrapping_mul(GOLDEN) >> (u64::BITS - RECENT.ilog2())) as usize % RECENT
}

impl StreamQueues {
    /// Returns the queue of a stream that was seen before and not forgotten since.
    pub(super) fn find(&self, stream: Stream) -> Option<QueueId> {
        queue_at(self.names.find(&self.entries, stream.key()))
    }

    /// Returns the first queue of a private pool on a stream.
    pub(super) fn first_private_on(&self, stream: Stream) -> Option<QueueId> {
        let (handle, name) = stream.in_pool(1).key();
        let queue = queue_at(self.names.first_from(&self.entries, (handle, name)))?;
        (self.entry(queue).stream.in_pool(0) == stream).then_some(queue)
    }

    /// Returns the queues of forgotten streams of a name, which may still have work.
    pub(super) fn forgotten_of(&self, stream: Stream) -> impl Iterator<Item = QueueId> + '_ {
        core::iter::successors(self.forgotten_from(stream, 0), move |&queue| {
            self.next_forgotten_of(stream, queue)
        })
    }

    /// Returns the next of these queues after another.
    pub(super) fn next_forgotten_of(&self, stream: Stream, queue: QueueId) -> Option<QueueId> {
        self.forgotten_from(stream, queue.0 + 1)
    }

    fn forgotten_from(&self, stream: Stream, first: u32) -> Option<QueueId> {
        let mut first = first;
        loop {
            let key = stream.key_of_forgotten(first);
            let queue = queue_at(self.forgotten.first_from(&self.entries, key))?;
            match self.entry(queue).stream {
                other if other == stream => return Some(queue),
                // A private pool's queue has the name too, but its work waits for the pool's release.
                other if other.in_pool(0) == stream => first = queue.0 + 1,
                _ => return None,
            }
        }
    }

    /// Returns the queue of a stream, and adds it if needed. On failure nothing changed.
    #[inline]
    pub(super) fn enter(&mut self, stream: Stream) -> Result<QueueId, HostMemoryExhausted> {
        // Mostly the same few streams ask.
        match self.recently_entered(stream) {
            Some(queue) => Ok(queue),
            None => self.enter_another(stream),
        }
    }

    /// Returns the queue of a stream if it was entered recently and was not forgotten since.
    #[inline(always)]
    fn recently_entered(&self, stream: Stream) -> Option<QueueId> {
        let queue = self.recent[place_of(stream)];
        let entry = self.entries.get(queue.0 as usize)?;
        (entry.stream == stream && !entry.forgotten).then_some(queue)
    }

    /// Returns the queue of a stream if it was entered recently, no stream's requests are routed elsewhere, and no
    /// chunks remain to be shared.
    #[inline(always)]
    pub(super) fn usual(&self, stream: Stream) -> Option<QueueId> {
        let queue = self.recently_entered(stream)?;
        (self.redirections.is_empty() && !self.is_sharing()).then_some(queue)
    }

    #[inline(never)]
    fn enter_another(&mut self, stream: Stream) -> Result<QueueId, HostMemoryExhausted> {
        let queue = match self.find(stream) {
            Some(queue) => queue,
            None => {
                self.forget_some_idle();
                self.add(stream)?
            }
        };
        self.recent[place_of(stream)] = queue;
        Ok(queue)
    }

    /// Returns the order of a stream's requests: the stream itself, or a private pool on it.
    #[inline]
    pub(super) fn directed(&self, stream: Stream) -> Stream {
        if self.redirections.is_empty() {
            return stream;
        }
        let directed = self.redirections.iter().find(|other| other.in_pool(0) == stream);
        directed.copied().unwrap_or(stream)
    }
}

fn queue_at(node: ChunkId) -> Option<QueueId> {
    (node != NIL).then_some(QueueId(node.0))
}

impl StreamQueues {
    /// Forgets a few idle queues, before a queue is added.
    pub(super) fn forget_some_idle(&mut self) {
        let count = self.count();
        if !self.idle.is_due(count) {
            return;
        }
        for _ in 0..LOOKS {
            steps::count();
            let place = self.idle.next_place(count);
            self.forget_if_idle(place);
        }
    }

    pub(super) fn forget_all_idle(&mut self) {
        (0..self.count()).for_each(|place| self.forget_if_idle(place));
    }

    fn forget_if_idle(&mut self, place: usize) {
        let found = self.nth(place).filter(|&queue| may_be_forgotten(self.entry(queue)));
        if let Some(queue) = found.filter(|_| !self.idle.is_off()) {
            self.forget(queue);
            self.idle.note_found();
        }
    }
}

/// Returns whether a queue is idle, and is that of a stream that the program creates and destroys. Private pools keep their
/// queues, and the positions of streams that end without notice are reused anyway.
fn may_be_forgotten(entry: &StreamQueue) -> bool {
    let stream = entry.stream;
    entry.is_idle()
        && !entry.forgotten
        && stream.exists()
        && stream.pool() == 0
        && !stream.is_default()
        && !stream.ends_unnoticed()
}
