//! Small requests beside large free chunks, in pools that grow by need and have more than one region.
//!
//! A large free chunk that a small request splits is lost for the next large request, and the pool then grows by as much.
//! So the pool first grows by a small region, in which there is never a large chunk, as long as small regions are a small
//! part of it. PyTorch's caching allocator has a pool of its own for small requests, with another bound.

use super::heap::Heap;
use super::size_classes::{CLASSES, LARGE, class_of};
use bfc_hostmem::HostMemoryExhausted;

/// A pool grows for small requests as long as regions that are not large have at most this share of it.
const SHARE: u64 = 16;

impl Heap {
    /// Makes small requests spare large chunks, with growth by need. There must be no region yet.
    pub(crate) fn spare_large(&mut self) {
        self.may_spare_large = true;
    }

    /// Lets small requests split any chunk, because other rules than best fit choose the chunks.
    pub(crate) fn never_spare_large(&mut self) {
        self.may_spare_large = false;
        self.split_large_chunks();
    }

    /// Lets small requests split any chunk until the regions or the limit change.
    pub(crate) fn split_large_chunks(&mut self) {
        self.index.set_large_from(CLASSES);
    }

    /// Returns whether a request of `size` bytes must not split a free chunk of `bytes` bytes.
    #[inline(always)]
    pub(crate) fn spares(&self, size: u64, bytes: u64) -> bool {
        self.index.spares(size, bytes)
    }

    /// Decides anew whether small requests spare large chunks. The regions or the limit have changed.
    pub(crate) fn renew_sparing(&mut self) {
        let spares = self.may_spare_large && self.small_region(0) != 0;
        self.index.set_large_from(if spares { class_of(LARGE) } else { CLASSES });
    }

    /// Returns the size of the region to obtain for small requests: as much as the small regions have, in granules of the
    /// first region, so that there are few of them. Returns 0 if there is to be none. Regions that are being obtained
    /// count as small ones.
    pub(crate) fn next_small_region(&self) -> u64 {
        self.small_region(self.growth.reserved())
    }

    fn small_region(&self, reserved: u64) -> u64 {
        let Some(granule) = self.growth.granule_by_need() else { return 0 };
        let held = self.regions.small_bytes();
        let left = (self.regions.bytes() / SHARE).saturating_sub(held).saturating_sub(reserved);
        let most = left.min(LARGE / 2);
        if granule > most { 0 } else { held.clamp(granule, most) / granule * granule }
    }

    /// Allocates as [`Self::alloc`] does, also from a large chunk.
    pub(crate) fn alloc_splitting(
        &mut self,
        size: u64,
        requested: u64,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        let large_from = self.index.set_large_from(CLASSES);
        let allocated = self.alloc(size, requested);
        self.index.set_large_from(large_from);
        allocated
    }
}
