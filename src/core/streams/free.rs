//! Frees in the order of streams, once a pool knows more than one lane.

use crate::core::arena::{Arena, Freed};
use crate::core::heap::address_map::Starts;
use crate::core::heap::chunks::{Chunks, Hot, Vacant};
use crate::core::heap::regions::Regions;
use crate::core::ids::{ChunkId, NIL};
use crate::core::steps;
use crate::core::streams::free_spans::Run;
use crate::core::streams::pending_work::Work;
use crate::core::streams::queue::Row;
use crate::core::streams::queue_lists::List;
use crate::core::streams::queues::{ANYONE, Extent, Lane, Note, Stream};
use crate::core::streams::sharing::SHARED_PER_CALL;

impl Arena {
    /// Takes a chunk in use back in the order of a lane.
    #[inline(always)]
    pub(in crate::core) fn free_in_lane(&mut self, id: ChunkId, lane: Lane) {
        let Arena { chunks, lanes, starts, regions, last_free, .. } = self;
        let Chunks { slab, vacant, .. } = chunks;
        let is_sharing = lanes.is_sharing();
        let point = lanes.next_point();
        let (slab, (row, notes)) = (&mut slab[..], lanes.parts(lane));
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
        Joined { slab, vacant, notes, row, starts, regions }.join(id, lane, point);
    }

    /// The same of a chunk of another lane's, or that others were recorded on; in a lane whose stream is gone, or all
    /// of whose work was done; and while chunks are to be shared.
    #[inline(never)]
    fn free_otherwise(&mut self, id: ChunkId, lane: Lane) {
        self.share_some(SHARED_PER_CALL);
        self.chunks.slab[..][id].mark_held();
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
    pub(in crate::core) fn freed_in_queue(&self) -> Freed {
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
    pub(in crate::core) fn settle(&mut self, id: ChunkId) -> ChunkId {
        let Note { lane, point, .. } = *self.lanes.note(id);
        if point <= self.lanes.row(lane).done {
            return self.give_to_all(id, None);
        }
        if self.is_sharing() {
            self.share_around(id, lane);
        }
        let Arena { chunks, lanes, starts, regions, .. } = self;
        let Chunks { slab, vacant, .. } = chunks;
        let (slab, (row, notes)) = (&mut slab[..], lanes.parts(lane));
        let notes = &mut notes[..slab.len()];
        Joined { slab, vacant, notes, row, starts, regions }.join(id, lane, point)
    }

    /// Makes a chunk that waits for nothing, in no list, one that anybody may have. `was` is the run that it was
    /// part of, if there is one.
    pub(in crate::core) fn give_to_all(&mut self, id: ChunkId, was: Option<Run>) -> ChunkId {
        steps::count();
        self.lanes.note_mut(id).leave_lane();
        let before = self.own_before(id).map(|own| self.reach(own, was));
        let behind = self.own_behind(id).map(|own| Run { head: own, ..self.reach(own, was) });
        let whole = self.release::<false>(id);
        let (addr, end) = (self.chunks.addr(whole), self.end_of(whole));
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

    /// The run around an own chunk, out of its index; `was` is one that is in none already.
    fn reach(&mut self, own: ChunkId, was: Option<Run>) -> Run {
        let lane = self.lanes.note(own).lane;
        was.filter(|was| was.lane == lane).unwrap_or_else(|| self.take_run(lane, own))
    }
}

/// Where the last free in the order of a queue was.
#[derive(Clone, Copy)]
pub(in crate::core) struct LastFree {
    lane: Lane,
    /// The chunk, if it waits for recorded uses; else NIL.
    waiting: ChunkId,
}

impl LastFree {
    pub(in crate::core) const NONE: Self = LastFree { lane: ANYONE, waiting: NIL };
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
    slab: &'a mut [Hot],
    vacant: &'a mut Vacant,
    notes: &'a mut [Note],
    row: &'a mut Row,
    starts: &'a mut Starts,
    regions: &'a mut Regions,
}

impl Joined<'_> {
    /// Puts a chunk among a lane's own; returns what it is part of then.
    ///
    /// Only the lane's own runs change, which end at the chunk: nobody could use it before, and no other can now.
    #[inline(always)]
    fn join(self, id: ChunkId, lane: Lane, mut point: u64) -> ChunkId {
        let Joined { slab, vacant, notes, row, starts, regions } = self;
        let kind = |slab: &[Hot], notes: &[Note], at: ChunkId| Kind::of(slab, notes, lane, at);
        let Hot { mut addr, prev, mut next, .. } = slab[id];
        let (mut size, mut whole) = (slab[id].size(), id);
        let (mut bytes, mut chunks) = (size, 1u32);
        let (before, behind) = (kind(slab, notes, prev), kind(slab, notes, next));
        // The run that ends at the chunk, or what anybody may have there.
        let own = match before {
            Kind::Own => prev,
            Kind::Anyones if kind(slab, notes, slab[prev].prev) == Kind::Own => slab[prev].prev,
            _ => NIL,
        };
        let head = if own == NIL { NIL } else { row.linked_head(slab, notes, own) };
        if head != NIL {
            let run = row.unlink_run(notes, head);
            (addr, bytes, chunks) = (run.addr, bytes + run.bytes, chunks.saturating_add(run.chunks));
        } else if before == Kind::Anyones {
            addr = slab[prev].addr;
            bytes += slab[prev].size();
        }
        // The one that begins behind it.
        let own_behind = match behind {
            Kind::Own => next,
            Kind::Anyones if kind(slab, notes, slab[next].next) == Kind::Own => slab[next].next,
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
            let gone = slab[next];
            starts.clear(slab, regions, gone.addr, next);
            vacant.add(slab, next);
            (size, next, chunks) = (size + gone.size(), gone.next, chunks - 1);
        }
        if is_one_before {
            row.unhang(notes, prev);
            point = point.max(notes[prev.index()].point);
            notes[id.index()].leave_lane();
            let at = slab[id].addr;
            starts.clear(slab, regions, at, id);
            vacant.add(slab, id);
            (size, whole, chunks) = (size + slab[prev].size(), prev, chunks - 1);
        }
        slab[whole].set_size(size);
        slab[whole].next = next;
        if next != NIL {
            slab[next].prev = whole;
        }
        notes[whole.index()].point = point;
        row.hang(notes, whole);
        row.link_run(notes, if head == NIL { whole } else { head }, Extent { addr, bytes, chunks });
        whole
    }
}

/// What a chunk is to a lane.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Kind {
    /// No chunk at all, or none that it may use.
    Barrier,
    Anyones,
    Own,
}

impl Kind {
    #[inline(always)]
    pub(in crate::core) fn of(slab: &[Hot], notes: &[Note], lane: Lane, id: ChunkId) -> Self {
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
