//! Requests and frees that need more than best fit: alignments and stamps.

use super::arena::Arena;
use crate::core::ids::ChunkId;
use crate::core::request::{AllocRequest, MOST_MISALIGNED};
use crate::core::steps;
use crate::core::units::UNIT;
use crate::sys::HostMemoryExhausted;

impl Arena {
    /// Allocates as [`Self::alloc`] does, with stamps and large alignments. Finds nothing while
    /// [`Self::is_merging`].
    #[inline(never)]
    pub(super) fn alloc_constrained(
        &mut self,
        request: &AllocRequest<'_>,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        // At most two new chunks: a prefix for the alignment, and a remainder.
        self.reserve_chunks(2)?;
        if self.is_merging() && self.merge_safe_some(MERGED_AT_ONCE) {
            // The best fit is not known before all chunks that may merge are merged.
            return Ok(None);
        }
        let Some(mut id) = self.find_constrained(request) else { return Ok(None) };
        if self.streams.spares(request, self.heap().size(id)) {
            return Ok(None);
        }
        self.heap_mut().reserve_start()?;
        let stamp = self.stamps.remove_free(self.streams.heap_mut(), id);
        if request.alignment > UNIT {
            id = self.split_prefix(id, request.alignment, stamp);
        }
        let whole = self.heap().size(id);
        let splits = self.heap().splits(whole, request.size);
        if splits {
            self.split_remainder(id, request.size, stamp);
        }
        self.heap_mut().mark_in_use(id);
        let size = if splits { request.size } else { whole };
        self.heap_mut().hand_out(id, size, request.requested);
        let addr = self.heap().addr(id);
        self.heap_mut().touch(id, addr + size);
        Ok(Some(addr))
    }

    /// Finds the first chunk in (size, address) order that has a place at the alignment and an old enough stamp. Only a
    /// few chunks without such a place are passed over. The search then continues with the first chunk that is large
    /// enough to have a place wherever it begins. The chunks between are examined only if the request is thorough.
    pub(super) fn find_constrained(&self, request: &AllocRequest<'_>) -> Option<ChunkId> {
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

    /// Finds the same by reading every chunk once. That takes far less for each of them than a search that passes over
    /// them in order.
    fn find_among_all(&self, request: &AllocRequest<'_>) -> Option<ChunkId> {
        let chunks = self.chunks();
        let (mut best, mut least) = (None, (u64::MAX, u64::MAX));
        chunks.each_findable(request.size, |id, key| {
            if request.place_in(key).is_some() && key < least && chunks.stamp(id) <= request.max_stamp {
                (best, least) = (Some(id), key);
            }
        });
        best
    }

    /// Splits a free prefix off a chunk that was removed, so that the rest is aligned. The chunk was freed as a whole,
    /// so the prefix waits as long as the chunk did.
    fn split_prefix(&mut self, id: ChunkId, alignment: u64, stamp: u64) -> ChunkId {
        let addr = self.heap().addr(id);
        let prefix = addr.next_multiple_of(alignment) - addr;
        if prefix == 0 {
            return id;
        }
        let rest = self.heap_mut().split(id, prefix);
        self.heap_mut().counters_mut().stamped_splits += u64::from(stamp != 0);
        self.stamps.insert_free(self.streams.heap_mut(), id, stamp);
        rest
    }

    /// Splits a chunk that was removed behind `wanted` bytes. The remainder is free, and waits as the prefix does.
    fn split_remainder(&mut self, id: ChunkId, wanted: u64, stamp: u64) {
        let rest = self.heap_mut().split(id, wanted);
        self.heap_mut().counters_mut().stamped_splits += u64::from(stamp != 0);
        self.stamps.insert_free(self.streams.heap_mut(), rest, stamp);
    }
}

/// How many chunks with safe stamps a request merges by itself. If there are more, they are merged before the request,
/// with the lock opened meanwhile.
const MERGED_AT_ONCE: usize = 8;
