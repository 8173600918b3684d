//! Frees in the order of streams, once a pool knows more than one lane.

use super::chunk_state::{ANYONE, Extent, Lane, Note};
use super::free_spans::Run;
use super::pending_work::Work;
use super::queue::Row;
use super::queue_lists::List;
use super::sharing::SHARED_PER_CALL;
use super::stream_heap::{LastFree, StreamHeap};
use crate::core::heap::{Heap, Hot, Refused};
use crate::core::ids::{ChunkId, NIL};
use crate::core::steps;
use crate::core::stream_id::Stream;

/// What came of a free, and what it leaves to do. One byte, with an error around it too: a `Result` in a `Result` would be
/// returned in two registers, which costs each free five instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Freed {
    /// Nothing: one stream alone, stamps, or a backend without events.
    Done,
    /// Other streams may use the chunk once some work is done, so that work needs an event:
    /// [`StreamHeap::work_behind_last_free`].
    InQueue,
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
    /// Takes a chunk in use back in the order of a lane.
    #[inline(always)]
    pub(super) fn free_in_lane(&mut self, id: ChunkId, lane: Lane) {
        let StreamHeap { heap, lanes, last_free, .. } = self;
        let is_sharing = lanes.is_sharing();
        let point = lanes.next_point();
        let slab = heap.chunks_mut().slab_mut();
        let (row, notes) = lanes.parts(lane);
        // There is a note for each chunk: one check of a place does for both.
        let notes = &mut notes[..slab.len()];
        let note = &notes[id.index()];
        let is_usual = note.lane == lane && note.uses == 0 && row.places.is_in(List::Unfinished);
        if !is_usual || row.forgotten || is_sharing {
            return self.free_otherwise(id, lane);
        }
        slab[id].mark_held();
        row.live -= 1;
        row.point = point;
        *last_free = LastFree { lane, waiting: NIL };
        Joined { heap, notes, row }.join(id, lane, point);
    }

    /// Frees a chunk that is counted as freed, in the order that it was allocated in.
    pub(in crate::core) fn free(&mut self, id: ChunkId) -> Freed {
        let lane = self.lanes.note(id).lane;
        self.free_in_lane(id, lane);
        self.freed_in_queue()
    }

    /// The same of a chunk of another lane's, or that others were recorded on; in a lane whose stream is gone, or all
    /// of whose work was done; and while chunks are to be shared.
    #[inline(never)]
    fn free_otherwise(&mut self, id: ChunkId, lane: Lane) {
        self.share_some(SHARED_PER_CALL);
        self.heap.mark_held(id);
        let point = self.lanes.advance(lane);
        let note = self.lanes.note_mut(id);
        let (allocated_in, uses) = (std::mem::replace(&mut note.lane, lane), note.uses);
        note.point = point;
        self.lanes.row_mut(allocated_in).live -= 1;
        self.last_free = LastFree { lane, waiting: NIL };
        if uses != 0 && self.lanes.await_uses(id, lane) {
            // In no list, and yet the lane must not end before.
            self.lanes.row_mut(lane).begin_waiting();
            self.last_free.waiting = id;
        } else {
            self.settle(id);
        }
    }

    /// Whether the last free, in the order of a queue, is one that events can tell others of.
    #[inline]
    pub(super) fn freed_in_queue(&self) -> Freed {
        if self.settings.events { Freed::InQueue } else { Freed::Done }
    }

    /// The work that others wait for before they may use what was freed last: that of the queue it was freed in, then
    /// that of recorded uses. Work on which no event can be recorded is left out: without a stream, of a forgotten one,
    /// or of a private pool, whose memory is for no other stream.
    pub(crate) fn work_behind_last_free(&self) -> impl Iterator<Item = FreedWork> + '_ {
        let LastFree { lane, waiting } = self.last_free;
        let point = self.lanes.row(lane).point;
        let uses = if waiting == NIL { 0 } else { self.lanes.note(waiting).uses };
        let own = (Work { lane, point }, waiting != NIL);
        let others =
            self.lanes.uses.of(uses).map(|used| (Work { lane: used.lane, point: used.point }, false));
        std::iter::once(own).chain(others).filter_map(|(work, waits_for_others)| {
            let row = self.lanes.row(work.lane);
            let can_be_recorded = row.stream.exists() && row.stream.pool() == 0 && !row.forgotten;
            can_be_recorded.then_some(FreedWork { work, stream: row.stream, waits_for_others })
        })
    }

    /// Puts a chunk that waits for nothing but its own lane where it belongs; returns what it is part of then.
    #[inline(never)]
    pub(super) fn settle(&mut self, id: ChunkId) -> ChunkId {
        let Note { lane, point, .. } = *self.lanes.note(id);
        if point <= self.lanes.row(lane).done {
            return self.give_to_all(id, None);
        }
        if self.is_sharing() {
            self.share_around(id, lane);
        }
        let StreamHeap { heap, lanes, .. } = self;
        let (row, notes) = lanes.parts(lane);
        let notes = &mut notes[..heap.chunks().places()];
        Joined { heap, notes, row }.join(id, lane, point)
    }

    /// Makes a chunk that waits for nothing, in no list, one that anybody may have. `was` is the run that it was
    /// part of, if there is one.
    pub(super) fn give_to_all(&mut self, id: ChunkId, was: Option<Run>) -> ChunkId {
        steps::count();
        self.lanes.note_mut(id).leave_lane();
        let before = self.own_before(id).map(|own| self.reach(own, was));
        let behind = self.own_behind(id).map(|own| Run { head: own, ..self.reach(own, was) });
        let whole = self.heap.release::<false>(id);
        let (addr, end) = (self.heap.addr(whole), self.heap.end_of(whole));
        match (before, behind) {
            (Some(before), Some(behind)) if before.lane == behind.lane => {
                // Two runs that become one, or both ends of the one that the chunk was part of.
                let more = if was.is_some_and(|was| was.lane == before.lane) { 0 } else { behind.chunks };
                self.put_run(Run { end: behind.end, chunks: before.chunks.saturating_add(more), ..before });
            }
            _ => {
                before.into_iter().for_each(|run| self.put_run(Run { end, ..run }));
                behind.into_iter().for_each(|run| self.put_run(Run { addr, ..run }));
            }
        }
        whole
    }

    /// Gives a free chunk to another lane, at one of its points; returns what it is part of then.
    pub(super) fn hand_over(&mut self, id: ChunkId, lane: Lane, point: u64) -> ChunkId {
        if let Some(before) = self.owner(id) {
            let run = self.take_run(before, id);
            let head_at = self.heap.addr(run.head);
            self.lanes.unhang(id);
            // It is no lane's for a moment, and the runs around end there.
            self.lanes.note_mut(id).lane = ANYONE;
            self.put_rest(run, head_at, id);
        } else {
            self.lanes.end_uses(id);
            let before = self.lanes.note(id).lane;
            self.lanes.row_mut(before).end_waiting();
        }
        *self.lanes.note_mut(id) = Note::new(lane, point);
        self.settle(id)
    }

    /// A plan of granules leaves a chunk mapped: it is free from now on, as part of what is around it.
    pub(in crate::core) fn put_back(&mut self, id: ChunkId) {
        self.heap.mark_held(id);
        if self.unclaim(id) {
            self.settle(id);
        } else {
            self.give_to_all(id, None);
        }
    }

    /// A plan of granules leaves a chunk unmapped: it is in no stream's order from now on.
    pub(in crate::core) fn disown(&mut self, id: ChunkId) {
        if self.is_multi() && self.unclaim(id) {
            *self.lanes.note_mut(id) = Note::new(ANYONE, 0);
        }
    }

    /// Whether a chunk of a plan became a lane's while the plan was under way, when another stream came; from now on
    /// that lane does not wait for it.
    fn unclaim(&mut self, id: ChunkId) -> bool {
        let lane = self.lanes.note(id).lane;
        let claimed = lane != ANYONE;
        if claimed {
            self.lanes.row_mut(lane).end_waiting();
        }
        claimed
    }

    /// The run around an own chunk, out of its index; `was` is one that is in none already.
    fn reach(&mut self, own: ChunkId, was: Option<Run>) -> Run {
        let lane = self.lanes.note(own).lane;
        was.filter(|was| was.lane == lane).unwrap_or_else(|| self.take_run(lane, own))
    }
}

/// Work that what was freed last waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreedWork {
    pub(crate) work: Work,
    pub(crate) stream: Stream,
    /// The chunk is not in its queue's list of free chunks, for it waits for recorded uses besides.
    pub(crate) waits_for_others: bool,
}

/// What a chunk changes that becomes a lane's own.
struct Joined<'a> {
    heap: &'a mut Heap,
    notes: &'a mut [Note],
    row: &'a mut Row,
}

impl Joined<'_> {
    /// Puts a chunk among a lane's own; returns what it is part of then.
    ///
    /// Only the lane's own runs change, which end at the chunk: nobody could use it before, and no other can now.
    #[inline(always)]
    fn join(self, id: ChunkId, lane: Lane, mut point: u64) -> ChunkId {
        let Joined { heap, notes, row } = self;
        let slab = heap.chunks().slab();
        let kind = |notes: &[Note], at: ChunkId| Kind::of(slab, notes, lane, at);
        let (mut addr, mut bytes, mut chunks) = (slab[id].addr(), slab[id].size(), 1u32);
        let (prev, next) = (slab[id].prev(), slab[id].next());
        let (before, behind) = (kind(notes, prev), kind(notes, next));
        // The run that ends at the chunk, or what anybody may have there.
        let own = match before {
            Kind::Own => prev,
            Kind::Anyones if kind(notes, slab[prev].prev()) == Kind::Own => slab[prev].prev(),
            _ => NIL,
        };
        let head = if own == NIL { NIL } else { row.linked_head(slab, notes, own) };
        if head != NIL {
            let run = row.unlink_run(notes, head);
            (addr, bytes, chunks) = (run.addr, bytes + run.bytes, chunks.saturating_add(run.chunks));
        } else if before == Kind::Anyones {
            addr = slab[prev].addr();
            bytes += slab[prev].size();
        }
        // The one that begins behind it.
        let own_behind = match behind {
            Kind::Own => next,
            Kind::Anyones if kind(notes, slab[next].next()) == Kind::Own => slab[next].next(),
            _ => NIL,
        };
        if own_behind != NIL {
            let run = row.unlink_run(notes, own_behind);
            (bytes, chunks) = (bytes + run.bytes, chunks.saturating_add(run.chunks));
        } else if behind == Kind::Anyones {
            bytes += slab[next].size();
        }
        // Own neighbours stay apart where an event tells their points apart; else the later point counts for both.
        let merges = row.merges;
        let is_one = |notes: &[Note], other: ChunkId| merges || notes[other.index()].point == point;
        let (is_one_behind, is_one_before) =
            (behind == Kind::Own && is_one(notes, next), before == Kind::Own && is_one(notes, prev));
        if is_one_behind {
            row.unhang(notes, next);
            point = point.max(notes[next.index()].point);
            notes[next.index()].leave_lane();
            chunks -= 1;
        }
        if is_one_before {
            row.unhang(notes, prev);
            point = point.max(notes[prev.index()].point);
            notes[id.index()].leave_lane();
            chunks -= 1;
        }
        let whole =
            if is_one_before || is_one_behind { heap.coalesce(id, is_one_before, is_one_behind) } else { id };
        notes[whole.index()].point = point;
        row.hang(notes, whole);
        row.link_run(notes, if head == NIL { whole } else { head }, Extent { addr, bytes, chunks });
        whole
    }
}

/// What a chunk is to a lane.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// No chunk at all, or none that it may use.
    Barrier,
    Anyones,
    Own,
}

impl Kind {
    #[inline(always)]
    pub(super) fn of(slab: &[Hot], notes: &[Note], lane: Lane, id: ChunkId) -> Self {
        if id == NIL {
            return Kind::Barrier;
        }
        let hot = &slab[id];
        if hot.is_findable() {
            return Kind::Anyones;
        }
        let note = &notes[id.index()];
        // Nobody can foretell any of it: no branches.
        let is_own = hot.is_held() & (note.lane == lane) & (note.uses == 0);
        if is_own { Kind::Own } else { Kind::Barrier }
    }
}
