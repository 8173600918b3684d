//! Adding regions that the backend returns: the counterpart of `reclaim`.

use super::arena::Arena;
use super::reclaim::Detached;
use crate::heap::Extension;
use crate::request::Request;
use crate::units::{MAX_CHUNK, Span, round_down};
use bfc_hostmem::HostMemoryExhausted;

impl Arena {
    /// Plans a region that serves a chunk of `least` bytes, by the rule of growth. Reserves its bytes of the limit
    /// until [`Self::add_region`] or [`Self::cancel_extension`]. Returns `None` if the limit leaves no room.
    pub fn plan_extension(&mut self, least: u64) -> Option<Extension> {
        self.heap_mut().growth_mut().plan(least)
    }

    /// Plans a region of exactly `least` bytes.
    pub fn plan_exact_extension(&mut self, least: u64) -> Option<Extension> {
        self.heap_mut().growth_mut().plan_exact_region(least)
    }

    /// Lets small requests grow the pool before they split a large chunk, with growth by need. There must be no region yet.
    /// A range, a plan and two ends, which are set afterwards, end this: they choose chunks by other rules. No effect where
    /// adjacent regions become one, because a small region would become a part of a large one.
    pub fn spare_large_chunks(&mut self) {
        if !self.settings.coalesce_regions {
            self.heap_mut().spare_large();
        }
    }

    /// Returns by how much the pool is to grow for a request that finds nothing only because it would split a large chunk.
    /// 0 is not at all: the request splits the chunk.
    pub fn small_region_for(&self, request: &Request<'_>) -> Option<u64> {
        // A large request, or one that may split, takes whatever it finds.
        if !self.streams.spares(request, u64::MAX) {
            return None;
        }
        let best = self.best_fit_bytes(request)?;
        self.streams.spares(request, best).then(|| match self.heap().next_small_region() {
            0 => 0,
            bytes => bytes.max(request.size_that_always_fits()),
        })
    }

    /// Returns the bytes of the free memory that a request would take, also if it has to spare it.
    fn best_fit_bytes(&self, request: &Request<'_>) -> Option<u64> {
        // A stream that was not seen before has no memory of its own.
        match self.streams.queue_of_request(request) {
            Some(queue) if self.streams.is_multi() => self.streams.best_fit_bytes(request, queue),
            _ if self.is_merging() => None,
            _ => self.find_constrained(request).map(|id| self.heap().size(id)),
        }
    }

    /// Lets small requests split large chunks until the regions or the limit change, because the pool could not grow.
    pub fn split_large_chunks(&mut self) {
        self.heap_mut().split_large_chunks();
    }

    /// Gives up an extension: the backend had no memory for it.
    pub fn cancel_extension(&mut self, extension: &Extension) {
        self.heap_mut().growth_mut().unreserve(extension.reserved());
    }

    /// Returns memory of a region that is to be populated, up to a multiple of `piece`, a power of two, and how many such
    /// bytes the region has.
    pub fn unpopulated(&self, piece: u64) -> Option<(Span, u64)> {
        self.heap().unpopulated(piece)
    }

    /// Records that memory of a region was populated, and all before it.
    pub fn note_populated(&mut self, span: Span) {
        self.heap_mut().note_populated(span);
    }

    /// Leaves what the region around an address has left to the requests.
    pub fn leave_unpopulated(&mut self, addr: u64) {
        self.heap_mut().leave_unpopulated(addr);
    }

    /// Does so for all regions, because free memory is going back.
    pub fn leave_all_unpopulated(&mut self) {
        self.heap_mut().leave_all_unpopulated();
    }

    /// Returns whether a range of addresses overlaps a region.
    pub fn overlaps(&self, base: u64, bytes: u64) -> bool {
        self.regions().overlaps(base, bytes)
    }

    /// Adds a region from the backend: `given` bytes at `base`, a multiple of 256, which overlap no other region. On
    /// failure nothing changed, except that the extension is over.
    pub fn add_region(
        &mut self,
        extension: &Extension,
        base: u64,
        given: u64,
    ) -> Result<(), HostMemoryExhausted> {
        let added = self.insert_region(base, given);
        match added {
            Ok(()) => {
                self.heap_mut().growth_mut().commit(extension, given);
                self.heap_mut().counters_mut().regions_added += 1;
            }
            Err(HostMemoryExhausted) => self.cancel_extension(extension),
        }
        added
    }

    /// Restores a detached region that the backend did not take back. The region still counts as held, and becomes free
    /// memory again. On failure nothing changed.
    pub fn restore(&mut self, region: &Detached) -> Result<(), HostMemoryExhausted> {
        self.insert_region(region.base, region.given)?;
        // Unknown work may still use it, as before.
        self.heap_mut().touch_region(region.base, region.touched);
        Ok(())
    }

    fn insert_region(&mut self, base: u64, given: u64) -> Result<(), HostMemoryExhausted> {
        self.reserve_chunks(1)?;
        let coalesce = self.settings.coalesce_regions;
        let id = self.heap_mut().add_region(base, usable(given), given, coalesce)?;
        self.release(id);
        self.note_region(base);
        Ok(())
    }
}

/// Returns the part of a region that chunks can tile.
pub fn usable(given: u64) -> u64 {
    round_down(given).min(MAX_CHUNK)
}
