//! Free chunks that give whole granules: to a place that a request needs, or back to the backend at a trim.

use crate::core::arena::Arena;
use crate::core::heap::chunks::State;
use crate::core::ids::ChunkId;
use crate::core::sort::sort_by_key;
use crate::core::units::Span;
use crate::core::vmm::unmapped::Range;
use crate::sys::HostMemoryExhausted;

/// A free chunk that can give whole granules.
#[derive(Clone, Copy)]
pub(in crate::core) struct Donor {
    size: u64,
    pub(in crate::core) id: ChunkId,
    pub(in crate::core) span: Span,
}

impl Arena {
    /// Free, and of no concern to any work that is under way.
    pub(in crate::core) fn is_idle(&self, id: ChunkId) -> bool {
        self.chunks.state(id) == State::Free && self.chunks.stamp(id) == 0
    }

    /// The whole granules of free chunks, the smallest chunk first.
    fn possible_donors(&self, range: Range) -> impl Iterator<Item = Donor> + '_ {
        let slab = &self.chunks.slab[..];
        let first = self.index.first_of_size(slab, range.granule);
        let chunks = std::iter::successors(first, |&id| self.index.following(slab, slab[id].key()));
        chunks.filter(|&id| self.is_idle(id)).filter_map(move |id| {
            let (size, addr) = slab[id].key();
            let (from, to) = (range.ceil(addr), range.floor(addr + size));
            (from < to).then(|| Donor { size, id, span: Span { base: from, bytes: to - from } })
        })
    }

    /// Whether a trim would find a granule to give back, were the device idle.
    pub(in crate::core) fn has_donors(&self, range: Range, keep: u64) -> bool {
        self.growth.pool_bytes.saturating_sub(keep) >= range.granule
            && self.possible_donors(range).next().is_some()
    }

    /// The whole granules of free chunks, the largest chunk first.
    pub(in crate::core) fn donors(&self, range: Range) -> Result<Vec<Donor>, HostMemoryExhausted> {
        let mut donors = Vec::new();
        for donor in self.possible_donors(range) {
            donors.try_reserve(1)?;
            donors.push(donor);
        }
        sort_by_key(&mut donors, |donor: &Donor| (std::cmp::Reverse(donor.size), donor.span.base));
        Ok(donors)
    }

    /// Of the donors, in their order, those that make up so many bytes; the last gives a part only.
    pub(in crate::core) fn choose(&self, donors: &mut Vec<Donor>, wanted: u64) {
        let mut left = wanted;
        donors.retain_mut(|donor| {
            let goes = donor.span.bytes.min(left);
            left -= goes;
            if goes < donor.span.bytes && !self.gives_low(donor) {
                donor.span.base += donor.span.bytes - goes;
            }
            donor.span.bytes = goes;
            goes != 0
        });
    }

    /// Whether a donor that gives only a part gives its lower one: so that what stays is in one piece, if it can.
    fn gives_low(&self, donor: &Donor) -> bool {
        let addr = self.chunks.addr(donor.id);
        let Span { base, bytes } = donor.span;
        let whole_below = base == addr;
        let whole_above = base + bytes == addr + donor.size;
        whole_below && !whole_above
    }
}

/// The bytes of all of them.
pub(in crate::core) fn total(donors: &[Donor]) -> u64 {
    donors.iter().map(|donor| donor.span.bytes).sum()
}

impl Donor {
    /// Gives nothing of a place that is to be filled. That reaches into its chunk from one side at most, for
    /// there is a hole in it.
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
