//! One chunk: 32 hot bytes, and what is rarely read of it.
//!
//! `prev` and `next` link the chunks of a region in address order. While a chunk is in the index, `left` and `right`
//! are its links in a list or a tree. Otherwise `left` holds the chunk's state.

use crate::ids::{ChunkId, NIL};
use crate::tree::Node;
use crate::units::UNIT;
use core::ops::{Index, IndexMut};

/// In `left`: handed out to a caller. Values above `NIL` are no links.
const IN_USE: ChunkId = ChunkId(u32::MAX - 2);
/// In `left`: see [`State::Withheld`], [`State::BeingMapped`] and [`State::Unmapped`].
const WITHHELD: ChunkId = ChunkId(u32::MAX - 5);
const BEING_MAPPED: ChunkId = ChunkId(u32::MAX - 4);
const UNMAPPED: ChunkId = ChunkId(u32::MAX - 3);
/// In `left`: free, but not in the index. See [`State::Held`].
const HELD: ChunkId = ChunkId(u32::MAX - 1);
/// In `left`: not a chunk, but a vacant place of the slab.
pub(super) const VACANT: ChunkId = ChunkId(u32::MAX);

/// What a chunk is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Allocated.
    InUse,
    /// Free and in an index.
    Free,
    /// Free, but not in the common index: it belongs to a queue, or is held back until its stamp is safe.
    Held,
    /// Without memory: whole granules of a reserved range that are not mapped. See
    /// [`VmRange`](crate::vmm::VmRange).
    Unmapped,
    /// An unmapped chunk that the backend is mapping at the moment.
    BeingMapped,
    /// Free, but the backend may be unmapping it at the moment, or it is kept for the request being served.
    Withheld,
    /// No chunk: an entry of the table to be used again.
    Vacant,
}

#[derive(Clone, Copy)]
pub(crate) struct Hot {
    pub(super) addr: u64,
    /// Size in units in the upper 38 bits, region in the lower 24.
    size_and_region: u64,
    pub(super) prev: ChunkId,
    pub(super) next: ChunkId,
    pub(super) left: ChunkId,
    pub(super) right: ChunkId,
}

const _: () = assert!(size_of::<Hot>() == 32);

const REGION_BITS: u32 = 24;
const REGION_MASK: u64 = (1 << REGION_BITS) - 1;
pub const MAX_REGIONS: usize = 1 << REGION_BITS;
/// Shifts a size in bytes to its position above the region.
const SIZE_SHIFT: u32 = REGION_BITS - UNIT.trailing_zeros();

impl Hot {
    /// A vacant place of the slab.
    pub(super) const VACANT: Self =
        Hot { addr: 0, size_and_region: 0, prev: NIL, next: NIL, left: VACANT, right: NIL };

    /// Creates a chunk in use.
    #[inline]
    pub(super) fn new(addr: u64, size: u64, region: u32, prev: ChunkId, next: ChunkId) -> Self {
        let size_and_region = size << SIZE_SHIFT | u64::from(region);
        Hot { addr, size_and_region, prev, next, left: IN_USE, right: NIL }
    }

    /// Creates a free chunk that is in no tree.
    #[inline]
    pub(super) fn held(addr: u64, size: u64, region: u32, prev: ChunkId, next: ChunkId) -> Self {
        Hot { left: HELD, ..Hot::new(addr, size, region, prev, next) }
    }

    #[inline]
    pub(crate) fn size(&self) -> u64 {
        (self.size_and_region >> REGION_BITS) * UNIT
    }

    #[inline]
    pub(super) fn set_size(&mut self, size: u64) {
        self.size_and_region = size << SIZE_SHIFT | (self.size_and_region & REGION_MASK);
    }

    /// Sets the size of a chunk in a region that is known.
    #[inline]
    pub(super) fn set_size_in(&mut self, size: u64, region: u32) {
        self.size_and_region = size << SIZE_SHIFT | u64::from(region);
    }

    #[inline]
    pub(crate) fn region(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation)] // 24 bits
        let region = (self.size_and_region & REGION_MASK) as u32;
        region
    }

    #[inline]
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    #[inline]
    pub(crate) fn prev(&self) -> ChunkId {
        self.prev
    }

    #[inline]
    pub(crate) fn next(&self) -> ChunkId {
        self.next
    }

    /// Returns size and address, the order of the index.
    #[inline(always)]
    pub(crate) fn key(&self) -> (u64, u64) {
        (self.size(), self.addr)
    }

    #[inline]
    pub(crate) fn in_use(&self) -> bool {
        self.left == IN_USE
    }

    /// Returns whether the chunk is free and not in an index.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.left == HELD
    }

    /// Returns whether the chunk is free and in an index.
    #[inline]
    pub(crate) fn is_findable(&self) -> bool {
        self.left.0 <= NIL.0
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        match self.left {
            IN_USE => State::InUse,
            HELD => State::Held,
            UNMAPPED => State::Unmapped,
            BEING_MAPPED => State::BeingMapped,
            WITHHELD => State::Withheld,
            VACANT => State::Vacant,
            _ => State::Free,
        }
    }

    #[inline]
    pub(crate) fn mark_in_use(&mut self) {
        self.left = IN_USE;
    }

    /// Marks the chunk as free and in no tree. The index may take it over, or the quarantine keeps it.
    #[inline]
    pub(crate) fn mark_held(&mut self) {
        self.left = HELD;
    }

    /// Marks the chunk as unmapped. `place` is its position in the list of unmapped chunks.
    #[allow(clippy::cast_possible_truncation)] // there are at most MAX_CHUNKS
    pub(crate) fn mark_unmapped(&mut self, place: usize) {
        (self.left, self.right) = (UNMAPPED, ChunkId(place as u32));
    }

    /// Returns the chunk's position in the list of unmapped chunks.
    pub(crate) fn unmapped_place(&self) -> usize {
        self.right.index()
    }

    pub(crate) fn mark_being_mapped(&mut self) {
        self.left = BEING_MAPPED;
    }

    pub(crate) fn mark_withheld(&mut self) {
        (self.left, self.right) = (WITHHELD, NIL);
    }

    /// Like [`Self::mark_withheld`], for a chunk whose memory stays mapped where it is.
    pub(crate) fn mark_staying(&mut self) {
        (self.left, self.right) = (WITHHELD, WITHHELD);
    }

    /// Returns whether the chunk was marked by [`Self::mark_staying`].
    pub(crate) fn is_staying(&self) -> bool {
        (self.left, self.right) == (WITHHELD, WITHHELD)
    }
}

impl Node for Hot {
    #[inline(always)]
    fn key(&self) -> (u64, u64) {
        Hot::key(self)
    }

    #[inline(always)]
    fn left(&self) -> ChunkId {
        self.left
    }

    #[inline(always)]
    fn right(&self) -> ChunkId {
        self.right
    }

    #[inline(always)]
    fn left_mut(&mut self) -> &mut ChunkId {
        &mut self.left
    }

    #[inline(always)]
    fn right_mut(&mut self) -> &mut ChunkId {
        &mut self.right
    }
}

/// Chunk numbers index the slab.
impl Index<ChunkId> for [Hot] {
    type Output = Hot;

    #[inline]
    fn index(&self, id: ChunkId) -> &Hot {
        &self[id.index()]
    }
}

impl IndexMut<ChunkId> for [Hot] {
    #[inline]
    fn index_mut(&mut self, id: ChunkId) -> &mut Hot {
        &mut self[id.index()]
    }
}

#[derive(Clone, Copy)]
pub struct Cold {
    pub requested: u64,
    /// Counts up from 1. Meaningless while the chunk is free.
    pub allocation_id: u64,
}

/// The operation that a chunk was allocated for, used in reports.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tag {
    /// The number of the operation's name. 0 is none.
    pub name: u32,
    /// The step of the program, counted by the caller.
    pub step: u64,
}
