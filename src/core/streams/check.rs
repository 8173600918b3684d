//! Checks of the invariants I7 and I8 ([`crate::core::invariants`]).

use super::chunk_state::{ANYONE, Lane};
use super::queue_lists::List;
use super::stream_heap::StreamHeap;
use crate::core::heap::State;
use crate::core::ids::{ChunkId, NIL};
use crate::core::invariants::{Broken, require};

impl StreamHeap {
    /// I7: chunks, notes, lists and uses agree. I8: the runs in the indices are those there are.
    pub(in crate::core) fn check(&self) -> Result<(), Broken> {
        if !self.is_multi() {
            return Ok(());
        }
        for id in self.heap.chunks().ids() {
            let note = self.lanes.note(id);
            let uses = self.lanes.uses.iter().filter(|used| used.chunk == id).count();
            let listed = self.lanes.uses.of(note.uses).take(uses + 1).filter(|used| used.chunk == id).count();
            let state = self.heap.state(id);
            let kind = (note.lane != ANYONE) == (state == State::InUse || state == State::Held);
            // What a plan has taken out of circulation may be somebody's.
            let kind = kind || state == State::Away;
            require(kind && uses == listed, Broken::I7Lanes)?;
            self.check_run(id)?;
        }
        for (lane, _) in self.lanes.all() {
            self.check_lane(lane)?;
        }
        Ok(())
    }

    fn check_lane(&self, lane: Lane) -> Result<(), Broken> {
        let row = self.lanes.row(lane);
        let named = if row.forgotten { None } else { Some(lane) };
        require(row.forgotten || self.lanes.find(row.stream) == named, Broken::I7Lanes)?;
        require(row.places.is_in(List::Unfinished) == (row.done < row.point), Broken::I7Lanes)?;
        // What waits for work that is done may be left for later calls.
        let done = if row.places.is_in(List::Sharing) { 0 } else { row.done };
        let own = self.heap.chunks().ids().filter(|&id| self.owner(id) == Some(lane)).count();
        let (mut listed, mut point, mut hung) = (0, done + 1, row.hung == NIL);
        let mut at = self.lanes.oldest(lane);
        while at != NIL && listed <= own {
            let note = self.lanes.note(at);
            hung |= at == row.hung;
            require(self.owner(at) == Some(lane) && note.point >= point, Broken::I7Lanes)?;
            (listed, point) = (listed + 1, note.point);
            at = self.lanes.newer(at);
        }
        require(listed == own && at == NIL && point <= row.point.max(done + 1), Broken::I7Lanes)?;
        require(hung, Broken::I7Lanes)?;
        self.check_uses(lane, done)?;
        let is_away = |id: ChunkId| self.heap.state(id) == State::Away;
        let is_unlisted =
            |id: ChunkId| self.heap.chunks().in_use(id) || self.lanes.note(id).uses != 0 || is_away(id);
        let unlisted =
            self.heap.chunks().ids().filter(|&id| self.lanes.note(id).lane == lane && is_unlisted(id));
        let uses = self.lanes.uses.iter().filter(|used| used.lane == lane);
        let live = unlisted.count() + uses.count();
        require(live as u64 == row.live, Broken::I7Lanes)?;
        let in_use = self
            .heap
            .chunks()
            .ids()
            .filter(|&id| self.lanes.note(id).lane == lane && self.heap.chunks().in_use(id));
        let used_in = self.lanes.uses.iter().filter(|used| used.lane == lane && used.point == 0);
        let in_use = in_use.count() + used_in.count();
        require(in_use as u64 == row.live - row.waiting, Broken::I7Lanes)?;
        let is_head = |id: ChunkId| self.owner(id) == Some(lane) && self.lanes.note(id).is_head();
        let heads = self.heap.chunks().ids().filter(|&id| is_head(id));
        let runs = row.runs.iter_from(&self.lanes.notes, (0, 0)).take(own + 1).count();
        require(runs == heads.count() && row.runs.is_marked_right(), Broken::I8Runs)
    }

    /// Those of free chunks are in the list of their lane, in the order of points.
    fn check_uses(&self, lane: Lane, done: u64) -> Result<(), Broken> {
        let row = self.lanes.row(lane);
        let waiting = self.lanes.uses.iter().filter(|used| used.lane == lane && used.point != 0).count();
        let (mut listed, mut point) = (0, done + 1);
        for used in self.lanes.uses.behind_oldest(row.oldest_use).take(waiting + 1) {
            require(used.lane == lane && used.point >= point, Broken::I7Lanes)?;
            (listed, point) = (listed + 1, used.point);
        }
        let counted = listed == waiting && waiting as u64 == row.waiting_uses;
        require(counted && point <= row.point.max(done + 1), Broken::I7Lanes)
    }

    /// A chunk has a run exactly if it is the first of its lane's in one.
    fn check_run(&self, id: ChunkId) -> Result<(), Broken> {
        let note = self.lanes.note(id);
        let Some(lane) = self.owner(id) else { return require(!note.is_head(), Broken::I8Runs) };
        if self.run_head(lane, id) != id {
            return require(!note.is_head(), Broken::I8Runs);
        }
        let (addr, bytes, chunks) = self.run_extent(lane, id);
        let is_there = (note.run.addr, note.run.bytes) == (addr, bytes) && note.run.chunks >= chunks;
        require(is_there, Broken::I8Runs)?;
        let row = self.lanes.row(lane);
        let found = row.runs.iter_from(&self.lanes.notes, note.run_key()).next();
        require(found == Some(id) && row.finds_long(&self.lanes.notes, id), Broken::I8Runs)
    }

    /// The first own chunk of the run around one: where the index has it.
    fn run_head(&self, lane: Lane, own: ChunkId) -> ChunkId {
        let (mut head, mut at) = (own, self.heap.prev(own));
        while at != NIL && self.may_use(lane, at) {
            if !self.is_anyones(at) {
                head = at;
            }
            at = self.heap.prev(at);
        }
        head
    }

    /// Address, bytes and own chunks of a run, given its first own chunk.
    fn run_extent(&self, lane: Lane, head: ChunkId) -> (u64, u64, u32) {
        let start = self.run_start(head);
        let (addr, mut bytes, mut chunks, mut at) = (self.heap.addr(start), 0, 0, start);
        while at != NIL && self.may_use(lane, at) {
            bytes += self.heap.size(at);
            chunks += u32::from(!self.is_anyones(at));
            at = self.heap.next(at);
        }
        (addr, bytes, chunks)
    }

    /// Whether free neighbours of one queue have no reason to be two chunks.
    pub(in crate::core) fn should_be_one(&self, first: ChunkId, second: ChunkId) -> bool {
        let owner = self.owner(first);
        owner.is_some() && owner == self.owner(second) && self.lanes.have_one_point(first, second)
    }
}
