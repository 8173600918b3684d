//! Allocation and free in the order of streams, once a pool knows more than one lane.

use super::arena::{Arena, Want, splits};
use super::chunks::{ChunkId, Chunks, Hot, NIL, Tag};
use super::lanes::{ANYONE, Lane, Note};
use super::units::UNIT;
use crate::sys::HostMemoryExhausted;

impl Arena {
    /// Hands out the best fit among what the lane of the request may use: the run or the chunk which is first in
    /// (size, address) order and has a place at the alignment.
    #[inline(never)]
    pub(super) fn take_in_lane(&mut self, want: &Want<'_>) -> Result<Option<u64>, HostMemoryExhausted> {
        let lane = self.lanes.enter(self.lanes.directed(want.stream))?;
        // What is cut off in front and behind.
        self.reserve_chunks(2)?;
        self.starts.reserve(&self.chunks.slab, &mut self.regions, 2)?;
        let Some(found) = self.find_in_lane(want, lane) else { return Ok(None) };
        let tag = if want.scope.is_some() { self.tag_for(want)? } else { Tag::default() };
        let Found { first, start, bytes, .. } = found;
        let size = if splits(bytes, want.size, self.max_slack) { want.size } else { bytes };
        let id = if self.is_alone(&found) {
            self.take_alone(&found, lane, size);
            first
        } else {
            let (id, from, to) = self.carve_run(first, start, size);
            self.lanes.start_use(id, lane);
            self.chunks.slab[..][id].mark_in_use();
            self.link_runs(from, to);
            id
        };
        self.chunks.set_tag(id, tag);
        self.hand_out(id, size, want.requested);
        Ok(Some(start))
    }

    /// Whether a lane could be served now.
    pub(super) fn has_in_lane(&self, want: &Want<'_>, lane: Lane) -> bool {
        self.find_in_lane(want, lane).is_some()
    }

    /// What is first in (size, address) order and has a place at the alignment.
    #[inline]
    fn find_in_lane(&self, want: &Want<'_>, lane: Lane) -> Option<Found> {
        let (slab, notes, runs) = (&self.chunks.slab[..], &self.lanes.notes[..], &self.lanes.row(lane).runs);
        let alignment = want.alignment.max(UNIT);
        let fits = |(bytes, addr): (u64, u64)| {
            // A division is what the rest of the search costs together.
            let start = if alignment == UNIT { addr } else { addr.checked_next_multiple_of(alignment)? };
            let left = bytes.checked_sub(start - addr)?;
            (left >= want.size).then_some((start, left))
        };
        let mut common = self.index.best_fit(slab, want.size).map(|(id, _)| id);
        let mut own = runs.best_fit(notes, want.size).map(|(id, _)| id);
        loop {
            let keys = (common.map(|id| slab[id].key()), own.map(|id| run_key(notes, id)));
            let (key, is_run) = match keys {
                (None, None) => return None,
                (Some(key), None) => (key, false),
                (None, Some(run)) => (run, true),
                (Some(key), Some(run)) => (key.min(run), run < key),
            };
            // What is part of a run is found with it.
            let counts = is_run || common.is_some_and(|id| !self.is_in_run_of(lane, id));
            if let Some((start, bytes)) = fits(key).filter(|_| counts) {
                let first = if is_run { own.map(|id| self.run_start(id)) } else { common };
                return first.map(|first| Found { first, start, bytes, is_run });
            }
            if is_run {
                own = runs.following(notes, key);
            } else {
                common = self.index.following(slab, key);
            }
        }
    }

    /// Whether what was found is one chunk from its beginning, and no run of anybody's changes by it but its own.
    #[inline]
    fn is_alone(&self, found: &Found) -> bool {
        let Hot { addr, prev, next, .. } = self.chunks.slab[..][found.first];
        let whole = addr == found.start && self.chunks.size(found.first) == found.bytes;
        let is_own = |id: ChunkId| id != NIL && self.owner(id).is_some();
        whole && (found.is_run && !self.is_anyones(found.first) || !is_own(prev) && !is_own(next))
    }

    /// Takes such a chunk, or its first `size` bytes.
    #[inline]
    fn take_alone(&mut self, found: &Found, lane: Lane, size: u64) {
        let Arena { chunks, index, lanes, starts, regions, .. } = self;
        let (slab, (row, notes)) = (&mut chunks.slab[..], lanes.parts(lane));
        let Found { first: id, start, bytes, is_run } = *found;
        if is_run {
            row.unlink_run(notes, id);
        } else {
            index.remove(slab, id, bytes);
        }
        let Hot { next, .. } = slab[id];
        let (at, left) = (start + size, bytes - size);
        if left != 0 {
            let rest = chunks.vacant.fill(slab, Hot::new(at, left, slab[id].region(), id, next));
            if next != NIL {
                slab[next].prev = rest;
            }
            slab[id].set_size(size);
            slab[id].next = rest;
            starts.set(regions, at, rest);
            if is_run {
                slab[rest].mark_held();
                row.replace(notes, id, rest);
                row.link_run(notes, rest, at, left);
            } else {
                index.insert(slab, rest, left);
            }
        } else if is_run {
            row.unhang(notes, id);
        }
        slab[id].mark_in_use();
        notes[id.index()] = Note::new(lane, 0);
        row.live += 1;
    }

    /// Makes one chunk, in no list and no run, of the `bytes` at `start`, somewhere in the run that begins with
    /// `first`. What is cut off stays whose it was. Returns the chunk, and between which chunks the runs have to be
    /// linked again.
    fn carve_run(&mut self, mut first: ChunkId, start: u64, bytes: u64) -> (ChunkId, ChunkId, ChunkId) {
        while self.end_of(first) <= start {
            first = self.chunks.next(first);
        }
        let (mut last, end) = (first, start + bytes);
        while self.end_of(last) < end {
            last = self.chunks.next(last);
        }
        self.unlink_runs(first, last);
        let (from, in_front) = (first, start - self.chunks.addr(first));
        if in_front != 0 {
            let rest = self.split_free(first, in_front);
            last = if last == first { rest } else { last };
            first = rest;
        }
        let behind = self.end_of(last) - end;
        let rest = (behind != 0).then(|| self.leave_behind(last, behind));
        if rest.is_none() {
            self.withdraw(last);
        }
        while last != first {
            let before = self.chunks.prev(last);
            self.withdraw(before);
            self.fuse(before, last);
            last = before;
        }
        let from = if in_front == 0 { first } else { from };
        (first, from, rest.unwrap_or(first))
    }

    fn end_of(&self, id: ChunkId) -> u64 {
        self.chunks.addr(id) + self.chunks.size(id)
    }

    /// Takes a free chunk, which waits for nothing else, out of the index or its lane's list.
    fn withdraw(&mut self, id: ChunkId) {
        if self.is_anyones(id) {
            self.unindex(id);
            self.chunks.slab[..][id].mark_held();
        } else {
            self.lanes.unhang(id);
        }
    }

    /// Cuts a free chunk in two; returns the second.
    pub(super) fn split_free(&mut self, id: ChunkId, at: u64) -> ChunkId {
        if self.is_anyones(id) {
            self.unindex(id);
            let rest = self.add_after(id, at);
            for part in [id, rest] {
                let size = self.chunks.size(part);
                self.index.insert(&mut self.chunks.slab, part, size);
            }
            return rest;
        }
        let Note { lane, point, .. } = *self.lanes.note(id);
        let rest = self.add_after(id, at);
        self.chunks.slab[..][rest].mark_held();
        *self.lanes.note_mut(rest) = Note::new(lane, point);
        self.lanes.hang_behind(rest, lane, id);
        rest
    }

    /// Takes a free chunk out as `withdraw`, but for its last `bytes`, which stay as a chunk; returns that.
    fn leave_behind(&mut self, id: ChunkId, bytes: u64) -> ChunkId {
        let anyones = self.is_anyones(id);
        if anyones {
            self.withdraw(id);
        }
        let rest = self.add_after(id, self.chunks.size(id) - bytes);
        if anyones {
            self.index.insert(&mut self.chunks.slab, rest, bytes);
        } else {
            self.chunks.slab[..][rest].mark_held();
            self.lanes.replace(id, rest);
        }
        rest
    }

    /// Takes a chunk in use back in the order of a lane.
    #[inline]
    pub(super) fn free_in_lane(&mut self, id: ChunkId, lane: Lane) {
        self.chunks.slab[..][id].mark_held();
        let point = self.lanes.advance(lane);
        let note = self.lanes.note_mut(id);
        let (allocated_in, uses) = (std::mem::replace(&mut note.lane, lane), note.uses);
        note.point = point;
        self.lanes.row_mut(allocated_in).live -= 1;
        if uses != 0 && self.lanes.await_uses(id, lane) {
            // In no list, and yet the lane must not end before.
            self.lanes.row_mut(lane).live += 1;
        } else {
            self.settle(id);
        }
    }

    /// Puts a chunk that waits for nothing but its own lane where it belongs; returns what it is part of then.
    ///
    /// Only the lane's own runs change, which end at the chunk: nobody could use it before, and no other can now.
    #[inline]
    pub(super) fn settle(&mut self, id: ChunkId) -> ChunkId {
        let Note { lane, mut point, .. } = *self.lanes.note(id);
        if point <= self.lanes.row(lane).done {
            return self.give_to_all(id);
        }
        let Arena { chunks, lanes, starts, regions, .. } = self;
        let Chunks { slab, vacant, .. } = chunks;
        let (slab, (row, notes)) = (&mut slab[..], lanes.parts(lane));
        let kind = |slab: &[Hot], notes: &[Note], at: ChunkId| Kind::of(slab, notes, lane, at);
        let Hot { mut addr, prev, mut next, .. } = slab[id];
        let (mut size, mut whole) = (slab[id].size(), id);
        let mut bytes = size;
        let (before, behind) = (kind(slab, notes, prev), kind(slab, notes, next));
        // The run that ends at the chunk, or what anybody may have there.
        let own = match before {
            Kind::Own => prev,
            Kind::Anyones if kind(slab, notes, slab[prev].prev) == Kind::Own => slab[prev].prev,
            _ => NIL,
        };
        let head = linked_head(slab, notes, own);
        if head != NIL {
            addr = notes[head.index()].run_addr;
            bytes += row.unlink_run(notes, head);
        } else if before == Kind::Anyones {
            addr = slab[prev].addr;
            bytes += slab[prev].size();
        }
        // The one that begins behind it.
        match behind {
            Kind::Own => bytes += row.unlink_run(notes, next),
            Kind::Anyones => match slab[next].next {
                own if kind(slab, notes, own) == Kind::Own => bytes += row.unlink_run(notes, own),
                _ => bytes += slab[next].size(),
            },
            Kind::Barrier => {}
        }
        // Of own neighbours that become one the later point counts for both.
        if behind == Kind::Own {
            row.unhang(notes, next);
            point = point.max(notes[next.index()].point);
            notes[next.index()] = Note::new(ANYONE, 0);
            let gone = slab[next];
            starts.clear(slab, regions, gone.addr, next);
            vacant.add(slab, next);
            (size, next) = (size + gone.size(), gone.next);
        }
        if before == Kind::Own {
            row.unhang(notes, prev);
            point = point.max(notes[prev.index()].point);
            notes[id.index()] = Note::new(ANYONE, 0);
            let at = slab[id].addr;
            starts.clear(slab, regions, at, id);
            vacant.add(slab, id);
            (size, whole) = (size + slab[prev].size(), prev);
        }
        slab[whole].set_size(size);
        slab[whole].next = next;
        if next != NIL {
            slab[next].prev = whole;
        }
        notes[whole.index()].point = point;
        row.hang(notes, whole);
        row.link_run(notes, if head == NIL { whole } else { head }, addr, bytes);
        whole
    }

    /// Makes a chunk that waits for nothing, in no list and no run, one that anybody may have.
    pub(super) fn give_to_all(&mut self, id: ChunkId) -> ChunkId {
        *self.lanes.note_mut(id) = Note::new(ANYONE, 0);
        self.unlink_runs(id, id);
        let whole = self.release::<false>(id, false);
        self.link_runs(whole, whole);
        whole
    }

    /// The work before the lane's frees up to `point` is done. Returns whether that is news.
    pub(crate) fn lane_done(&mut self, lane: Lane, point: u64) -> bool {
        let row = self.lanes.row_mut(lane);
        let point = point.min(row.point);
        if point <= row.done {
            return false;
        }
        row.done = point;
        self.lanes.advances += 1;
        while let Some(id) = self.lanes.first_done(lane) {
            self.unlink_runs(id, id);
            self.lanes.unhang(id);
            self.give_to_all(id);
        }
        while let Some(id) = self.lanes.next_freed_of_uses(lane) {
            let own = self.lanes.note(id).lane;
            self.lanes.row_mut(own).live -= 1;
            self.settle(id);
        }
        true
    }
}

/// What a chunk is to a lane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No chunk at all, or none that it may use.
    Barrier,
    Anyones,
    Own,
}

impl Kind {
    #[inline(always)]
    fn of(slab: &[Hot], notes: &[Note], lane: Lane, id: ChunkId) -> Self {
        if id == NIL {
            return Kind::Barrier;
        }
        let hot = &slab[id];
        if hot.is_findable() {
            return Kind::Anyones;
        }
        let note = &notes[id.index()];
        let is_own = hot.is_held() && note.lane == lane && note.uses == 0;
        if is_own { Kind::Own } else { Kind::Barrier }
    }
}

/// The head of the run around an own chunk, where all runs are in their indices.
#[inline]
fn linked_head(slab: &[Hot], notes: &[Note], own: ChunkId) -> ChunkId {
    let mut at = own;
    while at != NIL && notes[at.index()].run_bytes == 0 {
        at = slab[at].prev;
    }
    at
}

/// The best fit: the first chunk of the run or the chunk, the place at the alignment, and the bytes from there on.
struct Found {
    first: ChunkId,
    start: u64,
    bytes: u64,
    is_run: bool,
}

fn run_key(notes: &[Note], id: ChunkId) -> (u64, u64) {
    let note = &notes[id.index()];
    (note.run_bytes, note.run_addr)
}
