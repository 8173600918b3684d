//! The invariants of what several lanes share; see `check`.

use super::arena::Arena;
use super::check::{Broken, require};
use super::chunks::{ChunkId, NIL, State};
use super::lane_list::List;
use super::lanes::{ANYONE, Lane};

impl Arena {
    /// I7: chunks, notes, lists and uses agree. I8: the runs in the indices are those there are.
    pub(super) fn check_lanes(&self) -> Result<(), Broken> {
        if !self.mixed {
            return Ok(());
        }
        for id in self.chunks.ids() {
            let note = self.lanes.note(id);
            let uses = self.lanes.uses.iter().filter(|used| used.chunk == id).count();
            let listed = self.lanes.uses.of(note.uses).take(uses + 1).filter(|used| used.chunk == id).count();
            let state = self.chunks.state(id);
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
        let own = self.chunks.ids().filter(|&id| self.owner(id) == Some(lane)).count();
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
        let is_away = |id: ChunkId| self.chunks.state(id) == State::Away;
        let is_unlisted =
            |id: ChunkId| self.chunks.in_use(id) || self.lanes.note(id).uses != 0 || is_away(id);
        let unlisted = self.chunks.ids().filter(|&id| self.lanes.note(id).lane == lane && is_unlisted(id));
        let uses = self.lanes.uses.iter().filter(|used| used.lane == lane);
        let live = unlisted.count() + uses.count();
        require(live as u64 == row.live, Broken::I7Lanes)?;
        let in_use =
            self.chunks.ids().filter(|&id| self.lanes.note(id).lane == lane && self.chunks.in_use(id));
        let used_in = self.lanes.uses.iter().filter(|used| used.lane == lane && used.point == 0);
        let in_use = in_use.count() + used_in.count();
        require(in_use as u64 == row.live - row.waiting, Broken::I7Lanes)?;
        let is_head = |id: ChunkId| self.owner(id) == Some(lane) && self.lanes.note(id).run_bytes != 0;
        let heads = self.chunks.ids().filter(|&id| is_head(id));
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
        let Some(lane) = self.owner(id) else { return require(note.run_bytes == 0, Broken::I8Runs) };
        if self.run_head(lane, id) != id {
            return require(note.run_bytes == 0, Broken::I8Runs);
        }
        let extent = self.run_extent(lane, id);
        require((note.run_addr, note.run_bytes) == extent, Broken::I8Runs)?;
        let key = (note.run_bytes, note.run_addr);
        let found = self.lanes.row(lane).runs.iter_from(&self.lanes.notes, key).next();
        require(found == Some(id), Broken::I8Runs)
    }
}
