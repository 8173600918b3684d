//! Which memory is to be populated before a request gets it.

use super::heap::Heap;
use crate::core::units::Span;

impl Heap {
    /// Returns memory of a region that is to be populated, up to a multiple of `piece`, a power of two, and how many such
    /// bytes the region has.
    pub(in crate::core) fn unpopulated(&self, piece: u64) -> Option<(Span, u64)> {
        let regions =
            self.regions.iter().map(|(_, region)| region).filter(|region| !region.is_left_unpopulated);
        let mut rests = regions.map(|region| (region.resident_to(), region.base + region.bytes));
        let (base, end) = rests.find(|(base, end)| base < end)?;
        // The last piece may end at the end of the address space.
        let next = (base | (piece - 1)).saturating_add(1);
        Some((Span { base, bytes: next.min(end) - base }, end - base))
    }

    /// Records that memory of a region was populated, and all before it.
    pub(in crate::core) fn note_populated(&mut self, span: Span) {
        if let Some(id) = self.regions.find(span.base) {
            self.regions.get_mut(id).populated = span.base + span.bytes;
        }
    }

    /// Leaves what the region around an address has left to the requests.
    pub(in crate::core) fn leave_unpopulated(&mut self, addr: u64) {
        if let Some(id) = self.regions.find(addr) {
            self.regions.get_mut(id).is_left_unpopulated = true;
        }
    }

    /// Does so for all regions.
    pub(in crate::core) fn leave_all_unpopulated(&mut self) {
        self.regions.each_mut(|region| region.is_left_unpopulated = true);
    }
}
