//! What is known of the work of lanes: which is done, and for which free memory waits.

use super::chunk_state::Lane;
use super::queue_lists::List;
use super::stream_heap::{StreamHeap, StreamMode};
use crate::core::ids::{ChunkId, NIL};
use crate::core::request::Want;
use crate::core::sort::sort_by_key;
use crate::core::steps;
use crate::core::stream_id::Stream;
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

impl StreamHeap {
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
        self.is_anyones(id) || self.is_to_be_shared(id) || self.is_multi() && own()
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
        if let StreamMode::Single { stream: sole, synchronized_frees, .. } = &mut self.mode {
            if *sole == stream {
                *synchronized_frees = self.heap.counters().frees();
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
        if !self.is_multi() {
            if self.single_stream() != Some(stream) || self.heap.counters().is_unused() {
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

    /// The points of a queue's free chunks that wait for recorded uses besides, in rising order; none where a look at all
    /// uses would take longer than `worth`, or without host memory for it.
    pub(crate) fn points_with_uses(&self, lane: Lane, worth: usize) -> Option<Vec<u64>> {
        if self.lanes.uses.places() > worth && self.lanes.row(lane).has_chunks_that_wait() {
            return None;
        }
        let mut points = Vec::new();
        for used in self.lanes.uses.iter().filter(|used| used.point != 0) {
            let note = self.lanes.note(used.chunk);
            if note.lane == lane {
                points.try_reserve(1).ok()?;
                points.push(note.point);
            }
        }
        sort_by_key(&mut points, |&point| point);
        Some(points)
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
}
