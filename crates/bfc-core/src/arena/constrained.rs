//! Requests and frees that need more than best fit: alignments and stamps.

use super::arena::Arena;
use crate::ids::ChunkId;
use crate::request::{MOST_MISALIGNED, Request};
use crate::steps;
use crate::units::Span;
use bfc_hostmem::HostMemoryExhausted;

impl Arena {
    /// Allocates as [`Self::alloc`] does, with stamps and large alignments. Finds nothing while
    /// [`Self::is_merging`].
    #[inline(never)]
    pub(super) fn alloc_constrained(
        &mut self,
        request: &Request<'_>,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        // At most two new chunks: a prefix for the alignment, and a remainder.
        self.reserve_chunks(2)?;
        if self.is_merging() && self.merge_safe_some(MERGED_AT_ONCE) {
            // The best fit is not known before all chunks that may merge are merged.
            return Ok(None);
        }
        let Some(id) = self.find_constrained(request) else { return Ok(None) };
        let Some((base, bytes)) = request.place_in(self.chunks().get(id).key()) else { return Ok(None) };
        if self.streams.spares(request, self.heap().size(id)) {
            return Ok(None);
        }
        self.heap_mut().reserve_start()?;
        let bytes = if self.heap().splits(bytes, request.size) { request.size } else { bytes };
        let Arena { streams, stamps, .. } = self;
        let heap = streams.heap_mut();
        let stamp = stamps.remove_free(heap, id);
        // The chunk was freed as a whole, so what is left of it waits as long as the chunk did.
        let id = heap.carve(id, Span { base, bytes }, |heap, rest| {
            heap.counters_mut().stamped_splits += u64::from(stamp != 0);
            stamps.insert_free(heap, rest, stamp);
        });
        heap.hand_out(id, request.requested);
        heap.touch(id, base + bytes);
        Ok(Some(base))
    }

    /// Finds the first chunk in (size, address) order that has a place at the alignment and an old enough stamp. Only a
    /// few chunks without such a place are passed over. The search then continues with the first chunk that is large
    /// enough to have a place wherever it begins. The chunks between are examined only if the request is thorough.
    pub(super) fn find_constrained(&self, request: &Request<'_>) -> Option<ChunkId> {
        let first_from = |key| self.stamps.first_old_enough(self.heap(), key, request.max_stamp);
        let has_place = |id: &ChunkId| request.place_in(self.chunks().get(*id).key()).is_some();
        let mut next = (request.size, 0);
        for _ in 0..MOST_MISALIGNED {
            steps::count();
            let id = first_from(next)?;
            if has_place(&id) {
                return Some(id);
            }
            next = request.next_with_place(self.chunks().get(id).key());
        }
        let certain = first_from((request.size_that_always_fits(), 0)).filter(has_place);
        if certain.is_none() && request.thorough { self.find_among_all(request) } else { certain }
    }

    /// Finds the chunk that [`Self::find_constrained`] looks for by reading every chunk once. That takes far less for each
    /// of them than a search that passes over them in order.
    fn find_among_all(&self, request: &Request<'_>) -> Option<ChunkId> {
        let chunks = self.chunks();
        let (mut best, mut least) = (None, (u64::MAX, u64::MAX));
        chunks.each_findable(request.size, |id, key| {
            if request.place_in(key).is_some() && key < least && chunks.stamp(id) <= request.max_stamp {
                (best, least) = (Some(id), key);
            }
        });
        best
    }
}

/// How many chunks with safe stamps a request merges by itself. If there are more, they are merged before the request,
/// with the lock opened meanwhile.
const MERGED_AT_ONCE: usize = 8;
