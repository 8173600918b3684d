//! One order of work: its points, the list of its free chunks, the index of its runs.
//!
//! List and index are linked through the notes of the chunks, which all lanes have in common.

use crate::core::heap::chunks::Hot;
use crate::core::ids::{ChunkId, NIL};
use crate::core::seed::Seed;
use crate::core::steps;
use crate::core::streams::cross_stream_use::Link;
use crate::core::streams::queue_lists::Places;
use crate::core::streams::queues::{Extent, Lane, Note, Stream};
use crate::core::streams::span_index::{ByAddress, RunIndex};
use crate::core::tree::Node;
use crate::core::tree::Tree;

pub(in crate::core) struct Row {
    pub(in crate::core) stream: Stream,
    /// The point of the last free.
    pub(in crate::core) point: u64,
    /// Work that was queued before these frees is done.
    pub(in crate::core) done: u64,
    /// The lane's free chunks that wait for nothing else, the oldest point first.
    pub(in crate::core) oldest: ChunkId,
    pub(in crate::core) newest: ChunkId,
    /// Where the last chunk came among them that was not the newest; those with such points come in order.
    pub(in crate::core) hung: ChunkId,
    /// What free chunks wait for of this lane's work, the oldest point first.
    pub(in crate::core) oldest_use: Link,
    pub(in crate::core) newest_use: Link,
    /// Runs of neighbours that the lane may use, with at least one chunk of its own.
    pub(in crate::core) runs: RunIndex,
    /// Those of them that may have more than [`LONG`] own chunks, to be found by the address of any.
    long_runs: Tree<ByAddress>,
    /// Of both.
    seed: Seed,
    /// The head of the run that was entered last.
    recent: ChunkId,
    /// Chunks in use that were allocated here, uses recorded here, free chunks of its own that wait for others, and
    /// those that a plan of granules had in hand when they became the lane's.
    pub(in crate::core) live: u64,
    /// Those of them that no chunk in use is behind.
    pub(in crate::core) waiting: u64,
    /// Of these the uses.
    pub(in crate::core) waiting_uses: u64,
    /// Its stream is about to end, or has.
    pub(in crate::core) forgotten: bool,
    /// Free neighbours become one, with the later point.
    pub(in crate::core) merges: bool,
    pub(in crate::core) places: Places,
    lane: Lane,
    /// Its place in the tree of names, or in that of forgotten streams.
    left: ChunkId,
    right: ChunkId,
}

/// The head of a run with no more own chunks is found by a walk.
const LONG: u32 = if cfg!(test) { 2 } else { 8 };

impl Row {
    /// One whose points begin behind `point`.
    pub(in crate::core) fn new(lane: Lane, stream: Stream, point: u64, merges: bool, seed: Seed) -> Self {
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

    pub(in crate::core) fn lane(&self) -> Lane {
        self.lane
    }

    /// The run that was entered last may be at a place that is no more.
    pub(in crate::core) fn forget_recent(&mut self) {
        self.recent = NIL;
    }

    /// Whether nothing refers to it any more.
    pub(in crate::core) fn is_idle(&self) -> bool {
        self.oldest == NIL && self.live == 0
    }

    /// Whether its place may be another stream's: a forgotten one's, or a thread's, for threads come and go unannounced.
    pub(in crate::core) fn is_vacant(&self) -> bool {
        self.is_idle() && (self.forgotten || self.stream.thread() != 0)
    }

    /// Whether a free chunk of its own waits for work of others.
    pub(in crate::core) fn has_chunks_that_wait(&self) -> bool {
        self.waiting != self.waiting_uses
    }

    /// Whether a chunk in use was allocated or recorded here.
    pub(in crate::core) fn has_chunks_in_use(&self) -> bool {
        self.live != self.waiting
    }

    /// A chunk that is not in use, and in no list of the lane's, begins to keep the lane.
    pub(in crate::core) fn begin_waiting(&mut self) {
        (self.live, self.waiting) = (self.live + 1, self.waiting + 1);
    }

    pub(in crate::core) fn end_waiting(&mut self) {
        (self.live, self.waiting) = (self.live - 1, self.waiting - 1);
    }

    /// Puts a chunk among the lane's, by its point, which mostly is the newest.
    #[inline(always)]
    pub(in crate::core) fn hang(&mut self, notes: &mut [Note], id: ChunkId) {
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
    pub(in crate::core) fn hang_behind(&mut self, notes: &mut [Note], id: ChunkId, older: ChunkId) {
        let newer = if older == NIL { self.oldest } else { notes[older.index()].newer };
        let note = &mut notes[id.index()];
        (note.older, note.newer) = (older, newer);
        self.join(notes, older, id);
        self.join(notes, id, newer);
    }

    /// Takes a chunk out of the lane's list.
    #[inline(always)]
    pub(in crate::core) fn unhang(&mut self, notes: &mut [Note], id: ChunkId) {
        let Note { older, newer, .. } = notes[id.index()];
        if self.hung == id {
            self.hung = older;
        }
        self.join(notes, older, newer);
    }

    /// Puts one chunk in another's place in the list, with all that is known of it.
    #[inline(always)]
    pub(in crate::core) fn replace(&mut self, notes: &mut [Note], id: ChunkId, by: ChunkId) {
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
    pub(in crate::core) fn link_run(&mut self, notes: &mut [Note], id: ChunkId, run: Extent) {
        notes[id.index()].run = run;
        self.runs.insert(notes, id, run.bytes);
        if run.chunks > LONG {
            self.long_runs.insert(notes, self.seed, id);
        }
        self.recent = id;
    }

    /// The head of the run around an own chunk of the lane's, where all runs are in their indices.
    #[inline]
    pub(in crate::core) fn linked_head(&self, slab: &[Hot], notes: &[Note], own: ChunkId) -> ChunkId {
        if notes[own.index()].is_head() { own } else { self.linked_head_before(slab, notes, own) }
    }

    fn linked_head_before(&self, slab: &[Hot], notes: &[Note], own: ChunkId) -> ChunkId {
        let addr = slab[own].addr;
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
            at = slab[at].prev;
            if at == NIL || notes[at.index()].is_head() {
                return at;
            }
        }
        self.long_runs.last_to(notes, (addr, 0))
    }

    /// Takes the run out that has a chunk for its head, if there is one; returns where it is.
    #[inline]
    pub(in crate::core) fn unlink_run(&mut self, notes: &mut [Note], id: ChunkId) -> Extent {
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
    pub(in crate::core) fn finds_long(&self, notes: &[Note], head: ChunkId) -> bool {
        let run = notes[head.index()].run;
        (self.long_runs.find(notes, (run.addr, 0)) == head) == (run.chunks > LONG)
    }
}

/// By name; of forgotten streams several may have the same.
impl Node for Row {
    fn key(&self) -> (u64, u64) {
        if self.forgotten { self.stream.key_of_forgotten(self.lane) } else { self.stream.key() }
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
