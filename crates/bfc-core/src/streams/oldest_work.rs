//! Search for the place of a request among free chunks that wait for work, the oldest chunks first, so that the request
//! needs the fewest of them.
//!
//! Mostly the first few chunks suffice, and no others are examined. A search that takes too long is abandoned. All
//! chunks are examined instead ([`StreamHeap::dependencies`]).

use super::chunk_state::{CrossStreamUse, QueueId, UseId};
use super::queue::QueueList;
use super::stream_heap::StreamHeap;
use crate::ids::{ChunkId, NIL};
use crate::request::Request;
use crate::steps;
use alloc::collections::BinaryHeap;
use bfc_hostmem::HostMemoryExhausted;
use core::cmp::Reverse;

/// How many chunks a search examines, neighbours included.
const MOST_STEPS: u32 = if cfg!(test) { 40 } else { 2000 };

/// The result of a search.
pub(super) enum Searched {
    /// The free neighbours that fit best among those that need only the oldest work: the first chunk, and the chunk
    /// after the last.
    Found(ChunkId, ChunkId),
    /// No neighbours fit.
    Nothing,
    TookLong,
}

/// Where a search continues once everything older was examined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// At a queue's own chunk. Those freed later in the queue follow.
    OwnFrom(u32),
    /// At a recorded use that a chunk waits for. Later ones of the same queue follow.
    UsesFrom(UseId),
    /// At a chunk that waits for recorded uses.
    Waiting(u32),
}

/// Chunks by age, as far as the search knows them.
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
    /// Searches for the free neighbours in which the request fits behind the oldest work. `age` is the point of the
    /// last work that a chunk waits for, or `u64::MAX` if that work cannot be waited for.
    pub(super) fn search_oldest(
        &self,
        request: &Request<'_>,
        own: QueueId,
        age: impl Fn(ChunkId) -> u64,
    ) -> Result<Searched, HostMemoryExhausted> {
        let mut steps = 0;
        let mut by_age = ByAge::default();
        for (queue, entry) in self.queues.listed(QueueList::Unfinished) {
            steps += 1;
            let (oldest, used) = (entry.own.first(), entry.uses.first());
            if used != UseId::NONE {
                by_age.push(self.least_age(self.queues.uses.get(used), own), Next::UsesFrom(used))?;
            }
            if queue == own {
                steps += self.push_waiting_for_none(&mut by_age, used, &age)?;
            } else if entry.stream.pool() == 0 && oldest != NIL {
                by_age.push(self.queues.chunk_state(oldest).point, Next::OwnFrom(oldest.0))?;
            }
        }
        if steps > MOST_STEPS {
            return Ok(Searched::TookLong);
        }
        let mut best: Option<(u64, (u64, u64), ChunkId, ChunkId)> = None;
        while let Some(Reverse((at_most, next))) = by_age.0.pop() {
            if best.is_some_and(|(age, ..)| age < at_most) {
                break;
            }
            let id = match next {
                Next::UsesFrom(link) => {
                    self.push_use(&mut by_age, link, own, &age)?;
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

    /// Schedules first the chunks that wait for the request's own queue alone, by the recorded uses starting at `link`: the
    /// work of the other queues is done. Returns how many uses were examined, which may be too many.
    fn push_waiting_for_none(
        &self,
        by_age: &mut ByAge,
        mut link: UseId,
        age: impl Fn(ChunkId) -> u64,
    ) -> Result<u32, HostMemoryExhausted> {
        let mut steps = 0;
        // The points of a free and of its recorded uses are consecutive, and there is at most one of each queue. Only
        // frees in queues of forgotten streams have older points, and those are taken into account in `newest_done`. So
        // past this point some work of every chunk is not done.
        let last = self.queues.newest_done + self.queues.count() as u64;
        while let Some(used) = self.queues.uses.look(link)
            && used.point <= last
            && steps <= MOST_STEPS
        {
            steps += 1;
            steps::count();
            if age(used.chunk) == 0 {
                by_age.push(0, Next::Waiting(used.chunk.0))?;
            }
            link = used.in_queue.after;
        }
        Ok(steps)
    }

    /// Returns the lowest age at which the chunk of a recorded use may be scheduled. A request does not wait for its own
    /// queue, and the other points of the same free are at most as many below as there are queues.
    fn least_age(&self, used: &CrossStreamUse, own: QueueId) -> u64 {
        let margin = if used.queue == own { self.queues.count() as u64 } else { 0 };
        used.point.saturating_sub(margin)
    }

    /// Schedules the chunk of a recorded use if this is the oldest of the chunk's recorded uses, and schedules the
    /// queue's next recorded use.
    ///
    /// The points of a free and of its recorded uses are consecutive. So no other point lies between the oldest
    /// recorded use and the point that a request waits for.
    fn push_use(
        &self,
        by_age: &mut ByAge,
        link: UseId,
        own: QueueId,
        age: impl Fn(ChunkId) -> u64,
    ) -> Result<(), HostMemoryExhausted> {
        let uses = &self.queues.uses;
        let used = uses.get(link);
        if let Some((next, newer)) = uses.newer_of(link) {
            by_age.push(self.least_age(newer, own), Next::UsesFrom(next))?;
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
