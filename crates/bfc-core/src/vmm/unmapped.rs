//! The addresses of a reserved range, its granules, and its unmapped chunks.
//!
//! A search for an unmapped chunk precedes system calls, so a plain list is fast enough.

use crate::heap::{Heap, Region, State};
use crate::ids::{ChunkId, NIL};
use crate::tables::shrink_to;
use crate::units::{Span, UNIT};
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// Addresses reserved for one arena, to be mapped in granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// A multiple of the granule, as is `bytes`. `bytes` is at most [`crate::units::MAX_CHUNK`].
    pub base: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// A power of two, not below [`crate::units::UNIT`].
    pub granule: u64,
}

impl Range {
    /// Returns the address after the last one.
    pub fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// Returns the granule boundary at or below an address or size.
    pub(crate) fn floor(&self, at: u64) -> u64 {
        at & !(self.granule - 1)
    }

    /// Returns the granule boundary at or above an address of the range, or a size in it.
    pub(crate) fn ceil(&self, at: u64) -> u64 {
        self.floor(at + (self.granule - 1))
    }

    /// Returns the numbers of a span's granules, for use in tables.
    #[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
    pub fn numbers(&self, span: Span) -> core::ops::Range<usize> {
        let first = ((span.base - self.base) / self.granule) as usize;
        first..first + (span.bytes / self.granule) as usize
    }

    /// Returns the address of the granule with a number.
    pub fn address(&self, number: usize) -> u64 {
        self.base + number as u64 * self.granule
    }
}

/// The range of a pool whose backend has granules, and its unmapped chunks.
#[derive(Default)]
pub struct VmRange {
    range: Option<Range>,
    /// The unmapped chunks, in no particular order. Each chunk stores its position here.
    list: Vec<ChunkId>,
    /// The bytes of the chunks in the list and of those being mapped.
    bytes: u64,
    /// How many chunks are being mapped.
    coming: usize,
    /// Set while the backend maps or unmaps. There is one plan at a time.
    moving: bool,
}

impl VmRange {
    /// Sets the range that regions are mapped in. There must be no range yet.
    pub(crate) fn set_range(&mut self, range: Range) {
        debug_assert!(range.granule.is_power_of_two() && range.granule >= UNIT);
        debug_assert!(range.base.is_multiple_of(range.granule) && range.bytes.is_multiple_of(range.granule));
        self.range = Some(range);
    }

    /// Returns the reserved range, if the backend has granules.
    pub(crate) fn range(&self) -> Option<Range> {
        self.range
    }

    /// Forgets everything but the range.
    pub(crate) fn forget_all(&mut self) {
        *self = VmRange { range: self.range, ..VmRange::default() };
    }

    /// Returns the unmapped bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns how many chunks have no memory.
    pub(crate) fn count(&self) -> usize {
        self.list.len() + self.coming
    }

    /// Returns how many chunks are being mapped.
    pub(crate) fn coming(&self) -> usize {
        self.coming
    }

    pub(crate) fn list(&self) -> &[ChunkId] {
        &self.list
    }

    /// Returns whether a plan is under way.
    pub(crate) fn is_moving(&self) -> bool {
        self.moving
    }

    /// Begins a plan that maps `coming` chunks.
    pub(crate) fn begin_move(&mut self, coming: usize) {
        debug_assert!(!self.moving, "one plan at a time");
        self.coming += coming;
        self.moving = true;
    }

    /// Ends a plan that was to map `coming` chunks and to unmap `given_up` bytes. [`Self::mapped`] reports what it
    /// leaves mapped.
    pub(crate) fn end_move(&mut self, coming: usize, given_up: u64) {
        self.coming -= coming;
        self.bytes += given_up;
        self.moving = false;
    }

    /// Records that `bytes` more bytes are mapped.
    pub(crate) fn mapped(&mut self, bytes: u64) {
        self.bytes -= bytes;
    }

    /// Frees host memory that the current unmapped chunks do not need.
    pub(crate) fn shrink(&mut self) {
        let count = self.list.len();
        shrink_to(&mut self.list, count);
    }

    pub(crate) fn metadata_bytes(&self) -> u64 {
        (self.list.capacity() * size_of::<ChunkId>()) as u64
    }

    /// Returns whether an address is in a region and not in an unmapped part of the range.
    pub(crate) fn has_memory_at(&self, heap: &Heap, addr: u64) -> bool {
        let Some(region) = heap.regions().find(addr) else { return false };
        self.range.is_none()
            || heap.regions().get(region).first != NIL
                && heap.chunk_around(addr).is_some_and(|id| !is_unmapped(heap, id))
    }

    /// Returns the unmapped bytes without those at the end of the range.
    pub(crate) fn bytes_inside(&self, heap: &Heap) -> u64 {
        self.bytes - self.tail(heap)
    }

    /// Returns the bytes of a region without the unmapped chunk at the end of the range, if there is one.
    pub(crate) fn extent(&self, heap: &Heap, region: &Region) -> u64 {
        region.bytes - self.tail(heap)
    }

    /// Returns the bytes of the unmapped chunk at the end of the range, or 0 if there is none.
    pub(crate) fn tail(&self, heap: &Heap) -> u64 {
        self.list.iter().map(|&id| tail_bytes(heap, id)).max().unwrap_or(0)
    }

    /// Adds the range as a region that is one unmapped chunk, unless there is a region already. The caller must have
    /// reserved a chunk, its entry in the address map and its position in the list.
    pub(crate) fn open(&mut self, heap: &mut Heap, range: Range) -> Result<(), HostMemoryExhausted> {
        if heap.regions().count() != 0 {
            return Ok(());
        }
        let Range { base, bytes, .. } = range;
        let id = heap.add_region(base, bytes, 0, false)?;
        // The used part of a range is not tracked, so the whole range counts as used.
        heap.touch_region(base, range.end());
        self.add(heap, id);
        self.bytes = bytes;
        Ok(())
    }

    /// Ensures that `count` more unmapped chunks need no memory.
    pub(crate) fn reserve(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        Ok(self.list.try_reserve(count)?)
    }

    /// Forgets an unmapped chunk whose region ends.
    pub(crate) fn forget(&mut self, heap: &mut Heap, id: ChunkId) {
        self.remove(heap, id);
        self.bytes -= heap.size(id);
    }

    /// Turns a chunk in no tree into an unmapped one and merges it with the unmapped chunks beside it. Its bytes must
    /// be counted already.
    pub(crate) fn make_unmapped(&mut self, heap: &mut Heap, id: ChunkId) {
        let (prev, next) = (heap.prev(id), heap.next(id));
        if next != NIL && heap.state(next) == State::Unmapped {
            self.remove(heap, next);
            heap.absorb_next(id);
        }
        if prev != NIL && heap.state(prev) == State::Unmapped {
            heap.absorb_next(prev);
        } else {
            self.add(heap, id);
        }
    }

    /// Adds a chunk to the list.
    pub(crate) fn add(&mut self, heap: &mut Heap, id: ChunkId) {
        let place = self.list.len();
        self.list.push(id);
        heap.chunks_mut().get_mut(id).mark_unmapped(place);
    }

    /// Removes a chunk from the list. It is in no tree then.
    pub(crate) fn remove(&mut self, heap: &mut Heap, id: ChunkId) {
        let place = heap.chunks().get(id).unmapped_place();
        self.list.swap_remove(place);
        if let Some(&moved) = self.list.get(place) {
            heap.chunks_mut().get_mut(moved).mark_unmapped(place);
        }
        heap.chunks_mut().get_mut(id).mark_withheld();
    }

    /// Splits a part off an unmapped chunk, to be mapped. The rest stays unmapped.
    pub(crate) fn cut(&mut self, heap: &mut Heap, whole: ChunkId, part: Span) -> ChunkId {
        self.remove(heap, whole);
        let id = heap.carve(whole, part, |heap, rest| self.add(heap, rest));
        heap.chunks_mut().get_mut(id).mark_being_mapped();
        id
    }

    /// For tests that break invariants on purpose.
    #[cfg(test)]
    pub(crate) fn internals(&mut self) -> Internals<'_> {
        let VmRange { range, bytes, coming, .. } = self;
        Internals { range, bytes, coming }
    }
}

#[cfg(test)]
pub(crate) struct Internals<'a> {
    pub(crate) range: &'a mut Option<Range>,
    pub(crate) bytes: &'a mut u64,
    pub(crate) coming: &'a mut usize,
}

/// Returns whether a chunk has no memory.
pub(crate) fn is_unmapped(heap: &Heap, id: ChunkId) -> bool {
    matches!(heap.state(id), State::Unmapped | State::BeingMapped)
}

/// Returns the size of a chunk if it is unmapped and at the end of the range, otherwise 0.
fn tail_bytes(heap: &Heap, id: ChunkId) -> u64 {
    let ends = heap.next(id) == NIL && heap.state(id) == State::Unmapped;
    if ends { heap.size(id) } else { 0 }
}
