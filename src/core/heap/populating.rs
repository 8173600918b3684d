//! Which memory is to be made resident before it is handed out.

use super::heap::Heap;
use crate::core::units::Span;

impl Heap {
    /// Returns the first `most` bytes of a region that are not populated and were never handed out, as far as is known,
    /// and how many such bytes the region has.
    pub(in crate::core) fn unpopulated(&self, most: u64) -> Option<(Span, u64)> {
        let rest = |(base, end): (u64, u64)| (Span { base, bytes: most.min(end - base) }, end - base);
        let spans = self.regions.iter().map(|(_, region)| (region.resident_to(), region.base + region.bytes));
        spans.filter(|(from, end)| from < end).map(rest).next()
    }

    /// Records that memory of a region was populated, and all before it.
    pub(in crate::core) fn note_populated(&mut self, span: Span) {
        if let Some(id) = self.regions.find(span.base) {
            self.regions.get_mut(id).populated = span.base + span.bytes;
        }
    }
}
