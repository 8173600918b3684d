//! What a request could get by waiting: for whose work, up to which point.

use super::arena::{Arena, Want, splits};
use super::chunks::{ChunkId, NIL, State};
use super::lane_list::List;
use super::lanes::{ANYONE, Lane, Note, Stream};
use super::steps;
use super::units::UNIT;
use crate::sys::HostMemoryExhausted;

/// Work of a lane up to one of its points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Work {
    pub(crate) lane: Lane,
    pub(crate) point: u64,
}

/// A lane with work that free memory waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    pub(crate) work: Work,
    pub(crate) stream: Stream,
    pub(crate) forgotten: bool,
}

/// What is known of a queue's work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueProgress {
    pub(crate) stream: Stream,
    pub(crate) forgotten: bool,
    pub(crate) newest: u64,
    pub(crate) done: u64,
}

impl Arena {
    /// Whether some work is known to be done. That of a lane which is another stream's by now, or none, is.
    pub(crate) fn is_done(&self, work: Work) -> bool {
        self.lanes.row_if_any(work.lane).is_none_or(|row| work.point <= row.done)
    }

    /// The caller's name of the private pool that a stream's name is for.
    pub(crate) fn private_name(&self, stream: Stream) -> Option<u64> {
        *self.lanes.pools.get((stream.pool() as usize).checked_sub(1)?)?
    }

    /// Whether a request in the order of a stream could get a free chunk now.
    pub(crate) fn is_for(&self, stream: Stream, id: ChunkId) -> bool {
        let own = || self.lanes.find(self.lanes.directed(stream)).is_some_and(|lane| self.is_own(lane, id));
        self.is_anyones(id) || self.is_to_be_shared(id) || self.mixed && own()
    }

    /// The most bytes that such a request could get in one piece.
    pub(crate) fn largest_for(&self, stream: Stream) -> u64 {
        let common = self.largest_common();
        let own = self.lanes.find(self.lanes.directed(stream));
        common.max(own.map_or(0, |lane| self.lanes.largest_run_of(lane)))
    }

    /// How many lanes there ever were at once: what [`Self::unfinished`] yields at most.
    pub(crate) fn lane_count(&self) -> usize {
        self.lanes.count()
    }

    /// Of some lanes those whose work free memory waits for. The work of private pools waits for their release.
    pub(crate) fn unfinished(&self, concerns: impl Fn(Lane) -> bool) -> impl Iterator<Item = Unfinished> {
        let waiting = self.lanes.listed(List::Unfinished).filter(move |&(lane, row)| {
            steps::count();
            let is_waited_for = || {
                // By what was freed here, or used here, or was freed here and waits for others besides.
                let lanes = &self.lanes;
                lanes.has_pending(lane) || lanes.has_pending_uses(lane) || row.has_chunks_that_wait()
            };
            row.stream.pool() == 0 && concerns(lane) && is_waited_for()
        });
        waiting.map(|(lane, row)| Unfinished {
            work: Work { lane, point: row.point },
            stream: row.stream,
            forgotten: row.forgotten,
        })
    }

    /// All work queued on a stream so far is done; with `forgotten` also on streams of that name which were
    /// forgotten, and may still work.
    pub(crate) fn stream_done(&mut self, stream: Stream, forgotten: bool) {
        if !self.mixed {
            if self.home == stream {
                self.synchronized_frees = self.counters.frees();
            }
            return;
        }
        if let Some(lane) = self.lanes.find(stream) {
            self.lane_done(lane, self.lanes.row(lane).point);
        }
        let mut next = self.lanes.forgotten_of(stream).next().filter(|_| forgotten);
        while let Some(lane) = next {
            self.lane_done(lane, self.lanes.row(lane).point);
            next = self.lanes.next_forgotten_of(stream, lane);
        }
    }

    /// The stream is about to end: what was freed on it waits for its work, and the name may come again as
    /// another's. Returns the work, if there is any to wait for.
    pub(crate) fn forget_stream(&mut self, stream: Stream) -> Result<Option<Work>, HostMemoryExhausted> {
        if !self.mixed {
            if self.home != stream || self.counters.is_unused() {
                return Ok(None);
            }
            self.tell_apart()?;
        }
        // What it leaves in private pools is not reused before their release.
        while let Some(lane) = self.lanes.first_private_on(stream) {
            self.lanes.advance(lane);
            self.lanes.forget(lane);
        }
        self.lanes.redirections.retain(|other| other.in_pool(0) != stream);
        let Some(lane) = self.lanes.find(stream) else { return Ok(None) };
        // Whatever is freed there later was used before now.
        let work = Work { lane, point: self.lanes.advance(lane) };
        self.lanes.forget(lane);
        Ok((!self.lanes.row(lane).is_idle()).then_some(work))
    }

    /// The work behind which a request could be served: that of the free neighbours which together fit it best, whatever
    /// streams may use them. Only work with an event of its own counts (`has_event`): an event recorded later stands
    /// for more than the free waited for, and that may itself wait for what the request's stream does next.
    pub(crate) fn waits_for(
        &self,
        want: &Want<'_>,
        has_event: impl Fn(Work) -> bool,
    ) -> Result<Option<Vec<Work>>, HostMemoryExhausted> {
        let Some(own) = self.lanes.find(self.lanes.directed(want.stream)) else { return Ok(None) };
        let possible = |id: ChunkId| self.works_before(id, own).all(&has_event);
        let Some((first, end)) = self.best_of_neighbours(want, possible) else { return Ok(None) };
        let mut works: Vec<Work> = Vec::new();
        for id in self.from(first).take_while(|&id| id != end) {
            for work in self.works_before(id, own) {
                match works.iter_mut().find(|other| other.lane == work.lane) {
                    Some(other) => other.point = other.point.max(work.point),
                    None => {
                        works.try_reserve(1)?;
                        works.push(work);
                    }
                }
            }
        }
        Ok(Some(works))
    }

    /// The unfinished work of other queues that a free chunk waits for.
    fn works_before(&self, id: ChunkId, own: Lane) -> impl Iterator<Item = Work> + '_ {
        let Note { lane, point, uses, .. } = *self.lanes.note(id);
        let waits = !self.is_anyones(id) && point > self.lanes.row(lane).done;
        let by_itself = waits.then_some(Work { lane, point });
        let used = self.lanes.uses.of(uses).map(|used| Work { lane: used.lane, point: used.point });
        by_itself.into_iter().chain(used).filter(move |work| work.lane != own)
    }

    /// A point of a queue for what is queued there from now on.
    pub(crate) fn next_work(&mut self, lane: Lane) -> Work {
        Work { lane, point: self.lanes.advance(lane) }
    }

    /// The queue that a request is served in, if its stream was seen before.
    pub(crate) fn queue_of_request(&self, want: &Want<'_>) -> Option<Lane> {
        self.lanes.find(self.lanes.directed(want.stream))
    }

    /// The queue of a stream that is told apart from others.
    pub(crate) fn queue_of(&self, stream: Stream) -> Option<Lane> {
        self.lanes.find(stream)
    }

    /// What is known of a queue's work.
    pub(crate) fn progress_of(&self, lane: Lane) -> QueueProgress {
        // Nothing is left to know of a place that was given up.
        let given_up = QueueProgress { stream: Stream::NONE, forgotten: true, newest: 0, done: u64::MAX };
        let Some(row) = self.lanes.row_if_any(lane) else { return given_up };
        QueueProgress { stream: row.stream, forgotten: row.forgotten, newest: row.point, done: row.done }
    }

    /// The queues of streams of a name that were forgotten.
    pub(crate) fn forgotten_queues(&self, stream: Stream) -> impl Iterator<Item = Lane> + '_ {
        self.lanes.forgotten_of(stream)
    }

    /// The points of a queue that free chunks wait for, in rising order, once or more often. Those of chunks that wait
    /// for recorded uses besides are left out.
    pub(crate) fn points_waited_for(&self, lane: Lane) -> impl Iterator<Item = u64> + '_ {
        let row = self.lanes.row(lane);
        let next = |&id: &ChunkId| Some(self.lanes.newer(id)).filter(|&id| id != NIL);
        let oldest = Some(row.oldest).filter(|&id| id != NIL);
        let mut chunks = std::iter::successors(oldest, next).map(|id| self.lanes.note(id).point).peekable();
        let mut uses = self.lanes.uses.behind_oldest(row.oldest_use).map(|used| used.point).peekable();
        std::iter::from_fn(move || match (chunks.peek(), uses.peek()) {
            (Some(chunk), Some(used)) if used < chunk => uses.next(),
            (Some(_), _) => chunks.next(),
            (None, _) => uses.next(),
        })
    }

    /// The request's stream waits for some work from its point `since` on: makes what fits best behind it the stream's
    /// own. Returns whether there is anything that fits.
    pub(crate) fn adopt(&mut self, want: &Want<'_>, works: &[Work], since: Work) -> bool {
        let own = since.lane;
        let waited = |lane: Lane, point: u64| {
            let done = lane == own || point <= self.lanes.row(lane).done;
            done || works.iter().any(|work| work.lane == lane && point <= work.point)
        };
        let possible = |id: ChunkId| {
            let note = self.lanes.note(id);
            let mut others = self.lanes.uses.of(note.uses);
            self.is_anyones(id)
                || waited(note.lane, note.point) && others.all(|used| waited(used.lane, used.point))
        };
        let Some((first, end)) = self.best_of_neighbours(want, possible) else { return false };
        let (start, stop) = self.place_in(want, first, end);
        // Without memory for it nothing is cut, and more becomes the stream's own.
        let may_cut = self.reserve_chunks(2).is_ok()
            && self.starts.reserve(&self.chunks.slab, &mut self.regions, 2).is_ok();
        let mut at = first;
        while at != end && self.chunks.addr(at) < stop {
            if self.end_of(at) > start && !self.may_use(own, at) {
                if may_cut && self.chunks.addr(at) < start {
                    at = self.cut(at, start);
                }
                if may_cut && self.end_of(at) > stop {
                    self.cut(at, stop);
                }
                // What is handed over merges with the stream's own on both sides.
                at = self.hand_over(at, own, since.point);
            }
            at = self.chunks.next(at);
        }
        true
    }

    /// Where a request goes in a run of free neighbours: from its aligned address as far as it is split off. The rest
    /// stays whose it is: it would get an event behind everything that the request's stream has queued by now.
    fn place_in(&self, want: &Want<'_>, first: ChunkId, end: ChunkId) -> (u64, u64) {
        let addr = self.chunks.addr(first);
        let bytes: u64 = self.from(first).take_while(|&id| id != end).map(|id| self.chunks.size(id)).sum();
        let start = addr.next_multiple_of(want.alignment.max(UNIT));
        let left = addr + bytes - start;
        (start, start + if splits(left, want.size, self.max_slack) { want.size } else { left })
    }

    /// Cuts a free chunk in two at an address, for which there is room; returns the second, or the whole where there is
    /// no memory for its recorded uses.
    fn cut(&mut self, id: ChunkId, addr: u64) -> ChunkId {
        let at = addr - self.chunks.addr(id);
        let Note { lane, point, uses, .. } = *self.lanes.note(id);
        if uses == 0 {
            return self.split_free(id, at);
        }
        if self.lanes.reserve_copies(id).is_err() {
            return id;
        }
        let rest = self.add_after(id, at);
        self.chunks.slab[..][rest].mark_held();
        *self.lanes.note_mut(rest) = Note::new(lane, point);
        self.lanes.row_mut(lane).begin_waiting();
        self.lanes.copy_uses(id, rest);
        rest
    }

    /// Gives a free chunk to another lane, at one of its points; returns what it is part of then.
    pub(super) fn hand_over(&mut self, id: ChunkId, lane: Lane, point: u64) -> ChunkId {
        if self.owner(id).is_some() {
            self.unlink_runs(id, id);
            self.lanes.unhang(id);
            // It is nobody's for a moment, and the runs around end there.
            self.lanes.note_mut(id).lane = ANYONE;
            self.link_runs(id, id);
        } else {
            self.lanes.end_uses(id);
            let before = self.lanes.note(id).lane;
            self.lanes.row_mut(before).end_waiting();
        }
        *self.lanes.note_mut(id) = Note::new(lane, point);
        self.settle(id)
    }

    /// Of the free neighbours that `possible` accepts, all that touch each other taken as one, the best fit: its
    /// first chunk, and the one behind its last.
    fn best_of_neighbours(
        &self,
        want: &Want<'_>,
        possible: impl Fn(ChunkId) -> bool,
    ) -> Option<(ChunkId, ChunkId)> {
        let accepts =
            |id: ChunkId| matches!(self.chunks.state(id), State::Free | State::Held) && possible(id);
        let mut best: Option<((u64, u64), ChunkId, ChunkId)> = None;
        for (_, region) in self.regions.iter() {
            let mut at = region.first;
            while at != NIL {
                let (first, addr, mut bytes) = (at, self.chunks.addr(at), 0);
                while at != NIL && accepts(at) {
                    bytes += self.chunks.size(at);
                    at = self.chunks.next(at);
                }
                let start = addr.checked_next_multiple_of(want.alignment.max(UNIT));
                let fits = start.is_some_and(|start| bytes >= want.size && bytes - want.size >= start - addr);
                if fits && best.is_none_or(|(key, ..)| (bytes, addr) < key) {
                    best = Some(((bytes, addr), first, at));
                }
                if bytes == 0 {
                    at = self.chunks.next(at);
                }
            }
        }
        best.map(|(_, first, end)| (first, end))
    }

    /// A chunk and those behind it in its region.
    fn from(&self, first: ChunkId) -> impl Iterator<Item = ChunkId> + '_ {
        let mut at = first;
        std::iter::from_fn(move || {
            let id = (at != NIL).then_some(at)?;
            at = self.chunks.next(id);
            Some(id)
        })
    }
}
