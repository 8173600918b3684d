//! Free chunks that wait for work, the oldest first: the place for a request that needs the fewest of them.
//!
//! Mostly the first few chunks serve, and then nothing else is looked at. A search that takes long is given up: then all
//! chunks are looked at instead ([`Arena::dependencies`]).

use super::chunk_state::QueueId;
use super::cross_stream_use::Link;
use super::queue_lists::List;
use super::stream_heap::StreamHeap;
use crate::core::ids::{ChunkId, NIL};
use crate::core::request::AllocRequest;
use crate::core::steps;
use crate::sys::HostMemoryExhausted;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Chunks that a search looks at, neighbours included.
const MOST_STEPS: u32 = if cfg!(test) { 40 } else { 2000 };

/// What came of a search.
pub(super) enum Searched {
    /// The free neighbours that fit best, of those that need the oldest work only: the first, and the one behind the last.
    Found(ChunkId, ChunkId),
    /// No neighbours fit.
    Nothing,
    TookLong,
}

/// Where a search goes on once all that is older was looked at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// At a chunk of a queue's own and those that were freed behind it.
    OwnFrom(u32),
    /// At a use that a chunk waits for and those of the same queue behind it.
    UsesFrom(Link),
    /// At a chunk that waits for recorded uses.
    Waiting(u32),
}

/// Chunks by age, as far as they are known.
#[derive(Default)]
struct ByAge(BinaryHeap<Reverse<(u64, Next)>>);

impl ByAge {
    fn push(&mut self, age: u64, next: Next) -> Result<(), HostMemoryExhausted> {
        self.0.try_reserve(1).map_err(|_| HostMemoryExhausted)?;
        self.0.push(Reverse((age, next)));
        Ok(())
    }
}

impl StreamHeap {
    /// The free neighbours in which the request fits behind the oldest work, where `age` is the point of the last work that
    /// a chunk waits for; `u64::MAX` where it cannot be waited for.
    pub(super) fn search_oldest(
        &self,
        request: &AllocRequest<'_>,
        own: QueueId,
        age: impl Fn(ChunkId) -> u64,
    ) -> Result<Searched, HostMemoryExhausted> {
        let mut steps = 0;
        let mut by_age = ByAge::default();
        for (queue, entry) in self.queues.listed(List::Unfinished) {
            steps += 1;
            let (oldest, used) = (self.queues.oldest(queue), entry.oldest_use);
            if used != 0 {
                by_age.push(self.queues.uses.get(used).point, Next::UsesFrom(used))?;
            }
            if queue != own && entry.stream.pool() == 0 && oldest != NIL {
                by_age.push(self.queues.chunk_state(oldest).point, Next::OwnFrom(oldest.0))?;
            }
        }
        let mut best: Option<(u64, (u64, u64), ChunkId, ChunkId)> = None;
        while let Some(Reverse((at_most, next))) = by_age.0.pop() {
            if best.is_some_and(|(age, ..)| age < at_most) {
                break;
            }
            let id = match next {
                Next::UsesFrom(link) => {
                    self.push_use(&mut by_age, link, &age)?;
                    continue;
                }
                Next::OwnFrom(id) | Next::Waiting(id) => ChunkId(id),
            };
            let newer = if matches!(next, Next::OwnFrom(_)) { self.queues.newer(id) } else { NIL };
            if newer != NIL {
                by_age.push(self.queues.chunk_state(newer).point, Next::OwnFrom(newer.0))?;
            }
            if age(id) > at_most || at_most == u64::MAX {
                continue;
            }
            let mut accepts = |id: ChunkId| {
                steps += 1;
                steps::count();
                steps <= MOST_STEPS && id != NIL && self.is_free_chunk(id) && age(id) <= at_most
            };
            let (mut first, mut end) = (id, self.heap.next(id));
            while accepts(self.heap.prev(first)) {
                first = self.heap.prev(first);
            }
            let mut stop = self.heap.end_of(id);
            while accepts(end) {
                (stop, end) = (self.heap.end_of(end), self.heap.next(end));
            }
            if steps > MOST_STEPS {
                return Ok(Searched::TookLong);
            }
            let addr = self.heap.addr(first);
            let key = (stop - addr, addr);
            if request.place_in(key).is_some() && best.is_none_or(|(_, best, ..)| key < best) {
                best = Some((at_most, key, first, end));
            }
        }
        Ok(best.map_or(Searched::Nothing, |(.., first, end)| Searched::Found(first, end)))
    }

    /// Has the chunk of a use looked at, if this is the oldest of its uses, and the queue's next use.
    ///
    /// The points of a free and of its uses follow each other, so nothing else comes between the oldest use and the point
    /// that a request waits for; that one may be older only if the oldest use is of the request's own queue.
    fn push_use(
        &self,
        by_age: &mut ByAge,
        link: Link,
        age: impl Fn(ChunkId) -> u64,
    ) -> Result<(), HostMemoryExhausted> {
        let uses = &self.queues.uses;
        let used = uses.get(link);
        if let Some((next, newer)) = uses.newer_of(link) {
            by_age.push(newer.point, Next::UsesFrom(next))?;
        }
        let mut others = uses.of(self.queues.chunk_state(used.chunk).uses);
        match age(used.chunk) {
            u64::MAX => Ok(()),
            age if others.all(|other| used.point <= other.point) => {
                by_age.push(age, Next::Waiting(used.chunk.0))
            }
            _ => Ok(()),
        }
    }
}
