//! Whose work may touch a chunk: for those who would read or write the memory itself.

use crate::core::arena::Arena;
use crate::core::ids::ChunkId;
use crate::core::streams::queue::Row;
use crate::core::streams::queues::{ANYONE, Stream};

impl Arena {
    /// Whether work that nobody knows the end of may touch a chunk, in use or free: it was used in the order of a
    /// stream. Of what has no stream the caller says when its work is done: when he frees it.
    pub(crate) fn is_in_stream_order(&self, id: ChunkId) -> bool {
        if !self.mixed {
            return self.home != Stream::NONE;
        }
        if self.is_anyones(id) || self.is_to_be_shared(id) {
            return false;
        }
        let note = self.lanes.note(id);
        note.uses != 0 || note.lane != ANYONE && self.lanes.row(note.lane).stream != Stream::NONE
    }

    /// Whether a chunk, in use or free, is a private pool's: a captured graph uses it, whenever it is launched.
    pub(crate) fn is_private(&self, id: ChunkId) -> bool {
        if !self.mixed || self.is_anyones(id) {
            return false;
        }
        let lane = self.lanes.note(id).lane;
        lane != ANYONE && self.lanes.row(lane).stream.pool() != 0
    }

    /// Does what a free in the order of a stream may need memory for, of a chunk in use; whether there was enough.
    pub(crate) fn make_room_to_free_on(&mut self, addr: u64, stream: Stream) -> bool {
        if stream == Stream::NONE || stream.is_simple(self.simple) {
            return true;
        }
        if self.admit(stream).is_err() {
            return false;
        }
        let Some(id) = self.chunk_at(addr).filter(|_| self.mixed) else { return true };
        self.lane_to_free_in(id, stream).is_ok()
    }

    /// The streams that surely live, some of them more than once: the default ones, those with chunks in use, and those
    /// that requests are redirected of. Another may have been destroyed since all its memory was given back.
    pub(crate) fn streams(&self) -> impl Iterator<Item = Stream> + '_ {
        let has_live = self.counters.live() != 0;
        let home = (!self.mixed && (has_live || self.home.is_default())).then_some(self.home);
        let is_live = |row: &Row| !row.forgotten && (row.stream.is_default() || row.has_chunks_in_use());
        let lanes = self.lanes.all().filter(move |(_, row)| is_live(row)).map(|(_, row)| row.stream);
        let redirected = self.lanes.redirections.iter().copied();
        home.into_iter().chain(lanes).chain(redirected).filter(|stream| stream.exists())
    }
}
