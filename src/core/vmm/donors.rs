//! Free chunks that give whole granules: to a place that a request needs, or back to the backend at a trim.

use super::range::Range;
use crate::core::heap::Heap;
use crate::core::ids::ChunkId;
use crate::core::sort::sort_by_key;
use crate::core::units::Span;
use crate::sys::HostMemoryExhausted;

/// A free chunk that can give whole granules.
#[derive(Clone, Copy)]
pub(in crate::core) struct Donor {
    size: u64,
    pub(in crate::core) id: ChunkId,
    pub(in crate::core) span: Span,
}

/// The whole granules of free chunks, the smallest chunk first.
fn possible_donors(heap: &Heap, range: Range) -> impl Iterator<Item = Donor> + '_ {
    heap.indexed_from(range.granule).filter(|&id| heap.is_idle(id)).filter_map(move |id| {
        let (size, addr) = heap.chunks().get(id).key();
        let (from, to) = (range.ceil(addr), range.floor(addr + size));
        (from < to).then(|| Donor { size, id, span: Span { base: from, bytes: to - from } })
    })
}

/// Whether a trim would find a granule to give back, were the device idle.
pub(in crate::core) fn has_donors(heap: &Heap, range: Range, keep: u64) -> bool {
    heap.growth().pool_bytes().saturating_sub(keep) >= range.granule
        && possible_donors(heap, range).next().is_some()
}

/// The whole granules of free chunks, the largest chunk first.
pub(in crate::core) fn donors(heap: &Heap, range: Range) -> Result<Vec<Donor>, HostMemoryExhausted> {
    let mut donors = Vec::new();
    for donor in possible_donors(heap, range) {
        donors.try_reserve(1)?;
        donors.push(donor);
    }
    sort_by_key(&mut donors, |donor: &Donor| (std::cmp::Reverse(donor.size), donor.span.base));
    Ok(donors)
}

/// Of the donors, in their order, those that make up so many bytes; the last gives a part only.
pub(in crate::core) fn choose(heap: &Heap, donors: &mut Vec<Donor>, wanted: u64) {
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

/// The bytes of all of them.
pub(in crate::core) fn total(donors: &[Donor]) -> u64 {
    donors.iter().map(|donor| donor.span.bytes).sum()
}

impl Donor {
    /// Whether a donor that gives only a part gives its lower one: so that what stays is in one piece, if it can.
    fn gives_low(&self, heap: &Heap) -> bool {
        let addr = heap.addr(self.id);
        let Span { base, bytes } = self.span;
        let whole_below = base == addr;
        let whole_above = base + bytes == addr + self.size;
        whole_below && !whole_above
    }

    /// Gives nothing of a place that is to be filled. That reaches into its chunk from one side at most, for
    /// there is an unmapped chunk in it.
    pub(in crate::core) fn leave(&mut self, place: &Span) {
        let (from, to) = (self.span.base, self.span.base + self.span.bytes);
        let place_end = place.base + place.bytes;
        if place_end <= from || to <= place.base {
            return;
        }
        let (from, to) = if place.base <= from { (place_end.min(to), to) } else { (from, place.base) };
        self.span = Span { base: from, bytes: to - from };
    }
}
