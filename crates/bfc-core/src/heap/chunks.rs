//! Chunks in a slab: 32 hot bytes each, with rarely read fields in tables of their own.
//!
//! ```text
//!   hot    addr | size and region | prev next | left right      two chunks a cache line
//!   cold   requested size, allocation id
//!   stamps one u64 a chunk, only with timestamps
//!   tags   operation and step, with the allocation that they belong to; only once an allocation had one
//! ```
//!
//! The allocation path borrows the slab once, as a slice, and works on that. Through the `Vec` the compiler would have
//! to reload pointer and length after every store.

use super::chunk::{Cold, Hot, State, Tag, VACANT};
use crate::ids::{ChunkId, NIL};
use crate::steps;
use crate::tables::{copy_table, make_room, room_for, shrink_to, with_margin};
use crate::units::Span;
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;
use bfc_hostmem::Zeroed;

const MAX_CHUNKS: usize = NIL.0 as usize;
/// New places of the slab are linked in steps of this many, because linking a hundred thousand at once would take long.
const PLACES_AT_ONCE: usize = 64;

/// The vacant places of the slab, linked by `next`.
pub(super) struct Vacant {
    first: ChunkId,
    pub(super) count: usize,
}

impl Vacant {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first == NIL
    }

    /// Puts a new chunk into a vacant place, which the caller must have reserved.
    #[inline]
    pub(super) fn fill(&mut self, slab: &mut [Hot], chunk: Hot) -> ChunkId {
        let id = self.first;
        let place = &mut slab[id];
        self.first = place.next;
        self.count -= 1;
        *place = chunk;
        id
    }

    /// Ends a chunk that no list or tree refers to.
    #[inline]
    pub(super) fn add(&mut self, slab: &mut [Hot], id: ChunkId) {
        let place = &mut slab[id];
        (place.left, place.next) = (VACANT, self.first);
        self.first = id;
        self.count += 1;
    }
}

/// The chunks of all regions, by number.
pub struct Chunks {
    pub(super) slab: Vec<Hot>,
    pub(super) vacant: Vacant,
    pub(super) cold: Vec<Cold>,
    pub(super) stamps: Option<Vec<u64>>,
    /// The tag of each chunk with the number of the allocation that it belongs to. A tag counts only for that
    /// allocation, so an allocation without a tag does not have to clear the previous one.
    tags: Zeroed<[u64; 3]>,
}

impl Chunks {
    #[inline(always)]
    pub(crate) fn new(with_stamps: bool) -> Self {
        Chunks {
            slab: Vec::new(),
            vacant: Vacant { first: NIL, count: 0 },
            cold: Vec::new(),
            stamps: with_stamps.then(Vec::new),
            tags: Zeroed::EMPTY,
        }
    }

    /// Ensures that there are `count` vacant places.
    #[inline]
    pub(super) fn reserve(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        if self.vacant.count >= count { Ok(()) } else { self.grow(count) }
    }

    /// Returns the number of places after [`Self::reserve`].
    #[inline]
    pub(crate) fn places_with(&self, count: usize) -> usize {
        if self.vacant.count >= count { self.slab.len() } else { self.grown(count) }
    }

    fn grown(&self, count: usize) -> usize {
        // Place 0 stays vacant.
        (self.slab.len().max(1) + count).max(self.slab.len() + PLACES_AT_ONCE)
    }

    #[cold]
    fn grow(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        let (first, length) = (self.slab.len().max(1), self.grown(count));
        if length > MAX_CHUNKS {
            return Err(HostMemoryExhausted);
        }
        make_room(&mut self.cold, length)?;
        make_room(&mut self.slab, length)?;
        if let Some(stamps) = &mut self.stamps {
            make_room(stamps, length)?;
            stamps.resize(length, 0);
        }
        if !self.tags.is_empty() && self.tags.len() < length {
            self.tags.grow(self.slab.capacity())?;
        }
        self.cold.resize(length, Cold { requested: 0, allocation_id: 0 });
        self.slab.resize(length, Hot::VACANT);
        self.link_vacant(first);
        Ok(())
    }

    /// Links all vacant places starting at `first`, the last one first, so that they are filled in order.
    fn link_vacant(&mut self, first: usize) {
        #[allow(clippy::cast_possible_truncation)] // at most MAX_CHUNKS
        let places = (first as u32..self.slab.len() as u32).rev().map(ChunkId);
        for id in places {
            if self.slab[..][id].left == VACANT {
                self.vacant.add(&mut self.slab, id);
            }
        }
    }

    /// Frees the memory after the last chunk. Without memory for the smaller tables, the tables stay. Chunk numbers not
    /// below the new length of the slab are invalid.
    pub(super) fn shrink(&mut self) {
        let end = self.slab.iter().rposition(|hot| hot.left != VACANT).map_or(0, |last| last + 1);
        if end + end / 4 + PLACES_AT_ONCE >= self.slab.len() {
            return;
        }
        self.vacant = Vacant { first: NIL, count: 0 };
        shrink_to(&mut self.slab, end);
        shrink_to(&mut self.cold, end);
        if let Some(stamps) = &mut self.stamps {
            shrink_to(stamps, end);
        }
        self.tags.shrink(end);
        self.link_vacant(1);
    }

    /// Returns all places, each a node of whichever tree it is in.
    #[inline]
    pub(crate) fn slab(&self) -> &[Hot] {
        &self.slab
    }

    #[inline]
    pub(crate) fn slab_mut(&mut self) -> &mut [Hot] {
        &mut self.slab
    }

    #[inline]
    pub(super) fn slab_and_vacant(&mut self) -> (&mut [Hot], &mut Vacant) {
        (&mut self.slab, &mut self.vacant)
    }

    #[inline]
    pub(crate) fn slab_and_stamps(&mut self) -> (&mut [Hot], &[u64]) {
        (&mut self.slab, self.stamps.as_deref().unwrap_or_default())
    }

    /// Calls a function with each chunk that is in an index and has at least `size` bytes, and with its size and address.
    /// The order is that of the table.
    #[inline(always)]
    pub(crate) fn each_findable(&self, size: u64, mut visit: impl FnMut(ChunkId, (u64, u64))) {
        for (place, hot) in self.slab.iter().enumerate() {
            steps::count();
            if hot.is_findable() && hot.size() >= size {
                #[allow(clippy::cast_possible_truncation)] // at most MAX_CHUNKS
                visit(ChunkId(place as u32), hot.key());
            }
        }
    }

    /// Returns the number of places, the vacant ones included.
    #[inline]
    pub(crate) fn places(&self) -> usize {
        self.slab.len()
    }

    #[inline]
    pub(crate) fn get(&self, id: ChunkId) -> &Hot {
        &self.slab[..][id]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: ChunkId) -> &mut Hot {
        &mut self.slab[..][id]
    }

    /// Returns the address of a chunk.
    #[inline]
    pub fn addr(&self, id: ChunkId) -> u64 {
        self.slab[..][id].addr
    }

    /// Returns the size of a chunk in bytes.
    #[inline]
    pub fn size(&self, id: ChunkId) -> u64 {
        self.slab[..][id].size()
    }

    /// Returns the number of the region that a chunk is in.
    pub fn region(&self, id: ChunkId) -> u32 {
        self.slab[..][id].region()
    }

    /// Returns the chunk before this one in its region, or [`NIL`].
    pub fn prev(&self, id: ChunkId) -> ChunkId {
        self.slab[..][id].prev
    }

    /// Returns the chunk after this one in its region, or [`NIL`].
    pub fn next(&self, id: ChunkId) -> ChunkId {
        self.slab[..][id].next
    }

    /// Returns whether a chunk is allocated.
    pub fn in_use(&self, id: ChunkId) -> bool {
        self.slab[..][id].in_use()
    }

    /// Returns what a chunk is at the moment.
    pub fn state(&self, id: ChunkId) -> State {
        self.slab[..][id].state()
    }

    /// Returns what requests and frees do not read in the usual case.
    #[inline]
    pub fn cold(&self, id: ChunkId) -> Cold {
        self.cold[id.index()]
    }

    /// Returns the count at which the chunk was freed, or 0 if it may be used and merged freely.
    #[inline]
    pub fn stamp(&self, id: ChunkId) -> u64 {
        self.stamps.as_ref().map_or(0, |stamps| stamps[id.index()])
    }

    #[inline]
    pub(crate) fn set_stamp(&mut self, id: ChunkId, stamp: u64) {
        if let Some(stamps) = &mut self.stamps {
            stamps[id.index()] = stamp;
        }
    }

    /// Returns the operation that a chunk was allocated for.
    pub fn tag(&self, id: ChunkId) -> Tag {
        let of_this = |tag: &&[u64; 3]| tag[2] == self.cold(id).allocation_id;
        #[allow(clippy::cast_possible_truncation)] // stored from 32 bits
        self.tags
            .get(id.index())
            .filter(of_this)
            .map_or(Tag::default(), |&[name, step, _]| Tag { name: name as u32, step })
    }

    /// Tags the current allocation of a chunk in use.
    pub(crate) fn set_tag(&mut self, id: ChunkId, tag: Tag) {
        let allocation_id = self.cold(id).allocation_id;
        if let Some(place) = self.tags.get_mut(id.index()) {
            *place = [tag.name.into(), tag.step, allocation_id];
        }
    }

    /// Begins to keep tags, with one entry for each place of the slab.
    pub(crate) fn start_tags(&mut self) -> Result<(), HostMemoryExhausted> {
        if self.tags.is_empty() {
            self.tags.grow(self.slab.capacity())?;
        }
        Ok(())
    }

    /// Returns how many chunks exist, in use and free.
    pub fn count(&self) -> usize {
        self.slab.len().saturating_sub(1) - self.vacant.count
    }

    /// Finds the first stretch of neighbours, starting at `first`, that `is_it` accepts. Returns its span and the chunk
    /// after it.
    pub(crate) fn piece_from(
        &self,
        first: ChunkId,
        is_it: impl Fn(ChunkId) -> bool,
    ) -> Option<(Span, ChunkId)> {
        let mut id = first;
        while id != NIL && !is_it(id) {
            id = self.next(id);
        }
        let base = (id != NIL).then(|| self.addr(id))?;
        let mut bytes = 0;
        while id != NIL && is_it(id) {
            bytes += self.size(id);
            id = self.next(id);
        }
        Some((Span { base, bytes }, id))
    }

    /// Returns all chunks, in no particular order.
    pub fn ids(&self) -> impl Iterator<Item = ChunkId> + Clone + '_ {
        let places = self.slab.iter().zip(0u32..);
        places.filter(|(hot, _)| hot.left != VACANT).map(|(_, place)| ChunkId(place))
    }

    /// Returns the chunk number of a place of the slab, which may be vacant.
    pub(crate) fn place(&self, place: usize) -> ChunkId {
        #[allow(clippy::cast_possible_truncation)] // at most MAX_CHUNKS
        ChunkId(place as u32)
    }

    /// Returns the lengths of the tables that a copy needs.
    pub(crate) fn lengths(&self) -> [usize; 3] {
        [self.slab.len(), self.stamps.as_ref().map_or(0, Vec::len), self.tags.len()]
    }

    /// Makes room for a copy of tables of these lengths.
    pub(crate) fn make_room(&mut self, [slab, stamps, tags]: [usize; 3]) -> Result<(), HostMemoryExhausted> {
        room_for(&mut self.slab, slab, Hot::new(0, 0, 0, NIL, NIL))?;
        room_for(&mut self.cold, slab, Cold { requested: 0, allocation_id: 0 })?;
        room_for(self.stamps.get_or_insert_default(), stamps, 0)?;
        // Filled, so that the pages are there.
        self.tags = Zeroed::new(if tags == 0 { 0 } else { with_margin(tags) })?;
        self.tags.fill([0; 3]);
        Ok(())
    }

    /// Becomes a read-only copy of `other`. Returns false if there is not enough room.
    pub(crate) fn copy_from(&mut self, other: &Self) -> bool {
        let stamped = match (&mut self.stamps, &other.stamps) {
            (Some(stamps), Some(others)) => copy_table(stamps, others),
            (stamps, None) => {
                *stamps = None;
                true
            }
            (None, Some(_)) => false,
        };
        stamped
            && copy_table(&mut self.slab, &other.slab)
            && copy_table(&mut self.cold, &other.cold)
            && self.copy_tags(&other.tags)
    }

    /// Copies the tags. The room for them may be longer.
    fn copy_tags(&mut self, tags: &[[u64; 3]]) -> bool {
        let room = self.tags.get_mut(..tags.len());
        room.map(|room| room.copy_from_slice(tags)).is_some()
    }

    /// Returns the host memory held, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        let stamps = self.stamps.as_ref().map_or(0, |stamps| stamps.capacity() * size_of::<u64>());
        let slab = self.slab.capacity() * size_of::<Hot>() + self.cold.capacity() * size_of::<Cold>();
        (slab + stamps) as u64 + self.tags.held_bytes()
    }
}
