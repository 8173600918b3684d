//! Checks of the invariants I7 and I8 ([`crate::invariants`]).

use super::chunk_state::{QueueId, UNOWNED};
use super::queue::QueueList;
use super::stream_heap::StreamHeap;
use crate::heap::State;
use crate::ids::{ChunkId, NIL};
use crate::invariants::{Broken, require};

impl StreamHeap {
    /// I7: chunks, chunk states, lists and recorded uses agree. I8: the indices hold exactly the free spans that exist.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        if !self.is_multi() {
            return Ok(());
        }
        require(self.queues.chunk_states.len() >= self.heap.chunks().places(), Broken::I7Queues)?;
        for id in self.heap.chunks().ids() {
            let chunk_state = self.queues.chunk_state(id);
            let uses = self.queues.uses.iter().filter(|used| used.chunk == id).count();
            let listed =
                self.queues.uses.of(chunk_state.uses).take(uses + 1).filter(|used| used.chunk == id).count();
            let state = self.heap.state(id);
            let kind = (chunk_state.queue != UNOWNED) == (state == State::InUse || state == State::Held);
            // A chunk withheld by a plan may have a queue, or none.
            let kind = kind || state == State::Withheld;
            require(kind && uses == listed, Broken::I7Queues)?;
            self.check_span(id)?;
        }
        for (queue, _) in self.queues.all() {
            self.check_queue(queue)?;
        }
        Ok(())
    }

    fn check_queue(&self, queue: QueueId) -> Result<(), Broken> {
        let entry = self.queues.entry(queue);
        let named = if entry.forgotten { None } else { Some(queue) };
        require(entry.forgotten || self.queues.find(entry.stream) == named, Broken::I7Queues)?;
        require(entry.is_in(QueueList::Unfinished) == (entry.done < entry.point), Broken::I7Queues)?;
        // Chunks that wait for finished work may be left for later calls.
        let done = if entry.is_in(QueueList::Sharing) { 0 } else { entry.done };
        let own = self.heap.chunks().ids().filter(|&id| self.owner(id) == Some(queue)).count();
        let (mut listed, mut point, mut last_inserted) = (0, done + 1, entry.last_inserted == NIL);
        for id in entry.own.iter(&self.queues.chunk_states).take(own + 1) {
            let chunk_state = self.queues.chunk_state(id);
            last_inserted |= id == entry.last_inserted;
            require(self.owner(id) == Some(queue) && chunk_state.point >= point, Broken::I7Queues)?;
            (listed, point) = (listed + 1, chunk_state.point);
        }
        require(listed == own && point <= entry.point.max(done + 1), Broken::I7Queues)?;
        require(last_inserted, Broken::I7Queues)?;
        self.check_uses(queue, done)?;
        let is_away = |id: ChunkId| self.heap.state(id) == State::Withheld;
        let is_unlisted = |id: ChunkId| {
            self.heap.chunks().in_use(id) || self.queues.chunk_state(id).has_uses() || is_away(id)
        };
        let unlisted = self
            .heap
            .chunks()
            .ids()
            .filter(|&id| self.queues.chunk_state(id).queue == queue && is_unlisted(id));
        let uses = self.queues.uses.iter().filter(|used| used.queue == queue);
        let live = unlisted.count() + uses.count();
        require(live as u64 == entry.live, Broken::I7Queues)?;
        let in_use = self
            .heap
            .chunks()
            .ids()
            .filter(|&id| self.queues.chunk_state(id).queue == queue && self.heap.chunks().in_use(id));
        let used_in = self.queues.uses.iter().filter(|used| used.queue == queue && used.point == 0);
        let in_use = in_use.count() + used_in.count();
        require(in_use as u64 == entry.live - entry.waiting, Broken::I7Queues)?;
        let is_head = |id: ChunkId| self.owner(id) == Some(queue) && self.queues.chunk_state(id).is_head();
        let heads = self.heap.chunks().ids().filter(|&id| is_head(id));
        let spans = entry.spans.iter_from(&self.queues.chunk_states, (0, 0)).take(own + 1).count();
        require(spans == heads.count() && entry.spans.is_sound(&self.queues.chunk_states), Broken::I8Spans)
    }

    /// Recorded uses of free chunks are in the list of their queue, in the order of points.
    fn check_uses(&self, queue: QueueId, done: u64) -> Result<(), Broken> {
        let entry = self.queues.entry(queue);
        let waiting = self.queues.uses.iter().filter(|used| used.queue == queue && used.point != 0).count();
        let (mut listed, mut point) = (0, done + 1);
        for used in self.queues.uses.listed(&entry.uses).take(waiting + 1) {
            require(used.queue == queue && used.point >= point, Broken::I7Queues)?;
            (listed, point) = (listed + 1, used.point);
        }
        let counted = listed == waiting && waiting as u64 == entry.waiting_uses;
        require(counted && point <= entry.point.max(done + 1), Broken::I7Queues)
    }

    /// A chunk has a free span exactly if it is the first of its queue's own chunks in that span.
    fn check_span(&self, id: ChunkId) -> Result<(), Broken> {
        let chunk_state = self.queues.chunk_state(id);
        let Some(queue) = self.owner(id) else { return require(!chunk_state.is_head(), Broken::I8Spans) };
        if self.span_head(queue, id) != id {
            return require(!chunk_state.is_head(), Broken::I8Spans);
        }
        let (addr, bytes, chunks) = self.span_extent(queue, id);
        let is_there = (chunk_state.span.addr, chunk_state.span.bytes) == (addr, bytes)
            && chunk_state.span.chunks >= chunks;
        require(is_there, Broken::I8Spans)?;
        let entry = self.queues.entry(queue);
        let found = entry.spans.iter_from(&self.queues.chunk_states, chunk_state.span_key()).next();
        require(found == Some(id) && entry.finds_long(&self.queues.chunk_states, id), Broken::I8Spans)
    }

    /// Returns the first own chunk of the free span around a chunk. The index holds the span under this chunk.
    fn span_head(&self, queue: QueueId, own: ChunkId) -> ChunkId {
        let (mut head, mut at) = (own, self.heap.prev(own));
        while at != NIL && self.may_use(queue, at) {
            if !self.is_reusable(at) {
                head = at;
            }
            at = self.heap.prev(at);
        }
        head
    }

    /// Returns the address, the bytes and the number of own chunks of a free span, given its first own chunk.
    fn span_extent(&self, queue: QueueId, head: ChunkId) -> (u64, u64, u32) {
        let start = self.span_start(head);
        let (addr, mut bytes, mut chunks, mut at) = (self.heap.addr(start), 0, 0, start);
        while at != NIL && self.may_use(queue, at) {
            bytes += self.heap.size(at);
            chunks += u32::from(!self.is_reusable(at));
            at = self.heap.next(at);
        }
        (addr, bytes, chunks)
    }

    /// Returns whether free neighbours of one queue have no reason to be two chunks.
    pub(crate) fn should_be_one(&self, first: ChunkId, second: ChunkId) -> bool {
        let owner = self.owner(first);
        owner.is_some() && owner == self.owner(second) && self.queues.have_one_point(first, second)
    }
}
