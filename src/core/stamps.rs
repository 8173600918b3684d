//! Timestamped frees: TensorFlow's `SharedCounter` and safe frontier.
//!
//! A free gets the next count. The chunk may be merged once the frontier has passed its stamp: work
//! that was queued before the free is then done. Until then it waits in a queue, ordered by stamp.

use super::chunks::{ChunkId, Chunks, State};
use super::sort::sort_by_key;
use crate::sys::HostMemoryExhausted;
use std::collections::VecDeque;

pub(crate) struct Stamps {
    last: u64,
    frontier: u64,
    queue: VecDeque<(u64, ChunkId)>,
}

impl Stamps {
    pub(super) fn new() -> Self {
        Stamps { last: 0, frontier: 0, queue: VecDeque::new() }
    }

    /// The last stamp given.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Stamps below this are safe.
    pub(super) fn frontier(&self) -> u64 {
        self.frontier
    }

    pub(crate) fn is_safe(&self, stamp: u64) -> bool {
        stamp == 0 || stamp < self.frontier
    }

    /// Forgets all chunks that wait; stamps go on rising.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// The frontier only rises.
    pub(super) fn raise_frontier(&mut self, to: u64) {
        self.frontier = self.frontier.max(to);
    }

    /// Makes sure that a push never needs memory while there are at most `chunks` chunks: frees are
    /// infallible. Entries of chunks that were handed out again stay until `push` wants their place; a
    /// quarter more than needed makes that rare.
    pub(super) fn reserve(&mut self, chunks: usize) -> Result<(), HostMemoryExhausted> {
        let wanted = room_for(chunks);
        if self.queue.capacity() >= wanted {
            return Ok(());
        }
        // By an eighth, as the slab.
        let wanted = wanted.max(self.queue.capacity() + self.queue.capacity() / 8);
        Ok(self.queue.try_reserve_exact(wanted - self.queue.len())?)
    }

    /// Leaves room for what `chunks` need, which are all that there are, and no entry of another. Without memory for a
    /// shorter queue the room stays.
    pub(super) fn shrink(&mut self, chunks: &Chunks) {
        self.drop_outdated(chunks);
        let wanted = if chunks.count() == 0 { 0 } else { room_for(chunks.count()) };
        let mut shorter = VecDeque::new();
        if wanted < self.queue.capacity() && shorter.try_reserve_exact(wanted).is_ok() {
            shorter.extend(&self.queue);
            self.queue = shorter;
        }
    }

    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Queues a free chunk that carries the newest stamp.
    #[inline]
    pub(super) fn push(&mut self, chunks: &Chunks, stamp: u64, id: ChunkId) {
        self.make_room(chunks);
        self.queue.push_back((stamp, id));
    }

    /// Queues a free chunk that carries an older stamp.
    pub(super) fn insert(&mut self, chunks: &Chunks, stamp: u64, id: ChunkId) {
        self.make_room(chunks);
        let place = self.queue.partition_point(|entry| entry.0 <= stamp);
        self.queue.insert(place, (stamp, id));
    }

    #[inline]
    fn make_room(&mut self, chunks: &Chunks) {
        if self.queue.len() == self.queue.capacity() {
            self.drop_outdated(chunks);
        }
    }

    /// Whether the oldest entry has become safe.
    #[inline]
    pub(super) fn any_safe(&self) -> bool {
        self.queue.front().is_some_and(|entry| entry.0 < self.frontier)
    }

    /// The next chunk whose stamp is safe now.
    pub(super) fn pop_safe(&mut self, chunks: &Chunks) -> Option<ChunkId> {
        while self.any_safe() {
            let entry = self.queue.pop_front()?;
            if is_current(chunks, entry) {
                return Some(entry.1);
            }
        }
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many entries there are, outdated ones included.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Drops entries of chunks that were handed out or merged since.
    pub(super) fn drop_outdated(&mut self, chunks: &Chunks) {
        self.queue.retain(|&entry| is_current(chunks, entry));
    }

    pub(super) fn chunk_at(&self, place: usize) -> ChunkId {
        self.queue[place].1
    }

    /// Puts another chunk at a place; [`Self::restore_order`] must follow.
    pub(super) fn replace(&mut self, place: usize, stamp: u64, id: ChunkId) {
        self.queue[place] = (stamp, id);
    }

    pub(super) fn restore_order(&mut self, chunks: &Chunks) {
        self.drop_outdated(chunks);
        let queue = self.queue.make_contiguous();
        // Mostly nothing was replaced, and heapsort takes as long for what is sorted.
        if !queue.is_sorted_by_key(|entry| entry.0) {
            sort_by_key(queue, |entry| entry.0);
        }
    }

    /// Whether a chunk waits in the queue under its stamp.
    pub(super) fn holds(&self, stamp: u64, id: ChunkId) -> bool {
        let from = self.queue.partition_point(|entry| entry.0 < stamp);
        self.queue.range(from..).take_while(|entry| entry.0 == stamp).any(|entry| entry.1 == id)
    }

    pub(crate) fn metadata_bytes(&self) -> u64 {
        (self.queue.capacity() * size_of::<(u64, ChunkId)>()) as u64
    }
}

/// For entries that mean something, one for each chunk, and others.
fn room_for(chunks: usize) -> usize {
    chunks + chunks / 4 + 1
}

/// Whether an entry still means what it meant: the chunk was not handed out or merged since.
fn is_current(chunks: &Chunks, (stamp, id): (u64, ChunkId)) -> bool {
    matches!(chunks.state(id), State::Free | State::Held) && chunks.stamp(id) == stamp
}
