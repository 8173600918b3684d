//! Uses of chunks on streams other than the one they were allocated on. They are recorded while a chunk is in use, and
//! waited for once it is free.

use super::chunk_state::{CrossStreamUse, QueueId, UseId};
use super::queues::StreamQueues;
use crate::ids::{ChunkId, NIL};
use crate::list::Links;
use crate::tables::{reserve_to, shrink};
use bfc_hostmem::HostMemoryExhausted;

impl StreamQueues {
    /// Reserves room for `count` more recorded uses.
    pub(super) fn reserve_uses(&mut self, count: u64) -> Result<(), HostMemoryExhausted> {
        let count = usize::try_from(count).map_err(|_| HostMemoryExhausted)?;
        let all = self.uses.slab.len().checked_add(count).ok_or(HostMemoryExhausted)?;
        reserve_to(&mut self.uses.slab, all)
    }

    /// Records that a chunk in use is also used in a queue.
    pub(super) fn record(&mut self, chunk: ChunkId, queue: QueueId) -> Result<(), HostMemoryExhausted> {
        let next = self.chunk_state(chunk).uses;
        if self.uses.of(next).any(|used| used.queue == queue) {
            return Ok(());
        }
        let link = self.uses.add(CrossStreamUse { chunk, queue, point: 0, next, in_queue: Links::NONE })?;
        self.chunk_state_mut(chunk).uses = link;
        self.entry_mut(queue).live += 1;
        Ok(())
    }

    /// Makes a chunk that was just freed in `queue` wait for the other queues recorded on it. Returns whether there are
    /// any to wait for.
    pub(super) fn await_uses(&mut self, chunk: ChunkId, queue: QueueId) -> bool {
        let mut link = self.chunk_state(chunk).uses;
        while link != UseId::NONE {
            let CrossStreamUse { queue: used, next, .. } = *self.uses.get(link);
            let point = if used == queue { 0 } else { self.advance(used) };
            if point <= self.entry(used).done {
                self.end_use(link);
            } else {
                self.enlist(link, point);
            }
            link = next;
        }
        let waits = self.chunk_state(chunk).has_uses();
        if waits && self.entry(queue).forgotten {
            self.note_old_point();
        }
        waits
    }

    /// Reserves room for as many more recorded uses as a chunk has.
    pub(super) fn reserve_copies(&mut self, chunk: ChunkId) -> Result<(), HostMemoryExhausted> {
        let count = self.uses.of(self.chunk_state(chunk).uses).count();
        self.uses.slab.try_reserve(count)?;
        Ok(())
    }

    /// Copies the recorded uses of a free chunk to a part of it. Room must be reserved.
    pub(super) fn copy_uses(&mut self, chunk: ChunkId, part: ChunkId) {
        let mut link = self.chunk_state(chunk).uses;
        while link != UseId::NONE {
            let used = *self.uses.get(link);
            let CrossStreamUse { queue, next, .. } = used;
            let copy = CrossStreamUse { chunk: part, next: self.chunk_state(part).uses, ..used };
            let Ok(copied) = self.uses.add(copy) else { return };
            self.chunk_state_mut(part).uses = copied;
            let entry = &mut self.entries[queue.index()];
            entry.uses.insert_after(&mut self.uses.slab, copied, link);
            entry.begin_waiting();
            entry.waiting_uses += 1;
            link = next;
        }
    }

    /// Appends a recorded use to the list of its queue. Its point is the queue's newest.
    fn enlist(&mut self, link: UseId, point: u64) {
        let used = self.uses.get_mut(link);
        used.point = point;
        let entry = &mut self.entries[used.queue.index()];
        (entry.waiting, entry.waiting_uses) = (entry.waiting + 1, entry.waiting_uses + 1);
        entry.uses.push(&mut self.uses.slab, link);
    }

    fn end_use(&mut self, link: UseId) {
        let CrossStreamUse { chunk, queue, point, next, .. } = *self.uses.get(link);
        let first = self.chunk_state(chunk).uses;
        if first == link {
            self.chunk_state_mut(chunk).uses = next;
        } else {
            let mut before = first;
            while self.uses.get(before).next != link {
                before = self.uses.get(before).next;
            }
            self.uses.get_mut(before).next = next;
        }
        let entry = &mut self.entries[queue.index()];
        if point == 0 {
            entry.live -= 1;
        } else {
            entry.uses.remove(&mut self.uses.slab, link);
            entry.end_waiting();
            entry.waiting_uses -= 1;
        }
        let vacant = core::mem::replace(&mut self.uses.vacant, link);
        let used = self.uses.get_mut(link);
        (used.chunk, used.next) = (NIL, vacant);
    }

    /// Ends all recorded uses of a free chunk, which then waits for no other queue.
    pub(super) fn end_uses(&mut self, chunk: ChunkId) {
        while self.chunk_state(chunk).has_uses() {
            self.end_use(self.chunk_state(chunk).uses);
        }
    }

    /// Ends the oldest recorded use that waits for a queue's work, if that work is done. Returns its chunk.
    pub(super) fn end_done_use(&mut self, queue: QueueId) -> Option<ChunkId> {
        let entry = self.entry(queue);
        let (done, link) = (entry.done, entry.uses.first());
        let CrossStreamUse { chunk, .. } = *self.uses.look(link).filter(|used| used.point <= done)?;
        self.end_use(link);
        Some(chunk)
    }

    /// Returns whether a free chunk waits, through a recorded use, for work of a queue that is not done.
    pub(super) fn has_pending_uses(&self, queue: QueueId) -> bool {
        let entry = self.entry(queue);
        self.uses.look(entry.uses.last()).is_some_and(|used| used.point > entry.done)
    }

    /// Gives back the memory of places without a recorded use.
    pub(super) fn shrink_uses(&mut self) {
        let slab = &mut self.uses.slab;
        let used = slab.iter().rposition(|used| used.chunk != NIL).map_or(0, |last| last + 1);
        slab.truncate(used);
        shrink(slab);
        self.uses.vacant = UseId::NONE;
        for (place, used) in slab.iter_mut().enumerate() {
            if used.chunk == NIL
                && let Ok(link) = UseId::at(place)
            {
                used.next = core::mem::replace(&mut self.uses.vacant, link);
            }
        }
    }
}
