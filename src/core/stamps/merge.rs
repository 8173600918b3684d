//! Frees with a stamp, and merges of what waits under one: those that have become safe, and those by force.
//!
//! Both kinds go a few chunks at a time. What becomes of chunks that are safe does not depend on the order in which they merge:
//! in the end there are no two neighbours of them.

use crate::core::arena::Arena;
use crate::core::heap::chunks::State;
use crate::core::ids::{ChunkId, NIL};
use crate::core::steps;

/// A pass of forced merges: what waited when it began is merged with its neighbours, the oldest first, each chunk once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForcedPass {
    number: u64,
    /// Turn and address from which on chunks are left to do.
    from: (u64, u64),
    /// Of the turns that it is for.
    last: u64,
}

/// What came of some forced merges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Forced {
    /// A chunk that is large enough.
    Found,
    /// Some are left to do.
    More,
    Over,
}

impl Arena {
    #[inline(never)]
    pub(in crate::core) fn free_stamped(&mut self, id: ChunkId) {
        let stamp = self.stamps.next();
        self.chunks.slab[..][id].mark_held();
        self.wait_under(id, stamp);
    }

    /// Has a chunk that is in no tree wait under a stamp, from now on.
    fn wait_under(&mut self, id: ChunkId, stamp: u64) {
        self.chunks.set_stamp(id, stamp);
        self.stamps.push(id, self.chunks.addr(id), stamp);
        if !self.settings.quarantine {
            self.stamps.index.insert(&mut self.chunks, id);
        }
    }

    /// Takes a free chunk out of all trees, to be handed out or to end. Returns its stamp, which it has no more.
    pub(in crate::core) fn remove_free(&mut self, id: ChunkId) -> u64 {
        let stamp = self.chunks.stamp(id);
        if self.chunks.state(id) == State::Free {
            self.unindex_any(id);
        }
        if stamp != 0 {
            self.stamps.remove(id);
            self.chunks.set_stamp(id, 0);
        }
        stamp
    }

    /// The contrary, of a chunk that was removed under that stamp or is a part of one.
    pub(in crate::core) fn insert_free(&mut self, id: ChunkId, stamp: u64) {
        if stamp == 0 {
            let size = self.chunks.size(id);
            self.index.insert(&mut self.chunks.slab, id, size);
        } else {
            self.wait_under(id, stamp);
        }
    }

    /// Takes a findable chunk out of the index that it is in by its stamp.
    fn unindex_any(&mut self, id: ChunkId) {
        if self.chunks.stamp(id) == 0 {
            self.unindex(id);
        } else {
            self.stamps.index.remove(&mut self.chunks, id);
        }
    }

    /// Whether chunks may be left whose stamps the frontier has passed. Until they are merged requests find nothing.
    #[inline]
    pub(crate) fn is_merging(&self) -> bool {
        !self.stamps.is_settled()
    }

    /// Clears the stamps that the frontier has passed and merges their chunks.
    pub(crate) fn merge_safe(&mut self) {
        self.merge_safe_some(usize::MAX);
    }

    /// The same of so many chunks. Returns whether some are left.
    pub(crate) fn merge_safe_some(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(id) = self.stamps.first_due() else { break };
            steps::count();
            let stamp = self.chunks.stamp(id);
            if self.stamps.is_safe(stamp) {
                self.remove_free(id);
                self.release::<true>(id);
            } else {
                self.stamps.requeue(id, stamp);
            }
        }
        self.stamps.first_due().is_some()
    }

    /// Begins to merge waiting chunks in spite of their stamps. With quarantine there is nothing to do, for it would make
    /// requests find what is not safe.
    pub(crate) fn begin_forced_pass(&mut self) -> ForcedPass {
        self.stamps.passes += 1;
        let last = if self.settings.quarantine { 0 } else { self.stamps.last() };
        ForcedPass { number: self.stamps.passes, from: (0, 0), last }
    }

    /// Merges the next chunks of a pass, at most so many, until one of `size` bytes exists.
    pub(crate) fn merge_forced_some(&mut self, pass: &mut ForcedPass, size: u64, most: usize) -> Forced {
        for _ in 0..most {
            let next = self.stamps.first_from(pass.from);
            let Some(id) = next.filter(|&id| self.stamps.place(id).turn <= pass.last) else {
                return Forced::Over;
            };
            steps::count();
            let place = self.stamps.place(id);
            let stamp = self.chunks.stamp(id);
            if place.turn != stamp && place.raised_in != pass.number {
                // Since an earlier pass, for which it was not this chunk's turn.
                self.stamps.requeue(id, stamp);
                continue;
            }
            pass.from = (place.turn, self.chunks.addr(id) + 1);
            let merged = self.merge_by_force(id, pass);
            self.counters.forced_merges += 1;
            if self.chunks.size(merged) >= size {
                return Forced::Found;
            }
        }
        Forced::More
    }

    /// Merges a waiting chunk, whose turn it is, with the free chunks beside it. Returns the whole, whose stamp is the latest.
    fn merge_by_force(&mut self, id: ChunkId, pass: &ForcedPass) -> ChunkId {
        let (next, prev) = (self.chunks.next(id), self.chunks.prev(id));
        if !self.is_findable(next) && !self.is_findable(prev) {
            return id;
        }
        let mut stamp = self.chunks.stamp(id);
        self.stamps.index.remove(&mut self.chunks, id);
        if self.is_findable(next) {
            stamp = stamp.max(self.remove_free(next));
            self.absorb_next(id);
        }
        let mut whole = id;
        if self.is_findable(prev) {
            let turn = self.stamps.place(id).turn;
            self.stamps.remove(id);
            stamp = stamp.max(self.join_before(prev, turn, pass));
            self.chunks.set_stamp(id, 0);
            self.absorb_next(prev);
            whole = prev;
        }
        self.chunks.set_stamp(whole, stamp);
        self.stamps.index.insert(&mut self.chunks, whole);
        whole
    }

    /// Prepares a free chunk for one behind it, whose turn it is, to become a part of it. Returns its stamp.
    fn join_before(&mut self, prev: ChunkId, turn: u64, pass: &ForcedPass) -> u64 {
        let stamp = self.chunks.stamp(prev);
        self.unindex_any(prev);
        let place = self.stamps.place(prev);
        if stamp == 0 {
            // It did not wait when the pass began, so that it has no turn in it.
            self.stamps.push(prev, self.chunks.addr(prev), turn);
        } else if (place.turn, self.chunks.addr(prev)) >= pass.from {
            // Its own turn comes, with whatever stamp it has by then.
            if place.turn != stamp && place.raised_in != pass.number {
                self.stamps.requeue(prev, stamp);
            }
            self.stamps.place_mut(prev).raised_in = pass.number;
        }
        stamp
    }

    /// Whether there is a chunk, and requests may find it.
    fn is_findable(&self, id: ChunkId) -> bool {
        id != NIL && self.chunks.state(id) == State::Free
    }
}
