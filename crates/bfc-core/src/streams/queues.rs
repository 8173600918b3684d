//! The queues of an arena: which queued work may still touch a free chunk.
//!
//! A queue is an order of work. Each stream is a queue, and requests without a stream share one. Memory freed in a
//! queue can be reused there at once, because later work is queued behind the work that used the memory. Every other
//! queue must wait until that work is done.
//!
//! The frees of a pool are counted. The count at a free is the free's point, so points also tell which of two frees
//! came first, in whatever queues. A queue's work is done in order, so 'done up to point p' describes its progress
//! completely. A free chunk has a queue and a point, or neither. Without them every queue may use it. A chunk with
//! recorded uses waits until the recorded queues are done up to their points.
//!
//! Free neighbours of one queue stay apart if their points differ, because an event belongs to one free. A request of
//! another queue that needs only the first chunk must not wait for later work that only the second one waits for. For
//! their own queue the chunks count as one, a free span. Where no event tells points apart, the chunks are merged
//! ([`StreamQueue::merges`]).
//!
//! ```text
//!   chunk  | in use | queue 2, point 7 | queue 2, point 9 |   reusable    | queue 3, point 4 | in use |
//!                   '---------------- a free span of queue 2 -----------------'
//!                                                       '------ a free span of queue 3 --------'
//! ```
//!
//! As long as a pool knows only one queue there is nothing to tell apart, and none of this exists.

use super::chunk_state::{ChunkStreamState, CrossStreamUses, Extent, QueueId, UNOWNED};
use super::idle_search::IdleSearch;
use super::queue::{NOT_IN, QueueList, StreamQueue};
use crate::ids::{ChunkId, NIL};
use crate::list::{Linked, List};
use crate::seed::Seed;
use crate::steps;
use crate::stream_id::Stream;
use crate::tables::{make_room, shrink, shrink_to};
use crate::tree::Tree;
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// How many queues that were entered recently are found at once.
pub(super) const RECENT: usize = 8;

/// All queues of an arena.
pub(super) struct StreamQueues {
    /// The seed of the trees.
    seed: Seed,
    pub(super) chunk_states: Vec<ChunkStreamState>,
    pub(super) entries: Vec<StreamQueue>,
    /// The entries of streams that are not forgotten, by name.
    pub(super) names: Tree,
    /// The entries of forgotten streams.
    pub(super) forgotten: Tree,
    /// The list that each [`QueueList`] names.
    pub(super) lists: [List<QueueId, QueueList>; QueueList::ALL.len()],
    /// The queues that were entered last, each in the place of its stream's handle.
    pub(super) recent: [QueueId; RECENT],
    pub(super) uses: CrossStreamUses,
    pub(super) idle: IdleSearch,
    /// The private pools that streams' requests are routed to, and announced captures.
    pub(super) redirections: Vec<Stream>,
    /// Streams that requested memory of private pools individually, in those pools.
    pub(super) routed: Vec<Stream>,
    /// The callers' names of private pools. Pool numbers begin at 1 here. Released pools are `None`.
    pub(super) pools: Vec<Option<u64>>,
    /// How often the work of a queue progressed. Memory may have become available each time.
    pub(super) advances: u64,
    /// The last point given to a free, in any queue. Points remembered from an entry that was given up must not match
    /// those of another entry by chance.
    newest_point: u64,
    /// The last point up to which the work of any queue was done, or a later one. A free chunk waits for unfinished work
    /// of its own queue if its recorded uses are later than this by more than the number of queues.
    pub(super) newest_done: u64,
    /// Whether events tell when work is done.
    has_events: bool,
}

impl StreamQueues {
    #[inline(always)]
    pub(super) fn new(seed: u64, has_events: bool) -> Self {
        StreamQueues {
            seed: Seed::new(seed),
            chunk_states: Vec::new(),
            entries: Vec::new(),
            names: Tree::EMPTY,
            forgotten: Tree::EMPTY,
            lists: QueueList::ALL.map(List::new),
            recent: [UNOWNED; RECENT],
            uses: CrossStreamUses::new(),
            idle: IdleSearch::NEW,
            redirections: Vec::new(),
            routed: Vec::new(),
            pools: Vec::new(),
            advances: 0,
            newest_point: 0,
            newest_done: 0,
            has_events,
        }
    }

    #[inline]
    pub(super) fn chunk_state(&self, id: ChunkId) -> &ChunkStreamState {
        &self.chunk_states[id.index()]
    }

    #[inline]
    pub(super) fn chunk_state_mut(&mut self, id: ChunkId) -> &mut ChunkStreamState {
        &mut self.chunk_states[id.index()]
    }

    #[inline]
    pub(super) fn entry(&self, queue: QueueId) -> &StreamQueue {
        &self.entries[queue.0 as usize]
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, queue: QueueId) -> &mut StreamQueue {
        &mut self.entries[queue.0 as usize]
    }

    /// Returns whether no event tells the frees of two own chunks of a queue apart.
    pub(super) fn have_one_point(&self, first: ChunkId, second: ChunkId) -> bool {
        let (first, second) = (self.chunk_state(first), self.chunk_state(second));
        self.entry(first.queue).merges || first.point == second.point
    }

    /// Reserves a chunk state for each place of the slab.
    #[inline]
    pub(super) fn reserve(&mut self, places: usize) -> Result<(), HostMemoryExhausted> {
        if self.chunk_states.len() >= places { Ok(()) } else { self.grow(places) }
    }

    #[cold]
    fn grow(&mut self, places: usize) -> Result<(), HostMemoryExhausted> {
        make_room(&mut self.chunk_states, places)?;
        self.chunk_states.resize(places, ChunkStreamState::new(UNOWNED, 0));
        Ok(())
    }

    /// Shrinks to a slab of `places` places. Nothing is remembered of later places.
    pub(super) fn shrink(&mut self, places: usize) {
        if places < self.chunk_states.len() {
            self.entries.iter_mut().for_each(StreamQueue::forget_recent);
            shrink_to(&mut self.chunk_states, places);
        }
    }

    /// Returns the entry of a queue. Returns `None` if its position was given up, with nothing left to wait for.
    pub(super) fn entry_if_any(&self, queue: QueueId) -> Option<&StreamQueue> {
        self.entries.get(queue.index())
    }

    #[cold]
    pub(super) fn add(&mut self, stream: Stream) -> Result<QueueId, HostMemoryExhausted> {
        let queue = match self.take_vacant() {
            Some(queue) => {
                self.idle.note_reuse();
                let merges = self.merges(stream);
                let entry = self.entry_mut(queue);
                (entry.stream, entry.forgotten, entry.done, entry.merges) =
                    (stream, false, entry.point, merges);
                queue
            }
            None => {
                self.entries.try_reserve(1)?;
                let queue = QueueId(u32::try_from(self.entries.len()).map_err(|_| HostMemoryExhausted)?);
                let merges = self.merges(stream);
                self.entries.push(StreamQueue::new(queue, stream, self.newest_point, merges, self.seed));
                queue
            }
        };
        self.names.insert(&mut self.entries, self.seed, node(queue));
        if stream.ends_unnoticed() {
            self.list(QueueList::Recyclable, queue);
        }
        Ok(queue)
    }

    /// Returns whether no event that can be waited for tells frees in the order of a stream apart.
    fn merges(&self, stream: Stream) -> bool {
        !self.has_events || !stream.exists() || stream.pool() != 0
    }

    /// Takes a position that nothing refers to any more, if one is found at once.
    fn take_vacant(&mut self) -> Option<QueueId> {
        const LOOKS: usize = 4;
        for _ in 0..LOOKS {
            let (queue, _) = self.listed(QueueList::Recyclable).next()?;
            steps::count();
            if self.entry(queue).is_vacant() {
                self.withdraw(queue);
                return Some(queue);
            }
            // A later call examines this one again, after the others.
            self.unlist(QueueList::Recyclable, queue);
            self.list(QueueList::Recyclable, queue);
        }
        None
    }

    /// Removes the entry of a stream that has ended from all trees and lists.
    fn withdraw(&mut self, queue: QueueId) {
        let tree = if self.entry(queue).forgotten { &mut self.forgotten } else { &mut self.names };
        tree.remove(&mut self.entries, self.seed, node(queue));
        QueueList::ALL.into_iter().for_each(|list| self.unlist(list, queue));
    }

    /// Gives back the host memory that past streams have left.
    pub(super) fn forget_past(&mut self) {
        self.forget_all_idle();
        while let Some(queue) = self.entries.last().filter(|entry| entry.is_vacant()).map(StreamQueue::queue)
        {
            self.withdraw(queue);
            self.entries.pop();
            self.idle.note_reuse();
        }
        shrink(&mut self.entries);
        self.shrink_uses();
    }

    /// Forgets a queue. Its name may then stand for another stream. Memory freed here still waits for its work.
    pub(super) fn forget(&mut self, queue: QueueId) {
        self.names.remove(&mut self.entries, self.seed, node(queue));
        self.entry_mut(queue).forgotten = true;
        self.forgotten.insert(&mut self.entries, self.seed, node(queue));
        self.list(QueueList::Recyclable, queue);
    }

    /// Moves a chunk that is in no list to another queue: one in use, or one that waits for the work of other queues.
    pub(super) fn relabel(&mut self, id: ChunkId, queue: QueueId, in_use: bool) {
        let point = self.advance(queue);
        let chunk_state = self.chunk_state_mut(id);
        let before = core::mem::replace(&mut chunk_state.queue, queue);
        chunk_state.point = point;
        let is_waiting = u64::from(!in_use);
        let entry = self.entry_mut(before);
        (entry.live, entry.waiting) = (entry.live - 1, entry.waiting - is_waiting);
        let entry = self.entry_mut(queue);
        (entry.live, entry.waiting) = (entry.live + 1, entry.waiting + is_waiting);
    }

    /// Ends the queues of a private pool, in which nothing is left. They and the pool's number may be reused.
    pub(super) fn end_pool(&mut self, pool: u32) {
        for place in 0..self.entries.len() {
            let entry = &self.entries[place];
            if entry.stream.pool() == pool {
                let queue = entry.queue();
                if !entry.forgotten {
                    self.forget(queue);
                }
                let entry = self.entry_mut(queue);
                entry.stream = entry.stream.in_pool(0);
            }
        }
        self.routed.retain(|stream| stream.pool() != pool);
        self.pools[pool as usize - 1] = None;
    }

    /// Returns the queues that exist, the forgotten ones included.
    pub(super) fn all(&self) -> impl Iterator<Item = (QueueId, &StreamQueue)> + '_ {
        self.entries.iter().map(|entry| (entry.queue(), entry))
    }

    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the queue at a position of the table, if there is one.
    pub(super) fn nth(&self, place: usize) -> Option<QueueId> {
        self.entries.get(place).map(StreamQueue::queue)
    }

    /// Returns the queues of a list.
    pub(super) fn listed(&self, list: QueueList) -> impl Iterator<Item = (QueueId, &StreamQueue)> + '_ {
        self.lists[list as usize].iter(&self.entries).map(|queue| (queue, self.entry(queue)))
    }

    /// Appends a queue to a list, if it is not in it.
    pub(super) fn list(&mut self, list: QueueList, queue: QueueId) {
        if !self.entry(queue).is_in(list) {
            self.lists[list as usize].push(&mut self.entries, queue);
        }
    }

    /// Removes a queue from a list, if it is in it.
    pub(super) fn unlist(&mut self, list: QueueList, queue: QueueId) {
        if self.entry(queue).is_in(list) {
            self.lists[list as usize].remove(&mut self.entries, queue);
            *self.entry_mut(queue).links_mut(list) = NOT_IN;
        }
    }

    /// Advances a queue to its next point, and returns the point. A forgotten stream gets no new points: it has no work
    /// beyond the last one.
    #[inline]
    pub(super) fn advance(&mut self, queue: QueueId) -> u64 {
        if !self.entry(queue).forgotten {
            self.newest_point += 1;
            self.entry_mut(queue).point = self.newest_point;
            self.list(QueueList::Unfinished, queue);
        }
        self.entry(queue).point
    }

    /// Returns the oldest of a queue's free chunks, if the work before its free is done.
    pub(super) fn first_done(&self, queue: QueueId) -> Option<ChunkId> {
        let entry = self.entry(queue);
        let oldest = entry.own.first();
        (oldest != NIL && self.chunk_state(oldest).point <= entry.done).then_some(oldest)
    }

    /// Returns whether a queue's newest free chunk waits for work that is not done.
    pub(super) fn has_pending(&self, queue: QueueId) -> bool {
        let entry = self.entry(queue);
        let newest = entry.own.last();
        newest != NIL && self.chunk_state(newest).point > entry.done
    }

    pub(super) fn newer(&self, id: ChunkId) -> ChunkId {
        self.chunk_state(id).links(()).after
    }

    /// Returns the point of a free in a queue whose stream is not forgotten, and whose work is listed as unfinished.
    #[inline(always)]
    pub(super) fn next_point(&mut self) -> u64 {
        self.newest_point += 1;
        self.newest_point
    }

    /// Notes that a chunk with recorded uses was freed in a queue whose stream is forgotten. The free has that queue's
    /// last point, and the recorded uses have new ones, so they tell nothing about the former.
    pub(super) fn note_old_point(&mut self) {
        self.newest_done = self.newest_done.max(self.newest_point);
    }

    /// Returns the queue's entry and all chunk states, so that both can be changed.
    #[inline(always)]
    pub(super) fn parts(&mut self, queue: QueueId) -> (&mut StreamQueue, &mut [ChunkStreamState]) {
        (&mut self.entries[queue.0 as usize], &mut self.chunk_states)
    }

    pub(super) fn enqueue(&mut self, id: ChunkId) {
        let (entry, chunk_states) = self.parts(self.chunk_state(id).queue);
        entry.enqueue(chunk_states, id);
    }

    pub(super) fn enqueue_after(&mut self, id: ChunkId, queue: QueueId, older: ChunkId) {
        let (entry, chunk_states) = self.parts(queue);
        entry.enqueue_after(chunk_states, id, older);
    }

    #[inline]
    pub(super) fn dequeue(&mut self, id: ChunkId) {
        let (entry, chunk_states) = self.parts(self.chunk_state(id).queue);
        entry.dequeue(chunk_states, id);
    }

    #[inline]
    pub(super) fn replace(&mut self, id: ChunkId, by: ChunkId) {
        let (entry, chunk_states) = self.parts(self.chunk_state(id).queue);
        entry.replace(chunk_states, id, by);
    }

    #[inline]
    pub(super) fn link_span(&mut self, queue: QueueId, id: ChunkId, span: Extent) {
        let (entry, chunk_states) = self.parts(queue);
        entry.link_span(chunk_states, id, span);
    }

    /// Counts a chunk as allocated in a queue. Nothing waits for the chunk yet.
    #[inline]
    pub(super) fn start_use(&mut self, id: ChunkId, queue: QueueId) {
        self.chunk_state_mut(id).queue = queue;
        self.entry_mut(queue).live += 1;
    }

    /// Returns the bytes of the longest free span.
    pub(super) fn largest_span(&self) -> u64 {
        self.all().map(|(queue, _)| self.largest_span_of(queue)).max().unwrap_or(0)
    }

    pub(super) fn largest_span_of(&self, queue: QueueId) -> u64 {
        let largest = self.entry(queue).spans.largest(&self.chunk_states);
        if largest == NIL { 0 } else { self.chunk_state(largest).span.bytes }
    }

    /// Returns the bytes of host memory beside the struct itself.
    pub(super) fn metadata_bytes(&self) -> u64 {
        let lists = self.chunk_states.capacity() * size_of::<ChunkStreamState>()
            + self.entries.capacity() * size_of::<StreamQueue>()
            + (self.redirections.capacity() + self.routed.capacity()) * size_of::<Stream>()
            + self.pools.capacity() * size_of::<Option<u64>>();
        lists as u64 + self.uses.metadata_bytes()
    }
}

/// Returns the node of a queue in the trees of entries. `queue_at` is the inverse.
fn node(queue: QueueId) -> ChunkId {
    ChunkId(queue.0)
}
