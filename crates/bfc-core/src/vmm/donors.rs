//! Free chunks that give up whole granules, for a request that needs them elsewhere or for a trim.

use super::unmapped::Range;
use crate::heap::Heap;
use crate::ids::ChunkId;
use crate::sort::sort_by_key;
use crate::units::Span;
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// A free chunk that can give up whole granules.
#[derive(Clone, Copy)]
pub(crate) struct Donor {
    size: u64,
    pub(crate) id: ChunkId,
    pub(crate) span: Span,
}

/// Returns the whole granules of free chunks, the smallest chunk first.
fn possible_donors(heap: &Heap, range: Range) -> impl Iterator<Item = Donor> + '_ {
    heap.indexed_from(range.granule).filter(|&id| heap.is_idle(id)).filter_map(move |id| {
        let (size, addr) = heap.chunks().get(id).key();
        let (from, to) = (range.ceil(addr), range.floor(addr + size));
        (from < to).then(|| Donor { size, id, span: Span { base: from, bytes: to - from } })
    })
}

/// Returns whether a trim would find a granule to release if the device were idle.
pub(crate) fn has_donors(heap: &Heap, range: Range, keep: u64) -> bool {
    heap.growth().pool_bytes().saturating_sub(keep) >= range.granule
        && possible_donors(heap, range).next().is_some()
}

/// Returns the whole granules of free chunks, the largest chunk first.
pub(crate) fn donors(heap: &Heap, range: Range) -> Result<Vec<Donor>, HostMemoryExhausted> {
    let mut donors = Vec::new();
    for donor in possible_donors(heap, range) {
        donors.try_reserve(1)?;
        donors.push(donor);
    }
    sort_by_key(&mut donors, |donor: &Donor| (core::cmp::Reverse(donor.size), donor.span.base));
    Ok(donors)
}

/// Keeps the first donors that make up `wanted` bytes. The last of them gives only a part.
pub(crate) fn choose(heap: &Heap, donors: &mut Vec<Donor>, wanted: u64) {
    let mut left = wanted;
    donors.retain_mut(|donor| {
        let goes = donor.span.bytes.min(left);
        left -= goes;
        if goes < donor.span.bytes && !donor.gives_low(heap) {
            donor.span.base += donor.span.bytes - goes;
        }
        donor.span.bytes = goes;
        goes != 0
    });
}

/// Returns the bytes of all donors.
pub(crate) fn total(donors: &[Donor]) -> u64 {
    donors.iter().map(|donor| donor.span.bytes).sum()
}

impl Donor {
    /// Returns whether a donor that gives only a part gives the lower part, so that the rest stays in one piece where
    /// possible.
    fn gives_low(&self, heap: &Heap) -> bool {
        let addr = heap.addr(self.id);
        let Span { base, bytes } = self.span;
        let whole_below = base == addr;
        let whole_above = base + bytes == addr + self.size;
        whole_below && !whole_above
    }

    /// Excludes a place that is to be filled from the donor's span. The place contains an unmapped chunk, so it
    /// overlaps this chunk from one side at most.
    pub(crate) fn leave(&mut self, place: &Span) {
        let (from, to) = (self.span.base, self.span.base + self.span.bytes);
        let place_end = place.base + place.bytes;
        if place_end <= from || to <= place.base {
            return;
        }
        let (from, to) = if place.base <= from { (place_end.min(to), to) } else { (from, place.base) };
        self.span = Span { base: from, bytes: to - from };
    }
}
