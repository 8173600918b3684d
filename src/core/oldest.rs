//! Free chunks that wait for work, the oldest first: the place for a request that needs the fewest of them.
//!
//! Mostly the first few chunks serve, and then nothing else is looked at. A search that takes long is given up: then all
//! chunks are looked at instead ([`Arena::dependencies`]).

use super::arena::{Arena, Want};
use super::chunks::{ChunkId, NIL};
use super::lane_list::List;
use super::lanes::Lane;
use super::steps;
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
    /// At a chunk of a lane's own and those that were freed behind it.
    OwnFrom(u32),
    /// At a chunk that waits for recorded uses.
    Waiting(u32),
}

/// Chunks by age, as far as they are known.
#[derive(Default)]
struct Queue(BinaryHeap<Reverse<(u64, Next)>>);

impl Queue {
    fn push(&mut self, age: u64, next: Next) -> Result<(), HostMemoryExhausted> {
        self.0.try_reserve(1).map_err(|_| HostMemoryExhausted)?;
        self.0.push(Reverse((age, next)));
        Ok(())
    }
}

impl Arena {
    /// The free neighbours in which the request fits behind the oldest work, where `age` is the point of the last work that
    /// a chunk waits for; `u64::MAX` where it cannot be waited for.
    pub(super) fn search_oldest(
        &self,
        want: &Want<'_>,
        own: Lane,
        age: impl Fn(ChunkId) -> u64,
    ) -> Result<Searched, HostMemoryExhausted> {
        let mut steps = 0;
        let mut queue = Queue::default();
        for (lane, row) in self.lanes.listed(List::Unfinished) {
            steps += 1;
            let oldest = self.lanes.oldest(lane);
            if lane != own && row.stream.pool() == 0 && oldest != NIL {
                queue.push(self.lanes.note(oldest).point, Next::OwnFrom(oldest.0))?;
            }
        }
        for used in self.lanes.uses.iter().filter(|used| used.point != 0) {
            steps += 1;
            // Once for each chunk.
            if self.lanes.uses.is_first_of(used, self.lanes.note(used.chunk).uses) {
                queue.push(age(used.chunk), Next::Waiting(used.chunk.0))?;
            }
            if steps > MOST_STEPS {
                return Ok(Searched::TookLong);
            }
        }
        let mut best: Option<(u64, (u64, u64), ChunkId, ChunkId)> = None;
        while let Some(Reverse((at_most, next))) = queue.0.pop() {
            if best.is_some_and(|(age, ..)| age < at_most) {
                break;
            }
            let (Next::OwnFrom(id) | Next::Waiting(id)) = next;
            let id = ChunkId(id);
            let newer = if matches!(next, Next::OwnFrom(_)) { self.lanes.newer(id) } else { NIL };
            if newer != NIL {
                queue.push(self.lanes.note(newer).point, Next::OwnFrom(newer.0))?;
            }
            if age(id) > at_most || at_most == u64::MAX {
                continue;
            }
            let mut accepts = |id: ChunkId| {
                steps += 1;
                steps::count();
                steps <= MOST_STEPS && id != NIL && self.is_free_chunk(id) && age(id) <= at_most
            };
            let (mut first, mut end) = (id, self.chunks.next(id));
            while accepts(self.chunks.prev(first)) {
                first = self.chunks.prev(first);
            }
            let mut stop = self.end_of(id);
            while accepts(end) {
                (stop, end) = (self.end_of(end), self.chunks.next(end));
            }
            if steps > MOST_STEPS {
                return Ok(Searched::TookLong);
            }
            let addr = self.chunks.addr(first);
            let key = (stop - addr, addr);
            if want.place_in(key).is_some() && best.is_none_or(|(_, best, ..)| key < best) {
                best = Some((at_most, key, first, end));
            }
        }
        Ok(best.map_or(Searched::Nothing, |(.., first, end)| Searched::Found(first, end)))
    }
}
