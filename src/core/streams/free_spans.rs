//! Runs: neighbours that a lane may use, and which count for it as one chunk.
//!
//! A run is made of the lane's own free chunks and of common ones, which every lane may have, with at least one of its own;
//! what has no such neighbour is found in the common index. Common neighbours are one chunk, so on both sides of one in a run
//! are own chunks, but for the ends of the run, and it is in the runs of at most two lanes: those beside it.
//!
//! Before chunks are changed the runs around them are taken out of their indices; afterwards what is left of them is put back.

use super::chunk_state::{ANYONE, Extent, Lane, Note};
use super::stream_heap::StreamHeap;
use crate::core::heap::State;
use crate::core::ids::{ChunkId, NIL};

impl StreamHeap {
    /// The lane that may use a free chunk at once, where not everybody may.
    #[inline]
    pub(in crate::core) fn owner(&self, id: ChunkId) -> Option<Lane> {
        if !self.is_multi() || self.heap.state(id) != State::Held {
            return None;
        }
        let note = self.lanes.note(id);
        (note.uses == 0 && note.lane != ANYONE).then_some(note.lane)
    }

    /// Whether a lane may use a free chunk at once that not everybody may.
    #[inline(always)]
    pub(in crate::core) fn is_own(&self, lane: Lane, id: ChunkId) -> bool {
        if !self.heap.chunks().get(id).is_held() {
            return false;
        }
        let note = self.lanes.note(id);
        note.lane == lane && note.uses == 0
    }

    #[inline]
    pub(in crate::core) fn is_anyones(&self, id: ChunkId) -> bool {
        self.heap.chunks().get(id).is_findable()
    }

    #[inline]
    pub(super) fn may_use(&self, lane: Lane, id: ChunkId) -> bool {
        self.is_anyones(id) || self.is_own(lane, id)
    }

    /// Whether a chunk that anybody may have is part of a lane's run.
    #[inline]
    pub(super) fn is_in_run_of(&self, lane: Lane, id: ChunkId) -> bool {
        let beside = |other: ChunkId| other != NIL && self.is_own(lane, other);
        beside(self.heap.prev(id)) || beside(self.heap.next(id))
    }

    /// The first chunk of a run, given its first own one.
    pub(super) fn run_start(&self, own: ChunkId) -> ChunkId {
        let prev = self.heap.prev(own);
        if prev != NIL && self.is_anyones(prev) { prev } else { own }
    }

    /// The last own chunk of some lane's that a run reaches `id` from, from before it.
    #[inline(always)]
    pub(super) fn own_before(&self, id: ChunkId) -> Option<ChunkId> {
        let prev = self.heap.prev(id);
        let own = if prev != NIL && self.is_anyones(prev) { self.heap.prev(prev) } else { prev };
        (own != NIL && self.owner(own).is_some()).then_some(own)
    }

    /// The first one behind it.
    #[inline(always)]
    pub(super) fn own_behind(&self, id: ChunkId) -> Option<ChunkId> {
        let next = self.heap.next(id);
        let own = if next != NIL && self.is_anyones(next) { self.heap.next(next) } else { next };
        (own != NIL && self.owner(own).is_some()).then_some(own)
    }

    /// Takes the run around a lane's own chunk out of the index; all runs are in theirs.
    #[inline]
    pub(super) fn take_run(&mut self, lane: Lane, own: ChunkId) -> Run {
        let (row, notes) = self.lanes.parts(lane);
        let head = row.linked_head(self.heap.chunks().slab(), notes, own);
        let Extent { addr, bytes, chunks } = row.unlink_run(notes, head);
        Run { lane, head, addr, end: addr + bytes, chunks }
    }

    #[inline]
    pub(super) fn put_run(&mut self, run: Run) {
        let Run { lane, head, addr, end, chunks } = run;
        self.lanes.link_run(lane, head, Extent { addr, bytes: end - addr, chunks });
    }

    /// Takes the runs out of their indices that contain a common chunk: it is about to be cut, or to be none any more.
    pub(in crate::core) fn begin_change(&mut self, id: ChunkId) -> Changing {
        let mut changing = Changing::default();
        if self.is_multi() {
            self.take_beside(&mut changing, self.heap.prev(id));
            self.take_beside(&mut changing, self.heap.next(id));
        }
        changing
    }

    /// Takes the run around a chunk out of its index, if it is some lane's own and its run is in one.
    pub(super) fn take_beside(&mut self, changing: &mut Changing, own: ChunkId) {
        let Some(lane) = self.owner_if_any(own) else { return };
        let addr = self.heap.addr(own);
        if changing.0.iter().flatten().all(|(run, _)| run.lane != lane || !run.contains(addr)) {
            let run = self.take_run(lane, own);
            changing.add(run, self.heap.addr(run.head));
        }
    }

    fn owner_if_any(&self, id: ChunkId) -> Option<Lane> {
        if id == NIL { None } else { self.owner(id) }
    }

    /// The change is over: `id` is in none of the runs any more.
    pub(in crate::core) fn end_change(&mut self, changing: Changing, id: ChunkId) {
        changing.0.into_iter().flatten().for_each(|(run, head_at)| self.put_rest(run, head_at, id));
    }

    /// Puts what is left of a run that lost a chunk: the part before it and the part behind it, as far as there are own
    /// chunks in them. The first was at `head_at`, and may be a part of what is lost.
    pub(super) fn put_rest(&mut self, run: Run, head_at: u64, lost: ChunkId) {
        let (from, to) = (self.heap.addr(lost), self.heap.end_of(lost));
        if head_at < from {
            self.put_run(Run { end: run.end.min(from), ..run });
        }
        if to < run.end {
            let mut head = self.heap.next(lost);
            if self.is_anyones(head) {
                head = self.heap.next(head);
            }
            if head != NIL && self.is_own(run.lane, head) {
                self.put_run(Run { head, addr: run.addr.max(to), ..run });
            }
        }
    }

    /// Makes one chunk of two neighbours that are in no index and no list. Of what is known beside their size nothing
    /// is left of the second.
    pub(super) fn fuse(&mut self, first: ChunkId, second: ChunkId) {
        debug_assert!(self.heap.next(first) == second);
        *self.lanes.note_mut(second) = Note::new(ANYONE, 0);
        self.heap.absorb_next(first);
    }
}

/// The run around an own chunk of a lane's: between which addresses, and where the index has it.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) lane: Lane,
    /// Its first own chunk.
    pub(super) head: ChunkId,
    pub(super) addr: u64,
    pub(super) end: u64,
    /// Its own chunks at most.
    pub(super) chunks: u32,
}

impl Run {
    fn contains(&self, addr: u64) -> bool {
        (self.addr..self.end).contains(&addr)
    }
}

/// Runs that are in no index while chunks of theirs are changed, on both sides of these and around them, each with the
/// address of its first own chunk.
#[derive(Default)]
pub(in crate::core) struct Changing([Option<(Run, u64)>; 3]);

impl Changing {
    fn add(&mut self, run: Run, head_at: u64) {
        if let Some(place) = self.0.iter_mut().find(|place| place.is_none()) {
            *place = Some((run, head_at));
        }
    }
}
