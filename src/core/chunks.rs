//! Chunks in a slab: 32 hot bytes each, and what is rarely read beside them.
//!
//! ```text
//!   hot    addr | size and region | prev next | left right      two chunks a cache line
//!   cold   requested size, allocation id
//!   stamps one u64 a chunk, only with timestamps
//!   tags   operation and step, only once an allocation had one
//! ```
//!
//! `prev` and `next` link the chunks of a region in address order. `left` and `right` are the chunk's
//! place in a tree of the index while it is free; `left` also tells the chunk's state otherwise.

use super::units::UNIT;
use crate::sys::HostMemoryExhausted;

/// A chunk's place in the slab. Recycled, so it means something only while the chunk exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkId(pub(super) u32);

/// No chunk: the end of a list, an empty tree.
pub(crate) const NIL: ChunkId = ChunkId(u32::MAX);
/// In `left`: handed out to a caller.
const IN_USE: ChunkId = ChunkId(u32::MAX - 1);
/// In `left`: free, but not in the index; see quarantine.
const HELD: ChunkId = ChunkId(u32::MAX - 2);
/// In `left`: not a chunk at all, but a free place of the slab.
const VACANT: ChunkId = ChunkId(u32::MAX - 3);
const MAX_CHUNKS: usize = VACANT.0 as usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    InUse,
    /// Free, and findable.
    Free,
    /// Free, but held back until its stamp is safe.
    Held,
    Vacant,
}

struct Hot {
    addr: u64,
    /// Size in units above, region below: 40 and 24 bits.
    size_and_region: u64,
    prev: ChunkId,
    next: ChunkId,
    left: ChunkId,
    right: ChunkId,
}

const _: () = assert!(size_of::<Hot>() == 32);

#[derive(Clone, Copy)]
pub(crate) struct Cold {
    pub(crate) requested: u64,
    /// Counts up from 1; meaningless while the chunk is free.
    pub(crate) allocation_id: u64,
}

/// The operation on whose behalf a chunk was allocated, for reports.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Tag {
    /// An index into the arena's operation names, plus 1; 0 is none.
    pub(crate) name: u32,
    pub(crate) step: u64,
}

const REGION_BITS: u32 = 24;
const REGION_MASK: u64 = (1 << REGION_BITS) - 1;
pub(crate) const MAX_REGIONS: usize = 1 << REGION_BITS;
/// Shifts a size in bytes to its place above the region.
const SIZE_SHIFT: u32 = REGION_BITS - UNIT.trailing_zeros();

#[derive(Default)]
pub(crate) struct Chunks {
    hot: Vec<Hot>,
    cold: Vec<Cold>,
    stamps: Option<Vec<u64>>,
    tags: Vec<Tag>,
    first_vacant: Option<ChunkId>,
    vacant: usize,
    free: usize,
}

impl Chunks {
    pub(super) fn new(with_stamps: bool) -> Self {
        Chunks { stamps: with_stamps.then(Vec::new), ..Chunks::default() }
    }

    /// Makes sure that `count` calls of `add` need no memory.
    #[inline]
    pub(super) fn reserve(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        if self.vacant >= count || self.vacant + (self.hot.capacity() - self.hot.len()) >= count {
            return Ok(());
        }
        self.grow(count)
    }

    /// By an eighth: twice as much would be mostly idle, and for large slabs a reallocation moves pages,
    /// not bytes. The hot vector grows last, for it is the one `reserve` looks at.
    #[cold]
    fn grow(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        let length = self.hot.len();
        let target = (length + count).max(64).max(length + length / 8);
        if target > MAX_CHUNKS {
            return Err(HostMemoryExhausted);
        }
        grow_to(&mut self.cold, target)?;
        if let Some(stamps) = &mut self.stamps {
            grow_to(stamps, target)?;
        }
        if !self.tags.is_empty() {
            grow_to(&mut self.tags, target)?;
        }
        grow_to(&mut self.hot, target)
    }

    /// A new chunk in use, linked to nothing. The caller has reserved the place.
    #[inline]
    pub(super) fn add(&mut self, addr: u64, size: u64, region: u32) -> ChunkId {
        let hot = Hot {
            addr,
            size_and_region: size << SIZE_SHIFT | u64::from(region),
            prev: NIL,
            next: NIL,
            left: IN_USE,
            right: NIL,
        };
        if let Some(id) = self.first_vacant {
            let next = self.hot[id.index()].next;
            self.first_vacant = (next != NIL).then_some(next);
            self.vacant -= 1;
            self.hot[id.index()] = hot;
            return id;
        }
        #[allow(clippy::cast_possible_truncation)] // `reserve` keeps the length below MAX_CHUNKS
        let id = ChunkId(self.hot.len() as u32);
        self.hot.push(hot);
        self.cold.push(Cold { requested: 0, allocation_id: 0 });
        if let Some(stamps) = &mut self.stamps {
            stamps.push(0);
        }
        if !self.tags.is_empty() {
            self.tags.push(Tag::default());
        }
        id
    }

    /// Ends a chunk in use that no list or tree refers to any more.
    #[inline]
    pub(super) fn remove(&mut self, id: ChunkId) {
        let next = self.first_vacant.unwrap_or(NIL);
        self.set_stamp(id, 0);
        let hot = &mut self.hot[id.index()];
        debug_assert!(hot.left == IN_USE);
        (hot.left, hot.next) = (VACANT, next);
        self.first_vacant = Some(id);
        self.vacant += 1;
    }

    #[inline]
    pub(crate) fn addr(&self, id: ChunkId) -> u64 {
        self.hot[id.index()].addr
    }

    #[inline]
    pub(crate) fn size(&self, id: ChunkId) -> u64 {
        self.hot[id.index()].size()
    }

    /// Size and address: what the index is ordered by.
    #[inline]
    pub(super) fn key(&self, id: ChunkId) -> (u64, u64) {
        let hot = &self.hot[id.index()];
        (hot.size(), hot.addr)
    }

    #[inline]
    pub(crate) fn region(&self, id: ChunkId) -> u32 {
        #[allow(clippy::cast_possible_truncation)] // 24 bits
        let region = (self.hot[id.index()].size_and_region & REGION_MASK) as u32;
        region
    }

    #[inline]
    pub(crate) fn prev(&self, id: ChunkId) -> ChunkId {
        self.hot[id.index()].prev
    }

    #[inline]
    pub(crate) fn next(&self, id: ChunkId) -> ChunkId {
        self.hot[id.index()].next
    }

    #[inline]
    pub(super) fn left(&self, id: ChunkId) -> ChunkId {
        self.hot[id.index()].left
    }

    #[inline]
    pub(super) fn right(&self, id: ChunkId) -> ChunkId {
        self.hot[id.index()].right
    }

    #[inline]
    pub(super) fn set_left(&mut self, id: ChunkId, to: ChunkId) {
        self.hot[id.index()].left = to;
    }

    #[inline]
    pub(super) fn set_right(&mut self, id: ChunkId, to: ChunkId) {
        self.hot[id.index()].right = to;
    }

    /// Links `first` and `second` as neighbours; either may be [`NIL`].
    #[inline]
    pub(super) fn link(&mut self, first: ChunkId, second: ChunkId) {
        if first != NIL {
            self.hot[first.index()].next = second;
        }
        if second != NIL {
            self.hot[second.index()].prev = first;
        }
    }

    #[inline]
    pub(super) fn set_size(&mut self, id: ChunkId, size: u64) {
        let hot = &mut self.hot[id.index()];
        hot.size_and_region = size << SIZE_SHIFT | (hot.size_and_region & REGION_MASK);
    }

    #[inline]
    pub(crate) fn in_use(&self, id: ChunkId) -> bool {
        self.hot[id.index()].left == IN_USE
    }

    #[inline]
    pub(crate) fn state(&self, id: ChunkId) -> State {
        match self.hot[id.index()].left {
            IN_USE => State::InUse,
            HELD => State::Held,
            VACANT => State::Vacant,
            _ => State::Free,
        }
    }

    /// Marks a free chunk in use; it is in no tree any more.
    #[inline]
    pub(super) fn mark_in_use(&mut self, id: ChunkId) {
        self.hot[id.index()].left = IN_USE;
        self.free -= 1;
    }

    /// Marks a chunk in use as free; the index or the quarantine takes it over.
    #[inline]
    pub(super) fn mark_free(&mut self, id: ChunkId) {
        self.hot[id.index()].left = HELD;
        self.free += 1;
    }

    #[inline]
    pub(crate) fn cold(&self, id: ChunkId) -> Cold {
        self.cold[id.index()]
    }

    #[inline]
    pub(super) fn set_cold(&mut self, id: ChunkId, cold: Cold) {
        self.cold[id.index()] = cold;
    }

    /// When the chunk was freed; 0 if it may be used and merged freely.
    #[inline]
    pub(crate) fn stamp(&self, id: ChunkId) -> u64 {
        self.stamps.as_ref().map_or(0, |stamps| stamps[id.index()])
    }

    #[inline]
    pub(super) fn set_stamp(&mut self, id: ChunkId, stamp: u64) {
        if let Some(stamps) = &mut self.stamps {
            stamps[id.index()] = stamp;
        }
    }

    pub(crate) fn tag(&self, id: ChunkId) -> Tag {
        self.tags.get(id.index()).copied().unwrap_or_default()
    }

    #[inline]
    pub(super) fn has_tags(&self) -> bool {
        !self.tags.is_empty()
    }

    pub(super) fn set_tag(&mut self, id: ChunkId, tag: Tag) {
        if let Some(place) = self.tags.get_mut(id.index()) {
            *place = tag;
        }
    }

    /// Begins to keep tags: one for each place of the slab from now on.
    pub(super) fn start_tags(&mut self) -> Result<(), HostMemoryExhausted> {
        if self.tags.is_empty() && !self.hot.is_empty() {
            grow_to(&mut self.tags, self.hot.capacity())?;
            self.tags.resize(self.hot.len(), Tag::default());
        }
        Ok(())
    }

    /// How many chunks exist, and how many of them are free.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.hot.len() - self.vacant, self.free)
    }

    /// The chunk at a place of the slab, if there is one.
    pub(crate) fn at(&self, place: u32) -> Option<ChunkId> {
        let hot = self.hot.get(place as usize)?;
        (hot.left != VACANT).then_some(ChunkId(place))
    }

    /// All chunks, in no order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ChunkId> + '_ {
        #[allow(clippy::cast_possible_truncation)] // `reserve` keeps the length below MAX_CHUNKS
        (0..self.hot.len() as u32).filter_map(|place| self.at(place))
    }

    /// Host memory held, in bytes.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        let stamps = self.stamps.as_ref().map_or(0, |stamps| stamps.capacity() * size_of::<u64>());
        let tags = self.tags.capacity() * size_of::<Tag>();
        let slab = self.hot.capacity() * size_of::<Hot>() + self.cold.capacity() * size_of::<Cold>();
        (slab + stamps + tags) as u64
    }
}

impl Hot {
    #[inline]
    fn size(&self) -> u64 {
        (self.size_and_region >> REGION_BITS) * UNIT
    }
}

impl ChunkId {
    #[inline]
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

fn grow_to<T>(vector: &mut Vec<T>, capacity: usize) -> Result<(), HostMemoryExhausted> {
    let more = capacity.saturating_sub(vector.len());
    Ok(vector.try_reserve_exact(more)?)
}
