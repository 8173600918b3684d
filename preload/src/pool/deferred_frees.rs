//! Frees that are deferred until no stream is captured. They belong to pools that reuse freed memory at once, where
//! cudaFree has to wait for the device first, which a capture forbids.

use bfc_sys::BFC_OK;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use cuda_sys::*;

use super::handle::Pool;
use crate::state::captures;

struct DeferredFree {
    /// 0 if the place is free.
    address: AtomicU64,
    pool: AtomicI32,
    /// Whether the synchronization in progress began after this free.
    is_covered: AtomicBool,
}

const MAX_DEFERRED: usize = 256;

static DEFERRED: [DeferredFree; MAX_DEFERRED] = [const {
    DeferredFree { address: AtomicU64::new(0), pool: AtomicI32::new(0), is_covered: AtomicBool::new(false) }
}; MAX_DEFERRED];

/// Not an address: the place is being filled.
const CHANGING: u64 = 1;

/// The number of deferred frees, so that a check costs one load if there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Set while a thread is freeing them.
static IS_FREEING: AtomicBool = AtomicBool::new(false);

impl DeferredFree {
    /// Makes the place free. Returns false if it is another free's by now, because the memory was lost meanwhile.
    fn remove(&self, address: u64) -> bool {
        let is_removed =
            self.address.compare_exchange(address, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        COUNT.fetch_sub(usize::from(is_removed), Ordering::AcqRel);
        is_removed
    }
}

impl Pool {
    fn deferred(self) -> impl Iterator<Item = (&'static DeferredFree, u64)> {
        let is_of_this = move |place: &&DeferredFree| place.pool.load(Ordering::Acquire) == self.ordinal;
        let all = DEFERRED.iter().map(|place| (place, place.address.load(Ordering::Acquire)));
        all.filter(move |(place, address)| *address > CHANGING && is_of_this(place))
    }

    /// Returns whether the free of that chunk was deferred. For the program the chunk is free.
    pub(super) fn has_deferred(self, address: u64) -> bool {
        COUNT.load(Ordering::Acquire) != 0 && self.deferred().any(|(_, other)| other == address)
    }

    /// Defers the free of a live chunk. Returns false if too many are deferred.
    pub(super) fn defer_free(self, address: u64) -> bool {
        let take = |place: &&DeferredFree| {
            place.address.compare_exchange(0, CHANGING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(place) = DEFERRED.iter().find(take) else { return false };
        place.pool.store(self.ordinal, Ordering::Relaxed);
        place.is_covered.store(false, Ordering::Relaxed);
        place.address.store(address, Ordering::Release);
        COUNT.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Frees the deferred chunks, if waiting for the device is allowed by now.
    #[inline]
    pub(super) fn flush_deferred_frees(self) {
        if COUNT.load(Ordering::Relaxed) != 0 && !captures::any() {
            self.flush_all_deferred();
        }
    }

    #[cold]
    fn flush_all_deferred(self) {
        if self.deferred().next().is_none() || IS_FREEING.swap(true, Ordering::AcqRel) {
            return;
        }
        // The synchronization does not cover chunks deferred meanwhile.
        self.deferred().for_each(|(place, _)| place.is_covered.store(true, Ordering::Relaxed));
        if self.wait() == CUDA_SUCCESS {
            for (place, address) in
                self.deferred().filter(|(place, _)| place.is_covered.load(Ordering::Relaxed))
            {
                // The entry must be gone before another request can get the chunk.
                if place.remove(address) && self.return_chunk(address) == BFC_OK {
                    self.state.freed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        IS_FREEING.store(false, Ordering::Release);
    }

    /// Forgets the deferred frees of this pool, whose memory is lost.
    pub(super) fn forget_deferred_frees(self) {
        for (place, address) in self.deferred() {
            place.remove(address);
        }
    }
}
