//! Whose queued work may still touch a free chunk.
//!
//! A lane is an order of work: each stream is one, and requests without a stream share one. What was freed in a
//! lane may be used there again at once, for the work that comes is queued behind the work that went. Any other
//! lane has to wait until that work is done.
//!
//! The frees of a pool are counted: the count at a free is the free's point, so points also tell which of two frees came
//! first, in whatever lanes. The work of a lane is done in order, so 'done up to point p' says everything about a lane. A
//! free chunk has a lane and a point, or none: then every lane may have it. One that other lanes were recorded on waits
//! until they are done up to their points.
//!
//! Free neighbours of one lane stay apart where they have different points, because an event belongs to one free: a request
//! of another lane that needs the one must not wait for work behind it that the other waits for. For their own lane they
//! count as one chunk, a run. Where no event tells points apart they are merged ([`Row::merges`]).
//!
//! ```text
//!   chunk  | in use | lane 2, point 7 | lane 2, point 9 | every lane's | lane 3, point 4 | in use |
//!                   '---------------- a run of lane 2 -----------------'
//!                                                       '------ a run of lane 3 --------'
//! ```
//!
//! As long as a pool knows one lane only there is nothing to tell apart, and none of this exists.

use super::chunk_state::{ANYONE, Extent, Lane, Note};
use super::cross_stream_use::Uses;
use super::queue::Row;
use super::queue_lists::{LaneLists, List};
use crate::core::ids::{ChunkId, NIL};
use crate::core::seed::Seed;
use crate::core::steps;
use crate::core::stream_id::Stream;
use crate::core::tables::{make_room, shrink, shrink_to};
use crate::core::tree::Tree;
use crate::sys::HostMemoryExhausted;

/// All lanes of an arena.
pub(super) struct Lanes {
    /// Of the trees.
    seed: Seed,
    pub(super) notes: Vec<Note>,
    rows: Vec<Row>,
    /// The rows of streams that are not forgotten, by name.
    names: Tree,
    /// The others.
    forgotten: Tree,
    pub(super) lists: LaneLists,
    /// The one that was entered last.
    recent: Lane,
    pub(super) uses: Uses,
    /// What streams' requests are for, other than common memory.
    pub(super) redirections: Vec<Stream>,
    /// The callers' names of private pools; their numbers here begin with 1. Released ones are `None`.
    pub(super) pools: Vec<Option<u64>>,
    /// How often a lane got further: something may have become available.
    pub(super) advances: u64,
    /// The last point that was given to a free, in whatever lane: what is known of points of a row that was given up must
    /// not fit another row's by chance.
    newest_point: u64,
    /// Events tell when work is done.
    has_events: bool,
}

impl Lanes {
    pub(super) fn new(seed: u64, has_events: bool) -> Self {
        Lanes {
            seed: Seed::new(seed),
            notes: Vec::new(),
            rows: Vec::new(),
            names: Tree::EMPTY,
            forgotten: Tree::EMPTY,
            lists: LaneLists::new(),
            recent: ANYONE,
            uses: Uses::new(),
            redirections: Vec::new(),
            pools: Vec::new(),
            advances: 0,
            newest_point: 0,
            has_events,
        }
    }

    #[inline]
    pub(super) fn note(&self, id: ChunkId) -> &Note {
        &self.notes[id.index()]
    }

    #[inline]
    pub(super) fn note_mut(&mut self, id: ChunkId) -> &mut Note {
        &mut self.notes[id.index()]
    }

    #[inline]
    pub(super) fn row(&self, lane: Lane) -> &Row {
        &self.rows[lane.0 as usize]
    }

    #[inline]
    pub(super) fn row_mut(&mut self, lane: Lane) -> &mut Row {
        &mut self.rows[lane.0 as usize]
    }

    /// Whether no event tells the frees of two own chunks of a lane apart.
    pub(super) fn have_one_point(&self, first: ChunkId, second: ChunkId) -> bool {
        let (first, second) = (self.note(first), self.note(second));
        self.row(first.lane).merges || first.point == second.point
    }

    /// A note for each place of the slab.
    #[inline]
    pub(super) fn reserve(&mut self, places: usize) -> Result<(), HostMemoryExhausted> {
        if self.notes.len() >= places { Ok(()) } else { self.grow(places) }
    }

    #[cold]
    fn grow(&mut self, places: usize) -> Result<(), HostMemoryExhausted> {
        make_room(&mut self.notes, places)?;
        self.notes.resize(places, Note::new(ANYONE, 0));
        Ok(())
    }

    /// The slab has so many places from now on: nothing is remembered of those behind it.
    pub(super) fn shrink(&mut self, places: usize) {
        if places < self.notes.len() {
            self.rows.iter_mut().for_each(Row::forget_recent);
            shrink_to(&mut self.notes, places);
        }
    }

    /// The row of a lane; none where the place was given up since, with nothing left to wait for.
    pub(super) fn row_if_any(&self, lane: Lane) -> Option<&Row> {
        self.rows.get(lane.index())
    }

    /// The lane of a stream that was seen before and not forgotten since.
    pub(super) fn find(&self, stream: Stream) -> Option<Lane> {
        lane_at(self.names.find(&self.rows, stream.key()))
    }

    /// The first private pool's on a stream.
    pub(super) fn first_private_on(&self, stream: Stream) -> Option<Lane> {
        let (handle, name) = stream.in_pool(1).key();
        let lane = lane_at(self.names.first_from(&self.rows, (handle, name)))?;
        (self.row(lane).stream.in_pool(0) == stream).then_some(lane)
    }

    /// Those of streams of a name that were forgotten, and may still work.
    pub(super) fn forgotten_of(&self, stream: Stream) -> impl Iterator<Item = Lane> + '_ {
        std::iter::successors(self.forgotten_from(stream, 0), move |&lane| {
            self.next_forgotten_of(stream, lane)
        })
    }

    /// The one that comes behind another.
    pub(super) fn next_forgotten_of(&self, stream: Stream, lane: Lane) -> Option<Lane> {
        self.forgotten_from(stream, lane.0 + 1)
    }

    fn forgotten_from(&self, stream: Stream, first: u32) -> Option<Lane> {
        let mut first = first;
        loop {
            let key = stream.key_of_forgotten(first);
            let lane = lane_at(self.forgotten.first_from(&self.rows, key))?;
            match self.row(lane).stream {
                other if other == stream => return Some(lane),
                // A private pool's has the name too, and its work waits for the pool's release.
                other if other.in_pool(0) == stream => first = lane.0 + 1,
                _ => return None,
            }
        }
    }

    /// The lane of a stream, a new one if need be. On failure nothing changed.
    #[inline]
    pub(super) fn enter(&mut self, stream: Stream) -> Result<Lane, HostMemoryExhausted> {
        // Mostly the one that asked before asks again.
        match self.rows.get(self.recent.0 as usize) {
            Some(row) if row.stream == stream && !row.forgotten => Ok(self.recent),
            _ => self.enter_another(stream),
        }
    }

    #[inline(never)]
    fn enter_another(&mut self, stream: Stream) -> Result<Lane, HostMemoryExhausted> {
        self.recent = match self.find(stream) {
            Some(lane) => lane,
            None => self.add(stream)?,
        };
        Ok(self.recent)
    }

    #[cold]
    fn add(&mut self, stream: Stream) -> Result<Lane, HostMemoryExhausted> {
        let lane = match self.take_vacant() {
            Some(lane) => {
                let merges = self.merges(stream);
                let row = self.row_mut(lane);
                (row.stream, row.forgotten, row.done, row.merges) = (stream, false, row.point, merges);
                lane
            }
            None => {
                self.rows.try_reserve(1)?;
                let lane = Lane(u32::try_from(self.rows.len()).map_err(|_| HostMemoryExhausted)?);
                let merges = self.merges(stream);
                self.rows.push(Row::new(lane, stream, self.newest_point, merges, self.seed));
                lane
            }
        };
        self.names.insert(&mut self.rows, self.seed, node(lane));
        if stream.thread() != 0 {
            self.lists.add(&mut self.rows, List::Recyclable, lane);
        }
        Ok(lane)
    }

    /// Whether no event can be waited for that tells frees in the order of a stream apart.
    fn merges(&self, stream: Stream) -> bool {
        !self.has_events || !stream.exists() || stream.pool() != 0
    }

    /// A place of which there is nothing to know any more, if one is found at once.
    fn take_vacant(&mut self) -> Option<Lane> {
        const LOOKS: usize = 4;
        for _ in 0..LOOKS {
            let lane = self.lists.first(List::Recyclable)?;
            steps::count();
            if self.row(lane).is_vacant() {
                self.withdraw(lane);
                return Some(lane);
            }
            // Another call looks at it again, once it had a look at the others.
            self.lists.remove(&mut self.rows, List::Recyclable, lane);
            self.lists.add(&mut self.rows, List::Recyclable, lane);
        }
        None
    }

    /// Takes the row of a stream that has ended out of all trees and lists.
    fn withdraw(&mut self, lane: Lane) {
        let tree = if self.row(lane).forgotten { &mut self.forgotten } else { &mut self.names };
        tree.remove(&mut self.rows, self.seed, node(lane));
        for list in [List::Unfinished, List::Sharing, List::Recyclable] {
            self.lists.remove(&mut self.rows, list, lane);
        }
    }

    /// Gives the memory back that streams of the past have left.
    pub(super) fn forget_past(&mut self) {
        while let Some(lane) = self.rows.last().filter(|row| row.is_vacant()).map(Row::lane) {
            self.withdraw(lane);
            self.rows.pop();
        }
        shrink(&mut self.rows);
        self.shrink_uses();
    }

    /// The order that a stream's requests are in: its own, or that of a private pool on it.
    #[inline]
    pub(super) fn directed(&self, stream: Stream) -> Stream {
        if self.redirections.is_empty() {
            return stream;
        }
        let directed = self.redirections.iter().find(|other| other.in_pool(0) == stream);
        directed.copied().unwrap_or(stream)
    }

    /// The name may be another stream's from now on. What was freed here still waits for the lane's work.
    pub(super) fn forget(&mut self, lane: Lane) {
        self.names.remove(&mut self.rows, self.seed, node(lane));
        self.row_mut(lane).forgotten = true;
        self.forgotten.insert(&mut self.rows, self.seed, node(lane));
        self.lists.add(&mut self.rows, List::Recyclable, lane);
    }

    /// Makes a chunk, which is in no list, another lane's: one in use, or one that waits for the work of others.
    pub(super) fn relabel(&mut self, id: ChunkId, lane: Lane, in_use: bool) {
        let point = self.advance(lane);
        let note = self.note_mut(id);
        let before = std::mem::replace(&mut note.lane, lane);
        note.point = point;
        let is_waiting = u64::from(!in_use);
        let row = self.row_mut(before);
        (row.live, row.waiting) = (row.live - 1, row.waiting - is_waiting);
        let row = self.row_mut(lane);
        (row.live, row.waiting) = (row.live + 1, row.waiting + is_waiting);
    }

    /// Nothing is in the lanes of a private pool any more: they, and its number, may be another's.
    pub(super) fn end_pool(&mut self, pool: u32) {
        for place in 0..self.rows.len() {
            let row = &self.rows[place];
            if row.stream.pool() == pool {
                let lane = row.lane();
                if !row.forgotten {
                    self.forget(lane);
                }
                let row = self.row_mut(lane);
                row.stream = row.stream.in_pool(0);
            }
        }
        self.pools[pool as usize - 1] = None;
    }

    /// The lanes that exist, the forgotten ones included.
    pub(super) fn all(&self) -> impl Iterator<Item = (Lane, &Row)> + '_ {
        self.rows.iter().map(|row| (row.lane(), row))
    }

    pub(super) fn count(&self) -> usize {
        self.rows.len()
    }

    /// The lane at a place of the table, if there is one.
    pub(super) fn nth(&self, place: usize) -> Option<Lane> {
        self.rows.get(place).map(Row::lane)
    }

    /// The lanes of a list.
    pub(super) fn listed(&self, list: List) -> impl Iterator<Item = (Lane, &Row)> + '_ {
        self.lists.iter(&self.rows, list).map(|lane| (lane, self.row(lane)))
    }

    pub(super) fn list(&mut self, list: List, lane: Lane) {
        self.lists.add(&mut self.rows, list, lane);
    }

    pub(super) fn unlist(&mut self, list: List, lane: Lane) {
        self.lists.remove(&mut self.rows, list, lane);
    }

    /// The lane's next point. Of a stream that was forgotten the work until then is all there is.
    #[inline]
    pub(super) fn advance(&mut self, lane: Lane) -> u64 {
        if !self.row(lane).forgotten {
            self.newest_point += 1;
            self.row_mut(lane).point = self.newest_point;
            self.list(List::Unfinished, lane);
        }
        self.row(lane).point
    }

    /// The oldest of a lane's free chunks, if the work before its free is done.
    pub(super) fn first_done(&self, lane: Lane) -> Option<ChunkId> {
        let row = self.row(lane);
        (row.oldest != NIL && self.note(row.oldest).point <= row.done).then_some(row.oldest)
    }

    /// Whether a lane's newest free chunk waits for work that is not done.
    pub(super) fn has_pending(&self, lane: Lane) -> bool {
        let row = self.row(lane);
        row.newest != NIL && self.note(row.newest).point > row.done
    }

    pub(super) fn newer(&self, id: ChunkId) -> ChunkId {
        self.note(id).newer
    }

    pub(super) fn oldest(&self, lane: Lane) -> ChunkId {
        self.row(lane).oldest
    }

    /// The point of a free in a lane whose stream lives, and whose work is listed as unfinished.
    #[inline(always)]
    pub(super) fn next_point(&mut self) -> u64 {
        self.newest_point += 1;
        self.newest_point
    }

    /// The lane's row and all notes, to change both.
    #[inline(always)]
    pub(super) fn parts(&mut self, lane: Lane) -> (&mut Row, &mut [Note]) {
        (&mut self.rows[lane.0 as usize], &mut self.notes)
    }

    pub(super) fn hang(&mut self, id: ChunkId) {
        let (row, notes) = self.parts(self.note(id).lane);
        row.hang(notes, id);
    }

    pub(super) fn hang_behind(&mut self, id: ChunkId, lane: Lane, older: ChunkId) {
        let (row, notes) = self.parts(lane);
        row.hang_behind(notes, id, older);
    }

    #[inline]
    pub(super) fn unhang(&mut self, id: ChunkId) {
        let (row, notes) = self.parts(self.note(id).lane);
        row.unhang(notes, id);
    }

    #[inline]
    pub(super) fn replace(&mut self, id: ChunkId, by: ChunkId) {
        let (row, notes) = self.parts(self.note(id).lane);
        row.replace(notes, id, by);
    }

    #[inline]
    pub(super) fn link_run(&mut self, lane: Lane, id: ChunkId, run: Extent) {
        let (row, notes) = self.parts(lane);
        row.link_run(notes, id, run);
    }

    /// A chunk is handed out in a lane, which nothing waits for yet.
    #[inline]
    pub(super) fn start_use(&mut self, id: ChunkId, lane: Lane) {
        self.note_mut(id).lane = lane;
        self.row_mut(lane).live += 1;
    }

    /// The bytes of the longest run.
    pub(super) fn largest_run(&self) -> u64 {
        self.all().map(|(lane, _)| self.largest_run_of(lane)).max().unwrap_or(0)
    }

    pub(super) fn largest_run_of(&self, lane: Lane) -> u64 {
        let largest = self.row(lane).runs.largest(&self.notes);
        if largest == NIL { 0 } else { self.note(largest).run.bytes }
    }

    /// Host memory beside the struct itself.
    pub(super) fn metadata_bytes(&self) -> u64 {
        let lists = self.notes.capacity() * size_of::<Note>()
            + self.rows.capacity() * size_of::<Row>()
            + self.redirections.capacity() * size_of::<Stream>()
            + self.pools.capacity() * size_of::<Option<u64>>();
        lists as u64 + self.uses.metadata_bytes()
    }
}

/// A lane's node in the trees of rows, and the contrary.
fn node(lane: Lane) -> ChunkId {
    ChunkId(lane.0)
}

fn lane_at(node: ChunkId) -> Option<Lane> {
    (node != NIL).then_some(Lane(node.0))
}
