//! Runs: neighbours that a lane may use, and which count for it as one chunk.
//!
//! A run is made of the lane's own free chunks and of those that anybody may have, with at least one of its own;
//! what has no such neighbour is found in the common index. Neighbours of the same kind are one chunk, so the two
//! kinds alternate in a run, and a chunk that anybody may have is in the runs of at most two lanes: those beside it.
//!
//! Who changes chunks takes the runs around them out of their indices before, and puts them back afterwards.

use super::arena::Arena;
use super::chunks::{ChunkId, NIL, State};
use super::lanes::{ANYONE, Lane, Note};

impl Arena {
    /// The lane that may use a free chunk at once, where not everybody may.
    #[inline]
    pub(super) fn owner(&self, id: ChunkId) -> Option<Lane> {
        if !self.mixed || self.chunks.state(id) != State::Held {
            return None;
        }
        let note = self.lanes.note(id);
        (note.uses == 0 && note.lane != ANYONE).then_some(note.lane)
    }

    /// Whether a lane may use a free chunk at once that not everybody may.
    #[inline(always)]
    pub(super) fn is_own(&self, lane: Lane, id: ChunkId) -> bool {
        if !self.chunks.slab[..][id].is_held() {
            return false;
        }
        let note = self.lanes.note(id);
        note.lane == lane && note.uses == 0
    }

    #[inline]
    pub(super) fn is_anyones(&self, id: ChunkId) -> bool {
        self.chunks.slab[..][id].is_findable()
    }

    #[inline]
    pub(super) fn may_use(&self, lane: Lane, id: ChunkId) -> bool {
        self.is_anyones(id) || self.is_own(lane, id)
    }

    /// Whether a chunk that anybody may have is part of a lane's run.
    #[inline]
    pub(super) fn is_in_run_of(&self, lane: Lane, id: ChunkId) -> bool {
        let beside = |other: ChunkId| other != NIL && self.is_own(lane, other);
        beside(self.chunks.prev(id)) || beside(self.chunks.next(id))
    }

    /// The first chunk of a run, given its first own one.
    pub(super) fn run_start(&self, own: ChunkId) -> ChunkId {
        let prev = self.chunks.prev(own);
        if prev != NIL && self.is_anyones(prev) { prev } else { own }
    }

    /// The first own chunk of the run around one: where the index has it.
    #[inline]
    pub(super) fn run_head(&self, lane: Lane, own: ChunkId) -> ChunkId {
        let (mut head, mut at) = (own, self.chunks.prev(own));
        while at != NIL && self.may_use(lane, at) {
            if !self.is_anyones(at) {
                head = at;
            }
            at = self.chunks.prev(at);
        }
        head
    }

    /// Address and bytes of a run, given its first own chunk.
    #[inline]
    pub(super) fn run_extent(&self, lane: Lane, head: ChunkId) -> (u64, u64) {
        let start = self.run_start(head);
        let (addr, mut bytes, mut at) = (self.chunks.addr(start), 0, start);
        while at != NIL && self.may_use(lane, at) {
            bytes += self.chunks.size(at);
            at = self.chunks.next(at);
        }
        (addr, bytes)
    }

    /// The last own chunk of some lane's that a run reaches `id` from, from before it.
    #[inline(always)]
    pub(super) fn own_before(&self, id: ChunkId) -> Option<ChunkId> {
        let prev = self.chunks.prev(id);
        let own = if prev != NIL && self.is_anyones(prev) { self.chunks.prev(prev) } else { prev };
        (own != NIL && self.owner(own).is_some()).then_some(own)
    }

    /// The first one behind it.
    #[inline(always)]
    pub(super) fn own_behind(&self, id: ChunkId) -> Option<ChunkId> {
        let next = self.chunks.next(id);
        let own = if next != NIL && self.is_anyones(next) { self.chunks.next(next) } else { next };
        (own != NIL && self.owner(own).is_some()).then_some(own)
    }

    /// Takes the run around a lane's own chunk out of the index; all runs are in theirs.
    #[inline]
    pub(super) fn take_run(&mut self, lane: Lane, own: ChunkId) -> Run {
        let head = self.lanes.row(lane).linked_head(&self.chunks.slab, &self.lanes.notes, own);
        let addr = self.lanes.note(head).run_addr;
        Run { lane, head, addr, end: addr + self.lanes.unlink_run(lane, head) }
    }

    #[inline]
    pub(super) fn put_run(&mut self, run: Run) {
        self.lanes.link_run(run.lane, run.head, run.addr, run.end - run.addr);
    }

    /// The chunk from which on runs reach to `id` from before it.
    fn first_near(&self, id: ChunkId) -> ChunkId {
        self.own_before(id).unwrap_or(id)
    }

    /// The last chunk whose runs reach to `id` from behind it.
    fn last_near(&self, id: ChunkId) -> ChunkId {
        self.own_behind(id).unwrap_or(id)
    }

    /// Before a free chunk is cut, or taken where it is not a request that takes it.
    pub(super) fn begin_change(&mut self, id: ChunkId) {
        if self.mixed {
            self.unlink_runs(id, id);
        }
    }

    /// After that: what was a part of the chunk and is free lies beside `id`.
    pub(super) fn end_change(&mut self, id: ChunkId) {
        if self.mixed {
            self.link_runs(id, id);
        }
    }

    /// Takes the runs that contain or touch the chunks from `first` to `last` out of their indices.
    pub(super) fn unlink_runs(&mut self, first: ChunkId, last: ChunkId) {
        let (mut at, end) = (self.first_near(first), self.last_near(last));
        loop {
            if let Some(lane) = self.owner(at) {
                let head = self.run_head(lane, at);
                self.lanes.unlink_run(lane, head);
            }
            if at == end {
                return;
            }
            at = self.chunks.next(at);
        }
    }

    /// Puts them back, as they are now.
    pub(super) fn link_runs(&mut self, first: ChunkId, last: ChunkId) {
        let (mut at, end) = (self.first_near(first), self.last_near(last));
        loop {
            if let Some(lane) = self.owner(at) {
                let head = self.run_head(lane, at);
                if self.lanes.note(head).run_bytes == 0 {
                    let (addr, bytes) = self.run_extent(lane, head);
                    self.lanes.link_run(lane, head, addr, bytes);
                }
            }
            if at == end {
                return;
            }
            at = self.chunks.next(at);
        }
    }

    /// Makes one chunk of two neighbours that are in no index and no list. Of what is known beside their size nothing
    /// is left of the second.
    pub(super) fn fuse(&mut self, first: ChunkId, second: ChunkId) {
        debug_assert!(self.chunks.next(first) == second);
        *self.lanes.note_mut(second) = Note::new(ANYONE, 0);
        self.absorb_next(first);
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
}
