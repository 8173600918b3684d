//! Frees with a stamp, and merges of the chunks that wait under stamps: merges once they are safe, and forced merges.
//!
//! Both kinds proceed a few chunks at a time. The order in which safe chunks merge does not matter: in the end no two
//! of them are neighbours.

use super::queue::StampQueue;
use crate::heap::{Heap, State};
use crate::ids::{ChunkId, NIL};
use crate::steps;

/// A pass of forced merges. Chunks that waited when it began are merged with their neighbours, the oldest first, each
/// chunk once.
#[derive(Clone, Copy, Debug)]
pub struct ForcedPass {
    number: u64,
    /// The lowest turn and address of the chunks that are left.
    from: (u64, u64),
    /// The last turn that the pass covers.
    last: u64,
}

/// The result of some forced merges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forced {
    /// A chunk of sufficient size exists.
    Found,
    /// Chunks are left to merge.
    More,
    /// No chunk is left to merge.
    Over,
}

impl StampQueue {
    /// Frees a chunk under the next stamp.
    #[inline(never)]
    pub(crate) fn free(&mut self, heap: &mut Heap, id: ChunkId) {
        let stamp = self.next();
        heap.mark_held(id);
        self.wait_under(heap, id, stamp);
    }

    /// Queues a chunk that is in no tree under a stamp.
    fn wait_under(&mut self, heap: &mut Heap, id: ChunkId, stamp: u64) {
        heap.chunks_mut().set_stamp(id, stamp);
        self.push(id, heap.addr(id), stamp);
        if self.quarantine {
            self.held_bytes += heap.size(id);
        } else {
            self.index.insert(heap.chunks_mut(), id);
        }
    }

    /// Removes a free chunk from all trees, before it is handed out or ends. Clears its stamp and returns it.
    pub(crate) fn remove_free(&mut self, heap: &mut Heap, id: ChunkId) -> u64 {
        let stamp = heap.chunks().stamp(id);
        if heap.state(id) == State::Free {
            self.unindex_any(heap, id);
        }
        if stamp != 0 {
            self.remove(id);
            heap.chunks_mut().set_stamp(id, 0);
            self.held_bytes -= if self.quarantine { heap.size(id) } else { 0 };
        }
        stamp
    }

    /// Undoes [`Self::remove_free`], for a chunk removed under that stamp or a part of one.
    pub(crate) fn insert_free(&mut self, heap: &mut Heap, id: ChunkId, stamp: u64) {
        if stamp == 0 {
            heap.add_to_index(id);
        } else {
            self.wait_under(heap, id, stamp);
        }
    }

    /// Removes a findable chunk from the index that its stamp puts it in.
    fn unindex_any(&mut self, heap: &mut Heap, id: ChunkId) {
        if heap.chunks().stamp(id) == 0 {
            heap.unindex(id);
        } else {
            self.index.remove(heap.chunks_mut(), id);
        }
    }

    /// Returns whether chunks may be left whose stamps the frontier has passed. Requests cannot find them until they
    /// are merged.
    #[inline]
    pub fn is_merging(&self) -> bool {
        self.may_have_due
    }

    /// Clears the stamps that the frontier has passed, of at most `most` chunks, and merges these chunks. Returns
    /// whether some are left.
    pub fn merge_safe_some(&mut self, heap: &mut Heap, most: usize) -> bool {
        for _ in 0..most {
            let Some(id) = self.first_due() else { break };
            steps::count();
            let stamp = heap.chunks().stamp(id);
            if self.is_safe(stamp) {
                self.remove_free(heap, id);
                heap.release::<true>(id);
            } else {
                self.requeue(id, stamp);
            }
        }
        self.first_due().is_some()
    }

    /// Begins to merge waiting chunks in spite of their stamps. With quarantine the pass is empty, because it would let
    /// requests find chunks that are not safe.
    pub fn begin_forced_pass(&mut self) -> ForcedPass {
        self.passes += 1;
        let last = if self.quarantine { 0 } else { self.last() };
        ForcedPass { number: self.passes, from: (0, 0), last }
    }

    /// Merges the next chunks of a pass, at most `most`, until a chunk of `size` bytes exists.
    pub fn merge_forced_some(
        &mut self,
        heap: &mut Heap,
        pass: &mut ForcedPass,
        size: u64,
        most: usize,
    ) -> Forced {
        for _ in 0..most {
            let next = self.first_from(pass.from);
            let Some(id) = next.filter(|&id| self.place(id).turn <= pass.last) else {
                return Forced::Over;
            };
            steps::count();
            let place = self.place(id);
            let stamp = heap.chunks().stamp(id);
            if place.turn != stamp && place.raised_in != pass.number {
                // The stamp was raised in an earlier pass, before the chunk's turn came.
                self.requeue(id, stamp);
                continue;
            }
            pass.from = (place.turn, heap.addr(id) + 1);
            let merged = self.merge_by_force(heap, id, pass);
            heap.counters_mut().forced_merges += 1;
            if heap.size(merged) >= size {
                return Forced::Found;
            }
        }
        Forced::More
    }

    /// Merges a waiting chunk whose turn it is with the free chunks beside it. Returns the result, which has the latest
    /// of their stamps.
    fn merge_by_force(&mut self, heap: &mut Heap, id: ChunkId, pass: &ForcedPass) -> ChunkId {
        let (next, prev) = (heap.next(id), heap.prev(id));
        if !self.is_findable(heap, next) && !self.is_findable(heap, prev) {
            return id;
        }
        let mut stamp = heap.chunks().stamp(id);
        self.index.remove(heap.chunks_mut(), id);
        if self.is_findable(heap, next) {
            stamp = stamp.max(self.remove_free(heap, next));
            heap.absorb_next(id);
        }
        let mut whole = id;
        if self.is_findable(heap, prev) {
            let turn = self.place(id).turn;
            self.remove(id);
            stamp = stamp.max(self.join_before(heap, prev, turn, pass));
            heap.chunks_mut().set_stamp(id, 0);
            heap.absorb_next(prev);
            whole = prev;
        }
        heap.chunks_mut().set_stamp(whole, stamp);
        self.index.insert(heap.chunks_mut(), whole);
        whole
    }

    /// Prepares a free chunk to absorb the one after it, whose turn it is. Returns the free chunk's stamp.
    fn join_before(&mut self, heap: &mut Heap, prev: ChunkId, turn: u64, pass: &ForcedPass) -> u64 {
        let stamp = heap.chunks().stamp(prev);
        self.unindex_any(heap, prev);
        let place = self.place(prev);
        if stamp == 0 {
            // The chunk did not wait when the pass began, so it has no turn of its own in the pass.
            self.push(prev, heap.addr(prev), turn);
        } else if (place.turn, heap.addr(prev)) >= pass.from {
            // The chunk's own turn comes later, with the stamp it has by then.
            if place.turn != stamp && place.raised_in != pass.number {
                self.requeue(prev, stamp);
            }
            self.place_mut(prev).raised_in = pass.number;
        }
        stamp
    }

    /// Returns whether there is a chunk and it is in an index.
    fn is_findable(&self, heap: &Heap, id: ChunkId) -> bool {
        id != NIL && heap.state(id) == State::Free
    }
}
