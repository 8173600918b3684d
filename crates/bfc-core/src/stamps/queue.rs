//! The queue of chunks that wait under a stamp.
//!
//! The queue is ordered by turn, which is the stamp that a chunk got when it was freed. A forced merge gives the merged
//! chunk the later of two stamps, but keeps its turn. So a pass of forced merges visits each chunk once and in the
//! order at its beginning, without a list of its own. A turn is never later than the stamp. Code that finds an earlier
//! turn brings it up to date.
//!
//! With quarantine no merge is forced, and a chunk keeps the stamp that it got when it was freed. So the queue is a list
//! then, which chunks join at the end and leave at the beginning, and otherwise a tree.

use super::stamped_index::StampedIndex;
use crate::heap::Heap;
use crate::ids::{ChunkId, NIL};
use crate::list::{Linked, Links, List};
use crate::seed::Seed;
use crate::steps;
use crate::tables::{make_room, shrink_to};
use crate::tree::Node;
use crate::tree::Tree;
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// The freed chunks that carry stamps, and the frontier.
pub struct StampQueue {
    last: u64,
    frontier: u64,
    queue: Tree,
    /// Used instead of `queue` with quarantine.
    list: List<ChunkId>,
    seed: Seed,
    /// For each place of the slab, the queue entry of its chunk.
    places: Vec<Place>,
    /// A turn may be below the frontier.
    pub(super) may_have_due: bool,
    /// With quarantine no chunk is handed out before its stamp is safe.
    pub(super) quarantine: bool,
    /// The bytes of the queued chunks with quarantine, and otherwise 0.
    pub(super) held_bytes: u64,
    /// The number of forced passes begun.
    pub(super) passes: u64,
    /// The queued chunks that requests may find.
    pub(super) index: StampedIndex,
}

/// A chunk's entry in the queue.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The links in the tree, or in the list.
    links: Links<ChunkId>,
    pub(super) turn: u64,
    addr: u64,
    /// The last forced pass that gave the chunk a later stamp before its turn came.
    pub(super) raised_in: u64,
}

impl Place {
    const NONE: Self = Place { links: Links::NONE, turn: 0, addr: 0, raised_in: 0 };
}

impl Node for Place {
    /// Returns turn and address. If a freed chunk was split, its parts have the same turn and follow in address order.
    #[inline]
    fn key(&self) -> (u64, u64) {
        (self.turn, self.addr)
    }

    #[inline]
    fn left(&self) -> ChunkId {
        self.links.before
    }

    #[inline]
    fn right(&self) -> ChunkId {
        self.links.after
    }

    #[inline]
    fn left_mut(&mut self) -> &mut ChunkId {
        &mut self.links.before
    }

    #[inline]
    fn right_mut(&mut self) -> &mut ChunkId {
        &mut self.links.after
    }
}

impl Linked<ChunkId> for Place {
    #[inline]
    fn links(&self, (): ()) -> &Links<ChunkId> {
        &self.links
    }

    #[inline]
    fn links_mut(&mut self, (): ()) -> &mut Links<ChunkId> {
        &mut self.links
    }
}

impl StampQueue {
    #[inline(always)]
    pub(crate) fn new(seed: u64, quarantine: bool) -> Self {
        let seed = Seed::new(seed);
        StampQueue {
            last: 0,
            frontier: 0,
            queue: Tree::EMPTY,
            list: List::new(()),
            seed,
            places: Vec::new(),
            may_have_due: false,
            quarantine,
            held_bytes: 0,
            passes: 0,
            index: StampedIndex::new(seed),
        }
    }

    /// Returns the last stamp given.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the frontier. Stamps below it are safe.
    pub(crate) fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Returns whether memory freed with this stamp may be reused. 0 is no stamp.
    pub fn is_safe(&self, stamp: u64) -> bool {
        stamp == 0 || stamp < self.frontier
    }

    /// Forgets all waiting chunks. Stamps continue to rise.
    pub(crate) fn clear(&mut self) {
        (self.queue, self.list) = (Tree::EMPTY, List::new(()));
        (self.places, self.may_have_due, self.held_bytes) = (Vec::new(), false, 0);
        self.index.clear();
    }

    /// Returns the bytes in quarantine.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Raises the frontier. A lower value has no effect.
    pub(crate) fn raise_frontier(&mut self, to: u64) {
        if to > self.frontier {
            (self.frontier, self.may_have_due) = (to, true);
        }
    }

    /// Ensures that freeing any chunk of a slab of `places` places needs no memory, because frees must not fail.
    pub(crate) fn reserve(&mut self, places: usize) -> Result<(), HostMemoryExhausted> {
        if self.has_room(places) {
            return Ok(());
        }
        self.index.reserve(places)?;
        make_room(&mut self.places, places)?;
        self.places.resize(places, Place::NONE);
        Ok(())
    }

    /// Returns whether [`Self::reserve`] has nothing to do for a slab of `places` places.
    #[inline]
    pub(crate) fn has_room(&self, places: usize) -> bool {
        self.places.len() >= places
    }

    /// Keeps only the first `places` places. Without memory for smaller tables they stay.
    pub(crate) fn shrink(&mut self, places: usize) {
        self.index.shrink(places);
        shrink_to(&mut self.places, places);
    }

    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Queues a chunk that is not queued yet.
    pub(super) fn push(&mut self, id: ChunkId, addr: u64, turn: u64) {
        self.places[id.index()] = Place { turn, addr, ..Place::NONE };
        if self.quarantine {
            // Nearly always the last turn is earlier.
            let mut before = self.list.last();
            while before != NIL && self.place(before).key() > (turn, addr) {
                steps::count();
                before = self.place(before).links.before;
            }
            self.list.insert_after(&mut self.places, id, before);
        } else {
            self.queue.insert(&mut self.places, self.seed, id);
        }
        self.may_have_due |= turn < self.frontier;
    }

    /// Removes a chunk from the queue.
    pub(super) fn remove(&mut self, id: ChunkId) {
        if self.quarantine {
            self.list.remove(&mut self.places, id);
        } else {
            self.queue.remove(&mut self.places, self.seed, id);
        }
    }

    /// Brings a chunk's turn up to date with its stamp.
    pub(super) fn requeue(&mut self, id: ChunkId, stamp: u64) {
        let Place { addr, .. } = self.places[id.index()];
        self.remove(id);
        self.push(id, addr, stamp);
    }

    /// Returns the entry of a queued chunk.
    pub(super) fn place(&self, id: ChunkId) -> Place {
        self.places[id.index()]
    }

    pub(super) fn place_mut(&mut self, id: ChunkId) -> &mut Place {
        &mut self.places[id.index()]
    }

    /// Returns the first chunk of the queue.
    fn first(&self) -> Option<ChunkId> {
        let id =
            if self.quarantine { self.list.first() } else { self.queue.first_from(&self.places, (0, 0)) };
        (id != NIL).then_some(id)
    }

    /// Returns the first chunk that is not below a turn and an address. Not for a queue with quarantine.
    pub(super) fn first_from(&self, key: (u64, u64)) -> Option<ChunkId> {
        let id = self.queue.first_from(&self.places, key);
        (id != NIL).then_some(id)
    }

    /// Returns the first chunk whose turn the frontier has passed. Its stamp may be later.
    pub(super) fn first_due(&mut self) -> Option<ChunkId> {
        if !self.may_have_due {
            return None;
        }
        let due = self.first().filter(|&id| self.place(id).turn < self.frontier);
        self.may_have_due = due.is_some();
        due
    }

    /// For tests: says that no turn is below the frontier.
    #[cfg(test)]
    pub(crate) fn hide_due(&mut self) {
        self.may_have_due = false;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.list.is_empty()
    }

    /// Returns all queued chunks, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ChunkId> + '_ {
        let mut next = self.first();
        core::iter::from_fn(move || {
            let id = next?;
            next = if self.quarantine {
                Some(self.list.after(&self.places, id)).filter(|&after| after != NIL)
            } else {
                let (turn, addr) = self.place(id).key();
                self.first_from((turn, addr + 1))
            };
            Some(id)
        })
    }

    /// Returns the first free chunk that is not below `key` in (size, address) order and has no stamp, or one of at
    /// most `newest`.
    #[inline]
    pub(crate) fn first_old_enough(&self, heap: &Heap, key: (u64, u64), newest: u64) -> Option<ChunkId> {
        let unstamped = heap.first_from(key);
        let Some(stamped) = self.index.first_from(heap.chunks(), key, newest) else { return unstamped };
        let slab = heap.chunks().slab();
        let is_first = unstamped.is_none_or(|other| slab[stamped].key() < slab[other].key());
        if is_first { Some(stamped) } else { unstamped }
    }

    /// Returns the largest findable chunk with a stamp.
    pub(crate) fn largest_findable(&self, heap: &Heap) -> Option<ChunkId> {
        self.index.largest(heap.chunks())
    }

    /// Returns the findable chunks with a stamp in (size, address) order, each with whether the index has the right
    /// least stamp below it.
    pub(crate) fn findable<'a>(&'a self, heap: &'a Heap) -> impl Iterator<Item = (ChunkId, bool)> + 'a {
        let chunks = heap.chunks();
        self.index.iter(chunks).map(|id| (id, self.index.is_right(chunks, id)))
    }

    /// Returns turn and address of a waiting chunk.
    pub(crate) fn turn(&self, id: ChunkId) -> (u64, u64) {
        self.place(id).key()
    }

    /// Returns the host memory of the queue, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        (self.places.capacity() * size_of::<Place>() + self.index.metadata_bytes()) as u64
    }
}
