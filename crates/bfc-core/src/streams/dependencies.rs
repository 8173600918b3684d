//! Requests served behind work that is not done: which work a request has to wait for, and which memory its queue owns
//! after that.
//!
//! A request waits for the oldest frees that can serve it, and among these only for the frees of the chunks that it
//! takes. Later frees never make a request wait longer, because the work behind them may itself wait for what the
//! request's stream does next.

use super::chunk_state::{ChunkStreamState, QueueId, UseId};
use super::oldest_work::Searched;
use super::pending_work::Work;
use super::stream_heap::StreamHeap;
use crate::heap::State;
use crate::ids::{ChunkId, NIL};
use crate::request::Request;
use crate::sort::sort_by_key;
use crate::steps;
use crate::units::{Span, UNIT};
use crate::vmm::VmRange;
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// A place for a request in free memory that its queue may not use yet, or that is not all mapped. It consists of the
/// chunks in the span, starting with the chunk at `first`.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    first: u64,
    /// The chunk that began at `first` when the place was found. It spares a walk along the region.
    first_id: ChunkId,
    pub(crate) span: Span,
}

/// The work that a request waits for, and the place where it is to be served after that.
#[derive(Debug)]
pub struct Dependencies {
    /// The work, each of another queue.
    pub works: Vec<Work>,
    /// The place.
    pub place: Place,
}

impl StreamHeap {
    /// Returns the work behind which a request could be served. Only work with an event of its own counts
    /// (`has_event`). An event recorded later also covers work after the free, and that work may itself wait for what
    /// the request's stream does next.
    pub(crate) fn dependencies(
        &self,
        vm: &VmRange,
        request: &Request<'_>,
        has_event: impl Fn(Work) -> bool,
    ) -> Result<Option<Dependencies>, HostMemoryExhausted> {
        let Some(own) = self.queues.find(self.queues.directed(request.stream)) else { return Ok(None) };
        if !vm.can_map_more(&self.heap)
            && self.usable_bytes(vm) - self.heap.counters().bytes_in_use < request.size
        {
            return Ok(None);
        }
        let age = |id: ChunkId| {
            let mut age = 0;
            for work in self.works_before(id, own) {
                age = age.max(if has_event(work) { work.point } else { u64::MAX });
            }
            age
        };
        let place = match vm.can_map_more(&self.heap) {
            true => Searched::TookLong,
            false => self.search_oldest(request, own, age)?,
        };
        let place = match place {
            Searched::Found(first, end) => Some(self.place_in(request, first, end)),
            Searched::Nothing => None,
            Searched::TookLong => self.oldest_place(vm, request, age)?,
        };
        let Some(place) = place else { return Ok(None) };
        let mut works: Vec<Work> = Vec::new();
        for work in self.chunks_in(&place).flat_map(|id| self.works_before(id, own)) {
            match works.iter_mut().find(|other| other.queue == work.queue) {
                Some(other) => other.point = other.point.max(work.point),
                None => {
                    works.try_reserve(1)?;
                    works.push(work);
                }
            }
        }
        Ok(Some(Dependencies { works, place }))
    }

    /// Finds what [`Self::search_oldest`] finds, by examining all chunks for some ages. It also considers places that
    /// are not all mapped.
    fn oldest_place(
        &self,
        vm: &VmRange,
        request: &Request<'_>,
        age: impl Fn(ChunkId) -> u64,
    ) -> Result<Option<Place>, HostMemoryExhausted> {
        // The ages are computed once: finding a chunk's events takes longer than everything else here.
        let mut by_chunk = Vec::new();
        by_chunk.try_reserve_exact(self.heap.chunks().places())?;
        by_chunk.resize(self.heap.chunks().places(), u64::MAX);
        let mut ages = Vec::new();
        for id in self.free_chunks() {
            let age = age(id);
            by_chunk[id.index()] = age;
            if age != 0 && age != u64::MAX {
                ages.try_reserve(1)?;
                ages.push(age);
            }
        }
        let place_with =
            |age_at_most: u64| self.place_among(vm, request, |id| by_chunk[id.index()] <= age_at_most);
        let Some(mut place) = place_with(u64::MAX - 1) else { return Ok(None) };
        sort_by_key(&mut ages, |&age| age);
        // Search for the lowest of the ages that gives a place.
        let (mut low, mut high) = (0, ages.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match place_with(ages[middle]) {
                Some(found) => (place, high) = (found, middle),
                None => low = middle + 1,
            }
        }
        Ok(Some(place))
    }

    /// Returns the unfinished work of other queues that a free chunk waits for.
    fn works_before(&self, id: ChunkId, own: QueueId) -> impl Iterator<Item = Work> + '_ {
        let ChunkStreamState { queue, point, uses, .. } = *self.queues.chunk_state(id);
        let waits = !self.is_reusable(id) && point > self.queues.entry(queue).done;
        let by_itself = waits.then_some(Work { queue, point });
        let used = self.queues.uses.of(uses).map(|used| Work { queue: used.queue, point: used.point });
        by_itself.into_iter().chain(used).filter(move |work| work.queue != own)
    }

    /// Hands memory that serves the request over to the request's stream, which waits for `works` from its point
    /// `since` on. Uses the planned place if that is unchanged. Returns whether any memory serves the request.
    pub(crate) fn adopt(
        &mut self,
        vm: &VmRange,
        request: &Request<'_>,
        works: &[Work],
        planned: Place,
        since: Work,
    ) -> bool {
        let own = since.queue;
        let waited = |queue: QueueId, point: u64| {
            let done = queue == own || point <= self.queues.entry(queue).done;
            done || works.iter().any(|work| work.queue == queue && point <= work.point)
        };
        let possible = |id: ChunkId| {
            let chunk_state = self.queues.chunk_state(id);
            let mut others = self.queues.uses.of(chunk_state.uses);
            self.is_reusable(id)
                || waited(chunk_state.queue, chunk_state.point)
                    && others.all(|used| waited(used.queue, used.point))
        };
        let place = match self.is_free_at(&planned, possible) {
            true => Some(planned),
            false => self.place_among(vm, request, possible),
        };
        let Some(place) = place else { return false };
        let (start, stop) = (place.span.base, place.span.base + place.span.bytes);
        // Without host memory for the pieces, nothing is split and the stream gets more.
        let may_cut = self.reserve_chunks(2).is_ok();
        let mut at = self.first_of(&place).unwrap_or(NIL);
        while at != NIL && self.heap.addr(at) < stop {
            if self.heap.end_of(at) > start && self.is_free_chunk(at) && !self.may_use(own, at) {
                if may_cut && self.heap.addr(at) < start {
                    at = self.cut(at, start);
                }
                if may_cut && self.heap.end_of(at) > stop {
                    self.cut(at, stop);
                }
                // A chunk that is handed over may coalesce with the stream's own on both sides.
                at = self.hand_over(at, own, since.point);
            }
            at = self.heap.next(at);
        }
        true
    }

    /// Splits a free chunk in two at an address; the caller has reserved room for the new chunk. Returns the second
    /// part, or the whole chunk if there is no memory to copy its recorded uses.
    fn cut(&mut self, id: ChunkId, addr: u64) -> ChunkId {
        let at = addr - self.heap.addr(id);
        let ChunkStreamState { queue, point, uses, .. } = *self.queues.chunk_state(id);
        if uses == UseId::NONE {
            return self.split_free(id, at);
        }
        if self.queues.reserve_copies(id).is_err() {
            return id;
        }
        let rest = self.heap.split(id, at);
        *self.queues.chunk_state_mut(rest) = ChunkStreamState::new(queue, point);
        self.queues.entry_mut(queue).begin_waiting();
        self.queues.copy_uses(id, rest);
        rest
    }

    /// Returns the best fit among free neighbours that `possible` accepts, where adjacent ones count as one. If none
    /// fits and memory is mapped by granules, returns the place that needs the fewest bytes mapped, within the limit.
    fn place_among(
        &self,
        vm: &VmRange,
        request: &Request<'_>,
        possible: impl Fn(ChunkId) -> bool,
    ) -> Option<Place> {
        if let Some((first, end)) = self.best_of_neighbours(request, &possible) {
            return Some(self.place_in(request, first, end));
        }
        let (at, first) =
            vm.place_to_grow_at(&self.heap, request, |id| self.is_free_chunk(id) && possible(id))?;
        let span = Span { base: at, bytes: request.size };
        Some(Place { first: self.heap.addr(first), first_id: first, span })
    }

    /// Returns the place of a request in adjacent free neighbours: from the aligned address to the point where the
    /// remainder is split off. The remainder keeps its owner. Otherwise it would get an event behind everything that
    /// the request's stream has queued by now.
    fn place_in(&self, request: &Request<'_>, first: ChunkId, end: ChunkId) -> Place {
        let addr = self.heap.addr(first);
        let bytes: u64 = self.heap.from(first).take_while(|&id| id != end).map(|id| self.heap.size(id)).sum();
        let base = addr.next_multiple_of(request.alignment.max(UNIT));
        let left = addr + bytes - base;
        let bytes = if self.heap.splits(left, request.size) { request.size } else { left };
        Place { first: addr, first_id: first, span: Span { base, bytes } }
    }

    /// Returns the chunk that begins where a place does. The lock may have been open since the place was found.
    fn first_of(&self, place: &Place) -> Option<ChunkId> {
        let Place { first, first_id: id, .. } = *place;
        let chunks = self.heap.chunks();
        let is_there =
            id.index() < chunks.places() && chunks.state(id) != State::Vacant && chunks.addr(id) == first;
        if is_there { Some(id) } else { self.heap.chunk_at(first) }
    }

    /// Returns whether all mapped memory at a place may be used.
    fn is_free_at(&self, place: &Place, possible: impl Fn(ChunkId) -> bool) -> bool {
        let Some(first) = self.first_of(place) else { return false };
        let (base, stop) = (place.span.base, place.span.base + place.span.bytes);
        let mut all = self.heap.from(first).skip_while(|&id| self.heap.end_of(id) <= base);
        let mut end = base;
        while end < stop
            && let Some(id) = all.next()
        {
            let may_be_part =
                self.heap.state(id) == State::Unmapped || self.is_free_chunk(id) && possible(id);
            if self.heap.addr(id) > end || !may_be_part {
                return false;
            }
            end = self.heap.end_of(id);
        }
        end >= stop
    }

    /// Returns the free neighbours that fit best: the first chunk, and the chunk after the last.
    fn best_of_neighbours(
        &self,
        request: &Request<'_>,
        possible: impl Fn(ChunkId) -> bool,
    ) -> Option<(ChunkId, ChunkId)> {
        let accepts = |id: ChunkId| self.is_free_chunk(id) && possible(id);
        let mut best: Option<((u64, u64), ChunkId, ChunkId)> = None;
        for (_, region) in self.heap.regions().iter() {
            let mut at = region.first;
            while at != NIL {
                steps::count();
                let (first, addr, mut bytes) = (at, self.heap.addr(at), 0);
                while at != NIL && accepts(at) {
                    bytes += self.heap.size(at);
                    at = self.heap.next(at);
                }
                let fits = bytes != 0 && request.place_in((bytes, addr)).is_some();
                if fits && best.is_none_or(|(key, ..)| (bytes, addr) < key) {
                    best = Some(((bytes, addr), first, at));
                }
                if bytes == 0 {
                    at = self.heap.next(at);
                }
            }
        }
        best.map(|(_, first, end)| (first, end))
    }

    /// Returns whether a chunk is free, whatever work it waits for.
    pub(super) fn is_free_chunk(&self, id: ChunkId) -> bool {
        matches!(self.heap.state(id), State::Free | State::Held)
    }

    /// Returns all free chunks.
    fn free_chunks(&self) -> impl Iterator<Item = ChunkId> + '_ {
        let all = self.heap.regions().iter().flat_map(|(_, region)| self.heap.from(region.first));
        all.filter(|&id| self.is_free_chunk(id))
    }

    /// Returns the free chunks of a place.
    fn chunks_in<'a>(&'a self, place: &Place) -> impl Iterator<Item = ChunkId> + use<'a> {
        let Span { base, bytes } = place.span;
        let first = self.first_of(place).unwrap_or(NIL);
        let all = self.heap.from(first).take_while(move |&id| self.heap.addr(id) < base + bytes);
        all.filter(move |&id| self.heap.end_of(id) > base && self.is_free_chunk(id))
    }
}
