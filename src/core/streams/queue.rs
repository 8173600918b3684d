//! One order of work: its points, the list of its free chunks, the index of its runs.
//!
//! List and index are linked through the notes of the chunks, which all lanes have in common.

use super::chunk_state::{Extent, Lane, Note};
use super::cross_stream_use::Link;
use super::queue_lists::{Listed, Places};
use super::span_index::{ByAddress, RunIndex};
use crate::core::heap::Hot;
use crate::core::ids::{ChunkId, NIL};
use crate::core::seed::Seed;
use crate::core::steps;
use crate::core::stream_id::Stream;
use crate::core::tree::Node;
use crate::core::tree::Tree;

pub(super) struct Row {
    pub(super) stream: Stream,
    /// The point of the last free.
    pub(super) point: u64,
    /// Work that was queued before these frees is done.
    pub(super) done: u64,
    /// The lane's free chunks that wait for nothing else, the oldest point first.
    pub(super) oldest: ChunkId,
    pub(super) newest: ChunkId,
    /// Where the last chunk came among them that was not the newest; those with such points come in order.
    pub(super) hung: ChunkId,
    /// What free chunks wait for of this lane's work, the oldest point first.
    pub(super) oldest_use: Link,
    pub(super) newest_use: Link,
    /// Runs of neighbours that the lane may use, with at least one chunk of its own.
    pub(super) runs: RunIndex,
    /// Those of them that may have more than [`LONG`] own chunks, to be found by the address of any.
    long_runs: Tree<ByAddress>,
    /// Of both.
    seed: Seed,
    /// The head of the run that was entered last.
    recent: ChunkId,
    /// Chunks in use that were allocated here, uses recorded here, free chunks of its own that wait for others, and
    /// those that a plan of granules had in hand when they became the lane's.
    pub(super) live: u64,
    /// Those of them that no chunk in use is behind.
    pub(super) waiting: u64,
    /// Of these the uses.
    pub(super) waiting_uses: u64,
    /// Its stream is about to end, or has.
    pub(super) forgotten: bool,
    /// Free neighbours become one, with the later point.
    pub(super) merges: bool,
    pub(super) places: Places,
    lane: Lane,
    /// Its place in the tree of names, or in that of forgotten streams.
    left: ChunkId,
    right: ChunkId,
}

/// The head of a run with no more own chunks is found by a walk.
const LONG: u32 = if cfg!(test) { 2 } else { 8 };

impl Row {
    /// One whose points begin behind `point`.
    pub(super) fn new(lane: Lane, stream: Stream, point: u64, merges: bool, seed: Seed) -> Self {
        Row {
            stream,
            point,
            done: point,
            oldest: NIL,
            newest: NIL,
            hung: NIL,
            oldest_use: 0,
            newest_use: 0,
            runs: RunIndex::new(seed),
            long_runs: Tree::EMPTY,
            seed,
            recent: NIL,
            live: 0,
            waiting: 0,
            waiting_uses: 0,
            forgotten: false,
            merges,
            places: Places::NONE,
            lane,
            left: NIL,
            right: NIL,
        }
    }

    pub(super) fn lane(&self) -> Lane {
        self.lane
    }

    /// The run that was entered last may be at a place that is no more.
    pub(super) fn forget_recent(&mut self) {
        self.recent = NIL;
    }

    /// Whether nothing refers to it any more.
    pub(super) fn is_idle(&self) -> bool {
        self.oldest == NIL && self.live == 0
    }

    /// Whether its place may be another stream's: a forgotten one's, or a thread's, for threads come and go unannounced.
    pub(super) fn is_vacant(&self) -> bool {
        self.is_idle() && (self.forgotten || self.stream.thread() != 0)
    }

    /// Whether a free chunk of its own waits for work of others.
    pub(super) fn has_chunks_that_wait(&self) -> bool {
        self.waiting != self.waiting_uses
    }

    /// Whether a chunk in use was allocated or recorded here.
    pub(super) fn has_chunks_in_use(&self) -> bool {
        self.live != self.waiting
    }

    /// A chunk that is not in use, and in no list of the lane's, begins to keep the lane.
    pub(super) fn begin_waiting(&mut self) {
        (self.live, self.waiting) = (self.live + 1, self.waiting + 1);
    }

    pub(super) fn end_waiting(&mut self) {
        (self.live, self.waiting) = (self.live - 1, self.waiting - 1);
    }

    /// Puts a chunk among the lane's, by its point, which mostly is the newest.
    #[inline(always)]
    pub(super) fn hang(&mut self, notes: &mut [Note], id: ChunkId) {
        let point = notes[id.index()].point;
        let newest = self.newest;
        if newest != NIL && notes[newest.index()].point > point {
            self.hang_among(notes, id, point);
        } else {
            self.hang_behind(notes, id, newest);
        }
    }

    #[cold]
    fn hang_among(&mut self, notes: &mut [Note], id: ChunkId, point: u64) {
        let is_before = |at: ChunkId| at != NIL && notes[at.index()].point <= point;
        let mut older = if self.hung == NIL { self.newest } else { self.hung };
        while older != NIL && !is_before(older) {
            older = notes[older.index()].older;
        }
        let newer_of = |at: ChunkId| if at == NIL { self.oldest } else { notes[at.index()].newer };
        while is_before(newer_of(older)) {
            older = newer_of(older);
        }
        self.hang_behind(notes, id, older);
        self.hung = id;
    }

    /// Puts a chunk behind another of the lane's, or first.
    #[inline(always)]
    pub(super) fn hang_behind(&mut self, notes: &mut [Note], id: ChunkId, older: ChunkId) {
        let newer = if older == NIL { self.oldest } else { notes[older.index()].newer };
        let note = &mut notes[id.index()];
        (note.older, note.newer) = (older, newer);
        self.join(notes, older, id);
        self.join(notes, id, newer);
    }

    /// Takes a chunk out of the lane's list.
    #[inline(always)]
    pub(super) fn unhang(&mut self, notes: &mut [Note], id: ChunkId) {
        let Note { older, newer, .. } = notes[id.index()];
        if self.hung == id {
            self.hung = older;
        }
        self.join(notes, older, newer);
    }

    /// Puts one chunk in another's place in the list, with all that is known of it.
    #[inline(always)]
    pub(super) fn replace(&mut self, notes: &mut [Note], id: ChunkId, by: ChunkId) {
        let Note { lane, point, older, newer, .. } = notes[id.index()];
        let note = &mut notes[by.index()];
        *note = Note::new(lane, point);
        (note.older, note.newer) = (older, newer);
        if self.hung == id {
            self.hung = by;
        }
        self.join(notes, older, by);
        self.join(notes, by, newer);
    }

    /// Makes two chunks neighbours in the list; NIL is its end.
    #[inline(always)]
    fn join(&mut self, notes: &mut [Note], older: ChunkId, newer: ChunkId) {
        if older == NIL {
            self.oldest = newer
        } else {
            notes[older.index()].newer = newer
        }
        if newer == NIL { self.newest = older } else { notes[newer.index()].older = older }
    }

    /// Enters a run of the lane's into its index, under its first own chunk.
    #[inline]
    pub(super) fn link_run(&mut self, notes: &mut [Note], id: ChunkId, run: Extent) {
        notes[id.index()].run = run;
        self.runs.insert(notes, id, run.bytes);
        if run.chunks > LONG {
            self.long_runs.insert(notes, self.seed, id);
        }
        self.recent = id;
    }

    /// The head of the run around an own chunk of the lane's, where all runs are in their indices.
    #[inline]
    pub(super) fn linked_head(&self, slab: &[Hot], notes: &[Note], own: ChunkId) -> ChunkId {
        if notes[own.index()].is_head() { own } else { self.linked_head_before(slab, notes, own) }
    }

    fn linked_head_before(&self, slab: &[Hot], notes: &[Note], own: ChunkId) -> ChunkId {
        let addr = slab[own].addr();
        // Mostly it is the one that was entered last.
        if self.recent != NIL {
            let recent = &notes[self.recent.index()];
            // Whatever has bytes of a run is a head.
            if recent.lane == notes[own.index()].lane && recent.run.contains(addr) {
                return self.recent;
            }
        }
        let mut at = own;
        // Between two own chunks is at most one that is not.
        for _ in 0..2 * LONG {
            steps::count();
            at = slab[at].prev();
            if at == NIL || notes[at.index()].is_head() {
                return at;
            }
        }
        self.long_runs.last_to(notes, (addr, 0))
    }

    /// Takes the run out that has a chunk for its head, if there is one; returns where it is.
    #[inline]
    pub(super) fn unlink_run(&mut self, notes: &mut [Note], id: ChunkId) -> Extent {
        let run = notes[id.index()].run;
        if run.bytes != 0 {
            self.runs.remove(notes, id, run.bytes);
            if run.chunks > LONG {
                self.long_runs.remove(notes, self.seed, id);
            }
            notes[id.index()].run.bytes = 0;
        }
        run
    }

    /// Whether a run is found by the address of its first own chunk exactly if it may be long.
    pub(super) fn finds_long(&self, notes: &[Note], head: ChunkId) -> bool {
        let run = notes[head.index()].run;
        (self.long_runs.find(notes, (run.addr, 0)) == head) == (run.chunks > LONG)
    }
}

impl Listed for Row {
    #[inline]
    fn places(&self) -> &Places {
        &self.places
    }

    #[inline]
    fn places_mut(&mut self) -> &mut Places {
        &mut self.places
    }
}

/// By name; of forgotten streams several may have the same.
impl Node for Row {
    fn key(&self) -> (u64, u64) {
        if self.forgotten { self.stream.key_of_forgotten(self.lane.number()) } else { self.stream.key() }
    }

    fn left(&self) -> ChunkId {
        self.left
    }

    fn right(&self) -> ChunkId {
        self.right
    }

    fn left_mut(&mut self) -> &mut ChunkId {
        &mut self.left
    }

    fn right_mut(&mut self) -> &mut ChunkId {
        &mut self.right
    }
}
